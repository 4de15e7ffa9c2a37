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

static const char *const state_names[] = {
	[SLOT_NONE] = "none",
	[SLOT_WAITING] = "waiting",
	[SLOT_RUNNING] = "running",
	[SLOT_LENT] = "lent",
	[SLOT_PAUSED] = "paused"
};

static const char *const kind_names[] = {
	[HOT_SPOT_NONE] = "none",
	[HOT_SPOT_RELATION] = "relation",
	[HOT_SPOT_ADVISORY] = "advisory",
	[HOT_SPOT_OBJECT] = "object",
	[HOT_SPOT_LWLOCK] = "lwlock",
	[HOT_SPOT_TRANSACTION] = "transaction"
};

static void
check_preloaded(void)
{
	if (!slots_available())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("admission_gate must be loaded via \"shared_preload_libraries\"")));
}

static ReturnSetInfo *
begin_rows(FunctionCallInfo fcinfo)
{
	check_preloaded();
	InitMaterializedSRF(fcinfo, 0);
	return (ReturnSetInfo *) fcinfo->resultinfo;
}

/* Return the rows that put_rows adds for each pool. */
static Datum
rows_of_pools(FunctionCallInfo fcinfo, void (*put_rows) (ReturnSetInfo *, const SlotStats *))
{
	ReturnSetInfo *rsinfo = begin_rows(fcinfo);
	SlotStats  *stats = palloc(SLOTS_MAX_POOLS * sizeof(SlotStats));
	int			n = slots_get_stats(stats);

	for (int i = 0; i < n; i++)
		put_rows(rsinfo, &stats[i]);
	return (Datum) 0;
}

static Datum
milliseconds(uint64 us)
{
	return Float8GetDatum((double) us / 1000.0);
}

static void
put_pool(ReturnSetInfo *rsinfo, const SlotStats *stats)
{
	Datum		values[25];
	bool		nulls[25] = {0};
	int			i = 0;

	values[i++] = CStringGetTextDatum(stats->pool);
	values[i++] = CStringGetTextDatum(stats->observing ? "observe" : "enforce");
	values[i++] = Int32GetDatum(stats->limit);
	values[i++] = Int32GetDatum(stats->priority);
	values[i++] = Int32GetDatum(stats->backends[SLOT_RUNNING]);
	values[i++] = Int32GetDatum(stats->backends[SLOT_LENT]);
	values[i++] = Int32GetDatum(stats->backends[SLOT_PAUSED]);
	values[i++] = Int32GetDatum(stats->backends[SLOT_WAITING]);
	values[i++] = Int64GetDatum(stats->own_totals[TOTAL_ADMITTED]);
	values[i++] = Int64GetDatum(stats->own_totals[TOTAL_COMPLETED]);
	values[i++] = Int64GetDatum(stats->own_totals[TOTAL_FAILED]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_QUEUED]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_WOULD_QUEUE]);
	values[i++] = Int64GetDatum(stats->own_totals[TOTAL_BARGED]);
	values[i++] = Int64GetDatum(stats->own_totals[TOTAL_FORCED]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_LENDS]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_STALLS]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_PAUSES]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_TIMEOUTS]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_REJECTIONS]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_CANCELS]);
	values[i++] = milliseconds(stats->own_totals[TOTAL_WAIT_TIME]);
	values[i++] = milliseconds(stats->max_wait_time);
	values[i++] = milliseconds(stats->pool_totals[TOTAL_PAUSE_TIME]);
	nulls[i] = stats->stats_reset == 0;
	values[i++] = TimestampTzGetDatum(stats->stats_reset);
	Assert(i == lengthof(values));

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate);
Datum
pg_stat_get_admission_gate(PG_FUNCTION_ARGS)
{
	return rows_of_pools(fcinfo, put_pool);
}

