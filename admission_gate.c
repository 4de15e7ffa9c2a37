/*-------------------------------------------------------------------------
 *
 * admission_gate.c
 *		Admission control: limits how many backends work at the same time.
 *
 * Past a few times the number of cores, every further process at work slows
 * all of them down.  This module lets max_active_backends of them work and
 * keeps the others asleep in a queue.
 *
 * The files, from here down; a file uses only those below it (make layers):
 *
 *	 admission_gate		when a statement meets the gate: the hooks
 *	 wanted				what a statement wants of what is hot
 *	 my_slot			whether its backend needs a slot, and how it waits
 *	 long_statements	which statement is long, and where it pauses
 *	 worker				the background worker
 *	 sampler			what backends do: contend, idle, work
 *	 snapshot			releases the snapshot of a statement that waits
 *	 settings			the parameters, and which sessions need no slot
 *	 pool_parser		parses the list of pools
 *	 views				the SQL functions
 *	 process			what the kernel tells about processes and the client
 *	 core/acquire		acquire, wait, release; shared memory
 *	 core/long_turns	turns of long statements
 *	 core/lending		slots of holders that do nothing; the last resort
 *	 core/pools			which pools there are, and which one a backend is in
 *	 core/stats			totals and gauges
 *	 core/hot_spots		what backends contend for, and their places there
 *	 core/wait_queue	the queues, the order in them, the lock
 *	 core/limit_control	how many contenders work at a time: a pure function
 *	 compat.h			differences between PostgreSQL's versions
 *
 * Only client backends meet the gate, and only at top level; parallel workers
 * run in the slot of their leader.  A transaction meets it at the first of
 * these places: BEGIN, when it has locked nothing and has no snapshot; the
 * planner; ExecutorStart, for cached plans; ProcessUtility.  Until then, no
 * user code has run and no XID is assigned, except in two ways that no hook
 * sees: conversion of Bind parameters, and fast-path function calls.  A
 * transaction that begins with these waits like any other, and SQL that their
 * code runs meets the gate.
 *
 * A statement that wants what is hot takes a place there when it starts, at any
 * level: in functions, triggers and procedures, too (wanted.c).
 *
 * A slot is released when the commit begins, before its WAL is flushed, so
 * that other backends can use the CPU while this one waits for the disk.
 * Commands that commit inside, such as CALL and VACUUM, keep it to their end.
 *
 * Locking: everything here is local to the backend, except that
 * AddinShmemInitLock guards the creation of shared memory.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"

#include "gate.h"

GATE_MODULE_MAGIC;

/* How the gate treats a utility command */
typedef enum UtilityKind
{
	UTILITY_LIGHT,				/* passes: runs no user code */
	UTILITY_BEGIN,				/* needs a slot in transaction scope */
	UTILITY_QUERY,				/* always needs a slot */
	UTILITY_HEAVY				/* needs a slot if gate_utility is on, or if
								 * it is not alone in its transaction */
} UtilityKind;

/*
 * How deep this backend is in utility commands, which may run statements or
 * commit inside; in statement scope, also in planner and executor calls: else
 * the end of an inner statement would look like that of the top-level one.
 */
static int	nesting_level = 0;

/*
 * The top-level query that met the gate last, if it is known and has not
 * ended.  In statement scope, the end of another one does not release the
 * slot.
 */
static const QueryDesc *statement = NULL;

static shmem_request_hook_type prev_shmem_request_hook;
static shmem_startup_hook_type prev_shmem_startup_hook;

/*
 * The previous hooks, or else the standard functions.  Never NULL, so a hook
 * costs one branch and one jump while the gate is off.
 */
static planner_hook_type next_planner;
static ExecutorStart_hook_type next_ExecutorStart;
static ExecutorRun_hook_type next_ExecutorRun;
static ExecutorFinish_hook_type next_ExecutorFinish;
static ProcessUtility_hook_type next_ProcessUtility;

/*
 * Release the slot when the commit begins, and count the transaction when it
 * has ended.  A command that commits inside keeps its slot, and need not wait
 * for one again, until it ends.
 */
static void
gate_xact_callback(XactEvent event, void *arg)
{
	/* At exit, nothing comes back up. */
	if (nesting_level > 0 && !proc_exit_inprogress)
	{
		if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
			my_slot_end_inner_transaction(event == XACT_EVENT_ABORT);
		return;
	}
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		my_slot_begin_commit();
	else
	{
		my_slot_end_transaction(event == XACT_EVENT_ABORT);
		long_statements_end_transaction();
	}
}

/*
 * A statement may have failed inside a savepoint, or a part of one.  In statement
 * scope, release the slot of a top-level one.
 */
static void
gate_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					  SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		my_slot_commit_subtransaction();
	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	long_statements_abort_subtransaction();
	my_slot_abort_subtransaction();
	if (nesting_level == 0 && gate_scope == SCOPE_STATEMENT)
		my_slot_end_statement(true);
}

