/*-------------------------------------------------------------------------
 *
 * admission_gate.c
 *		Admission control: limits how many backends work at the same time.
 *
 * Once several processes per core are at work, each further one slows all of
 * them down.  This module lets max_active_backends of them work; the others
 * sleep in a queue.
 *
 * Each file says at its top what it is for, and uses only files below it:
 * test/layers.pl has their order.
 *
 * Only client backends meet the gate, and only at top level; parallel workers
 * use the slot of their leader.  A transaction meets it at the first of these
 * places: BEGIN, before it has a lock or a snapshot; the planner;
 * ExecutorStart, for cached plans; ProcessUtility.  Before that, no user code
 * runs and no XID is assigned.  These have no hook: input functions of values,
 * fast-path function calls, and login event triggers.  A transaction that
 * begins with these waits like any other, and SQL that they run meets the gate.
 *
 * Locking: everything here is local to the backend, except that
 * AddinShmemInitLock guards the creation of shared memory.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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
	UTILITY_BEGIN,				/* needs a slot for its block */
	UTILITY_HEAVY				/* needs a slot */
} UtilityKind;

/* Nesting depth of utility commands, which may run statements or commit */
static int	nesting_level = 0;

/* Has the present transaction run anything that may have taken locks? */
static bool has_started = false;

/*
 * Its first query, or the one that a command runs first; only to be compared,
 * as it may have ended.  A later one at its address would do little harm.
 */
static const QueryDesc *first_query = NULL;

/* Is a command about to plan its query, as the first statement? */
static bool plans_query = false;

/* Has this client backend met the gate? */
static bool session_has_begun = false;

static shmem_request_hook_type prev_shmem_request_hook;
static shmem_startup_hook_type prev_shmem_startup_hook;
static emit_log_hook_type prev_emit_log_hook;

/*
 * The previous hooks, or the standard functions.  Never NULL: while the gate
 * is off, a hook costs one branch and one jump.
 */
static planner_hook_type next_planner;
static ExecutorStart_hook_type next_ExecutorStart;
static ExecutorRun_hook_type next_ExecutorRun;
static ExecutorFinish_hook_type next_ExecutorFinish;
static ProcessUtility_hook_type next_ProcessUtility;

static inline void
end_transaction(bool failed)
{
	has_started = plans_query = false;
	first_query = NULL;
	my_slot_end_transaction(failed);
}

static pg_noinline void
end_long_transaction(bool failed)
{
	long_end(true);
	end_transaction(failed);
}

/*
 * Release the slot when the commit begins, before it flushes WAL: others can use
 * the CPU while it waits for the disk.  Count the transaction when it has ended.
 * A command that commits internally, like CALL and VACUUM, keeps its slot.
 */
static void
gate_xact_callback(XactEvent event, void *arg)
{
	/* proc_exit() does not restore nesting_level. */
	if (unlikely(nesting_level > 0) && !proc_exit_inprogress)
	{
		if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
			my_slot_end_inner_transaction(event == XACT_EVENT_ABORT);
	}
	else if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		my_slot_begin_commit();
	else if (unlikely(long_is_open))
		end_long_transaction(event == XACT_EVENT_ABORT);
	else
		end_transaction(event == XACT_EVENT_ABORT);
}

static void
gate_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					  SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB || event == SUBXACT_EVENT_COMMIT_SUB)
		my_slot_end_subtransaction(event == SUBXACT_EVENT_ABORT_SUB);
}

/*
 * When a session first meets the gate, look up its application name and
 * register the callbacks that release its slots.  Not in _PG_init(): while the
 * gate is off, transactions must cost nothing.  Returns false in other
 * processes than client backends.
 */
static pg_noinline bool
begin_session(void)
{
	if (MyBackendType != B_BACKEND)
	{
		long_begin_worker();
		return false;
	}
	bypass_look_at_name();
	RegisterXactCallback(gate_xact_callback, NULL);
	RegisterSubXactCallback(gate_subxact_callback, NULL);
	session_has_begun = true;
	return true;
}

/* Does the gate apply to this process? */
static inline bool
gate_is_on(void)
{
	return unlikely(gate_max_active_backends != 0) &&
		(likely(session_has_begun) || begin_session());
}

/* A statement begins.  At top level, acquire a slot for it. */
static inline void
enter_statement(QueryDesc *query, bool begins_block)
{
	if (nesting_level == 0 && unlikely(!my_slot_acquire(begins_block)))
		my_slot_wait(query, begins_block);
}

