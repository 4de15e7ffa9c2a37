/*-------------------------------------------------------------------------
 *
 * stats.c
 *		Totals, and the limit that a backend has met.
 *
 * A backend keeps its totals in its entry, but for STALLS, which the process that
 * lets it in counts in its pool.  When it changes its pool, they stay with the
 * old one.  Views show the difference from a baseline, which a reset renews.
 *
 * Locking: see slots_internal.h.  pools_lock also keeps totals in place while
 * they are added up: a reader holds it exclusively, a backend that moves its
 * totals shared.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "core/slots_internal.h"

/*
 * Record a wait of this backend.  The first bucket of the histogram ends at 1
 * ms, each further one at twice that, the last never.
 */
void
slots_record_wait(uint64 waited)
{
	SlotPool   *pool = pool_of(MySlotEntry);
	uint64		max_wait = pg_atomic_read_u64(&pool->max_wait);
	int			bucket = waited < 1000 ? 0 : pg_leftmost_one_pos64(waited / 1000) + 1;

	while (max_wait < waited &&
		   !pg_atomic_compare_exchange_u64(&pool->max_wait, &max_wait, waited))
		 /* another backend has raised it, or a reset lowered it */ ;
	pg_atomic_write_u64(&MySlotEntry->last_wait, waited);
	if (is_of_hot_spot(MySlotEntry->queue))
		pg_atomic_fetch_add_u64(&hot_spot_at(MySlotEntry->queue)->wait_time, waited);
	add_to_own(TOTAL_WAIT_TIME, waited);
	pg_atomic_fetch_add_u64(&pool->wait_counts[Min(bucket, SLOTS_WAIT_BUCKETS - 1)], 1);
}

/*
 * Move the totals of this backend, which leaves its pool, to the pool.  The lock
 * is held, and pools_lock.
 */
void
slots_keep_totals(void)
{
	for (int t = 0; t < SLOT_TOTALS; t++)
	{
		pool_of(MySlotEntry)->totals[t] += pg_atomic_read_u64(&MySlotEntry->totals[t]);
		pg_atomic_write_u64(&MySlotEntry->totals[t], 0);
	}
}

/*
 * Describe the limit that keeps this backend out, which is in no queue any
 * more: that of its last queue if it is exhausted, else that for all.
 */
void
slots_get_my_limit(SlotLimit *limit)
{
	int			mine;

	Assert(state_of(MySlotEntry) == SLOT_NONE);
	memset(limit, 0, sizeof(SlotLimit));
	slots_lock();
	mine = MySlotEntry->queue;
	limit->is_of_queue = !queue_has_place_free(mine) || !slots_are_limited();
	if (limit->is_of_queue)
	{
		limit->in_use = places_in_use(mine);
		limit->max_active = is_of_hot_spot(mine) ? pg_atomic_read_u32(&queue_at(mine)->limit) :
			pool_of(MySlotEntry)->definition.max_active;
		if (limit->max_active == NO_LIMIT || limit->max_active <= 0)
			limit->max_active = Max(limit->in_use, 1);	/* it has just ended */
		limit->waiting = queue_at(mine)->nwaiters;
		if (is_of_hot_spot(mine))
		{
			limit->hot_spot = hot_spot_at(mine)->key;
			if (limit->hot_spot.kind == HOT_SPOT_NONE)	/* likewise */
				limit->hot_spot.kind = HOT_SPOT_TRANSACTION;
		}
	}
	else
	{
		limit->max_active = Max(Slots->max_active, 1);
		limit->in_use = slots_in_use();
		for (int queue = NO_QUEUE; (queue = slots_next_queue(queue)) != NO_QUEUE;)
			limit->waiting += queue_at(queue)->nwaiters;
	}
	slots_unlock();
}

/* Add up the totals of a pool.  pools_lock is held exclusively. */
void
slots_sum_totals(int pool, uint64 sums[SLOT_TOTALS])
{
	slots_lock();
	memcpy(sums, Slots->pools[pool].totals, sizeof(Slots->pools[pool].totals));
	slots_unlock();
	for (int i = 0; i < MaxBackends; i++)
		for (int t = 0; entry_of(i)->pool == pool && t < SLOT_TOTALS; t++)
			sums[t] += pg_atomic_read_u64(&entry_of(i)->totals[t]);
}

/* Add up one total of all pools.  A hint. */
uint64
slots_sum_total(SlotTotal total)
{
	uint64		sum = 0;

	for (int p = 0; p < Slots->npools; p++)
		sum += *(volatile uint64 *) &Slots->pools[p].totals[total];
	for (int i = 0; i < MaxBackends; i++)
		sum += pg_atomic_read_u64(&entry_of(i)->totals[total]);
	return sum;
}

/*
 * Restart the totals of a pool.  What was admitted and has not ended counts as
 * admitted since: admitted = completed + failed + what is at work, waits in
 * the middle of its transaction, or commits.  pools_lock is held exclusively.
 */
void
slots_start_totals(int index)
{
	SlotPool   *pool = &Slots->pools[index];

	slots_sum_totals(index, pool->baseline);
	pool->baseline[TOTAL_ADMITTED] = pool->baseline[TOTAL_COMPLETED] + pool->baseline[TOTAL_FAILED];
	pg_atomic_write_u64(&pool->max_wait, 0);
	for (int b = 0; b < SLOTS_WAIT_BUCKETS; b++)
		pg_atomic_write_u64(&pool->wait_counts[b], 0);
}
