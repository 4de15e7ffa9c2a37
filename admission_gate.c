/*-------------------------------------------------------------------------
 *
 * admission_gate.c
 *		The front door: caps how many backends are at work at the same time.
 *
 * PostgreSQL gives every connection a process.  Idle ones cost little, but
 * past a few times the number of cores, every further one at work makes all
 * of them slower.  This module lets max_active_backends of them work and
 * keeps the others asleep in a queue.
 *
 * A statement walks one way: a hook here decides when the gate is met,
 * src/admission.c whether the backend needs to wait, src/snapshot.c lets its
 * snapshot go for that time, src/slots.c has the semaphore and its queue, and
 * src/lending.c sees to it that no slot is held by a backend that does nothing, and
 * src/contention.c looks whether fewer would get more done (src/limit_law.c).
 * src/settings.c has the parameters, src/bypass.c who needs no slot, src/pools.c
 * the list of pools, src/stats.c the views,
 * src/wait_log.c the lines in the server log, src/query_waits.c the waits by
 * query, src/explain.c an option of EXPLAIN.
 *
 * The gate is met at top level only.  A backend that holds a slot passes, so in
 * transaction scope it is only utility commands whose level has to be counted: they
 * may run statements without a slot of their own, or commit inside.  In statement
 * scope, one counter over all hooks tells the level: planner and utility commands run the executor for what
 * they evaluate, so a counter for each would take the end of an inner statement
 * for that of the top-level one.
 *
 * The places are, whichever comes first in a transaction: BEGIN (nothing is
 * locked yet and no snapshot taken), the planner,
 * ExecutorStart for plans from the cache, and ProcessUtility.  Before that, no user's
 * code has run and no XID was taken, but by two ways that no hook sees: conversion of
 * parameters in Bind, and function calls of the fast-path protocol.  They earn their
 * transaction nothing: it waits like any other, and what of their code runs SQL meets
 * the gate.  Only client
 * backends meet it: neither parallel workers, whose leader has a slot, nor any
 * other process.
 *
 * A slot is given back when the commit begins, before its WAL is flushed:
 * others can use the CPU while we wait for the disk.  Commands that commit
 * inside, such as CALL and VACUUM, keep it to their end.
 *
 * Everything here is the backend's own: no locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "commands/extension.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "optimizer/planner.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "tcop/utility.h"

#include "admission.h"
#include "bypass.h"
#include "compat.h"
#include "contention.h"
#include "explain.h"
#include "long_statements.h"
#include "query_waits.h"
#include "settings.h"
#include "slots.h"
#include "wait_log.h"

GATE_MODULE_MAGIC;

/* What a utility command means to the gate. */
typedef enum UtilityKind
{
	UTILITY_LIGHT,				/* passes: runs no code of users */
	UTILITY_BEGIN,				/* passes, but for the transaction it begins */
	UTILITY_QUERY,				/* always needs a slot */
	UTILITY_HEAVY				/* needs a slot if gate_utility says so, and
								 * in a transaction with others */
} UtilityKind;

/*
 * Levels of utility calls, and of planner and executor calls if they count,
 * that this backend is inside of.
 */
static int	nesting_level = 0;

/*
 * In statement scope, the top-level statement that came to the gate last, if it is
 * known and has not ended: another one that ends does not end its slot.
 */
static const QueryDesc *statement = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/*
 * What comes after us: the previous hook, or else the standard function.  So
 * while the gate is off, a hook is one branch and one jump.
 */
static planner_hook_type next_planner = standard_planner;
static ExecutorStart_hook_type next_ExecutorStart = standard_ExecutorStart;
static ExecutorRun_hook_type next_ExecutorRun = standard_ExecutorRun;
static ExecutorFinish_hook_type next_ExecutorFinish = standard_ExecutorFinish;
static ExecutorEnd_hook_type next_ExecutorEnd = standard_ExecutorEnd;
static ProcessUtility_hook_type next_ProcessUtility = standard_ProcessUtility;

extern PGDLLEXPORT void _PG_init(void);

static void gate_shmem_request(void);
static void gate_shmem_startup(void);

