/*-------------------------------------------------------------------------
 *
 * slots_pools.c
 *		The pools in shared memory, and what is set for all of them.
 *
 * A pool has a place in an array; the default pool has the first.  Which pools
 * there are is written by the processes that publish settings (settings.c); a
 * backend looks its own up by name, and again whenever the generation of the
 * pools has changed.  A pool that is no longer defined is left by its waiters at
 * once, for the default pool, and by others when they look next.  Its place is given
 * to another pool when none of its backends has a slot any more; if one of the same
 * name is defined again, it has its place, its counts and its totals again.
 *
 * Locking: see slots_shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/latch.h"
#include "utils/timestamp.h"

#include "settings.h"
#include "slots.h"
#include "slots_shared.h"


/* What this backend knows of its pool, as of that generation. */
uint32		my_pool_generation = PG_UINT32_MAX;
bool		my_pool_has_limit = false;
int			my_pool_priority = 0;

static char my_pool_name[NAMEDATALEN];

/* ----------------------------------------------------------------
 *		Membership
 * ----------------------------------------------------------------
 */

/*
 * The place of a pool of that name, in lower case, or NOBODY.  pools_lock held.
 * It may have been removed.
 */
static int
find_place(const char *name)
{
	for (int i = 0; i < Slots->npools; i++)
	{
		if (strcmp(Slots->pools[i].definition.name, name) == 0)
			return i;
	}
	return NOBODY;
}

/*
 * Let an entry that holds nothing belong to another pool; what it has counted
 * stays with the old one.  pools_lock held, and the mutex if it waits.
 */
static void
move_entry(SlotEntry *entry, int pool)
{
	SlotPool   *old = pool_of(entry);

	Assert(!entry->counted);
	slots_keep_totals(old, entry);
	entry->pool = pool;
}

/*
 * Tell the session that there is no such pool; and the log, unless it has been told
 * of one since the pools last changed: not for each of thousands of sessions.
 */
static void
warn_of_unknown_pool(const char *name)
{
	uint32		generation = pg_atomic_read_u32(&Slots->generation);
	bool		logged = pg_atomic_exchange_u32(&Slots->unknown_logged, generation) == generation;

	ereport(logged ? WARNING_CLIENT_ONLY : WARNING,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("admission_gate: pool \"%s\" is not defined", name),
			 errdetail("Sessions that belong to it use pool \"%s\".", POOLS_DEFAULT_NAME),
			 errhint("Add it to admission_gate.pools, or change admission_gate.pool of the role or database.")));
}

/*
 * Look up the pool that the settings name and belong to it from now on, or to
 * the default pool if there is none of that name.  The backend is not at work and
 * does not wait; if it has retained a slot, it was as a member of its old pool, so
 * that slot is given back.
 */
void
slots_join_pool(void)
{
	char		name[NAMEDATALEN];
	SlotPool   *pool;
	int			place;
	bool		unknown;

	if (slots_retained_mine)
		slots_end_my_turn();
	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	pools_fold_name(name, gate_pool);

	LWLockAcquire(Slots->pools_lock, LW_SHARED);
	place = find_place(name);
	unknown = place == NOBODY || !Slots->pools[place].defined;
	if (unknown)
		place = DEFAULT_POOL;
	if (MySlotEntry->pool != place)
		move_entry(MySlotEntry, place);
	pool = &Slots->pools[place];
	my_pool_generation = pg_atomic_read_u32(&Slots->generation);
	my_pool_has_limit = pool->definition.max_active > 0;
	my_pool_priority = pool->definition.priority;
	strlcpy(my_pool_name, pool->definition.name, sizeof(my_pool_name));
	LWLockRelease(Slots->pools_lock);

	if (unknown)
		warn_of_unknown_pool(name);
}

/* Look the pool up again before the next statement. */
void
slots_forget_pool(void)
{
	my_pool_generation = PG_UINT32_MAX;
}

/* The pool that this backend came to last. */
const char *
slots_pool_name(void)
{
	return my_pool_name;
}

/* Has this backend's pool a max_queue_length of its own? */
bool
slots_pool_has_queue_length(void)
{
	return pool_of(MySlotEntry)->definition.max_queue_length != POOLS_QUEUE_LENGTH_UNSET;
}

/*
 * The queue_timeout (ms) of this backend's pool; 0 if it has none.  It may have
 * changed since the wait began, and so may the pool.
 */
int
slots_pool_queue_timeout(void)
{
	return *(volatile int *) &pool_of(MySlotEntry)->definition.queue_timeout;
}

