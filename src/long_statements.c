/*-------------------------------------------------------------------------
 *
 * long_statements.c
 *		Statements that are expected to take long wait before they start.
 *
 * What a statement will use is expected by what it has used before, or by its
 * cost (core/expected.c).  If that is at least long_after, it takes a place
 * among those that take about as long (core/long_queues.c), or waits for one,
 * as long as it has neither a snapshot nor memory: as the first of its
 * transaction, at top level, without a transaction ID.  The query of a command
 * like DECLARE CURSOR does so when it has been planned.
 *
 * To measure costs two readings of a clock, so statements whose cost promises
 * much less than long_after are not looked at: they cost one comparison.  If
 * the cost misleads, a sample notices, and the next run is measured.  Only one
 * statement is measured at a time.
 *
 * Locking: none; everything here is local to the backend.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/plannodes.h"
#include "storage/ipc.h"
#include "tcop/pquery.h"
#include "utils/portal.h"

#include "gate.h"

#define MAX_NODES		64		/* of a plan, looked at */
#define DISABLED_COST	1.0e10	/* before 18, of a node that is switched off */

/* The statement that is measured, if long_is_open */
static struct
{
	uint64		key;
	double		cost;
	uint64		cpu;			/* of this process when it began, us */
	bool		is_cursor;		/* its client may not read all of it */
}			measured;

bool		long_is_open = false;

/* ---- What is known of a statement before it runs ---- */

static double
cost_of(const PlannedStmt *statement)
{
	return fmod(statement->planTree->total_cost, DISABLED_COST);
}

/* Mix the kinds of the nodes in this part of a plan into a hash. */
static void
hash_nodes(const Plan *plan, int *nodes, uint64 *hash)
{
	if (plan == NULL || ++*nodes > MAX_NODES)
		return;
	*hash = hash_combine64(*hash, nodeTag(plan) << 16 | (list_length(plan->targetlist) & 0xFFFF));
	hash_nodes(outerPlan(plan), nodes, hash);
	hash_nodes(innerPlan(plan), nodes, hash);
}

/*
 * A key for this statement: the same for another run with a plan whose cost is
 * of the same decade.  Without an ID of the query, its relations and nodes tell.
 */
static uint64
key_of(const PlannedStmt *statement)
{
	uint64		key = (uint64) statement->queryId;
	int			nodes = 0;
	ListCell   *cell;

	if (key == 0)
	{
		foreach(cell, statement->relationOids)
			key = hash_combine64(key, lfirst_oid(cell));
		hash_nodes(statement->planTree, &nodes, &key);
	}
	return Max(hash_combine64(key, (uint64) log10(Max(cost_of(statement), 1))), 1);
}

/* ---- Beginning and end ---- */

/*
 * The first statement of a transaction is about to start, and long_may_be():
 * measure it.  If it is expected to be long, take a place, or wait for one.
 * query: the argument of ExecutorStart, or NULL if a command has planned its
 * query and starts it next.
 */
void
long_begin(const PlannedStmt *statement, QueryDesc *query, bool is_cursor)
{
	uint64		expected;

	/* From 17 on, CREATE MATERIALIZED VIEW plans its query last of all. */
	if (gate_long_after < 0 || long_is_open || !my_slot_may_want() || xact_predates_gate() ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	/* A function may run it, not the client. */
	if (query != NULL &&
		(ActivePortal == NULL || !list_member_ptr(ActivePortal->stmts, statement)))
		return;
	measured.key = key_of(statement);
	measured.cost = cost_of(statement);
	measured.is_cursor = is_cursor;
	measured.cpu = own_cpu_time();
	(void) slots_workers_time();
	long_is_open = true;
	expected = slots_expect(measured.key, measured.cost);
	if (expected >= gate_long_after * UINT64CONST(1000))
		my_slot_want_long(query, expected);
}

/*
 * The statement has ended, or the transaction.  failed: there is more to it
 * than it has used.
 */
void
long_end(bool failed)
{
	uint64		used = own_cpu_time() - measured.cpu + slots_workers_time();

	if (!(failed || measured.is_cursor) || used > slots_expect(measured.key, measured.cost))
		slots_learn(measured.key, measured.cost, used);
	long_is_open = false;
	my_slot_end_long();
}

/*
 * The executor has finished with the first statement of a transaction, or with
 * that of a command that is measured.  If it was not, but a sample has seen
 * this backend at work for long, its cost did not tell: measure the next run.
 */
void
long_finish(const PlannedStmt *statement)
{
	TimestampTz since = slots_seemed_long();

	if (long_is_open)
		long_end(false);
	else if (unlikely(since != 0) && gate_long_after >= 0 && statement->queryId != 0)
	{
		/* It may have waited at the gate first. */
		since = Max(since, GetCurrentStatementStartTimestamp());
		if (GetCurrentTimestamp() - since >= gate_long_after * INT64CONST(1000))
			slots_note_surprise((uint64) statement->queryId);
	}
}

/* on_shmem_exit callback of a parallel worker */
static void
count_for_leader(int code, Datum leader)
{
	slots_add_workers_time(DatumGetInt32(leader), own_cpu_time());
}

/* If this process is a parallel worker, what it uses counts for its leader. */
void
long_begin_worker(void)
{
	static bool begun = false;

	if (!begun && IsParallelWorker())
		on_shmem_exit(count_for_leader, Int32GetDatum(GATE_PROC_NUMBER(MyProc->lockGroupLeader)));
	begun = true;
}
