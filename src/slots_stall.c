/*-------------------------------------------------------------------------
 *
 * slots_stall.c
 *		The last resort: a queue that stands still moves all the same.
 *
 * Nobody can know what a holder waits for.  If it is for a backend in the queue,
 * and the holder does not lend its slot, nothing would ever move.  So, when a
 * backend waits and none has been let in from its queue for FIRST_PATIENCE, the
 * next enters above the limit; then after twice that time, and so on up to
 * LAST_PATIENCE.  When a slot is given to a waiter in the ordinary way, the time
 * begins again.
 *
 * Where all slots are held by statements that were at work all the time, there is
 * no reason to think that they wait for anybody: the limit does what it is there
 * for.  Then the first one, too, enters only after LAST_PATIENCE, for all that is
 * certain is that nobody waits for ever.
 *
 * A pool whose own slots are all in use has a clock of its own; a waiter of any other
 * pool waits for a slot of all, whose clock goes by the entries from all queues.
 *
 * Locking: see slots_shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "settings.h"
#include "slots.h"
#include "slots_shared.h"

/* ms */
#define FIRST_PATIENCE	1000
#define LAST_PATIENCE	60000

/* A queue that stands still */
typedef struct Stall
{
	StallClock *clock;
	int			patience;		/* ms */
	int			waiter;			/* who enters next */
	int			pool;			/* whose slots are all in use, or NOBODY if
								 * that is so of all slots together */
	uint32		limit;			/* slots, of that pool or of all */
	TimestampTz since;
} Stall;

void
slots_init_stall_clock(StallClock *clock)
{
	clock->moved = 0;
	clock->patience = FIRST_PATIENCE;
}

/*
 * A queue that was empty has a waiter: what happened long ago does not count.  What
 * happened of late does, or those who come one by one would all be let in soon.  Mutex
 * held.
 */
void
slots_note_first_waiter(StallClock *clock, TimestampTz now)
{
	if (passed_since(clock->moved, 2 * clock->patience, now))
		clock->patience = FIRST_PATIENCE;
}

/* That entry is let in from its queue.  Mutex held. */
void
slots_note_entry(SlotEntry *entry, TimestampTz now)
{
	StallClock *of_pool = &pool_of(entry)->stall;

	of_pool->moved = Slots->stall.moved = now;
	of_pool->patience = Slots->stall.patience = FIRST_PATIENCE;
}

/*
 * How long (ms) the waiters of that clock have patience.  For as long as the settings
 * have others go before them, or keep their slots, they do not stand still.
 */
static int
patience_of(const StallClock *clock)
{
	int64		others = Max(Max(gate_handoff_after, gate_turn_length), slots_lend_after());

	return Max(clock->patience, (int) Min(FIRST_PATIENCE + others, LAST_PATIENCE));
}

/*
 * Has that waiter, who is next by that clock, seen nobody enter for too long?  If so,
 * describe it.  pool and limit: as in Stall.  Mutex held.
 */
static bool
is_stalled(StallClock *clock, int waiter, int pool, uint32 limit, TimestampTz now,
		   Stall *stall)
{
	TimestampTz arrived = pg_atomic_read_u64(&entry_of(waiter)->since);
	int			patience = patience_of(clock);

	/* The system's clock may have been set back. */
	clock->moved = Min(clock->moved, now);
	if (arrived > now)
		arrived = clock->moved;
	stall->since = Max(clock->moved, arrived);
	if (!passed_since(stall->since, patience, now))
		return false;
	stall->clock = clock;
	stall->patience = patience;
	stall->waiter = waiter;
	stall->pool = pool;
	stall->limit = limit;
	return true;
}

/* Find a queue that stands still.  Mutex held. */
static bool
find_stall(TimestampTz now, Stall *stall)
{
	int			next = slots_next_waiter(now);

	if (next != NOBODY &&
		is_stalled(&Slots->stall, next, NOBODY,
				   pg_atomic_read_u32(&Slots->effective_limit), now, stall))
		return true;

	for (int i = 0; i < Slots->npools; i++)
	{
		SlotPool   *pool = &Slots->pools[i];

		if (pool->queue.head != NOBODY && !pool_has_slot_free(pool) &&
			is_stalled(&pool->stall, pool->queue.head, i,
					   pg_atomic_read_u32(&pool->effective_limit), now, stall))
			return true;
	}
	return false;
}

/*
 * Are all slots in question held by statements that have been at work since the queue
 * stands still?  No lock: it may be wrong about a holder that comes or goes.
 */
static bool
holders_are_at_work(const Stall *stall)
{
	uint32		at_work = 0;

	for (int procno = 0; procno < Slots->nentries; procno++)
	{
		SlotEntry  *entry = entry_of(procno);

		if (slots_state(procno) == SLOT_RUNNING && entry->at_work &&
			(stall->pool == NOBODY || entry->pool == stall->pool) &&
			(TimestampTz) pg_atomic_read_u64(&entry->since) <= stall->since)
			at_work++;
	}
	return at_work >= stall->limit;
}

/*
 * Let the next waiter in, above the limit.  Only the clock of this stall goes on.
 * Mutex held.
 */
static void
relieve(const Stall *stall, TimestampTz now, WakeList *wakes)
{
	SlotEntry  *entry = entry_of(stall->waiter);
	SlotPool   *pool = pool_of(entry);
	StallClock	of_all = Slots->stall;
	StallClock	of_pool = pool->stall;

	slots_count_in(entry);
	slots_grant(stall->waiter, now, wakes);
	pool->totals[TOTAL_STALLS]++;

	Slots->stall = of_all;
	pool->stall = of_pool;
	stall->clock->moved = now;
	stall->clock->patience = Min(2 * stall->patience, LAST_PATIENCE);
}

/*
 * The watcher's duty: if a queue stands still, let its next waiter in.
 */
void
slots_relieve_stall(void)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();
	Stall		stall;
	Stall		still;
	bool		found;
	bool		all_at_work;

	SpinLockAcquire(&Slots->mutex);
	found = find_stall(now, &stall);
	SpinLockRelease(&Slots->mutex);
	if (!found)
		return;

	all_at_work = stall.patience < LAST_PATIENCE && holders_are_at_work(&stall);

	SpinLockAcquire(&Slots->mutex);
	if (find_stall(now, &still) && still.clock == stall.clock)
	{
		if (all_at_work)
			still.clock->patience = LAST_PATIENCE;
		else
			relieve(&still, now, &wakes);
	}
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}