/*
 * Is there a gate for this process?  While the gate is off, this branch is all
 * that each hook costs.
 */
static inline bool
gate_is_on(void)
{
	return unlikely(gate_max_active_backends != 0) && MyBackendType == B_BACKEND;
}

/*
 * When the session meets the gate for the first time, look up its application
 * name and register the callbacks that release its slots.  Not in _PG_init(),
 * so that transactions cost nothing while the gate is off.
 */
static inline void
register_callbacks(void)
{
	static bool registered = false;

	if (unlikely(!registered))
	{
		bypass_look_at_name();
		RegisterXactCallback(gate_xact_callback, NULL);
		RegisterSubXactCallback(gate_subxact_callback, NULL);
		registered = true;
	}
}

/* A statement begins: at top level, see my_slot_acquire(). */
static inline void
enter_statement(QueryDesc *query, bool begins_block)
{
	if (nesting_level == 0)
	{
		register_callbacks();
		my_slot_acquire(query, begins_block);
		statement = query;
	}
}

/* A statement ends: at top level in statement scope, release its slot. */
static inline void
leave_statement(void)
{
	if (nesting_level == 0 && gate_scope == SCOPE_STATEMENT)
	{
		my_slot_end_statement(false);
		statement = NULL;
	}
}

/* Make this call one level down, and come back up if it fails, too. */
#define CALL_ONE_LEVEL_DOWN(call) \
	do { \
		nesting_level++; \
		PG_TRY(); \
		{ \
			call; \
		} \
		PG_FINALLY(); \
		{ \
			nesting_level--; \
		} \
		PG_END_TRY(); \
	} while (0)

static pg_noinline PlannedStmt *
planner_behind_gate(PLANNER_PARAMS)
{
	PlannedStmt *result;

	enter_statement(NULL, false);
	if (gate_scope == SCOPE_TRANSACTION)
		return next_planner(PLANNER_ARGS);

	CALL_ONE_LEVEL_DOWN(result = next_planner(PLANNER_ARGS));
	return result;
}

/* planner_hook: for statements that are planned now */
static PlannedStmt *
gate_planner(PLANNER_PARAMS)
{
	if (gate_is_on())
		return planner_behind_gate(PLANNER_ARGS);
	return next_planner(PLANNER_ARGS);
}

static pg_noinline void
ExecutorStart_behind_gate(QueryDesc *queryDesc, int eflags)
{
	enter_statement(queryDesc, false);
	if (unlikely(pg_atomic_read_u32(slots_hot_kinds) != 0))
		wanted_begin(queryDesc, eflags);
	if (gate_scope == SCOPE_TRANSACTION)
		next_ExecutorStart(queryDesc, eflags);
	else
		CALL_ONE_LEVEL_DOWN(next_ExecutorStart(queryDesc, eflags));
}

/*
 * ExecutorStart_hook: for statements with a cached plan, and at any level for
 * those that want what is hot
 */
static void
gate_ExecutorStart(QueryDesc *queryDesc, int eflags)
{
	if (gate_is_on())
		ExecutorStart_behind_gate(queryDesc, eflags);
	else
		next_ExecutorStart(queryDesc, eflags);
}

/*
 * A suspended portal may go on without the slot that it began with, or may
 * have begun before the gate was switched on.  A statement that only reads
 * ends here: in the extended protocol, ExecutorFinish comes no sooner than
 * with the next statement.
 */
static pg_noinline void
ExecutorRun_behind_gate(EXECUTOR_RUN_PARAMS)
{
	if (nesting_level == 0)
	{
		register_callbacks();
		my_slot_resume();
		statement = queryDesc;
	}
	long_statements_begin(queryDesc);
	if (gate_scope == SCOPE_TRANSACTION)
		next_ExecutorRun(EXECUTOR_RUN_ARGS);
	else
		CALL_ONE_LEVEL_DOWN(next_ExecutorRun(EXECUTOR_RUN_ARGS));

	long_statements_leave(queryDesc);
	if (queryDesc->operation == CMD_SELECT && !queryDesc->plannedstmt->hasModifyingCTE)
		leave_statement();
}

/*
 * ExecutorRun_hook.  A transaction that is counted nowhere has nothing that it
 * could lend or give up.
 */
static void
gate_ExecutorRun(EXECUTOR_RUN_PARAMS)
{
	if (gate_is_on())
	{
		if (gate_scope == SCOPE_TRANSACTION && likely(slots_is_uncounted()))
			next_ExecutorRun(EXECUTOR_RUN_ARGS);
		else
			ExecutorRun_behind_gate(EXECUTOR_RUN_ARGS);
	}
	else
	{
		/* Workers need no slot, but pause with their leader. */
		if (unlikely(gate_max_active_backends != 0) && IsParallelWorker())
			long_statements_begin(queryDesc);
		next_ExecutorRun(EXECUTOR_RUN_ARGS);
	}
}

