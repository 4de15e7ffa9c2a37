/*-------------------------------------------------------------------------
 *
 * views.c
 *		The SQL functions, most of them behind the views.
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
	[SLOT_LONG] = "long",
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

/* Begin to return rows. */
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

/* Times are shown in ms, as in all pg_stat views. */
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
	values[i++] = Int32GetDatum(stats->backends[SLOT_LONG]);
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
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_DEMOTIONS]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_TIMEOUTS]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_REJECTIONS]);
	values[i++] = Int64GetDatum(stats->pool_totals[TOTAL_CANCELS]);
	values[i++] = milliseconds(stats->own_totals[TOTAL_WAIT_TIME]);
	values[i++] = milliseconds(stats->max_wait_time);
	nulls[i] = stats->stats_reset == 0;
	values[i++] = TimestampTzGetDatum(stats->stats_reset);
	Assert(i == lengthof(values));

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* One row per pool */
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
 * One row per backend that holds a slot, has lent it, waits for one, or runs a
 * long statement.  As in pg_stat_activity, only members of its role and of
 * pg_read_all_stats see what it does.
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

/* One row per hot spot.  Columns that its kind does not use are null. */
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
		HotSpotKind kind = view->key.kind;
		bool		has_row = kind == HOT_SPOT_RELATION && view->row.offset != 0;
		bool		has_fields = kind == HOT_SPOT_ADVISORY || kind == HOT_SPOT_OBJECT;
		Datum		values[20] = {0};
		bool		nulls[20] = {0};

		values[0] = Int32GetDatum(view->index + 1);
		values[1] = CStringGetTextDatum(kind_names[kind]);
		values[2] = ObjectIdGetDatum(view->key.database);
		nulls[2] = !OidIsValid(view->key.database);
		values[3] = ObjectIdGetDatum(view->key.fields[0]);
		nulls[3] = kind != HOT_SPOT_RELATION;
		values[4] = ObjectIdGetDatum(view->key.fields[0]);
		values[5] = ObjectIdGetDatum(view->key.fields[1]);
		values[6] = Int16GetDatum(view->key.fields[2]);
		nulls[4] = nulls[5] = nulls[6] = !has_fields;
		nulls[7] = kind != HOT_SPOT_LWLOCK;
		if (!nulls[7])
			values[7] = CStringGetTextDatum(pgstat_get_wait_event(view->key.fields[0]));
		values[8] = TimestampTzGetDatum(view->since);
		values[9] = Int32GetDatum(view->hot_keys);
		nulls[9] = kind != HOT_SPOT_RELATION;
		values[10] = Int64GetDatum((int64) view->row.block);
		values[11] = Int32GetDatum(view->row.offset);
		nulls[10] = nulls[11] = !has_row;
		values[12] = Int32GetDatum(view->limit);
		nulls[12] = view->limit == 0;
		values[13] = Int32GetDatum(view->contenders);
		values[14] = Int32GetDatum(view->running);
		values[15] = Int32GetDatum(view->blocked);
		values[16] = Int32GetDatum(view->waiting);
		nulls[17] = view->waiter < 0;
		if (!nulls[17])
			values[17] = Int32GetDatum(GetPGProcByNumber(view->waiter)->pid);
		values[18] = Int64GetDatum(view->admitted);
		values[19] = milliseconds(view->wait_time);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* Returns void */
GATE_FUNCTION_INFO_V1(pg_stat_admission_gate_reset);
Datum
pg_stat_admission_gate_reset(PG_FUNCTION_ARGS)
{
	check_preloaded();
	slots_reset_stats();
	PG_RETURN_VOID();
}
