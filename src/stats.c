/*-------------------------------------------------------------------------
 *
 * stats.c
 *		The SQL functions, most of them behind the views.
 *
 * Locking: none here; the functions that return copies of shared memory take
 * the locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "core/counters.h"
#include "core/entries.h"
#include "core/load_control.h"
#include "core/long_share.h"

GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate);
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_backends);
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_histogram);
GATE_FUNCTION_INFO_V1(pg_stat_get_admission_gate_limit);
GATE_FUNCTION_INFO_V1(pg_stat_admission_gate_reset);

static const char *const state_names[] = {
	[SLOT_NONE] = "none",
	[SLOT_WAITING] = "waiting",
	[SLOT_RUNNING] = "running",
	[SLOT_LENT] = "lent",
	[SLOT_LONG] = "long",
	[SLOT_PAUSED] = "paused"
};

static const char *const reason_names[] = {
	[LIMIT_OPEN] = "open",
	[LIMIT_CONTENTION] = "contention",
	[LIMIT_RELIEF] = "relief",
	[LIMIT_NO_WAITER] = "no waiter",
	[LIMIT_NO_GAIN] = "no gain"
};

static void
check_preloaded(void)
{
	if (!slots_available())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("admission_gate must be loaded via \"shared_preload_libraries\"")));
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
	Datum		values[26];
	bool		nulls[26] = {0};
	int			i = 0;

	values[i++] = CStringGetTextDatum(stats->pool);
	values[i++] = CStringGetTextDatum(stats->observing ? "observe" : "enforce");
	values[i++] = Int32GetDatum(stats->limit);
	values[i++] = Int32GetDatum(stats->effective_limit);
	values[i++] = Int32GetDatum(stats->priority);
	values[i++] = Int32GetDatum(stats->running);
	values[i++] = Int32GetDatum(stats->lent);
	values[i++] = Int32GetDatum(stats->long_running);
	values[i++] = Int32GetDatum(stats->paused);
	values[i++] = Int32GetDatum(stats->waiting);
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
	if (stats->stats_reset == 0)
		nulls[i] = true;
	values[i++] = TimestampTzGetDatum(stats->stats_reset);
	Assert(i == lengthof(values));

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * May the user see what this role does?  As in pg_stat_activity, members of
 * the role and of pg_read_all_stats may.
 */
static bool
may_see(Oid roleid)
{
	return has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) ||
		has_privs_of_role(GetUserId(), roleid);
}

/*
 * Return the rows that put_rows adds for each pool.
 */
static Datum
rows_of_pools(FunctionCallInfo fcinfo,
			  void (*put_rows) (ReturnSetInfo *, const SlotStats *))
{
	SlotStats  *stats = palloc(SLOTS_MAX_POOLS * sizeof(SlotStats));
	int			n;

	check_preloaded();
	InitMaterializedSRF(fcinfo, 0);
	n = slots_get_stats(stats);
	for (int i = 0; i < n; i++)
		put_rows((ReturnSetInfo *) fcinfo->resultinfo, &stats[i]);
	return (Datum) 0;
}

/*
 * pg_stat_get_admission_gate() returns setof record
 *
 * One row per pool.
 */
Datum
pg_stat_get_admission_gate(PG_FUNCTION_ARGS)
{
	return rows_of_pools(fcinfo, put_pool);
}

/*
 * pg_stat_get_admission_gate_backends() returns setof record
 *
 * One row per backend that holds a slot, has lent it, waits for one, or runs a
 * long statement.
 */
Datum
pg_stat_get_admission_gate_backends(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	check_preloaded();
	InitMaterializedSRF(fcinfo, 0);

	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		SlotBackend backend;
		Datum		values[5] = {0};
		bool		nulls[5] = {0};

		if (!slots_get_backend(procno, &backend))
			continue;

		values[0] = Int32GetDatum(backend.pid);
		if (may_see(backend.roleid))
		{
			values[1] = CStringGetTextDatum(backend.pool);
			values[2] = CStringGetTextDatum(state_names[backend.state]);
			values[3] = TimestampTzGetDatum(backend.since);
			values[4] = milliseconds(backend.wait_time);
		}
		else
			nulls[1] = nulls[2] = nulls[3] = nulls[4] = true;

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, nulls);
	}
	return (Datum) 0;
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
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 values, nulls);

		lower_bound = upper_bound;
		upper_bound *= 2;
	}
}

/*
 * pg_stat_get_admission_gate_histogram() returns setof record
 *
 * One row per pool and bucket; bounds in ms.
 */
Datum
pg_stat_get_admission_gate_histogram(PG_FUNCTION_ARGS)
{
	return rows_of_pools(fcinfo, put_histogram);
}

static Datum
time_or_null(int64 time, bool *isnull)
{
	*isnull = time == 0;
	return TimestampTzGetDatum(time);
}

/* A rate, or null if it is unknown (0) */
static Datum
rate_or_null(double rate, bool *isnull)
{
	*isnull = rate == 0;
	return Float8GetDatum(rate);
}

/*
 * pg_stat_get_admission_gate_limit() returns setof record
 *
 * One row: the limit for all pools, the reason for it, and the share of long
 * statements.  Rates are in transactions per second.
 */
Datum
pg_stat_get_admission_gate_limit(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	SlotLimitView view;
	LimitLaw   *law = &view.law;
	Datum		values[13];
	bool		nulls[13] = {0};
	double		short_working;
	int			long_share;

	check_preloaded();
	InitMaterializedSRF(fcinfo, 0);
	slots_get_limit(&view);
	slots_get_long_share(&long_share, &short_working);

	values[0] = Int32GetDatum(view.set);
	values[1] = Int32GetDatum(view.is_lowered || view.set > 0 ? law->limit : 0);
	values[2] = Int32GetDatum(view.set == 0 ? 0 : law->open_limit);
	values[3] = CStringGetTextDatum(reason_names[law->reason]);
	values[4] = TimestampTzGetDatum(law->since);
	values[5] = time_or_null(law->last.now, &nulls[5]);
	values[6] = Int32GetDatum(law->last.working);
	values[7] = Int32GetDatum(law->last.blocked);
	values[8] = rate_or_null(law->open_rate, &nulls[8]);
	values[9] = rate_or_null(law->closed_rate, &nulls[9]);
	values[10] = time_or_null(law->backoff_until > GetCurrentTimestamp() ? law->backoff_until : 0, &nulls[10]);
	values[11] = Float8GetDatum(short_working);
	values[12] = Int32GetDatum(long_share);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

/*
 * pg_stat_admission_gate_reset() returns void
 */
Datum
pg_stat_admission_gate_reset(PG_FUNCTION_ARGS)
{
	check_preloaded();
	slots_reset_stats();
	PG_RETURN_VOID();
}
