/*-------------------------------------------------------------------------
 *
 * effective_limit.h
 *		How many slots are given out: for the files of src/core only.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_EFFECTIVE_LIMIT_H
#define ADMISSION_GATE_EFFECTIVE_LIMIT_H

#include "postgres.h"

#include "core/shared.h"

#define MIN_LOOK_INTERVAL		5000
#define INTERVAL_PER_BACKEND	10
#define MAX_LOOK_INTERVAL		200000
#define OPEN_INTERVALS			4

/* Is the limit to find itself?  Lock held, or a hint. */
static inline bool
limit_finds_itself(void)
{
	return *(const volatile int *) &Slots->limit < 0;
}

/* Are fewer slots given out than if there were no contention?  Lock held, or a hint. */
static inline bool
limit_is_lowered(void)
{
	return pg_atomic_read_u32(&Slots->effective_limit) <
		*(const volatile uint32 *) &Slots->law.open_limit;
}

/*
 * Will waiters of this pool enter as soon as a limit that finds itself has grown?  Then a
 * queue of any length empties within some looks.  Lock held.
 */
static inline bool
is_opening(SlotPool *pool)
{
	return limit_finds_itself() && !limit_is_lowered() && !pool_has_limit(pool);
}

/*
 * The time between two looks for contention while backends wait, us: longer where there
 * are many entries to look at, but not so long that one look says nothing of the next.
 * OPEN_INTERVALS times that while none waits.
 */
static inline uint64
look_interval(void)
{
	return Min(Max(MIN_LOOK_INTERVAL, INTERVAL_PER_BACKEND * (uint64) Slots->nentries),
			   MAX_LOOK_INTERVAL);
}

extern void slots_apply_law(void);
extern void slots_reset_law(TimestampTz now);
extern void slots_restore_limit(TimestampTz now);

#endif							/* ADMISSION_GATE_EFFECTIVE_LIMIT_H */
