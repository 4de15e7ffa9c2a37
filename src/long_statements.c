/*-------------------------------------------------------------------------
 *
 * long_statements.c
 *		Which statement of this backend is long, and where it pauses.
 *
 * Under a limit, a few long statements would keep the slots from many short
 * ones.  So a long statement gives its slot up for others and queues again
 * (core/long_turns.c).  A timer counts the CPU time of the process in ticks.
 * A statement is long after enough of them; a process that waits sees none,
 * and short statements hardly ever see one.
 *
 * Ticks count for the outermost query in the executor, over all its calls: a
 * cursor becomes long by the sum of its FETCHes, but many short queries do
 * not.  Ticks of parallel workers count for their leader's query, and the
 * workers pause while it waits.
 *
 * A tick only sets a flag.  Plan nodes that produce tuples of their own test
 * it whenever they are asked for the next one: there, the process holds no
 * lock inside the server, and can raise errors and sleep.  Nodes that are
 * instrumented, or that another module has changed, are left alone; so is
 * SIGPROF, if anything else uses it.
 *
 * A statement that pauses keeps its locks, its snapshot and its pins.  So it
 * pauses only if its transaction has run nothing but read-only queries, here
 * or through a foreign table.  A sample lets it in if others wait for what it
 * holds.  What a function does on another server without the executor, like
 * dblink_exec(), is not known.
 *
 * Locking: none.  All is local to the process, except the count of ticks,
 * which is atomic.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>
#include <sys/time.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "gate.h"

#define LOOK_AGAIN		500		/* ms; looks whether the worker is there */

/* The last query that has used ticks and may continue, like a cursor */
static const EState *suspended = NULL;
static uint32 suspended_ticks;

/* The query that is counted, or NULL */
static const QueryDesc *volatile counted_query = NULL;

/* The nesting level at which it was called */
static int	counted_level;

/*
 * May the statement have seen ticks, here or in a parallel worker?  Few short
 * ones have: the rest skip all other tests.
 */
static volatile sig_atomic_t may_have_ticks = false;

static volatile sig_atomic_t tick_is_due = false;
static volatile sig_atomic_t clock_runs = false;
static bool query_is_long = false;

/* Has the present transaction run anything but queries that only read? */
static bool may_have_written = false;

/* What a node's ExecProcNode is before its first call */
static ExecProcNodeMtd pg_first_call = NULL;

/* The proc number of this process or its leader, which has the slot; or -1 */
static int
holder(void)
{
	if (!IsParallelWorker())
		return my_slot_procno;
	return MyProc->lockGroupLeader != NULL ? GATE_PROC_NUMBER(MyProc->lockGroupLeader) : -1;
}

static inline bool
can_be_long(void)
{
	return gate_long_after >= 0 && gate_max_active_backends > 0 && !bypass_in_force &&
		holder() >= 0 && slots_may_be_long(holder());
}

static void
set_clock(int interval_ms)
{
	struct itimerval every = {{0, interval_ms * 1000}, {0, interval_ms * 1000}};

	(void) setitimer(ITIMER_PROF, &every, NULL);
	clock_runs = interval_ms > 0;
}

/*
 * Signal handler of the timer.  Stops it if no statement can be long any more;
 * the next one that can be starts it again.
 */
static void
handle_tick(SIGNAL_ARGS)
{
	int			save_errno = errno;

	if (proc_exit_inprogress || !can_be_long())
		set_clock(0);
	else if (counted_query != NULL)
	{
		may_have_ticks = true;
		if (pg_atomic_fetch_add_u32(slots_ticks_of(holder()), 1) * LONG_TICK >= (uint32) gate_long_after || query_is_long)
			tick_is_due = true;
	}
	errno = save_errno;
}

