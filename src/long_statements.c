/*-------------------------------------------------------------------------
 *
 * long_statements.c
 *		Which statement of this backend is long, and where it pauses.
 *
 * A timer counts the CPU time of the process in ticks.  After enough of them,
 * a statement is long: it may have to wait for a turn (core/long_turns.c).
 * Ticks count for the outermost query in the executor, over all its calls: a
 * cursor becomes long by the sum of its FETCHes, but many short queries do
 * not.  Ticks of parallel workers count for their leader's query, and the
 * workers pause while it waits.
 *
 * A tick only sets a flag.  Plan nodes that produce tuples of their own test
 * it whenever they are asked for the next one: there, the process holds no
 * lock inside the server, and can raise errors and sleep.
 *
 * A statement that pauses keeps its locks, its snapshot and its pins.  So it
 * pauses only if its transaction has run nothing but read-only queries, here
 * or through a foreign table; and a sample lets it in if others wait for what
 * it holds.  If a function of it waits for a hot spot, it is no longer long.
 *
 * Locking: none.  Only the count of ticks, an atomic, is shared.
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

#include "gate.h"

/* The query that is counted, or NULL, and the nesting level of its call */
static const QueryDesc *volatile counted_query = NULL;
static int	counted_level;

/* The proc number of the backend that has its slot, and its ticks there */
static int	holder;
static pg_atomic_uint32 *volatile ticks;

/* The last query that has used ticks: a cursor, for example, may continue. */
static const QueryDesc *last_query = NULL;
static uint32 last_ticks;

static volatile sig_atomic_t tick_is_due = false;
static volatile sig_atomic_t clock_runs = false;

/* Has the present transaction run anything but queries that only read? */
static bool may_have_written = false;

/* Has the ExecProcNode that PostgreSQL sets before the first call */
static PlanState new_node;

static void
set_clock(int interval)
{
	struct itimerval every = {{0, interval * 1000}, {0, interval * 1000}};

	clock_runs = setitimer(ITIMER_PROF, &every, NULL) == 0 && interval > 0;
}

/* Signal handler of the timer.  Stops it while no statement can be long. */
static void
handle_tick(SIGNAL_ARGS)
{
	int			save_errno = errno;

	if (gate_max_active_backends <= 0 || gate_long_after < 0)
		set_clock(0);
	else if (counted_query != NULL)
		tick_is_due = pg_atomic_add_fetch_u32(ticks, 1) * LONG_TICK > gate_long_after;
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
 * The query of this process is long and has used another tick.  If it must
 * wait for a turn, sleep.  After an error in this sleep, the end of the
 * (sub)transaction leaves the queue.
 */
static pg_noinline void
tick(void)
{
	static uint32 wait_event = 0;
	ConditionVariable *turn;
	ErrorContextCallback context = {error_context_stack, wait_error_callback, "while pausing for short statements"};

	tick_is_due = false;
	if (counted_query == NULL || !INTERRUPTS_CAN_BE_PROCESSED())
		return;
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		long_statements_note_write();
	if (may_have_written)
		return;
	if (!IsParallelWorker())
		slots_resume();
	slots_check_turn(holder);

	if (wait_event == 0)
		wait_event = GATE_WAIT_EVENT_NEW("AdmissionGatePause");
	error_context_stack = &context;
	while ((turn = slots_awaited_turn(holder)) != NULL)
	{
		long		look_after = slots_look_after(holder);

		if (IsParallelWorker())
			(void) ConditionVariableTimedSleep(turn, look_after, wait_event);
		else
			wait_for_latch(look_after, wait_event);
		slots_move_queue_of(holder);
	}
	ConditionVariableCancelSleep();
	error_context_stack = context.previous;
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
	if (may_have_written || xact_predates_gate() || bypass_in_force)
		return;
	if (counted_query == NULL)
	{
		/* A new query may be at the address of an earlier one. */
		bool		continues = query == last_query && query->already_executed;

		holder = IsParallelWorker() ? GATE_PROC_NUMBER(MyProc->lockGroupLeader) : my_slot_procno;
		ticks = slots_begin_counting(holder, continues ? last_ticks : 0);
		if (ticks == NULL)
			return;
		tick_is_due = continues && last_ticks * LONG_TICK > gate_long_after;
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
	if (query != counted_query)
		return;
	counted_query = NULL;
	if (unlikely(pg_atomic_read_u32(ticks) > 0 || query == last_query))
	{
		last_query = query;
		last_ticks = pg_atomic_read_u32(ticks);
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
	else if (counted_query != NULL && slots_awaited_turn(holder) != NULL)
		slots_let_in(holder);
}

void
long_statements_end_transaction(void)
{
	slots_end_turns();
	may_have_written = false;
	counted_query = last_query = NULL;
}
