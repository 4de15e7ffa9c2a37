/*-------------------------------------------------------------------------
 *
 * long_statements.c
 *		Which statement of this backend is long, and where it pauses.
 *
 * A few long statements among many short ones take a large part of the CPUs, and, under
 * a limit, of the slots.  So they give their slots up, and go on a few at a time
 * (slots_long.c).  Nothing has to be known of a statement before it runs: a timer that
 * counts the CPU time of this process ticks, and a statement that has seen enough ticks
 * is long.  While a process waits for its client, the queue, a lock or a disk, there
 * are no ticks, and short statements hardly ever see one.
 *
 * A tick only sets a flag.  The plan is made to look at it whenever one of its nodes
 * that yield tuples of themselves is asked for the next one: there no lock inside the
 * server is held, and errors can be raised.  A statement that pauses sleeps there.
 *
 * What pauses keeps its locks, so it does not if others may want them: not in a
 * transaction that has an ID, and not when a backend waits for one of its locks.
 *
 * Parallel workers tick for their leader, which holds the slot, and pause as it does.
 *
 * The transaction of a statement that pauses keeps its snapshot and pins, too: VACUUM may
 * wait for these to have a page for itself, and replay on a standby, for which it goes on.
 *
 * Everything here is the backend's own, but for the locks of this backend, which are
 * looked at as the lock manager says.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "access/parallel.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "long_statements.h"
#include "process.h"
#include "settings.h"
#include "slots.h"

/* The CPU time between two ticks, ms */
#define TICK	25

/* How often the first that pauses looks whether it may go on, and the others, ms */
#define LOOK_AGAIN	50
#define OTHERS_LOOK_AGAIN	500

static bool clock_runs = false;
static volatile sig_atomic_t tick_is_due = false;

/* When the statement of the last tick began, and how many ticks it has seen since its first */
static volatile TimestampTz ticking_statement;
static volatile uint32 ticks;

/* Signal handler of the timer */
static void
handle_tick(SIGNAL_ARGS)
{
	TimestampTz statement = GetCurrentStatementStartTimestamp();

	if (statement != ticking_statement)
	{
		ticking_statement = statement;
		ticks = 0;
	}
	else if (gate_long_after >= 0 && ++ticks * TICK >= (uint32) gate_long_after)
		tick_is_due = true;
}

/*
 * Have this process tick from now on, if nothing else in it uses the timer.
 */
static pg_noinline void
start_clock(void)
{
	struct itimerval every = {{0, TICK * 1000}, {0, TICK * 1000}};
	struct itimerval present;

	clock_runs = true;
	/* A profiler may have it. */
	if (getitimer(ITIMER_PROF, &present) != 0 || timerisset(&present.it_interval))
		return;
	pqsignal(SIGPROF, handle_tick);
	(void) setitimer(ITIMER_PROF, &every, NULL);
}

/* How many CPUs this process may use. */
static int
usable_cpus(void)
{
#ifdef __linux__
	cpu_set_t	set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return CPU_COUNT(&set);
#endif
	return Max((int) sysconf(_SC_NPROCESSORS_ONLN), 1);
}

/*
 * How many holders, but for long ones and that one, do not wait for a client, a clock or a
 * lock?
 */
static int
short_ones_at_work(int but)
{
	int			n = 0;

	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		uint32		wait_class;

		if (procno == but || slots_state(procno) != SLOT_RUNNING)
			continue;
		wait_class = wait_event_of(GetPGProcByNumber(procno)) & WAIT_CLASS_MASK;
		if (wait_class != PG_WAIT_CLIENT && wait_class != PG_WAIT_TIMEOUT &&
			wait_class != PG_WAIT_EXTENSION && wait_class != PG_WAIT_LOCK)
			n++;
	}
	return n;
}

/* The holder of the slot that this process works in: itself, or its leader. */
static int
holder(void)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;

	if (!IsParallelWorker())
		return slots_my_procno();
	return leader != NULL ? GATE_PROC_NUMBER(leader) : -1;
}

