/*-------------------------------------------------------------------------
 *
 * last_resort.c
 *		The last resort: a queue that stands still moves all the same.
 *
 * A holder may wait for a backend in the queue without lending its slot.  So if no waiter
 * has been admitted for FIRST_PATIENCE, the next one enters above the limit, then another
 * after twice that time, and so on up to LAST_PATIENCE.  An ordinary admission resets the
 * time.
 *
 * If all slots are held by statements that have been at work throughout, they probably do
 * not wait for a backend in the queue, and the limit does its job.  Then the first waiter,
 * too, enters only after LAST_PATIENCE, so that no backend waits for ever.
 *
 * A pool whose own slots are all in use has its own clock.  The waiters of all other pools
 * share one, which is reset by admissions from any queue.
 *
 * Locking: see shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/counting.h"
#include "core/entries.h"
#include "core/last_resort.h"
#include "core/lending.h"
#include "core/shared.h"
#include "core/wait_queue.h"

/* The longest time that the first in a queue has patience, ms */
#define LAST_PATIENCE	60000

/* A queue that stands still */
typedef struct Stall
{
	StallClock *clock;
	int			patience;		/* ms */
	int			waiter;			/* the one that enters next */
	int			pool;			/* whose slots are all in use, or NO_POOL if
								 * that is so of all slots together */
	uint32		limit;			/* slots, of that pool or of all */
	TimestampTz since;
} Stall;

/*
 * Time (ms) without an admission after which this queue counts as stalled: at least
 * FIRST_PATIENCE plus the larger of handoff_after and lend_after, as either may
 * legitimately delay waiters.
 */
static int
patience_of(const StallClock *clock)
{
	int64		others = Max((int64) pg_atomic_read_u32(&Slots->handoff_after), slots_lend_after());

	return Max(clock->patience, (int) Min(FIRST_PATIENCE + others, LAST_PATIENCE));
}

/*
 * Does the queue of this waiter, the next by this clock, count as stalled?  If so, fill in
 * *stall.  pool, limit: as in Stall.  Lock held.
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

/* Find a queue that stands still.  Lock held. */
static bool
find_stall(TimestampTz now, Stall *stall)
{
	int			next = slots_next_waiter(now);
	uint64		left = Slots->waiting_pools;
	SlotPool   *pool;

	if (next != INVALID_PROC_NUMBER &&
		is_stalled(&Slots->stall, next, NO_POOL,
				   pg_atomic_read_u32(&Slots->effective_limit), now, stall))
		return true;

	while ((pool = slots_next_waiting_pool(&left)) != NULL)
	{
		if (!pool_has_slot_free(pool) &&
			is_stalled(&pool->stall, pool->queue.head, pool - Slots->pools,
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
			(stall->pool == NO_POOL || entry->pool == stall->pool) &&
			(TimestampTz) pg_atomic_read_u64(&entry->since) <= stall->since)
			at_work++;
	}
	return at_work >= stall->limit;
}

/*
 * Admit the next waiter above the limit.  Only the clock of this stall advances.  Lock
 * held.
 */
static void
relieve(const Stall *stall, LockedSection *section)
{
	SlotEntry  *entry = entry_of(stall->waiter);
	SlotPool   *pool = pool_of(entry);
	StallClock	of_all = Slots->stall;
	StallClock	of_pool = pool->stall;

	count_in(entry);
	slots_grant(stall->waiter, section);
	pool->totals[TOTAL_STALLS]++;

	Slots->stall = of_all;
	pool->stall = of_pool;
	stall->clock->moved = section->now;
	stall->clock->patience = Min(2 * stall->patience, LAST_PATIENCE);
}

/*
 * The watcher's duty: if a queue stands still, let its next waiter in.
 */
void
slots_relieve_stall(void)
{
	LockedSection section;
	Stall		stall;
	Stall		still;
	bool		found;
	bool		all_at_work;

	slots_lock(&section);
	found = find_stall(section.now, &stall);
	slots_unlock(&section);
	if (!found)
		return;

	all_at_work = stall.patience < LAST_PATIENCE && holders_are_at_work(&stall);

	/*
	 * Check again with a fresh timestamp: a waiter may have arrived after the
	 * first section began.
	 */
	slots_lock(&section);
	if (find_stall(section.now, &still) && still.clock == stall.clock)
	{
		if (all_at_work)
			still.clock->patience = LAST_PATIENCE;
		else
			relieve(&still, &section);
	}
	slots_unlock(&section);
}