/* ----------------------------------------------------------------
 *		Setting the pools
 * ----------------------------------------------------------------
 */

/* Has any backend of the pool at that place a slot? */
static bool
place_is_in_use(int place)
{
	for (int procno = 0; procno < Slots->nentries; procno++)
	{
		if (entry_of(procno)->pool == place && slots_state(procno) != SLOT_NONE)
			return true;
	}
	return false;
}

/*
 * A place for one more pool, or NOBODY.
 */
static int
free_place(void)
{
	for (int i = 0; i < Slots->npools; i++)
	{
		if (!Slots->pools[i].defined && !place_is_in_use(i))
			return i;
	}
	return Slots->npools < POOL_PLACES ? Slots->npools : NOBODY;
}

/*
 * Change the definition at that place, or define a pool there.
 */
static void
define_pool(int place, const PoolDefinition *definition)
{
	SlotPool   *pool = &Slots->pools[place];

	if (strcmp(pool->definition.name, definition->name) != 0)
		slots_start_totals(place);

	SpinLockAcquire(&Slots->mutex);
	if (place == Slots->npools)
	{
		pool->queue.head = pool->queue.tail = NOBODY;
		Slots->npools++;
	}
	if (strcmp(pool->definition.name, definition->name) != 0)
		slots_init_stall_clock(&pool->stall);
	pool->defined = true;
	pool->definition = *definition;
	pg_atomic_write_u32(&pool->effective_limit,
						definition->max_active > 0 ? definition->max_active : NO_LIMIT);
	pg_atomic_fetch_add_u32(&Slots->generation, 1);
	SpinLockRelease(&Slots->mutex);
}

/*
 * Let one of a pool's waiters wait for the default pool instead, behind those
 * that do so already.  Returns false if there is none.
 */
static bool
move_one_waiter(SlotPool *pool)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();
	int			waiter;

	SpinLockAcquire(&Slots->mutex);
	waiter = pool->queue.head;
	if (waiter != NOBODY)
	{
		SlotPool   *default_pool = &Slots->pools[DEFAULT_POOL];

		slots_list_remove(&pool->queue, waiter);
		if (pool->queue.head == NOBODY)
			pg_atomic_fetch_and_u32(&pool->word, ~WORD_WAITERS);
		pool->passed_over_since = 0;
		move_entry(entry_of(waiter), DEFAULT_POOL);
		pool->totals[TOTAL_QUEUED]--;
		default_pool->totals[TOTAL_QUEUED]++;
		pg_atomic_fetch_or_u32(&default_pool->word, WORD_WAITERS);
		if (default_pool->queue.head == NOBODY)
			slots_note_first_waiter(&default_pool->stall, now);
		slots_list_append(&default_pool->queue, waiter);
	}
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	return waiter != NOBODY;
}

/*
 * There is no such pool any more.
 */
static void
drop_pool(SlotPool *pool)
{
	SpinLockAcquire(&Slots->mutex);
	pool->defined = false;
	pg_atomic_write_u32(&pool->effective_limit, NO_LIMIT);
	pg_atomic_fetch_add_u32(&Slots->generation, 1);
	SpinLockRelease(&Slots->mutex);

	while (move_one_waiter(pool))
		 /* the mutex is free in between */ ;
}

static bool
same_definition(const PoolDefinition *a, const PoolDefinition *b)
{
	return strcmp(a->name, b->name) == 0 &&
		a->max_active == b->max_active &&
		a->priority == b->priority &&
		a->max_queue_length == b->max_queue_length &&
		a->queue_timeout == b->queue_timeout;
}

/*
 * Have the pools that are defined, and no others.  Those that stay keep their
 * queues, counts and totals.  pools_lock held.
 */
static void
apply_definitions(const PoolDefinitions *definitions)
{
	int			highest = PG_INT32_MIN;

	for (int i = 0; i < definitions->n; i++)
	{
		const PoolDefinition *definition = &definitions->pools[i];
		int			place = find_place(definition->name);

		if (place != NOBODY && Slots->pools[place].defined &&
			same_definition(&Slots->pools[place].definition, definition))
			continue;
		if (place == NOBODY)
			place = free_place();
		if (place == NOBODY)
			ereport(LOG,
					(errmsg("admission_gate: pool \"%s\" cannot be defined before statements of removed pools end",
							definition->name),
					 errhint("Reload the configuration again later.")));
		else
			define_pool(place, definition);
	}

	for (int i = 0; i < Slots->npools; i++)
	{
		SlotPool   *pool = &Slots->pools[i];

		if (pool->defined && pools_find(definitions, pool->definition.name) == NULL)
			drop_pool(pool);
		if (pool->defined)
			highest = Max(highest, pool->definition.priority);
	}

	SpinLockAcquire(&Slots->mutex);
	Slots->highest_priority = highest;
	SpinLockRelease(&Slots->mutex);
}

