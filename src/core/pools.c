/*-------------------------------------------------------------------------
 *
 * pools.c
 *		Which pools there are, which one a backend belongs to, and their totals.
 *
 * Each pool has an index in an array; the default pool has the first.  A
 * backend looks up its pool by name at its next statement if the generation has
 * changed.  A pool that is dropped keeps its index, limit and totals until no
 * backend of it has a slot or waits, and another pool needs the index.
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

#define NO_POOL			(-1)

MyPool		my_pool = {.generation = PG_UINT32_MAX};

/* The pool that the session's setting names, in any case */
static const char *chosen_name = POOLS_DEFAULT_NAME;

/* The definition of the pool with that name, in any case, or NULL */
const PoolDefinition *
pools_find(const PoolDefinitions *definitions, const char *name)
{
	for (int i = 0; i < definitions->n; i++)
		if (pg_strcasecmp(definitions->pools[i].name, name) == 0)
			return &definitions->pools[i];
	return NULL;
}

/* The index of the pool with that name, even if dropped, or NO_POOL */
static int
find_pool(const char *name)
{
	for (int i = 0; i < Slots->npools; i++)
		if (pg_strcasecmp(Slots->pools[i].definition.name, name) == 0)
			return i;
	return NO_POOL;
}

/* Warn the session, and the log once per change of pools. */
static void
warn_of_unknown_pool(void)
{
	uint32		generation = pg_atomic_read_u32(&Slots->generation);
	bool		logged = pg_atomic_exchange_u32(&Slots->unknown_logged, generation) == generation;

	/* A cancel here would make BEGIN itself fail. */
	HOLD_INTERRUPTS();
	ereport(logged ? WARNING_CLIENT_ONLY : WARNING,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("admission_gate: pool \"%s\" is not defined", chosen_name),
			 errdetail("Sessions that belong to it use pool \"%s\".", POOLS_DEFAULT_NAME),
			 errhint("Add it to admission_gate.pools, or change admission_gate.pool of the role or database.")));
	RESUME_INTERRUPTS();
}

/* Join the pool that the setting names, or the default pool. */
void
slots_join_pool(void)
{
	int			index;
	bool		unknown;

	Assert(state_of(MySlotEntry) == SLOT_NONE);
	LWLockAcquire(Slots->pools_lock, LW_SHARED);
	index = find_pool(chosen_name);
	unknown = index == NO_POOL || !Slots->pools[index].defined;
	if (unknown)
		index = DEFAULT_POOL;
	if (MySlotEntry->pool != index)
	{
		slots_lock();
		for (int t = 0; t < SLOT_TOTALS; t++)
		{
			pool_of(MySlotEntry)->totals[t] += pg_atomic_read_u64(&MySlotEntry->totals[t]);
			pg_atomic_write_u64(&MySlotEntry->totals[t], 0);
		}
		MySlotEntry->pool = index;
		slots_unlock();
	}
	my_pool.generation = pg_atomic_read_u32(&Slots->generation);
	my_pool.has_limit = Slots->pools[index].definition.max_active > 0;
	LWLockRelease(Slots->pools_lock);

	if (unknown)
		warn_of_unknown_pool();
}

/* Use that pool from the next statement on.  The name must stay in memory. */
void
slots_choose_pool(const char *name)
{
	chosen_name = name;
	my_pool.generation = PG_UINT32_MAX;
}

/* The pool of this backend.  Both may change during a wait. */
const PoolDefinition *
slots_my_pool(void)
{
	return &pool_of(MySlotEntry)->definition;
}

/* ---- Totals ---- */

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

/* ---- The set of pools ---- */

/*
 * Is this pool defined, or is a backend of it at work?  pools_lock is held: in
 * shared mode, the answer is a hint.
 */
bool
slots_pool_is_in_use(int index)
{
	bool		in_use = Slots->pools[index].defined || places_in_use(index) > 0;

	for (int procno = 0; procno < MaxBackends; procno++)
		in_use |= entry_of(procno)->pool == index && state_of(entry_of(procno)) != SLOT_NONE;
	return in_use;
}

/* An unused index for a pool, or NO_POOL */
static int
free_index(void)
{
	for (int i = 0; i < Slots->npools; i++)
		if (!slots_pool_is_in_use(i))
			return i;
	return Slots->npools < SLOTS_MAX_POOLS ? Slots->npools : NO_POOL;
}

static void
define_pool(int index, const PoolDefinition *definition)
{
	SlotPool   *pool = &Slots->pools[index];

	if (strcmp(pool->definition.name, definition->name) != 0)
		slots_start_totals(index);

	slots_lock();
	if (index == Slots->npools)
		Slots->npools++;
	pool->defined = true;
	pool->definition = *definition;
	pg_atomic_write_u32(&queue_at(index)->limit,
						definition->max_active > 0 ? definition->max_active : NO_LIMIT);
	pg_atomic_fetch_add_u32(&Slots->generation, 1);
	slots_unlock();
}

/*
 * Replace the pools.  Those that stay keep their queues, counts and totals.
 * Waiters enter if they may now.
 */
void
slots_set_pools(const PoolDefinitions *definitions)
{
	LWLockAcquire(Slots->pools_lock, LW_EXCLUSIVE);
	for (int i = 0; i < definitions->n; i++)
	{
		const PoolDefinition *definition = &definitions->pools[i];
		int			index = find_pool(definition->name);

		if (index == NO_POOL)
			index = free_index();
		if (index == NO_POOL)
			ereport(LOG,
					(errmsg("admission_gate: pool \"%s\" cannot be defined before statements of removed pools end",
							definition->name),
					 errhint("Reload the configuration again later.")));
		else if (!Slots->pools[index].defined ||
				 memcmp(&Slots->pools[index].definition, definition, sizeof(PoolDefinition)) != 0)
			define_pool(index, definition);
	}

	for (int i = 0; i < Slots->npools; i++)
	{
		SlotPool   *pool = &Slots->pools[i];

		if (!pool->defined || pools_find(definitions, pool->definition.name) != NULL)
			continue;
		/* Those that wait in its queue enter by its former rules. */
		slots_lock();
		pool->defined = false;
		pg_atomic_fetch_add_u32(&Slots->generation, 1);
		slots_unlock();
	}
	Assert(find_pool(POOLS_DEFAULT_NAME) == DEFAULT_POOL);

	LWLockRelease(Slots->pools_lock);
	slots_grant_free();
}
