/*-------------------------------------------------------------------------
 *
 * slots_contention.c
 *		How much of the limit is used while holders block each other.
 *
 * Whoever looks (contention.c) tells how many of the holders are blocked.  If
 * these are more than half, the effective limit goes down by a part of itself, to no
 * less than one slot, and else up again; down only when no more slots are in
 * use than the last time allowed, so that what was seen is what came of it.
 * It is lowered only as long as somebody waits who could have a slot:
 * slots_settle restores it when there is nobody.  So the hot path, which is
 * for when nobody waits, never meets a lowered limit.  Limits of pools are not
 * lowered.
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

/* A step is one slot, and of the effective limit one slot in so many. */
#define SLOTS_PER_STEP	4

/*
 * The shortest time between two looks, us: this, and more where there are so many
 * entries to look at that it would cost too much.
 */
#define MIN_INTERVAL			5000
#define INTERVAL_PER_BACKEND	10

/*
 * Set whether the limit is lowered while too many holders are blocked.
 */
void
slots_set_load_control(bool load_control)
{
	pg_atomic_write_u32(&Slots->load_control, load_control);
	slots_wake_watcher();
}

/* Is the limit to be lowered when too many holders are blocked? */
bool
slots_lowers_limit(void)
{
	return pg_atomic_read_u32(&Slots->load_control) != 0;
}

/* Are fewer slots given out than the limit says?  A hint, no lock. */
bool
slots_limit_is_lowered(void)
{
	return pg_atomic_read_u32(&Slots->effective_limit) < slots_whole_limit();
}

/*
 * Does somebody wait, so that it matters, and has nobody looked lately?  Then only
 * one of those who ask is told so.
 */
bool
slots_contention_unseen(void)
{
	int			interval = Max(MIN_INTERVAL, INTERVAL_PER_BACKEND * Slots->nentries);

	return (pg_atomic_read_u32(&Slots->word) & WORD_WAITERS) != 0 &&
		is_due(&Slots->contention_seen, interval, GetCurrentTimestamp());
}

/*
 * The effective limit to go on with, in slots.  Mutex held.
 */
static uint32
adapted_limit(bool contended)
{
	uint32		effective = pg_atomic_read_u32(&Slots->effective_limit);
	uint32		step = 1 + effective / SLOTS_PER_STEP;

	Assert(effective >= 1 && effective <= slots_whole_limit());
	if (!contended)
		return Min(effective + step, slots_whole_limit());
	if (slots_in_use() > effective)
		return effective;
	return effective > step ? effective - step : 1;
}

/*
 * So many backends were seen running, and so many of them blocked: give out fewer
 * slots if these are more than half, else more, up to the limit.
 */
void
slots_adapt_limit(int running, int blocked)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();
	bool		contended;

	SpinLockAcquire(&Slots->mutex);
	contended = slots_lowers_limit() && 2 * blocked > running;
	if (slots_whole_limit() != NO_LIMIT &&
		(pg_atomic_read_u32(&Slots->word) & WORD_WAITERS) != 0)
		pg_atomic_write_u32(&Slots->effective_limit, adapted_limit(contended));
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}