/* Start the timer, unless something else uses it, like a profiler. */
static pg_noinline void
start_clock(void)
{
	static int	is_ours = -1;	/* not known yet */

	if (is_ours < 0)
	{
		struct itimerval present;
		struct sigaction action;
		PlanState	node = {0};

		is_ours = getitimer(ITIMER_PROF, &present) == 0 && !timerisset(&present.it_value) &&
			sigaction(SIGPROF, NULL, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
			(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN);
		if (is_ours)
			pqsignal(SIGPROF, handle_tick);
		ExecSetExecProcNode(&node, NULL);
		pg_first_call = node.ExecProcNode;
	}
	if (is_ours)
		set_clock(LONG_TICK);
}

/*
 * Sleep while the statement of this holder waits for its turn.  If an
 * interrupt raises an error, the end of the (sub)transaction leaves the queue.
 */
static void
pause_for(int procno)
{
	ConditionVariable *turn = slots_turn_of(procno);
	static uint32 wait_event = 0;
	ErrorContextCallback context = {error_context_stack, wait_error_callback, "while pausing for short statements"};

	if (wait_event == 0)
		wait_event = GATE_WAIT_EVENT_NEW("AdmissionGatePause");

	error_context_stack = &context;
	while (slots_is_paused(procno))
	{
		if (IsParallelWorker())
			(void) ConditionVariableTimedSleep(turn, LOOK_AGAIN, wait_event);
		else
			wait_for_latch(LOOK_AGAIN, wait_event);
		if (!slots_are_sampled())
			slots_let_in(procno);
	}
	ConditionVariableCancelSleep();
	error_context_stack = context.previous;
}

/* on_shmem_exit callback of a parallel worker */
static void
worker_exits(int code, Datum leader)
{
	if (query_is_long)
		slots_count_worker(DatumGetInt32(leader), false);
}

/*
 * The query of this process is long and has used another tick.  If it has no
 * turn, pause.  If the transaction has begun to write, it is no longer long.
 */
static pg_noinline void
tick(void)
{
	int			procno = holder();

	tick_is_due = false;
	if (counted_query == NULL || procno < 0 || !INTERRUPTS_CAN_BE_PROCESSED())
		return;
	if (may_have_written || xact_predates_gate() ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
	{
		if (!IsParallelWorker())
			slots_end_turns();
		return;
	}
	if (!IsParallelWorker())
		slots_resume();
	else if (!query_is_long)
	{
		on_shmem_exit(worker_exits, Int32GetDatum(procno));
		slots_count_worker(procno, true);
	}
	query_is_long = true;
	if (!slots_has_turn(procno))
		pause_for(procno);
}

/* ExecProcNode of nodes that test the flag */
static TupleTableSlot *
exec_and_tick(PlanState *node)
{
	if (unlikely(tick_is_due))
		tick();
	return node->ExecProcNodeReal(node);
}

/* The same for the first call: checks the stack, like PostgreSQL's own */
static TupleTableSlot *
exec_first_and_tick(PlanState *node)
{
	check_stack_depth();
	/* Another module may have put its own function before this one. */
	if (node->ExecProcNode == exec_first_and_tick)
		node->ExecProcNode = exec_and_tick;
	return exec_and_tick(node);
}

/*
 * Make nodes test the flag: those without children, and those that can yield
 * many tuples without asking their children, if their function is PostgreSQL's
 * own.
 */
static bool
watch_nodes(PlanState *node, void *context)
{
	if (node == NULL)
		return false;
	if ((outerPlanState(node) == NULL && innerPlanState(node) == NULL) ||
		IsA(node, BitmapHeapScanState) || IsA(node, ProjectSetState) ||
		IsA(node, AggState) || IsA(node, WindowAggState) || IsA(node, HashJoinState) ||
		IsA(node, MaterialState) || IsA(node, MemoizeState) ||
		IsA(node, SortState) || IsA(node, IncrementalSortState))
	{
		if (node->instrument == NULL && node->ExecProcNode == pg_first_call)
			node->ExecProcNode = exec_first_and_tick;
		else if (node->instrument == NULL && node->ExecProcNode == node->ExecProcNodeReal)
			node->ExecProcNode = exec_and_tick;
	}
	return planstate_tree_walker(node, watch_nodes, context);
}

/* Callback of a query's memory context: the query has ended. */
static void
forget(void *estate)
{
	if (suspended == estate)
		suspended = NULL;
}

/* Remember what this query has used: it may continue. */
static pg_noinline void
remember(EState *estate)
{
	MemoryContextCallback *callback;

	suspended_ticks = pg_atomic_read_u32(slots_ticks_of(my_slot_procno));
	if (suspended == estate)
		return;
	suspended = estate;
	callback = MemoryContextAlloc(estate->es_query_cxt, sizeof(*callback));
	callback->func = forget;
	callback->arg = estate;
	MemoryContextRegisterResetCallback(estate->es_query_cxt, callback);
}

/* Count this query, and add what it used before. */
static inline void
start_counting(const QueryDesc *query)
{
	uint32		before = query->estate == suspended ? suspended_ticks : 0;

	if (unlikely(may_have_ticks || before > 0) && !IsParallelWorker())
	{
		may_have_ticks = before > 0 || query->plannedstmt->parallelModeNeeded;
		pg_atomic_write_u32(slots_ticks_of(my_slot_procno), before);
	}
	query_is_long = before > 0 && (before - 1) * LONG_TICK >= (uint32) gate_long_after;
	tick_is_due = query_is_long;
	counted_level = GetCurrentTransactionNestLevel();
	counted_query = query;
}

/*
 * The executor is about to run this query.  If it may write, this transaction
 * keeps its slot.  Otherwise the query pauses when it is long and has no turn.
 */
void
long_statements_begin(const QueryDesc *query)
{
	if (query->operation != CMD_SELECT || query->plannedstmt->hasModifyingCTE ||
		query->plannedstmt->rowMarks != NIL)
		long_statements_note_write();
	if (unlikely(query->plannedstmt->parallelModeNeeded) && !IsParallelWorker() &&
		my_slot_procno >= 0)
	{
		/* Its workers count ticks whatever this backend knows. */
		may_have_ticks = true;
		if (may_have_written || xact_predates_gate())
			long_statements_note_write();
	}
	if (may_have_written || !can_be_long())
		return;
	if (counted_query == NULL)
		start_counting(query);
	/* Instrumentation replaces ExecProcNode, too. */
	if (query->instrument_options != 0)
		return;
	if (unlikely(!clock_runs))
		start_clock();
	if (likely(clock_runs))
		(void) watch_nodes(query->planstate, NULL);
}

/* The executor has run this query, to its end or not. */
void
long_statements_leave(const QueryDesc *query)
{
	/* Its workers may have counted where this backend did not. */
	if (counted_query == NULL && query->plannedstmt->parallelModeNeeded)
		slots_end_turns();
	if (query != counted_query)
		return;
	if (unlikely(may_have_ticks) && !IsParallelWorker() &&
		pg_atomic_read_u32(slots_ticks_of(my_slot_procno)) > 0)
	{
		remember(query->estate);
		slots_end_turns();
	}
	counted_query = NULL;
	query_is_long = false;
}

/* The transaction may write: it keeps its slot from now on. */
void
long_statements_note_write(void)
{
	may_have_written = true;
	if (my_slot_procno >= 0)
		slots_keep_slot(true);
}

/*
 * A subtransaction is aborted.  If the counted query was called inside it,
 * that query has ended; otherwise it may have caught an error of a pause.
 */
void
long_statements_abort_subtransaction(void)
{
	if (counted_query == NULL || counted_level >= GetCurrentTransactionNestLevel())
	{
		counted_query = NULL;
		query_is_long = false;
		slots_end_turns();
	}
	else if (slots_is_paused(my_slot_procno))
		slots_end_turns();
}

void
long_statements_end_transaction(void)
{
	if (may_have_written && my_slot_procno >= 0)
		slots_keep_slot(false);
	may_have_written = query_is_long = false;
	counted_query = NULL;
}
