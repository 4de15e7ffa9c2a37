/*-------------------------------------------------------------------------
 *
 * long_statements.c
 *		Which statement of this backend is long, and where it pauses.
 *
 * A timer counts the CPU time of the process in ticks.  After enough of them,
 * a statement is long: it gives its slot up for others, and queues again
 * (core/long_turns.c).  Ticks count for the outermost query in the executor,
 * over all its calls: a cursor becomes long by the sum of its FETCHes, but
 * many short queries do not.  Ticks of parallel workers count for their
 * leader's query, and the workers pause while it waits.
 *
 * A tick only sets a flag.  Plan nodes that produce tuples of their own test
 * it whenever they are asked for the next one: there, the process holds no
 * lock inside the server, and can raise errors and sleep.
 *
 * A statement that pauses keeps its locks, its snapshot and its pins.  So it
 * pauses only if its transaction has run nothing but read-only queries, here
 * or through a foreign table.  A sample lets it in if others wait for what it
 * holds.  What a function does on another server without the executor, like
 * dblink_exec(), is not known.
 *
 * A query that waits for a hot spot, in a function, keeps its slot afterwards.
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

#include "gate.h"

#define LOOK_AGAIN		500		/* ms; looks whether the worker is there */

/* The query that is counted, or NULL, and the nesting level of its call */
static const QueryDesc *volatile counted_query = NULL;
static int	counted_level;

/* The last query that has used ticks: a cursor, for example, may continue. */
static const QueryDesc *last_query = NULL;
static uint32 last_ticks;

static volatile sig_atomic_t tick_is_due = false;
static volatile sig_atomic_t clock_runs = false;

/* Has the present transaction run anything but queries that only read? */
static bool may_have_written = false;

/* Has the ExecProcNode that PostgreSQL sets before the first call */
static PlanState new_node;

/* The proc number of the backend that has the slot, or -1 */
static int
holder(void)
{
	return IsParallelWorker() ? GATE_PROC_NUMBER(MyProc->lockGroupLeader) : my_slot_procno;
}

static inline bool
is_long(uint32 ticks)
{
	return ticks * LONG_TICK > (uint32) gate_long_after;
}

static void
set_clock(int interval)
{
	struct itimerval every = {{0, interval * 1000}, {0, interval * 1000}};

	clock_runs = setitimer(ITIMER_PROF, &every, NULL) == 0 && interval > 0;
}

/*
 * Signal handler of the timer.  Stops it if no statement can be long any more;
 * the next one that can be starts it again.
 */
static void
handle_tick(SIGNAL_ARGS)
{
	int			save_errno = errno;

	if (gate_max_active_backends <= 0 || gate_long_after < 0)
		set_clock(0);
	else if (counted_query != NULL && !proc_exit_inprogress &&
			 is_long(pg_atomic_add_fetch_u32(slots_ticks_of(holder()), 1)))
		tick_is_due = true;
	errno = save_errno;
}

/* Start the timer, unless something else uses its signal, like a profiler. */
static pg_noinline void
start_clock(void)
{
	static bool is_ours = false;
	struct sigaction action;

	ExecSetExecProcNode(&new_node, NULL);
	if (!is_ours && (sigaction(SIGPROF, NULL, &action) != 0 || action.sa_handler != SIG_DFL))
		return;
	is_ours = true;
	pqsignal(SIGPROF, handle_tick);
	set_clock(LONG_TICK);
}

/*
 * Sleep while the statement of this holder waits for its turn.  If an
 * interrupt raises an error, the end of the (sub)transaction leaves the queue.
 */
static void
pause_for(int procno)
{
	static uint32 wait_event = 0;
	ErrorContextCallback context = {error_context_stack, wait_error_callback, "while pausing for short statements"};

	if (wait_event == 0)
		wait_event = GATE_WAIT_EVENT_NEW("AdmissionGatePause");

	error_context_stack = &context;
	while (slots_is_paused(procno))
	{
		if (IsParallelWorker())
			(void) ConditionVariableTimedSleep(slots_turn_of(procno), LOOK_AGAIN, wait_event);
		else
			wait_for_latch(LOOK_AGAIN, wait_event);
		if (!slots_are_sampled())
			slots_let_in(procno);
	}
	ConditionVariableCancelSleep();
	error_context_stack = context.previous;
}

