/*-------------------------------------------------------------------------
 *
 * views.c
 *		The SQL functions.
 *
 * Locking: none here; functions of the core return copies of shared memory.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "gate.h"

#define MAX_COLUMNS		25

/* In the order of SlotState and HotSpotKind */
static const char *const state_names[] = {"none", "waiting", "running", "lent", "paused"};
static const char *const kind_names[] = {
	"none", "relation", "advisory", "object", "lwlock", "transaction"
};

/* A row of a function's result, which grows column by column */
typedef struct Row
{
	ReturnSetInfo *result;
	int			n;
	Datum		values[MAX_COLUMNS];
	bool		nulls[MAX_COLUMNS];
} Row;

static void
check_preloaded(void)
{
	if (!slots_available())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("admission_gate must be loaded via \"shared_preload_libraries\"")));
}

static Row
first_row(FunctionCallInfo fcinfo)
{
	Row			row = {.result = (ReturnSetInfo *) fcinfo->resultinfo};

	check_preloaded();
	InitMaterializedSRF(fcinfo, 0);
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

/*
 * The row is complete, the next begins.  The extension's script may be older:
 * it declares fewer columns.
 */
static void
end_row(Row *row)
{
	TupleDesc	columns = row->result->setDesc;

	Assert(row->n >= columns->natts);
	tuplestore_putvalues(row->result->setResult, columns, row->values, row->nulls);
	row->n = 0;
}

GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate);
Datum
pg_stat_get_admission_gate(PG_FUNCTION_ARGS)
{
	Row			row = first_row(fcinfo);

	for (SlotStats *pool = slots_get_stats(); pool->pool[0] != '\0'; pool++)
	{
		add(&row, CStringGetTextDatum(pool->pool));
		add(&row, CStringGetTextDatum(pool->observing ? "observe" : "enforce"));
		add(&row, Int32GetDatum(pool->limit));
		add(&row, Int32GetDatum(pool->priority));
		add(&row, Int32GetDatum(pool->backends[SLOT_RUNNING]));
		add(&row, Int32GetDatum(pool->backends[SLOT_LENT]));
		add(&row, Int32GetDatum(pool->backends[SLOT_PAUSED]));
		add(&row, Int32GetDatum(pool->backends[SLOT_WAITING]));
		for (int t = TOTAL_ADMITTED; t <= TOTAL_CANCELS; t++)
			add(&row, Int64GetDatum(pool->totals[t]));
		add_milliseconds(&row, pool->totals[TOTAL_WAIT_TIME]);
		add_milliseconds(&row, pool->max_wait_time);
		add_milliseconds(&row, pool->totals[TOTAL_PAUSE_TIME]);
		add_if(&row, pool->stats_reset != 0, TimestampTzGetDatum(pool->stats_reset));
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

	for (SlotStats *pool = slots_get_stats(); pool->pool[0] != '\0'; pool++)
		for (int i = 0; i < SLOTS_WAIT_BUCKETS; i++)
		{
			bool		is_last = i == SLOTS_WAIT_BUCKETS - 1;

			add(&row, CStringGetTextDatum(pool->pool));
			add(&row, Float8GetDatum(i == 0 ? 0 : 1 << (i - 1)));
			add(&row, Float8GetDatum(is_last ? get_float8_infinity() : 1 << i));
			add(&row, Int64GetDatum(pool->wait_counts[i]));
			end_row(&row);
		}
	return (Datum) 0;
}

/*
 * One row per backend that holds a slot, has lent it, or waits for one.  As in
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
		SlotBackend backend;
		bool		may_see;

		if (!slots_get_backend(procno, &backend))
			continue;
		may_see = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
			has_privs_of_role(GetUserId(), backend.roleid);
		add(&row, Int32GetDatum(backend.pid));
		add_if(&row, may_see, CStringGetTextDatum(backend.pool));
		add_if(&row, may_see, CStringGetTextDatum(state_names[backend.state]));
		add_if(&row, may_see, TimestampTzGetDatum(backend.since));
		add_if(&row, may_see, Float8GetDatum(backend.wait_time / 1000.0));
		end_row(&row);
	}
	return (Datum) 0;
}

/* The columns kind to objsubid; the kind of a hot spot leaves some null. */
static void
add_key(Row *row, const HotSpotKey *key)
{
	bool		has_fields = key->kind == HOT_SPOT_ADVISORY || key->kind == HOT_SPOT_OBJECT;

	add(row, CStringGetTextDatum(kind_names[key->kind]));
	add_if(row, OidIsValid(key->database), ObjectIdGetDatum(key->database));
	add_if(row, key->kind == HOT_SPOT_RELATION, ObjectIdGetDatum(key->fields[0]));
	add_if(row, has_fields, ObjectIdGetDatum(key->fields[0]));
	add_if(row, has_fields, ObjectIdGetDatum(key->fields[1]));
	add_if(row, has_fields, Int16GetDatum(key->fields[2]));
}

static void
add_tid(Row *row, const WantedRow *wanted)
{
	ItemPointer tid = palloc(sizeof(ItemPointerData));

	ItemPointerSet(tid, wanted->block, wanted->offset);
	add_if(row, wanted->offset != 0, PointerGetDatum(tid));
}

GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_hot_spots);
Datum
pg_stat_get_admission_gate_hot_spots(PG_FUNCTION_ARGS)
{
	Row			row = first_row(fcinfo);
	HotSpotView views[MAX_HOT_SPOTS];
	int			n = slots_get_hot_spots(views);

	for (int i = 0; i < n; i++)
	{
		HotSpotView *view = &views[i];
		HotSpotKind kind = view->key.kind;
		const char *lwlock = kind == HOT_SPOT_LWLOCK ? pgstat_get_wait_event(view->key.fields[0]) : "";
		int			waiter = view->waiter >= 0 ? GetPGProcByNumber(view->waiter)->pid : 0;

		add(&row, Int32GetDatum(view->index + 1));
		add_key(&row, &view->key);
		add_if(&row, kind == HOT_SPOT_LWLOCK, CStringGetTextDatum(lwlock));
		add(&row, TimestampTzGetDatum(view->since));
		add_if(&row, kind == HOT_SPOT_RELATION, Int32GetDatum(view->hot_keys));
		add_tid(&row, &view->row);
		add_if(&row, view->limit != 0, Int32GetDatum(view->limit));
		add(&row, Int32GetDatum(view->contenders));
		add(&row, Int32GetDatum(view->running));
		add(&row, Int32GetDatum(view->blocked));
		add(&row, Int32GetDatum(view->waiting));
		add_if(&row, view->waiter >= 0, Int32GetDatum(waiter));
		add(&row, Int64GetDatum(view->admitted));
		add_milliseconds(&row, view->wait_time);
		end_row(&row);
	}
	return (Datum) 0;
}

