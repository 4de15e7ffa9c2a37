/*-------------------------------------------------------------------------
 *
 * counting.h
 *		Counts slots in and out: for the files of src/core only.
 *
 * The semaphore is one 32-bit word: the number of slots in use, and two flags
 * in its highest bits.  While no flag is set, a slot is acquired and released
 * by one compare-and-exchange; as the flags are larger than any limit, "word <
 * limit" tests all of it.  A queue with a limit of its own, that of a pool or
 * of a hot spot, has a word of its own: a slot is counted there first, then in
 * the word for all; if that fails, the first step is taken back.  Where a
 * backend is counted is its place; its state names it.
 *
 * Locking: the counts are atomics.  Where a function says "Lock held", it is
 * because slots_unlock() has to tell the waiters.
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
 * Does this queue count its backends?  That of a hot spot does, also while it
 * has no limit; that of a pool only if it has one.
 */
static inline bool
queue_counts(int queue)
{
	return is_of_hot_spot(queue) || queue_has_limit(queue);
}

/*
 * Count a place in that queue, if it counts.  *place receives the queue or
 * NO_QUEUE. Returns false if none is free.
 */
static inline bool
count_place_if_free(int queue, bool barge, int *place)
{
	*place = NO_QUEUE;
	if (!queue_counts(queue))
		return true;
	if (!count_up_if_free(&queue_at(queue)->word, &queue_at(queue)->limit, barge))
		return false;
	*place = queue;
	return true;
}

/* The same, above the limit if need be: returns the place. */
static inline int
count_place(int queue)
{
	if (!queue_counts(queue))
		return NO_QUEUE;
	pg_atomic_fetch_add_u32(&queue_at(queue)->word, 1);
	return queue;
}

/*
 * Release a place, if there is one.  Returns true if that queue has waiters: a
 * caller that does not hold the lock must then take and release it, so that
 * slots_unlock() wakes one.
 */
static inline bool
count_place_out(int place)
{
	uint32		word;

	if (likely(place == NO_QUEUE))
		return false;
	word = pg_atomic_fetch_sub_u32(&queue_at(place)->word, 1);
	Assert((word & WORD_COUNT) > 0);
	return (word & WORD_WAITERS) != 0;
}

/*
 * Count a slot in that queue and in all, if both have one free.  Lock held.
 */
static inline bool
count_in_if_free(int queue, int *place)
{
	if (!count_place_if_free(queue, true, place))
		return false;
	if (count_up_if_free(&Slots->word, &Slots->limit, true))
		return true;
	(void) count_place_out(*place);
	*place = NO_QUEUE;
	return false;
}

/*
 * Count a slot in that queue and in all, above the limits if need be: returns
 * the place.
 */
static inline int
count_in(int queue)
{
	int			place = count_place(queue);

	pg_atomic_fetch_add_u32(&Slots->word, 1);
	return place;
}

/* A slot with that place is no longer in use.  Lock held. */
static inline void
count_out(int place)
{
	(void) count_place_out(place);
	pg_atomic_fetch_sub_u32(&Slots->word, 1);
}

#endif							/* ADMISSION_GATE_COUNTING_H */
