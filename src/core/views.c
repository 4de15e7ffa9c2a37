/*-------------------------------------------------------------------------
 *
 * views.c
 *		The SQL functions.
 *
 * Gauges are counted from the states of all entries.
 *
 * Locking: see slots_internal.h, and pools.c for the totals.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/tuplestore.h"

#include "core/slots_internal.h"

#define MAX_COLUMNS		25		/* that this library knows */

/* In the order of SlotState and HotSpotKind */
static const char *const state_names[] = {"none", "waiting", "running"};
static const char *const kind_names[] = {
	"none", "relation", "advisory", "transaction", "long"
};

/* A row of a function's result, which grows column by column */
typedef struct Row
{
	ReturnSetInfo *result;
	int			n;
	Datum	   *values;
	bool	   *nulls;
} Row;

/* Report that this copy of the library was not preloaded. */
void
slots_report_not_preloaded(int elevel)
{
	bool		other_is = *find_rendezvous_variable("admission_gate") != NULL;

	ereport(elevel,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("admission_gate must be loaded via \"shared_preload_libraries\""),
			 other_is ? errdetail("The server has preloaded another copy of the library.") : 0,
			 other_is ? errhint("Name it \"admission_gate\" in shared_preload_libraries, without a path, and restart the server.") :
			 errhint("Add it to shared_preload_libraries and restart the server.")));
}

static void
check_preloaded(void)
{
	if (Slots == NULL)
		slots_report_not_preloaded(ERROR);
}

/*
 * The extension's script may be older or newer, and declare fewer columns or
 * more than this library knows.  Those stay null.
 */
static Row
first_row(FunctionCallInfo fcinfo)
{
	Row			row = {.result = (ReturnSetInfo *) fcinfo->resultinfo};
	int			columns;

	check_preloaded();
	InitMaterializedSRF(fcinfo, 0);
	columns = Max(row.result->setDesc->natts, MAX_COLUMNS);
	row.values = palloc0(columns * sizeof(Datum));
	row.nulls = memset(palloc(columns), true, columns);
	return row;
}

/* Add a column: the value, or null if that is not known. */
static void
add_if(Row *row, bool known, Datum value)
{
	Assert(row->n < MAX_COLUMNS);
	row->nulls[row->n] = !known;
	row->values[row->n++] = value;
}

static void
add(Row *row, Datum value)
{
	add_if(row, true, value);
}

static void
add_milliseconds(Row *row, uint64 us)
{
	add(row, Float8GetDatum((double) us / 1000.0));
}

/* The row is complete, the next begins. */
static void
end_row(Row *row)
{
	tuplestore_putvalues(row->result->setResult, row->result->setDesc, row->values, row->nulls);
	row->n = 0;
}

/* What is shown of a pool */
typedef struct PoolView
{
	PoolDefinition definition;
	int			backends[SLOT_STATES];
	int			working;		/* of those running, by the last sample */
	uint64		totals[SLOT_TOTALS];
	uint64		max_wait;
	uint64		wait_counts[SLOTS_WAIT_BUCKETS];
} PoolView;

/* pools_lock is held exclusively. */
static void
copy_pool(int index, PoolView *view)
{
	SlotPool   *pool = &Slots->pools[index];

	memset(view, 0, sizeof(PoolView));
	view->definition = pool->definition;
	slots_sum_totals(index, view->totals);
	for (int t = 0; t < SLOT_TOTALS; t++)
		view->totals[t] -= pool->baseline[t];
	for (int i = 0; i < MaxBackends; i++)
	{
		SlotState	state = state_of(entry_of(i));

		if (entry_of(i)->pool != index)
			continue;
		view->backends[state]++;
		view->working += state == SLOT_RUNNING && !entry_of(i)->is_away;
	}
	view->max_wait = pg_atomic_read_u64(&pool->max_wait);
	for (int b = 0; b < SLOTS_WAIT_BUCKETS; b++)
		view->wait_counts[b] = pg_atomic_read_u64(&pool->wait_counts[b]);
}

/*
 * Copy the pools, removed ones only if backends of them are at work, and when
 * totals were reset.  New sessions wait for the lock: allocate before, and
 * build rows afterwards.
 */
static PoolView *
copy_pools(int *n, TimestampTz *reset)
{
	PoolView   *views = palloc(SLOTS_MAX_POOLS * sizeof(PoolView));

	*n = 0;
	LWLockAcquire(Slots->pools_lock, LW_EXCLUSIVE);
	for (int p = 0; p < Slots->npools; p++)
		if (slots_pool_is_in_use(p))
			copy_pool(p, &views[(*n)++]);
	*reset = Slots->stats_reset;
	LWLockRelease(Slots->pools_lock);
	return views;
}