/* One row per remembered hot spot that has ended; none is an LWLock. */
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_past_hot_spots);
Datum
pg_stat_get_admission_gate_past_hot_spots(PG_FUNCTION_ARGS)
{
	Row			row = first_row(fcinfo);
	PastHotSpot past;

	for (uint64 number = 0; slots_get_past_hot_spot(&number, &past); number++)
	{
		add_key(&row, &past.key);
		add(&row, TimestampTzGetDatum(past.since));
		add(&row, TimestampTzGetDatum(past.ended));
		add_tid(&row, &past.row);
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
	int			pid = slots_get_worker(&stats);

	add_if(&row, pid != 0, Int32GetDatum(pid));
	add_if(&row, pid != 0, TimestampTzGetDatum(stats.started));
	add_if(&row, stats.sampled != 0, TimestampTzGetDatum(stats.sampled));
	add(&row, Int64GetDatum(stats.samples));
	add_milliseconds(&row, stats.sample_time);
	end_row(&row);
	return (Datum) 0;
}

GATE_FUNCTION_INFO_V1(pg_stat_admission_gate_reset);
Datum
pg_stat_admission_gate_reset(PG_FUNCTION_ARGS)
{
	check_preloaded();
	slots_reset_stats();
	PG_RETURN_VOID();
}
