/*-------------------------------------------------------------------------
 *
 * limits.c
 *		Sets what holds for all pools: the limit, whether it is only observed, and
 *		how strict the order is.
 *
 * While the limits are observed, no backend enters a queue any more: one that
 * would have is counted, and enters above the limit.
 *
 * Locking: see shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/counting.h"
#include "core/hot_spots.h"
#include "core/limits.h"
#include "core/shared.h"
#include "core/wait_queue.h"

/*
 * One step towards empty queues, while there is no limit or it is only
 * observed: let a waiter in, above the limits if need be.  Returns false if
 * there was nothing to do.
 */
static bool
release_one(void)
{
	LockedSection section;
	int			waiter;

	slots_lock(&section);
	waiter = slots_any_waiter();
	if (Slots->max_active != 0 && !Slots->observing)
		waiter = INVALID_PROC_NUMBER;	/* another process has set a limit
										 * since */
	if (waiter != INVALID_PROC_NUMBER)
	{
		slots_grant(waiter, count_in(entry_of(waiter)->queue), &section);
	}
	slots_unlock(&section);
	return waiter != INVALID_PROC_NUMBER;
}

/*
 * Empty the queues.  The caller has seen to it that no backend enters one any
 * more.
 */
static void
release_all(void)
{
	while (release_one())
		 /* the lock is free in between */ ;
}

/*
 * Set the limit (slots, 0 = the gate is off, -1 = none but those of hot
 * spots).  If it was raised, waiters enter; if there is none, all do, as the
 * limits of pools do not hold then; if it was lowered, holders finish and new
 * ones wait.
 */
void
slots_set_limit(int limit)
{
	LockedSection section;

	slots_lock(&section);
	Slots->max_active = limit;
	pg_atomic_write_u32(&Slots->limit, limit > 0 ? limit : NO_LIMIT);
	slots_unlock(&section);
	slots_schedule_samples();

	if (limit == 0)
		release_all();
	else
		slots_grant_free();
}

/*
 * Set whether the limits are only observed: then no backend queues, and those
 * that wait are let in.  When they are enforced again, new ones wait until
 * those at work are fewer than the limit, as if it had been lowered.
 */
void
slots_set_observing(bool observing)
{
	LockedSection section;

	slots_lock(&section);
	Slots->observing = observing;
	slots_unlock(&section);

	if (observing)
		release_all();
}

/*
 * Set how long (ms) the first in the queue waits before a released slot is
 * handed off to it; 0 = not at all.
 */
void
slots_set_handoff_after(int handoff_after)
{
	pg_atomic_write_u32(&Slots->handoff_after, (uint32) handoff_after);
}
