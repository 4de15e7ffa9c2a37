/*-------------------------------------------------------------------------
 *
 * effective_limit.c
 *		How many slots are given out: the limit, or less.
 *
 * The law of the limit (limit_law.c) says how many; load_control.c tells it what the
 * holders do.  Limits of pools are not lowered.
 *
 * While the limit is lowered, the waiters' flag of Slots->word stays set, even without
 * waiters.  This keeps backends off the hot path: a backend that releases a slot takes the
 * lock, and slots_unlock() restores the limit once no waiter could use a free slot.
 *
 * Locking: everything here is called with the lock held, or while the shared memory is
 * being made.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/effective_limit.h"
#include "core/shared.h"

#define NEVER			PG_UINT64_MAX

/* Publish the limit of the law. */
void
slots_apply_law(void)
{
	pg_atomic_write_u32(&Slots->effective_limit, Slots->law.limit);
}

/*
 * Begin anew, without contention, with the limit as it is set now.
 */
void
slots_reset_law(TimestampTz now)
{
	uint32		most = Slots->limit > 0 ? Slots->limit : NO_LIMIT;
	bool		looks = limit_finds_itself() && !Slots->observing &&
	pg_atomic_read_u32(&Slots->load_control) != 0;

	if (limit_finds_itself())
		most = Slots->nentries;
	limit_law_init(&Slots->law, most, looks, now);
	slots_apply_law();
	pg_atomic_write_u64(&Slots->look.interval,
						looks ? OPEN_INTERVALS * look_interval() + SLOTS_LOOK_SLACK : NEVER);
}

/*
 * No backend waits, and a slot is free: give out all of them.
 */
void
slots_restore_limit(TimestampTz now)
{
	limit_law_no_waiter(&Slots->law, now);
	slots_apply_law();
}