static void
put_histogram(ReturnSetInfo *rsinfo, const SlotStats *stats)
{
	double		lower_bound = 0;
	double		upper_bound = 1;

	for (int i = 0; i < SLOTS_WAIT_BUCKETS; i++)
	{
		Datum		values[4];
		bool		nulls[4] = {0};

		if (i == SLOTS_WAIT_BUCKETS - 1)
			upper_bound = get_float8_infinity();

		values[0] = CStringGetTextDatum(stats->pool);
		values[1] = Float8GetDatum(lower_bound);
		values[2] = Float8GetDatum(upper_bound);
		values[3] = Int64GetDatum(stats->wait_counts[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);

		lower_bound = upper_bound;
		upper_bound *= 2;
	}
}

/* One row per pool and bucket; bounds in ms */
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_histogram);
Datum
pg_stat_get_admission_gate_histogram(PG_FUNCTION_ARGS)
{
	return rows_of_pools(fcinfo, put_histogram);
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
	ReturnSetInfo *rsinfo = begin_rows(fcinfo);

	for (int procno = 0; procno < MaxBackends; procno++)
	{
		SlotBackend backend;
		Datum		values[5] = {0};
		bool		nulls[5] = {0};

		if (!slots_get_backend(procno, &backend))
			continue;

		values[0] = Int32GetDatum(backend.pid);
		values[1] = CStringGetTextDatum(backend.pool);
		values[2] = CStringGetTextDatum(state_names[backend.state]);
		values[3] = TimestampTzGetDatum(backend.since);
		values[4] = milliseconds(backend.wait_time);
		nulls[1] = nulls[2] = nulls[3] = nulls[4] =
			!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) &&
			!has_privs_of_role(GetUserId(), backend.roleid);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

#define KEY_COLUMNS		7		/* the last one is for LWLocks */

/* The columns that identify a hot spot; its kind leaves some of them null. */
static void
set_key(Datum *values, bool *nulls, const HotSpotKey *key)
{
	HotSpotKind kind = key->kind;
	bool		has_fields = kind == HOT_SPOT_ADVISORY || kind == HOT_SPOT_OBJECT;

	values[0] = CStringGetTextDatum(kind_names[kind]);
	values[1] = ObjectIdGetDatum(key->database);
	nulls[1] = !OidIsValid(key->database);
	values[2] = ObjectIdGetDatum(key->fields[0]);
	nulls[2] = kind != HOT_SPOT_RELATION;
	values[3] = ObjectIdGetDatum(key->fields[0]);
	values[4] = ObjectIdGetDatum(key->fields[1]);
	values[5] = Int16GetDatum(key->fields[2]);
	nulls[3] = nulls[4] = nulls[5] = !has_fields;
	nulls[6] = kind != HOT_SPOT_LWLOCK;
	if (!nulls[6])
		values[6] = CStringGetTextDatum(pgstat_get_wait_event(key->fields[0]));
}

/* The columns page and tuple, null if no row is known */
static void
set_row(Datum *values, bool *nulls, const WantedRow *row)
{
	values[0] = Int64GetDatum((int64) row->block);
	values[1] = Int32GetDatum(row->offset);
	nulls[0] = nulls[1] = row->offset == 0;
}

GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_hot_spots);
Datum
pg_stat_get_admission_gate_hot_spots(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = begin_rows(fcinfo);
	HotSpotView views[MAX_HOT_SPOTS];
	int			n = slots_get_hot_spots(views);

	for (int i = 0; i < n; i++)
	{
		HotSpotView *view = &views[i];
		Datum		values[20] = {0};
		bool		nulls[20] = {0};
		int			c = KEY_COLUMNS + 1;

		values[0] = Int32GetDatum(view->index + 1);
		set_key(&values[1], &nulls[1], &view->key);
		values[c++] = TimestampTzGetDatum(view->since);
		nulls[c] = view->key.kind != HOT_SPOT_RELATION;
		values[c++] = Int32GetDatum(view->hot_keys);
		set_row(&values[c], &nulls[c], &view->row);
		c += 2;
		nulls[c] = view->limit == 0;
		values[c++] = Int32GetDatum(view->limit);
		values[c++] = Int32GetDatum(view->contenders);
		values[c++] = Int32GetDatum(view->running);
		values[c++] = Int32GetDatum(view->blocked);
		values[c++] = Int32GetDatum(view->waiting);
		nulls[c] = view->waiter < 0;
		if (!nulls[c])
			values[c] = Int32GetDatum(GetPGProcByNumber(view->waiter)->pid);
		c++;
		values[c++] = Int64GetDatum(view->admitted);
		values[c++] = milliseconds(view->wait_time);
		Assert(c == lengthof(values));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* One row per remembered hot spot that has ended */
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_past_hot_spots);
Datum
pg_stat_get_admission_gate_past_hot_spots(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = begin_rows(fcinfo);
	PastHotSpot past;

	for (uint64 number = 0; slots_get_past_hot_spot(&number, &past); number++)
	{
		Datum		values[13] = {0};
		bool		nulls[13] = {0};
		int			c = KEY_COLUMNS - 1;	/* none is an LWLock */

		set_key(values, nulls, &past.key);
		nulls[c] = false;
		values[c++] = TimestampTzGetDatum(past.since);
		values[c++] = TimestampTzGetDatum(past.ended);
		set_row(&values[c], &nulls[c], &past.row);
		c += 2;
		values[c++] = Int32GetDatum(past.most_in_line);
		values[c++] = Int64GetDatum(past.admitted);
		values[c++] = milliseconds(past.wait_time);
		Assert(c == lengthof(values));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* One row: the worker.  Without one, pid is null. */
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_worker);
Datum
pg_stat_get_admission_gate_worker(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = begin_rows(fcinfo);
	WorkerStats stats;
	int			pid = slots_get_worker(&stats);
	Datum		values[5] = {0};
	bool		nulls[5] = {0};

	values[0] = Int32GetDatum(pid);
	values[1] = TimestampTzGetDatum(stats.started);
	nulls[0] = nulls[1] = pid == 0;
	values[2] = TimestampTzGetDatum(stats.sampled);
	nulls[2] = stats.sampled == 0;
	values[3] = Int64GetDatum(stats.samples);
	values[4] = milliseconds(stats.sample_time);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
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
