/*-------------------------------------------------------------------------
 *
 * slots_contention.c
 *		How much of the limit is used while holders wait for each other.
 *
 * Whoever looks (contention.c) tells how many of the holders do.  The law of the limit
 * (limit_law.c) makes of it how many slots are given out: the effective limit.  Limits
 * of pools are not lowered.
 *
 * While the limit is lowered, the flag "somebody waits" of the word for all is set,
 * even if nobody does: so the hot path, which is for when nobody waits, never meets a
 * lowered limit, and whoever gives a slot back comes by slots_settle, which restores
 * the limit when nobody waits and a slot is free.
 *
 * If the limit finds itself, there is a slot for every backend before there is
 * contention, and nobody waits who would look.  So then every backend that takes a
 * slot compares the time of its statement with that of the last look.
 *
 * Locking: see slots_shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "slots.h"
#include "slots_shared.h"

/*
 * The shortest time between two looks, us: this, and more where there are so many
 * entries to look at that it would cost too much, but not so long that one says nothing
 * of the next; and so many times as long while nobody waits.
 */
#define MIN_INTERVAL			5000
#define INTERVAL_PER_BACKEND	10
#define MAX_INTERVAL			200000
#define OPEN_INTERVALS			4

/* A change of fewer slots is no news, unless it is one to or from all of them. */
#define LEAST_CHANGE			4

#define NEVER					PG_UINT64_MAX

SlotLook   *slots_look = NULL;

/* Is the limit to find itself?  Mutex held, or a hint. */
static inline bool
finds_itself(void)
{
	return *(const volatile int *) &Slots->limit < 0;
}

/* The time between two looks while somebody waits, us. */
static inline uint64
look_interval(void)
{
	return Min(Max(MIN_INTERVAL, INTERVAL_PER_BACKEND * (uint64) Slots->nentries), MAX_INTERVAL);
}

/*
 * The law has spoken: go by it, and take it down if that is worth a line.  Mutex held,
 * to be followed by slots_settle(), or the shared memory is being made.
 */
static void
apply_law(TimestampTz now)
{
	uint32		limit = Slots->law.limit < slots_whole_limit() ? Slots->law.limit : 0;
	uint32		shown = Slots->limit_shown;
	SlotLimitChange *change;

	pg_atomic_write_u32(&Slots->effective_limit, Slots->law.limit);
	if ((limit == 0) == (shown == 0) &&
		((limit > shown / 2 && limit / 2 < shown) || abs((int) limit - (int) shown) < LEAST_CHANGE))
		return;

	change = &Slots->changes[Slots->nchanges++ % SLOTS_LIMIT_CHANGES];
	change->time = now;
	change->from = shown;
	change->to = limit;
	change->reason = Slots->law.reason;
	change->working = Slots->law.last.working;
	change->blocked = Slots->law.last.blocked;
	Slots->limit_shown = limit;
}

/*
 * Begin anew with all slots given out, as many as are set now.  Mutex held, to be
 * followed by slots_settle(), or the shared memory is being made.
 */
void
slots_reset_law(TimestampTz now)
{
	bool		looks = finds_itself() && !Slots->observing &&
	pg_atomic_read_u32(&Slots->load_control) != 0;

	limit_law_init(&Slots->law, slots_whole_limit(), now);
	apply_law(now);
	pg_atomic_write_u64(&Slots->look.interval,
						looks ? OPEN_INTERVALS * look_interval() + SLOTS_LOOK_SLACK : NEVER);
}

/*
 * Set whether the limit is lowered while too many holders wait for each other.
 */
void
slots_set_load_control(bool load_control)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);
	if ((pg_atomic_read_u32(&Slots->load_control) != 0) != load_control)
	{
		pg_atomic_write_u32(&Slots->load_control, load_control);
		slots_reset_law(now);
	}
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	slots_wake_watcher();
}

/* Are fewer slots given out than the limit says?  A hint, no lock. */
bool
slots_limit_is_lowered(void)
{
	return pg_atomic_read_u32(&Slots->effective_limit) < slots_whole_limit();
}

/*
 * Is the limit to be adapted?  One that is set, only while somebody waits.  Mutex held,
 * or a hint.
 */
static bool
is_adaptable(void)
{
	return pg_atomic_read_u32(&Slots->load_control) != 0 && !Slots->observing &&
		(finds_itself() ||
		 (slots_whole_limit() != NO_LIMIT &&
		  (pg_atomic_read_u32(&Slots->word) & WORD_WAITERS) != 0));
}

/*
 * Does it matter how many holders wait for each other, and has nobody looked lately?
 * Then only one of those who ask is told so.
 */
bool
slots_contention_unseen(void)
{
	bool		waiters = (pg_atomic_read_u32(&Slots->word) & WORD_WAITERS) != 0;
	uint64		interval = look_interval() * (waiters ? 1 : OPEN_INTERVALS);

	return is_adaptable() &&
		is_due(&Slots->look.seen, interval, GetCurrentTimestamp()) &&
		(waiters || slots_in_use() > LIMIT_LEAST_SLOTS);
}

/*
 * So many holders were seen that work or wait for each other, and so many of them that
 * wait: give out fewer slots, or more, up to the limit.
 */
void
slots_adapt_limit(uint32 working, uint32 blocked)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();
	uint32		completed = slots_total_completed();

	SpinLockAcquire(&Slots->mutex);
	if (is_adaptable())
	{
		LimitSight	sight = {
			.now = now,
			.most = slots_whole_limit(),
			.in_use = slots_in_use(),
			.working = working,
			.blocked = blocked,
			.completed = completed
		};

		if (limit_law_look(&Slots->law, &sight))
			apply_law(now);
	}
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}

/*
 * Nobody waits, and a slot is free: give out all of them.  Mutex held.
 */
void
slots_restore_limit(TimestampTz now)
{
	limit_law_no_waiter(&Slots->law, slots_whole_limit(), now);
	apply_law(now);
}

/* ----------------------------------------------------------------
 *		Looking
 * ----------------------------------------------------------------
 */

/* How the limit stands, and why. */
void
slots_get_limit(SlotLimitView *view)
{
	SpinLockAcquire(&Slots->mutex);
	view->set = Slots->limit;
	view->is_lowered = slots_limit_is_lowered();
	view->law = Slots->law;
	view->long_share = slots_long_share();
	view->short_working = Slots->short_working;
	SpinLockRelease(&Slots->mutex);
}

/*
 * The latest changes of the limit, oldest first.  Returns how many there are.
 */
int
slots_get_limit_changes(SlotLimitChange changes[SLOTS_LIMIT_CHANGES])
{
	int			n = 0;
	uint64		end;

	SpinLockAcquire(&Slots->mutex);
	end = Slots->nchanges;
	SpinLockRelease(&Slots->mutex);

	for (uint64 i = end > SLOTS_LIMIT_CHANGES ? end - SLOTS_LIMIT_CHANGES : 0; i < end; i++)
	{
		SpinLockAcquire(&Slots->mutex);
		/* It may have been overwritten since. */
		if (i + SLOTS_LIMIT_CHANGES >= Slots->nchanges)
			changes[n++] = Slots->changes[i % SLOTS_LIMIT_CHANGES];
		SpinLockRelease(&Slots->mutex);
	}
	return n;
}