/* One row per pool */
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate);
Datum
pg_stat_get_admission_gate(PG_FUNCTION_ARGS)
{
	Row			row = first_row(fcinfo);
	int			n;
	TimestampTz reset;
	PoolView   *pools = copy_pools(&n, &reset);

	for (PoolView *pool = pools; pool < pools + n; pool++)
	{
		int			own_limit = pool->definition.max_active;

		add(&row, CStringGetTextDatum(pool->definition.name));
		add(&row, CStringGetTextDatum(Slots->settings.max_active == 0 ? "off" :
									  Slots->settings.observing ? "observe" : "enforce"));
		add(&row, Int32GetDatum(own_limit > 0 ? own_limit : Slots->max_active));
		add(&row, Int32GetDatum(pool->definition.priority));
		add(&row, Int32GetDatum(pool->backends[SLOT_RUNNING]));
		add(&row, Int32GetDatum(pool->working));
		add(&row, Int32GetDatum(pool->backends[SLOT_WAITING]));
		for (int t = TOTAL_ADMITTED; t <= TOTAL_OVERDUE; t++)
			add(&row, Int64GetDatum(pool->totals[t]));
		add_milliseconds(&row, pool->totals[TOTAL_WAIT_TIME]);
		add_milliseconds(&row, pool->max_wait);
		add_if(&row, reset != 0, TimestampTzGetDatum(reset));
		end_row(&row);
	}
	return (Datum) 0;
}

/* One row per pool and bucket; bounds in ms */
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_histogram);
Datum
pg_stat_get_admission_gate_histogram(PG_FUNCTION_ARGS)
{
	Row			row = first_row(fcinfo);
	int			n;
	TimestampTz reset;
	PoolView   *pools = copy_pools(&n, &reset);

	for (PoolView *pool = pools; pool < pools + n; pool++)
		for (int b = 0; b < SLOTS_WAIT_BUCKETS; b++)
		{
			bool		is_last = b == SLOTS_WAIT_BUCKETS - 1;

			add(&row, CStringGetTextDatum(pool->definition.name));
			add(&row, Float8GetDatum(b == 0 ? 0 : 1 << (b - 1)));
			add(&row, Float8GetDatum(is_last ? get_float8_infinity() : 1 << b));
			add(&row, Int64GetDatum(pool->wait_counts[b]));
			end_row(&row);
		}
	return (Datum) 0;
}

/*
 * One row per backend that holds a slot or waits for one.  As in
 * pg_stat_activity, only members of its role and of pg_read_all_stats see
 * details.
 */
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_backends);
Datum
pg_stat_get_admission_gate_backends(PG_FUNCTION_ARGS)
{
	Row			row = first_row(fcinfo);

	for (int procno = 0; procno < MaxBackends; procno++)
	{
		SlotEntry  *entry = entry_of(procno);
		SlotState	state = state_of(entry);
		int			pid = GetPGProcByNumber(procno)->pid;
		uint64		wait_time = pg_atomic_read_u64(&entry->last_wait);
		char		pool[NAMEDATALEN];
		bool		may_see;

		if (state == SLOT_NONE || pid == 0)
			continue;
		if (state == SLOT_WAITING)
			wait_time = Max((int64) (monotonic_us() - entry->arrived), 0);
		may_see = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
			has_privs_of_role(GetUserId(), GetPGProcByNumber(procno)->roleId);
		LWLockAcquire(Slots->pools_lock, LW_SHARED);
		strlcpy(pool, pool_of(entry)->definition.name, NAMEDATALEN);
		LWLockRelease(Slots->pools_lock);
		add(&row, Int32GetDatum(pid));
		add_if(&row, may_see, CStringGetTextDatum(pool));
		add_if(&row, may_see, CStringGetTextDatum(state_names[state]));
		add_if(&row, may_see, TimestampTzGetDatum(pg_atomic_read_u64(&entry->since)));
		add_if(&row, may_see, Float8GetDatum(wait_time / 1000.0));
		add_if(&row, may_see && entry->expected > 0, Float8GetDatum(entry->expected / 1000.0));
		end_row(&row);
	}
	return (Datum) 0;
}

/* The columns kind to objsubid; the kind of a hot spot leaves some null. */
static void
add_key(Row *row, const HotSpotKey *key)
{
	bool		has_fields = key->kind == HOT_SPOT_ADVISORY;

	add(row, CStringGetTextDatum(kind_names[key->kind]));
	add_if(row, OidIsValid(key->database), ObjectIdGetDatum(key->database));
	add_if(row, key->kind == HOT_SPOT_RELATION, ObjectIdGetDatum(key->fields[0]));
	add_if(row, has_fields, ObjectIdGetDatum(key->fields[0]));
	add_if(row, has_fields, ObjectIdGetDatum(key->fields[1]));
	add_if(row, has_fields, Int16GetDatum(key->fields[2]));
}

static void
add_tid(Row *row, const HotSpotKey *key)
{
	ItemPointer tid = palloc(sizeof(ItemPointerData));

	ItemPointerSet(tid, key->block, key->offset);
	add_if(row, key->offset != 0, PointerGetDatum(tid));
}

GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_hot_spots);
Datum
pg_stat_get_admission_gate_hot_spots(PG_FUNCTION_ARGS)
{
	Row			row = first_row(fcinfo);

	for (int i = 0; i < MAX_HOT_SPOTS + LONG_CLASSES; i++)
	{
		HotSpot    *spot = &Slots->hot_spots[i];
		int			queue = slots_hot_spot_queue(i);
		uint32		limit = pg_atomic_read_u32(&queue_at(queue)->limit);
		int			running = places_in_use(queue);
		int			contenders = spot->control.last.contenders;
		int			waiting;
		int			waiter;
		HotSpotKey	key;
		bool		is_long;

		slots_lock();
		key = spot->key;
		waiting = queue_at(queue)->nwaiters;
		waiter = waiting > 0 ? GetPGProcByNumber(procno_of(first_waiter(queue)))->pid : 0;
		slots_unlock();
		is_long = key.kind == HOT_SPOT_LONG;
		if (is_long)
			contenders = running + waiting;
		/* Without a queue, it is shown while it is hot. */
		if (key.kind == HOT_SPOT_NONE || (contenders == 0 && !has_queue(key.kind)))
			continue;
		add(&row, Int32GetDatum(i + 1));
		add_key(&row, &key);
		add_if(&row, !is_long, TimestampTzGetDatum(spot->since));
		add_if(&row, key.kind == HOT_SPOT_RELATION, Int32GetDatum(slots_count_hot_keys(i)));
		add_tid(&row, &key);
		add_if(&row, limit != NO_LIMIT, Int32GetDatum(limit));
		add(&row, Int32GetDatum(contenders));
		add(&row, Int32GetDatum(running));
		add(&row, Int32GetDatum(spot->control.last.blocked));
		add(&row, Int32GetDatum(waiting));
		add_if(&row, waiting > 0, Int32GetDatum(waiter));
		add(&row, Int64GetDatum(pg_atomic_read_u64(&spot->admitted)));
		add_milliseconds(&row, pg_atomic_read_u64(&spot->wait_time));
		add_if(&row, is_long, Float8GetDatum(long_control_shortest(i - MAX_HOT_SPOTS) / 1000.0));
		end_row(&row);
	}
	return (Datum) 0;
}

/* One row per remembered hot spot that has ended */
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_past_hot_spots);
Datum
pg_stat_get_admission_gate_past_hot_spots(PG_FUNCTION_ARGS)
{
	Row			row = first_row(fcinfo);

	for (int i = 0; i < MAX_PAST_HOT_SPOTS; i++)
	{
		PastHotSpot past;
		bool		found;

		slots_lock();
		found = i < Slots->npast;
		past = Slots->past_hot_spots[i];
		slots_unlock();
		if (!found)
			break;
		add_key(&row, &past.key);
		add(&row, TimestampTzGetDatum(past.since));
		add(&row, TimestampTzGetDatum(past.ended));
		add_tid(&row, &past.key);
		add(&row, Int32GetDatum(past.most_in_line));
		add(&row, Int64GetDatum(past.admitted));
		add_milliseconds(&row, past.wait_time);
		end_row(&row);
	}
	return (Datum) 0;
}

/* One row: the worker.  Without one, pid is null. */
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_worker);
Datum
pg_stat_get_admission_gate_worker(PG_FUNCTION_ARGS)
{
	Row			row = first_row(fcinfo);
	WorkerStats stats;
	int			worker;
	int			pid;
	uint32		cpu_limit = Slots->cpu_limit;

	slots_lock();
	worker = Slots->worker;
	stats = Slots->worker_stats;
	slots_unlock();
	pid = worker == INVALID_PROC_NUMBER ? 0 : GetPGProcByNumber(worker)->pid;
	add_if(&row, pid != 0, Int32GetDatum(pid));
	add_if(&row, pid != 0, TimestampTzGetDatum(stats.started));
	add_if(&row, stats.sampled != 0, TimestampTzGetDatum(stats.sampled));
	add(&row, Int64GetDatum(stats.samples));
	add_milliseconds(&row, stats.sample_time);
	add_if(&row, cpu_limit > 0, Int32GetDatum(cpu_limit));
	add_if(&row, cpu_limit > 0, TimestampTzGetDatum(Slots->cpu_limit_since));
	end_row(&row);
	return (Datum) 0;
}

GATE_FUNCTION_INFO_V1(pg_stat_admission_gate_reset);
Datum
pg_stat_admission_gate_reset(PG_FUNCTION_ARGS)
{
	check_preloaded();
	LWLockAcquire(Slots->pools_lock, LW_EXCLUSIVE);
	for (int p = 0; p < Slots->npools; p++)
		slots_start_totals(p);
	Slots->stats_reset = GetCurrentTimestamp();
	slots_lock();
	Slots->npast = 0;
	slots_unlock();
	LWLockRelease(Slots->pools_lock);
	PG_RETURN_VOID();
}
