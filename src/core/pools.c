/*-------------------------------------------------------------------------
 *
 * pools.c
 *		Which pools there are, and which one a backend belongs to.
 *
 * Each pool has an index in an array; the default pool has the first.  A
 * backend looks up its pool by name at its next statement if the generation has
 * changed.  A pool that is dropped keeps its index, limit and totals until no
 * backend of it has a slot or waits, and another pool needs the index.
 *
 * Locking: see slots_internal.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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
		slots_keep_totals();
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

/* Drop a pool.  Those that wait in its queue enter by its former rules. */
static void
drop_pool(int index)
{
	slots_lock();
	Slots->pools[index].defined = false;
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

		if (pool->defined && pools_find(definitions, pool->definition.name) == NULL)
			drop_pool(i);
	}
	Assert(find_pool(POOLS_DEFAULT_NAME) == DEFAULT_POOL);

	LWLockRelease(Slots->pools_lock);
	slots_grant_free();
}