static PlannedStmt *gate_planner(PLANNER_PARAMS);
static void gate_ExecutorStart(QueryDesc *queryDesc, int eflags);
static void gate_ExecutorRun(EXECUTOR_RUN_PARAMS);
static void gate_ExecutorFinish(QueryDesc *queryDesc);
static void gate_ExecutorEnd(QueryDesc *queryDesc);
static void gate_ProcessUtility(UTILITY_PARAMS);

static PlannedStmt *planner_behind_gate(PLANNER_PARAMS);
static void ExecutorStart_behind_gate(QueryDesc *queryDesc, int eflags);
static void ExecutorRun_behind_gate(EXECUTOR_RUN_PARAMS);
static void ExecutorFinish_one_level_down(QueryDesc *queryDesc);
static void ProcessUtility_behind_gate(UTILITY_PARAMS);

static void gate_xact_callback(XactEvent event, void *arg);
static void gate_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
								  SubTransactionId parentSubid, void *arg);

/*
 * Module load callback.  Without shared memory there is no gate: then load
 * quietly, so that the SQL functions can say what is missing.
 */
void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
	{
		if (creating_extension)
			ereport(WARNING,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("admission_gate is not loaded via \"shared_preload_libraries\""),
					 errhint("Add it to shared_preload_libraries and restart the server.")));
		return;
	}

	settings_define();

	/* pg_upgrade works alone, and must not fail because of a queue. */
	if (IsBinaryUpgrade)
		return;

	explain_define();

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = gate_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = gate_shmem_startup;
	if (planner_hook)
		next_planner = planner_hook;
	planner_hook = gate_planner;
	if (ExecutorStart_hook)
		next_ExecutorStart = ExecutorStart_hook;
	ExecutorStart_hook = gate_ExecutorStart;
	if (ExecutorRun_hook)
		next_ExecutorRun = ExecutorRun_hook;
	ExecutorRun_hook = gate_ExecutorRun;
	if (ExecutorFinish_hook)
		next_ExecutorFinish = ExecutorFinish_hook;
	ExecutorFinish_hook = gate_ExecutorFinish;
	if (ExecutorEnd_hook)
		next_ExecutorEnd = ExecutorEnd_hook;
	ExecutorEnd_hook = gate_ExecutorEnd;
	if (ProcessUtility_hook)
		next_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = gate_ProcessUtility;
}

static void
gate_shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	slots_shmem_request();
	RequestAddinShmemSpace(wait_log_shmem_size());
	query_waits_shmem_request();
	contention_shmem_request();
}

static void
gate_shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	slots_shmem_init(gate_max_active_backends, gate_mode == GATE_MODE_OBSERVE,
					 gate_pools, gate_lend_after, gate_long_after,
					 gate_load_control);
	wait_log_shmem_init();
	query_waits_shmem_init();
	contention_shmem_init();
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Is there a gate for this process?  This is the one branch that a statement
 * costs, in each hook, while it is off.
 */
static inline bool
gate_is_on(void)
{
	return unlikely(gate_max_active_backends != 0) &&
		MyBackendType == B_BACKEND;
}

/* Do the levels of planner and executor calls count? */
static inline bool
all_levels_count(void)
{
	return gate_scope == SCOPE_STATEMENT;
}

/*
 * When the session comes for the first time, see who it is, and see to it that
 * slots taken in its transactions will be given back.  Not in _PG_init: so
 * transactions cost nothing while the gate is off.
 */
static inline void
introduce_session(void)
{
	static bool introduced = false;

	if (unlikely(!introduced))
	{
		bypass_look_at_name();
		RegisterXactCallback(gate_xact_callback, NULL);
		RegisterSubXactCallback(gate_subxact_callback, NULL);
		introduced = true;
	}
}

/*
 * A statement begins: if at top level, see admission_enter.
 */
static inline void
enter(QueryDesc *query, bool begins_block)
{
	if (nesting_level == 0)
	{
		introduce_session();
		admission_enter(query, begins_block);
		statement = query;
	}
}

/*
 * A statement goes on: if at top level, see admission_continue.
 */
static inline void
go_on(QueryDesc *query)
{
	if (nesting_level == 0)
	{
		introduce_session();
		admission_continue();
		statement = query;
	}
}

/*
 * The top-level statement that came to the gate last has ended.  In statement scope,
 * so has its slot.
 */
