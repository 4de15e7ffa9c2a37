/*-------------------------------------------------------------------------
 *
 * shmem.c
 *		Creates the semaphore.
 *
 * Locking: the caller holds AddinShmemInitLock; no other process uses what is
 * being made.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "core/hot_spots.h"
#include "core/pools.h"
#include "core/shared.h"
#include "core/shmem.h"
#include "core/wait_queue.h"

#define SLOTS_TRANCHE	"admission_gate"

/*
 * How many bytes it will take.  MaxBackends must be known.
 */
static Size
shmem_size(void)
{
	return add_size(PG_CACHE_LINE_SIZE + offsetof(SlotShared, entries),
					mul_size(MaxBackends, sizeof(PaddedSlotEntry)));
}

/*
 * Request shared memory and pools_lock.  Call from a shmem_request_hook.
 */
void
slots_shmem_request(void)
{
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche(SLOTS_TRANCHE, 1);
}

static void
init_list(EntryList *list)
{
	list->head = list->tail = INVALID_PROC_NUMBER;
	list->length = 0;
}

static void
init_entry(SlotEntry *entry)
{
	memset(entry, 0, sizeof(SlotEntry));
	pg_atomic_init_u32(&entry->state, SLOT_NONE);
	pg_atomic_init_u64(&entry->since, 0);
	pg_atomic_init_u64(&entry->last_wait, 0);
	pg_atomic_init_u64(&entry->max_wait, 0);
	for (int t = 0; t < OWN_TOTALS; t++)
		pg_atomic_init_u64(&entry->own_totals[t], 0);
}

/*
 * Create the semaphore with these settings, or find it if it exists.
 */
void
slots_shmem_init(const SlotsSettings *settings)
{
	bool		found;
	void	   *area;

	area = ShmemInitStruct("admission_gate slots", shmem_size(), &found);
	Slots = (SlotShared *) TYPEALIGN(PG_CACHE_LINE_SIZE, area);
	slots_sample_time = &Slots->sample;
	if (found)
		return;

	memset(Slots, 0, offsetof(SlotShared, entries));
	pg_atomic_init_u32(&Slots->word, 0);
	pg_atomic_init_u32(&Slots->limit, settings->limit > 0 ? settings->limit : NO_LIMIT);
	pg_atomic_init_u32(&Slots->generation, 0);
	pg_atomic_init_u32(&Slots->handoffs_in_flight, 0);
	pg_atomic_init_u32(&Slots->next_priority, (uint32) NO_PRIORITY);
	pg_atomic_init_u32(&Slots->handoff_after, (uint32) settings->handoff_after);
	pg_atomic_init_u32(&Slots->lend_after, (uint32) settings->lend_after);
	pg_atomic_init_u32(&Slots->long_after, (uint32) settings->long_after);
	pg_atomic_init_u32(&Slots->unknown_logged, 0);
	pg_atomic_init_u64(&Slots->lenders_seen, 0);
	pg_atomic_init_u64(&Slots->holders_seen, 0);
	pg_atomic_init_u64(&Slots->sample.taken, 0);
	pg_atomic_init_u64(&Slots->sample.claimed, 0);
	pg_atomic_init_u64(&Slots->sample.interval, 0);
	SpinLockInit(&Slots->mutex);
	Slots->max_active = settings->limit;
	Slots->hot_spots_on = settings->hot_spots;
	Slots->observing = settings->observing;
	init_list(&Slots->long_paused);
	Slots->watcher = INVALID_PROC_NUMBER;
	Slots->pools_lock = &GetNamedLWLockTranche(SLOTS_TRANCHE)->lock;
	Slots->nentries = MaxBackends;
	for (int i = 0; i < SLOTS_QUEUES; i++)
	{
		pg_atomic_init_u32(&queue_at(i)->word, 0);
		pg_atomic_init_u32(&queue_at(i)->limit, NO_LIMIT);
		init_list(&queue_at(i)->waiters);
	}
	slots_init_hot_spots();

	for (int i = 0; i < Slots->nentries; i++)
		init_entry(&Slots->entries[i].entry);
	slots_init_pools(settings->pools);
}