/*
 * While the shared memory is being made: the first definitions.
 */
void
slots_init_pools(const PoolDefinitions *definitions)
{
	for (int i = 0; i < POOL_PLACES; i++)
	{
		SlotPool   *pool = &Slots->pools[i];

		pg_atomic_init_u32(&pool->word, 0);
		pg_atomic_init_u32(&pool->effective_limit, NO_LIMIT);
		pg_atomic_init_u64(&pool->past_max_wait, 0);
		pg_atomic_init_u64(&pool->place_time, 0);
		for (int t = 0; t < OWN_TOTALS; t++)
			pg_atomic_init_u64(&pool->past_totals[t], 0);
		for (int b = 0; b < SLOTS_WAIT_BUCKETS; b++)
			pg_atomic_init_u64(&pool->wait_counts[b], 0);
	}
	apply_definitions(definitions);
	Assert(find_place(POOLS_DEFAULT_NAME) == DEFAULT_POOL);
}

/*
 * Make the next waiter a holder if a slot is free.
 */
static bool
grant_one(void)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();
	int			next;
	bool		granted = false;

	SpinLockAcquire(&Slots->mutex);
	next = slots_next_waiter(now);
	if (next != NOBODY && slots_count_in_if_free(entry_of(next)))
	{
		slots_grant(next, now, &wakes);
		granted = true;
	}
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	return granted;
}

/*
 * Set which pools there are.  Waiters enter as far as they may now.
 */
void
slots_set_pools(const PoolDefinitions *definitions)
{
	LWLockAcquire(Slots->pools_lock, LW_EXCLUSIVE);
	apply_definitions(definitions);
	LWLockRelease(Slots->pools_lock);

	while (grant_one())
		 /* the mutex is free in between */ ;
}

/* ----------------------------------------------------------------
 *		What is set for all pools
 * ----------------------------------------------------------------
 */

/* The first in one of the queues, or NOBODY.  Mutex held. */
static int
any_waiter(void)
{
	for (int i = 0; i < Slots->npools; i++)
	{
		if (Slots->pools[i].queue.head != NOBODY)
			return Slots->pools[i].queue.head;
	}
	return NOBODY;
}

/*
 * One step towards empty queues, while there is no limit or it is only observed: end
 * a turn, as there will be no watcher to do it, or else let a waiter in, above the
 * limits if need be.  Returns false if there was nothing to do.
 */
static bool
release_one(void)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();
	int			waiter;
	bool		found = true;

	SpinLockAcquire(&Slots->mutex);
	waiter = any_waiter();
	if (Slots->limit != 0 && !Slots->observing)
		found = false;			/* another process has set a limit since */
	else if (Slots->retained.head != NOBODY)
		slots_end_turn(Slots->retained.head, now, &wakes);
	else if (waiter != NOBODY)
	{
		slots_count_in(entry_of(waiter));
		slots_grant(waiter, now, &wakes);
		slots_settle(now, &wakes);
	}
	else
		found = false;
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	return found;
}

/*
 * Empty the queues.  The caller has seen to it that nobody enters one any more.
 */
static void
release_all(void)
{
	while (release_one())
		 /* the mutex is free in between */ ;
}

/*
 * Set the limit (slots, 0 = none, -1 = it finds itself).  If it was raised, waiters enter; if there is none,
 * all do, as the limits of pools do not hold then; if it was lowered, holders finish
 * and new ones wait.
 */
void
slots_set_limit(int limit)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);

	/*
	 * Not at a reload that changes something else: it may be lowered just
	 * now.
	 */
	if (Slots->limit != limit)
	{
		Slots->limit = limit;
		slots_reset_law(now);
		slots_settle(now, &wakes);
	}
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);

	if (limit == 0)
		release_all();
	else
		while (grant_one())
			 /* the mutex is free in between */ ;
}

/*
 * Set whether the limits are only observed: then nobody queues, and who waits is
 * let in.  When they are enforced again, new ones wait until those at work are
 * fewer than the limit, as if it had been lowered.
 */
void
slots_set_observing(bool observing)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);
	if (Slots->observing != observing)
	{
		Slots->observing = observing;
		slots_reset_law(now);
		slots_settle(now, &wakes);
	}
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);

	if (observing)
		release_all();
}