static inline void
statement_ends(void)
{
	if (nesting_level == 0 && gate_scope == SCOPE_STATEMENT)
	{
		admission_leave(false);
		statement = NULL;
	}
}

/*
 * planner_hook: statements that are planned when they are run.
 */
static PlannedStmt *
gate_planner(PLANNER_PARAMS)
{
	if (gate_is_on())
		return planner_behind_gate(PLANNER_ARGS);
	return next_planner(PLANNER_ARGS);
}

static pg_noinline PlannedStmt *
planner_behind_gate(PLANNER_PARAMS)
{
	PlannedStmt *result;

	enter(NULL, false);
	if (!all_levels_count())
		return next_planner(PLANNER_ARGS);

	nesting_level++;
	PG_TRY();
	{
		result = next_planner(PLANNER_ARGS);
	}
	PG_FINALLY();
	{
		nesting_level--;
	}
	PG_END_TRY();

	return result;
}

/*
 * ExecutorStart_hook: statements whose plan comes from the cache.
 */
static void
gate_ExecutorStart(QueryDesc *queryDesc, int eflags)
{
	if (gate_is_on())
		ExecutorStart_behind_gate(queryDesc, eflags);
	else
		next_ExecutorStart(queryDesc, eflags);
}

static pg_noinline void
ExecutorStart_behind_gate(QueryDesc *queryDesc, int eflags)
{
	enter(queryDesc, false);
	if (!all_levels_count())
	{
		next_ExecutorStart(queryDesc, eflags);
		return;
	}

	nesting_level++;
	PG_TRY();
	{
		next_ExecutorStart(queryDesc, eflags);
	}
	PG_FINALLY();
	{
		nesting_level--;
	}
	PG_END_TRY();
}

/*
 * ExecutorRun_hook: a suspended portal may go on without the slot it began
 * with, or have begun before the gate was switched on.
 */
static void
gate_ExecutorRun(EXECUTOR_RUN_PARAMS)
{
	if (gate_is_on())
		ExecutorRun_behind_gate(EXECUTOR_RUN_ARGS);
	else
	{
		/* Workers need no slot, but pause with their leader. */
		if (unlikely(gate_max_active_backends != 0) && IsParallelWorker())
			long_statements_watch(queryDesc);
		next_ExecutorRun(EXECUTOR_RUN_ARGS);
	}
}

/*
 * The end of a statement that only reads is here: in the extended protocol,
 * ExecutorEnd comes no sooner than with the next statement.
 */
static pg_noinline void
ExecutorRun_behind_gate(EXECUTOR_RUN_PARAMS)
{
	go_on(queryDesc);
	long_statements_watch(queryDesc);
	if (!all_levels_count())
	{
		next_ExecutorRun(EXECUTOR_RUN_ARGS);
		return;
	}

	nesting_level++;
	PG_TRY();
	{
		next_ExecutorRun(EXECUTOR_RUN_ARGS);
	}
	PG_FINALLY();
	{
		nesting_level--;
	}
	PG_END_TRY();

	if (queryDesc->operation == CMD_SELECT &&
		!queryDesc->plannedstmt->hasModifyingCTE)
		statement_ends();
}

/*
 * ExecutorFinish_hook: AFTER triggers run here, inside the statement.
 */
static void
gate_ExecutorFinish(QueryDesc *queryDesc)
{
	if (gate_is_on() && all_levels_count())
		ExecutorFinish_one_level_down(queryDesc);
	else
		next_ExecutorFinish(queryDesc);
}

static pg_noinline void
ExecutorFinish_one_level_down(QueryDesc *queryDesc)
{
	nesting_level++;
	PG_TRY();
	{
		next_ExecutorFinish(queryDesc);
	}
	PG_FINALLY();
	{
		nesting_level--;
	}
	PG_END_TRY();
}

/*
 * ExecutorEnd_hook: the end of a statement, unless it failed.  It may be that of an
 * earlier one, whose portal is closed while another one has the slot.
 */
static void
gate_ExecutorEnd(QueryDesc *queryDesc)
{
	if (gate_is_on() && gate_scope == SCOPE_STATEMENT && queryDesc == statement)
	{
		next_ExecutorEnd(queryDesc);
		statement_ends();
	}
	else
		next_ExecutorEnd(queryDesc);
}