/* Is this process, or its leader, in the way of others while it pauses? */
static bool
is_in_the_way(void)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;

	if (HoldingBufferPinThatDelaysRecovery() || gate_others_want_locks_of(MyProc))
		return true;
	if (leader == NULL || leader == MyProc)
		return false;
	/* It needs no more rows, but waits for its workers to end. */
	return wait_event_of(leader) == WAIT_EVENT_PARALLEL_FINISH ||
		gate_others_want_locks_of(leader);
}

/* Say in errors that interrupt a pause where it was. */
static void
say_pausing(void *arg)
{
	errcontext("while pausing for short statements");
}

/*
 * Sleep until it is the turn of this statement, of that holder, to go on.  Raises what
 * interrupts bring.
 */
static void
pause_statement(int procno)
{
	static uint32 wait_event = 0;
	ErrorContextCallback context = {
		.callback = say_pausing,
		.previous = error_context_stack
	};

	if (wait_event == 0)
		wait_event = GATE_PAUSE_EVENT_NEW();

	error_context_stack = &context;
	for (;;)
	{
		bool		looks = slots_long_is_first(procno);

		if (looks)
			slots_long_look(short_ones_at_work(procno), usable_cpus());
		if (!slots_long_pauses(procno))
			break;
		if (is_in_the_way())
		{
			slots_long_goes_on(procno);
			break;
		}
		/* The latch that is set for a turn is the leader's. */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 looks || IsParallelWorker() ? LOOK_AGAIN : OTHERS_LOOK_AGAIN,
						 wait_event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	error_context_stack = context.previous;
}

/*
 * The statement of this process has used more CPU time, and is long: see whether it may go
 * on.  If it has begun to write, it needs a slot again, and never pauses.
 */
static pg_noinline void
tick(void)
{
	int			procno = holder();

	tick_is_due = false;
	if (procno < 0 || ticking_statement != GetCurrentStatementStartTimestamp() ||
		!INTERRUPTS_CAN_BE_PROCESSED())
		return;
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
	{
		if (!IsParallelWorker())
			slots_end_long();
		return;
	}
	if (!slots_long_ticks(procno, short_ones_at_work(procno), usable_cpus()))
		pause_statement(procno);
}

/* ExecProcNode of nodes that look at the flag */
static TupleTableSlot *
exec_and_tick(PlanState *node)
{
	if (unlikely(tick_is_due))
		tick();
	return node->ExecProcNodeReal(node);
}

/* Is that a node without any others, as all of the plan of a short statement often is? */
static inline bool
is_alone(const PlanState *node)
{
	return (IsA(node, IndexScanState) || IsA(node, IndexOnlyScanState) ||
			IsA(node, SeqScanState) || IsA(node, ResultState)) &&
		outerPlanState(node) == NULL && node->initPlan == NIL && node->subPlan == NIL;
}

/*
 * Make nodes look at the flag: those that have no others below them, and some of those
 * that can be asked many times without asking what is below them.
 */
static bool
watch_node(PlanState *node, void *context)
{
	if (node == NULL)
		return false;
	if ((outerPlanState(node) == NULL && innerPlanState(node) == NULL) ||
		IsA(node, MaterialState) || IsA(node, MemoizeState) || IsA(node, SortState))
		node->ExecProcNode = exec_and_tick;
	return planstate_tree_walker(node, watch_node, context);
}

/*
 * Make that query pause if it is long, and has to.  Not if its nodes are measured one
 * by one: that has a function of its own in the place of ours.
 */
void
long_statements_watch(QueryDesc *query)
{
	if (gate_long_after < 0 || query->instrument_options != 0)
		return;
	if (unlikely(!clock_runs))
		start_clock();
	if (is_alone(query->planstate))
		query->planstate->ExecProcNode = exec_and_tick;
	else
		(void) watch_node(query->planstate, NULL);
}