static pg_noinline void
ExecutorFinish_behind_gate(QueryDesc *queryDesc)
{
	CALL_ONE_LEVEL_DOWN(next_ExecutorFinish(queryDesc));
	/* An earlier portal may be closed while another statement has the slot. */
	if (queryDesc == statement)
		leave_statement();
}

/*
 * ExecutorFinish_hook: AFTER triggers run here, inside the statement, and then
 * it ends, unless it has failed.
 */
static void
gate_ExecutorFinish(QueryDesc *queryDesc)
{
	if (gate_is_on() && gate_scope == SCOPE_STATEMENT)
		ExecutorFinish_behind_gate(queryDesc);
	else
		next_ExecutorFinish(queryDesc);
}

/* How does the gate treat this utility command?  Unknown ones are heavy. */
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
				case TRANS_STMT_SAVEPOINT:
					/* Waits now: no statement is to wait inside it. */
					return UTILITY_QUERY;
				default:
					return UTILITY_LIGHT;
			}

			/*
			 * These run queries or user code: EXPLAIN in the planner, SET
			 * CONSTRAINTS in triggers.  And LOCK: in statement scope, a
			 * transaction must not wait with locks.
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

		case T_DiscardStmt:
			/* TEMP drops tables; ALL, which poolers send, is always alone. */
			return ((DiscardStmt *) stmt)->target == DISCARD_TEMP ?
				UTILITY_HEAVY : UTILITY_LIGHT;

		default:
			return UTILITY_HEAVY;
	}
}

static pg_noinline void
ProcessUtility_behind_gate(UTILITY_PARAMS)
{
	Node	   *stmt = pstmt->utilityStmt;
	UtilityKind kind = classify_utility(stmt);
	bool		needs_slot;

	/*
	 * A heavy command that is not alone in its transaction needs a slot: the
	 * next statement would wait with the locks that it took.  In a pipeline,
	 * the first one looks alone: see my_slot_pass().
	 */
	needs_slot = kind == UTILITY_QUERY ||
		(kind == UTILITY_BEGIN && gate_scope == SCOPE_TRANSACTION) ||
		(kind == UTILITY_HEAVY &&
		 (gate_utility || context != PROCESS_UTILITY_TOPLEVEL || IsTransactionBlock()));

	register_callbacks();
	if (needs_slot)
		enter_statement(NULL, kind == UTILITY_BEGIN);
	else if (kind == UTILITY_HEAVY && nesting_level == 0)
		my_slot_pass();
	if (unlikely(pg_atomic_read_u32(slots_hot_kinds) != 0) && IsA(stmt, LockStmt))
		wanted_lock_table((LockStmt *) stmt);
	/* Others write only by what they have the executor run. */
	if (kind == UTILITY_HEAVY || (IsA(stmt, CopyStmt) && ((CopyStmt *) stmt)->is_from))
		long_statements_note_write();

	CALL_ONE_LEVEL_DOWN(next_ProcessUtility(UTILITY_ARGS));

	if (needs_slot)
		leave_statement();
}

/* ProcessUtility_hook: for utility commands, and for transactions at BEGIN */
static void
gate_ProcessUtility(UTILITY_PARAMS)
{
	if (gate_is_on())
		ProcessUtility_behind_gate(UTILITY_ARGS);
	else
		next_ProcessUtility(UTILITY_ARGS);
}

static void
gate_shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	slots_shmem_request();
}

static void
gate_shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	if (slots_shmem_init())
		settings_publish();
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Module load callback.  If the library is not preloaded there is no gate, but
 * it loads all the same, so that the SQL functions can report what is missing.
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

	/* pg_upgrade runs alone and must not fail because of a queue. */
	if (IsBinaryUpgrade)
		return;

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = gate_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = gate_shmem_startup;
	worker_register();
	next_planner = planner_hook ? planner_hook : standard_planner;
	planner_hook = gate_planner;
	next_ExecutorStart = ExecutorStart_hook ? ExecutorStart_hook : standard_ExecutorStart;
	ExecutorStart_hook = gate_ExecutorStart;
	next_ExecutorRun = ExecutorRun_hook ? ExecutorRun_hook : standard_ExecutorRun;
	ExecutorRun_hook = gate_ExecutorRun;
	next_ExecutorFinish = ExecutorFinish_hook ? ExecutorFinish_hook : standard_ExecutorFinish;
	ExecutorFinish_hook = gate_ExecutorFinish;
	next_ProcessUtility = ProcessUtility_hook ? ProcessUtility_hook : standard_ProcessUtility;
	ProcessUtility_hook = gate_ProcessUtility;
}