/*
 * What does a utility command mean to the gate?  Unknown ones are heavy.
 */
static UtilityKind
classify_utility(Node *stmt)
{
	if (is_wait_for_lsn(stmt))
		return UTILITY_LIGHT;

	switch (nodeTag(stmt))
	{
		case T_TransactionStmt:
			switch (((TransactionStmt *) stmt)->kind)
			{
				case TRANS_STMT_BEGIN:
				case TRANS_STMT_START:
					return UTILITY_BEGIN;

					/* Inside a savepoint, nothing waits any more. */
				case TRANS_STMT_SAVEPOINT:
					return UTILITY_QUERY;
				default:
					return UTILITY_LIGHT;
			}

			/*
			 * These run queries or users' code: EXPLAIN in the planner, SET
			 * CONSTRAINTS in triggers.
			 */
		case T_ExplainStmt:
		case T_ConstraintsSetStmt:
		case T_ExecuteStmt:
		case T_DeclareCursorStmt:
		case T_FetchStmt:
		case T_CreateTableAsStmt:
		case T_RefreshMatViewStmt:
		case T_CopyStmt:
		case T_CallStmt:
		case T_DoStmt:
			return UTILITY_QUERY;

			/* In statement scope, nothing may be locked before admission. */
		case T_LockStmt:
			return UTILITY_QUERY;

		case T_VariableSetStmt:
		case T_VariableShowStmt:
		case T_PrepareStmt:
		case T_DeallocateStmt:
		case T_ClosePortalStmt:
		case T_ListenStmt:
		case T_NotifyStmt:
		case T_UnlistenStmt:
		case T_LoadStmt:
		case T_CheckPointStmt:
		case T_AlterSystemStmt:
			return UTILITY_LIGHT;

			/* DROP for temporary tables; ALL, which poolers send, is alone. */
		case T_DiscardStmt:
			return ((DiscardStmt *) stmt)->target == DISCARD_TEMP ?
				UTILITY_HEAVY : UTILITY_LIGHT;

		default:
			return UTILITY_HEAVY;
	}
}

/*
 * Does a top-level utility command of that kind have to be admitted?
 *
 * One that need not be alone does if it is not: what comes after it would wait with
 * the locks that it took.
 */
static bool
utility_needs_slot(UtilityKind kind, ProcessUtilityContext context)
{
	switch (kind)
	{
		case UTILITY_LIGHT:
			return false;
		case UTILITY_BEGIN:
			return gate_scope == SCOPE_TRANSACTION;
		case UTILITY_QUERY:
			return true;
		case UTILITY_HEAVY:
			return gate_utility || context != PROCESS_UTILITY_TOPLEVEL || IsTransactionBlock();
	}
	pg_unreachable();
}

/*
 * ProcessUtility_hook: utility commands, and BEGIN for its transaction.
 */
static void
gate_ProcessUtility(UTILITY_PARAMS)
{
	if (gate_is_on())
		ProcessUtility_behind_gate(UTILITY_ARGS);
	else
		next_ProcessUtility(UTILITY_ARGS);
}

static pg_noinline void
ProcessUtility_behind_gate(UTILITY_PARAMS)
{
	UtilityKind kind = classify_utility(pstmt->utilityStmt);
	bool		needs_slot = utility_needs_slot(kind, context);

	if (needs_slot)
		enter(NULL, kind == UTILITY_BEGIN);

	nesting_level++;
	PG_TRY();
	{
		next_ProcessUtility(UTILITY_ARGS);
	}
	PG_FINALLY();
	{
		nesting_level--;
	}
	PG_END_TRY();

	if (needs_slot)
		statement_ends();
}

/*
 * The transaction ends.  Not so if that is done by a command that goes on
 * afterwards: then its slot, and its right not to wait, last to its end.
 */
static void
gate_xact_callback(XactEvent event, void *arg)
{
	if (nesting_level > 0)
		return;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			admission_leave(false);
			break;

		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			admission_end_transaction(false);
			break;

		case XACT_EVENT_ABORT:
			admission_end_transaction(true);
			break;

		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

/*
 * In statement scope, a statement that fails inside a savepoint ends here.
 */
static void
gate_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					  SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB && nesting_level == 0 &&
		gate_scope == SCOPE_STATEMENT)
		admission_leave(true);
}