/*
 * The query of this process is long and has used another tick.  If it has no
 * turn, pause.  If the transaction has begun to write, it is no longer long.
 */
static pg_noinline void
tick(void)
{
	tick_is_due = false;
	if (counted_query == NULL || !INTERRUPTS_CAN_BE_PROCESSED())
		return;
	if (may_have_written || TransactionIdIsValid(GetTopTransactionIdIfAny()))
	{
		slots_end_turns();
		return;
	}
	if (!IsParallelWorker())
		slots_resume();
	if (!slots_has_turn(holder()))
		pause_for(holder());
}

/* ExecProcNode of nodes that test the flag */
static TupleTableSlot *
exec_and_tick(PlanState *node)
{
	if (unlikely(tick_is_due))
		tick();
	return node->ExecProcNodeReal(node);
}

/*
 * Make nodes test the flag: those without children, and those that can yield
 * many tuples without asking their children, unless they are instrumented or
 * another module has changed them.  The walk checks the stack, which their
 * first call would do otherwise.
 */
static bool
watch_nodes(PlanState *node, void *context)
{
	if (((outerPlanState(node) == NULL && innerPlanState(node) == NULL) ||
		 IsA(node, BitmapHeapScanState) || IsA(node, ProjectSetState) ||
		 IsA(node, AggState) || IsA(node, WindowAggState) || IsA(node, HashJoinState) ||
		 IsA(node, MaterialState) || IsA(node, MemoizeState) ||
		 IsA(node, SortState) || IsA(node, IncrementalSortState)) &&
		node->instrument == NULL &&
		(node->ExecProcNode == new_node.ExecProcNode ||
		 node->ExecProcNode == node->ExecProcNodeReal))
		node->ExecProcNode = exec_and_tick;
	return planstate_tree_walker(node, watch_nodes, context);
}

/* on_shmem_exit callback of a parallel worker */
static void
worker_exits(int code, Datum arg)
{
	slots_count_worker(holder(), false);
}

/*
 * The executor is about to run this query.  If it may write, this transaction
 * keeps its slot.  Otherwise the query pauses when it is long and has no turn.
 */
void
long_statements_begin(const QueryDesc *query)
{
	uint32		before = 0;

	if (query->operation != CMD_SELECT || query->plannedstmt->hasModifyingCTE ||
		query->plannedstmt->rowMarks != NIL)
		long_statements_note_write();
	if (may_have_written || xact_predates_gate() || bypass_in_force ||
		!slots_may_be_long(holder()))
		return;
	if (counted_query == NULL)
	{
		/* A new query may be at the address of an earlier one. */
		if (query == last_query && query->already_executed)
			before = last_ticks;
		if (IsParallelWorker())
		{
			on_shmem_exit(worker_exits, (Datum) 0);
			slots_count_worker(holder(), true);
		}
		else
			slots_begin_counting(before);
		tick_is_due = is_long(before);
		counted_level = GetCurrentTransactionNestLevel();
		counted_query = query;
	}
	if (unlikely(!clock_runs))
		start_clock();
	(void) watch_nodes(query->planstate, NULL);
}

/* The executor has run this query, to its end or not. */
void
long_statements_leave(const QueryDesc *query)
{
	uint32		ticks;

	if (query != counted_query)
		return;
	counted_query = NULL;
	ticks = pg_atomic_read_u32(slots_ticks_of(my_slot_procno));
	if (unlikely(ticks > 0 || query == last_query))
	{
		last_query = query;
		last_ticks = ticks;
	}
	slots_end_turns();
}

/* The transaction may write: it keeps its slot from now on. */
void
long_statements_note_write(void)
{
	may_have_written = true;
	slots_end_turns();
}

/*
 * A subtransaction is aborted.  If the counted query was called inside it,
 * that query has ended; otherwise it may have caught an error of a pause.
 */
void
long_statements_abort_subtransaction(void)
{
	if (counted_level >= GetCurrentTransactionNestLevel())
	{
		counted_query = NULL;
		slots_end_turns();
	}
	else if (counted_query != NULL && slots_is_paused(my_slot_procno))
		slots_let_in(my_slot_procno);
}

void
long_statements_end_transaction(void)
{
	slots_end_turns();
	may_have_written = false;
	counted_query = last_query = NULL;
}
