/*-------------------------------------------------------------------------
 *
 * stats.c
 *		Totals, gauges and states of backends, for the views.
 *
 * A backend keeps the totals of the hot path in its entry.  When it changes
 * its pool, they stay with the old one, which has the other totals.  Views
 * show the difference from a baseline, which a reset renews, and count gauges
 * from the states of all entries.
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
#include "storage/proc.h"

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

/* The state of an entry, or SLOT_PAUSED */
static SlotState
state_to_show(SlotEntry *entry)
{
	return is_paused(entry) ? SLOT_PAUSED : state_of(entry);
}

/* Describe a backend.  Returns false if it neither holds nor wants a slot. */
bool
slots_get_backend(int procno, SlotBackend *backend)
{
	SlotEntry  *entry = entry_of(procno);
	PGPROC	   *proc = GetPGProcByNumber(procno);

	backend->state = state_to_show(entry);
	backend->since = pg_atomic_read_u64(&entry->since);
	backend->pid = proc->pid;
	backend->roleid = proc->roleId;
	if (backend->state == SLOT_NONE || backend->pid == 0)
		return false;

	LWLockAcquire(Slots->pools_lock, LW_SHARED);
	strlcpy(backend->pool, pool_of(entry)->definition.name, sizeof(backend->pool));
	LWLockRelease(Slots->pools_lock);
	if (backend->state == SLOT_WAITING || backend->state == SLOT_PAUSED)
		backend->wait_time = Max((int64) (monotonic_us() - entry->queued), 0);
	else
		backend->wait_time = pg_atomic_read_u64(&entry->last_wait);
	return true;
}

/*
 * Describe the limit that this backend waits for: that of its queue if it is
 * exhausted, else that for all.  limit->waiting excludes this backend.
 */
void
slots_get_my_limit(SlotLimit *limit)
{
	int			mine;

	memset(limit, 0, sizeof(SlotLimit));
	slots_lock();
	mine = MySlotEntry->queue;
	limit->is_of_queue = !queue_has_place_free(mine) || !slots_are_limited();
	if (limit->is_of_queue)
	{
		limit->in_use = places_in_use(mine);
		limit->slots = pg_atomic_read_u32(&queue_at(mine)->limit);
		if (limit->slots == NO_LIMIT)
			limit->slots = Max(limit->in_use, 1);	/* it has just ended */
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
		limit->slots = pg_atomic_read_u32(&Slots->limit);
		limit->in_use = slots_in_use();
		for (int queue = NO_QUEUE; (queue = slots_next_queue(queue)) != NO_QUEUE;)
			if (queue != LONG_QUEUE)
				limit->waiting += queue_at(queue)->nwaiters;
	}
	if (state_of(MySlotEntry) == SLOT_WAITING)
		limit->waiting--;
	strlcpy(limit->pool, pool_of(MySlotEntry)->definition.name, sizeof(limit->pool));
	slots_unlock();
	for (int i = 0; i < MaxBackends; i++)
		limit->lent += state_of(entry_of(i)) == SLOT_LENT &&
			(!limit->is_of_queue || entry_of(i)->pool == MySlotEntry->pool);
}

/* Sum up all totals, by pool.  pools_lock is held exclusively. */
static void
sum_totals(uint64 sums[SLOTS_MAX_POOLS][SLOT_TOTALS])
{
	memset(sums, 0, SLOTS_MAX_POOLS * sizeof(sums[0]));
	for (int p = 0; p < Slots->npools; p++)
	{
		slots_lock();
		memcpy(sums[p], Slots->pools[p].totals, sizeof(sums[p]));
		slots_unlock();
	}
	for (int i = 0; i < MaxBackends; i++)
		for (int t = 0; t < SLOT_TOTALS; t++)
			sums[entry_of(i)->pool][t] += pg_atomic_read_u64(&entry_of(i)->totals[t]);
}

/*
 * Describe each pool; removed ones only if backends of them are at work.
 * Returns a palloc'd array that ends with an empty name.
 */
SlotStats *
slots_get_stats(void)
{
	SlotStats  *stats = palloc0((SLOTS_MAX_POOLS + 1) * sizeof(SlotStats));
	uint64		sums[SLOTS_MAX_POOLS][SLOT_TOTALS];
	int			n = 0;

	LWLockAcquire(Slots->pools_lock, LW_EXCLUSIVE);
	sum_totals(sums);
	for (int i = 0; i < MaxBackends; i++)
		stats[entry_of(i)->pool].backends[state_to_show(entry_of(i))]++;
	for (int p = 0; p < Slots->npools; p++)
	{
		SlotPool   *pool = &Slots->pools[p];
		int			own_limit = pool->definition.max_active;
		bool		in_use = pool->defined;

		strlcpy(stats[p].pool, pool->definition.name, sizeof(stats[p].pool));
		stats[p].priority = pool->definition.priority;
		stats[p].limit = own_limit > 0 ? own_limit : Slots->settings.max_active;
		stats[p].observing = Slots->settings.observing;
		for (int t = 0; t < SLOT_TOTALS; t++)
			stats[p].totals[t] = sums[p][t] - pool->baseline[t];
		stats[p].max_wait_time = pg_atomic_read_u64(&pool->max_wait);
		for (int b = 0; b < SLOTS_WAIT_BUCKETS; b++)
			stats[p].wait_counts[b] = pg_atomic_read_u64(&pool->wait_counts[b]);
		stats[p].stats_reset = Slots->stats_reset;
		for (int state = SLOT_WAITING; state < SLOT_STATES; state++)
			in_use |= stats[p].backends[state] > 0;
		if (in_use)
			stats[n++] = stats[p];
	}
	LWLockRelease(Slots->pools_lock);
	stats[n].pool[0] = '\0';
	return stats;
}

/*
 * Restart the totals of pools first to last.  What was admitted and has not
 * ended counts as admitted since: admitted = completed + failed + what is at
 * work, waits in the middle of its transaction, or commits.  pools_lock is
 * held exclusively.
 */
void
slots_start_totals(int first, int last)
{
	uint64		sums[SLOTS_MAX_POOLS][SLOT_TOTALS];

	sum_totals(sums);
	for (int p = first; p <= last; p++)
	{
		SlotPool   *pool = &Slots->pools[p];

		memcpy(pool->baseline, sums[p], sizeof(pool->baseline));
		pool->baseline[TOTAL_ADMITTED] = sums[p][TOTAL_COMPLETED] + sums[p][TOTAL_FAILED];
		pg_atomic_write_u64(&pool->max_wait, 0);
		for (int b = 0; b < SLOTS_WAIT_BUCKETS; b++)
			pg_atomic_write_u64(&pool->wait_counts[b], 0);
	}
}

void
slots_reset_stats(void)
{
	LWLockAcquire(Slots->pools_lock, LW_EXCLUSIVE);
	slots_start_totals(0, SLOTS_MAX_POOLS - 1);
	Slots->stats_reset = GetCurrentTimestamp();
	slots_lock();
	Slots->past_first = Slots->past_next;	/* forget past hot spots */
	slots_unlock();
	LWLockRelease(Slots->pools_lock);
}
