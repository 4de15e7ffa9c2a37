/*-------------------------------------------------------------------------
 *
 * counting.h
 *		Counts slots in and out: for the files of src/core only.
 *
 * The semaphore is one 32-bit word: the number of slots in use, and two flags in its
 * highest bits.  While no flag is set, a slot is acquired and released by one
 * compare-and-exchange; as the flags are larger than any limit, "word < limit" tests all
 * of it.  A pool that has a limit of its own has a word of its own: a slot is counted
 * there first, then in the word for all; if that fails, the first step is taken back.
 *
 * Locking: the counts are atomics.  Where a function says "Lock held", it is because
 * slots_unlock() has to tell the waiters.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_COUNTING_H
#define ADMISSION_GATE_COUNTING_H

#include "postgres.h"

#include "core/shared.h"

/*
 * Raise a count if it is below the limit; with barge, whatever the flags say.
 */
static inline bool
count_up_if_free(pg_atomic_uint32 *word, pg_atomic_uint32 *limit, bool barge)
{
	uint32		old = pg_atomic_read_u32(word);

	while ((barge ? old & WORD_COUNT : old) < pg_atomic_read_u32(limit))
	{
		if (pg_atomic_compare_exchange_u32(word, &old, old + 1))
			return true;
	}
	return false;
}

/*
 * Count one slot of that entry in its pool, if that has a limit of its own.
 * Returns false if the pool has none free.
 */
static inline bool
count_in_pool_if_free(SlotEntry *entry, bool barge)
{
	SlotPool   *pool = pool_of(entry);

	Assert(!entry->counted_in_pool);
	if (!pool_has_limit(pool))
		return true;
	if (!count_up_if_free(&pool->word, &pool->effective_limit, barge))
		return false;
	entry->counted_in_pool = true;
	return true;
}

/*
 * Release the entry's slot in its pool's count, if it was counted there.  Returns true if
 * the pool has waiters: a caller that does not hold the lock must then take and release
 * it, so that slots_unlock() wakes one.
 */
static inline bool
count_out_of_pool(SlotEntry *entry)
{
	uint32		word;

	if (likely(!entry->counted_in_pool))
		return false;
	word = pg_atomic_fetch_sub_u32(&pool_of(entry)->word, 1);
	Assert((word & WORD_COUNT) > 0);
	entry->counted_in_pool = false;
	return (word & WORD_WAITERS) != 0;
}

/*
 * Count one slot of that entry in its pool and in all, if both have one free.
 * Lock held.
 */
static inline bool
count_in_if_free(SlotEntry *entry)
{
	if (!count_in_pool_if_free(entry, true))
		return false;
	if (count_up_if_free(&Slots->word, &Slots->effective_limit, true))
		return true;
	(void) count_out_of_pool(entry);
	return false;
}

/*
 * Count one slot of that entry in its pool and in all, above the limits if need be.
 */
static inline void
count_in(SlotEntry *entry)
{
	SlotPool   *pool = pool_of(entry);

	if (pool_has_limit(pool))
	{
		pg_atomic_fetch_add_u32(&pool->word, 1);
		entry->counted_in_pool = true;
	}
	pg_atomic_fetch_add_u32(&Slots->word, 1);
}

/* The slot of that entry is no longer in use.  Lock held. */
static inline void
count_out(SlotEntry *entry)
{
	(void) count_out_of_pool(entry);
	pg_atomic_fetch_sub_u32(&Slots->word, 1);
}

#endif							/* ADMISSION_GATE_COUNTING_H */