static pg_noinline PlannedStmt *
planner_behind_gate(PLANNER_PARAMS)
{
	PlannedStmt *result;

	enter_statement(NULL, false);
	if (likely(!plans_query))
		return next_planner(PLANNER_ARGS);
	plans_query = false;
	result = next_planner(PLANNER_ARGS);
	if (long_may_be(result))
		long_begin(result, NULL, (cursorOptions & CURSOR_OPT_FAST_PLAN) != 0);
	return result;
}

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
	if (!has_started || unlikely(long_is_open && first_query == NULL))
		first_query = queryDesc;
	if (!has_started && unlikely(long_may_be(queryDesc->plannedstmt)))
		long_begin(queryDesc->plannedstmt, queryDesc, false);
	has_started = true;
	if (unlikely(pg_atomic_read_u32(slots_hot_kinds) != 0))
		wanted_begin(queryDesc, eflags);
	next_ExecutorStart(queryDesc, eflags);
}

/* For cached plans, and at any level for hot spots */
static void
gate_ExecutorStart(QueryDesc *queryDesc, int eflags)
{
	if (gate_is_on())
		ExecutorStart_behind_gate(queryDesc, eflags);
	else
		next_ExecutorStart(queryDesc, eflags);
}

/*
 * A portal that resumes may have begun while the gate was off, or with the
 * bypass.  Nobody queues an uncounted transaction.
 */
static void
gate_ExecutorRun(EXECUTOR_RUN_PARAMS)
{
	if (gate_is_on() && !slots_is_uncounted() && nesting_level == 0)
		my_slot_resume();
	next_ExecutorRun(EXECUTOR_RUN_ARGS);
}

static pg_noinline void
ExecutorFinish_first(QueryDesc *queryDesc)
{
	next_ExecutorFinish(queryDesc);
	first_query = NULL;
	long_finish(queryDesc->plannedstmt);
}

/* A first statement that is long ends here, after its AFTER triggers. */
static void
gate_ExecutorFinish(QueryDesc *queryDesc)
{
	if (long_may_end() && queryDesc == first_query)
		ExecutorFinish_first(queryDesc);
	else
		next_ExecutorFinish(queryDesc);
}

/* How does the gate treat this utility command?  Unknown ones are heavy. */
static UtilityKind
classify_utility(Node *stmt)
{
	TransactionStmtKind kind;

	if (is_wait_for_lsn(stmt))
		return UTILITY_LIGHT;

	switch (nodeTag(stmt))
	{
		case T_TransactionStmt:
			kind = ((TransactionStmt *) stmt)->kind;
			if (kind == TRANS_STMT_BEGIN || kind == TRANS_STMT_START)
				return UTILITY_BEGIN;
			/* A savepoint waits now: no statement should wait inside it. */
			return kind == TRANS_STMT_SAVEPOINT ? UTILITY_HEAVY : UTILITY_LIGHT;

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

			/* TEMP drops tables.  ALL, for poolers, is always alone. */
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

	if (kind != UTILITY_LIGHT)
		enter_statement(NULL, kind == UTILITY_BEGIN);
	plans_query = !has_started && nesting_level == 0 &&
		(IsA(stmt, DeclareCursorStmt) || IsA(stmt, CreateTableAsStmt) ||
		 (IsA(stmt, CopyStmt) && ((CopyStmt *) stmt)->query != NULL));
	if (kind == UTILITY_HEAVY)
		has_started = true;
	if (unlikely(pg_atomic_read_u32(slots_hot_kinds) != 0) && IsA(stmt, LockStmt))
		wanted_lock_table((LockStmt *) stmt);

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
	plans_query = false;
}

static void
gate_ProcessUtility(UTILITY_PARAMS)
{
	if (gate_is_on())
		ProcessUtility_behind_gate(UTILITY_ARGS);
	else
		next_ProcessUtility(UTILITY_ARGS);
}

/*
 * emit_log_hook: what ends a statement is known only here.  The callbacks of
 * the transaction do not see the error.
 */
static void
gate_emit_log(ErrorData *error)
{
	my_slot_note_error(error);
	if (prev_emit_log_hook)
		prev_emit_log_hook(error);
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
 * Module load callback.  If the library is not preloaded, there is no gate,
 * but it loads: its SQL functions report what is missing.
 */
void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
	{
		if (creating_extension)
			slots_report_not_preloaded(WARNING);
		return;
	}

	settings_define();

	/* pg_upgrade runs alone and must not fail because of a queue. */
	if (IsBinaryUpgrade)
		return;

	/* Tell copies of the library that are loaded later. */
	*find_rendezvous_variable("admission_gate") = (void *) _PG_init;
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = gate_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = gate_shmem_startup;
	worker_register();
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = gate_emit_log;
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
