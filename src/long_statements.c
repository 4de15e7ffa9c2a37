/*-------------------------------------------------------------------------
 *
 * long_statements.c
 *		Which statement of this backend is long, and where it pauses.
 *
 * A few long statements among many short ones take a large part of the CPUs
 * and, under a limit, of the slots.  So they give up their slots, and go on a
 * few at a time (core/long_share.c).  Nothing has to be known of a statement
 * before it runs: a timer ticks by the CPU time of this process, and a
 * statement that has seen enough ticks is long.  A process that waits for its
 * client, the queue, a lock or a disk sees no ticks, and short statements
 * hardly ever see one.
 *
 * A tick only sets a flag.  Nodes of the plan that yield tuples of their own
 * test it whenever they are asked for the next one: there the process holds no
 * lock inside the server, and can raise errors and sleep.
 *
 * A statement that pauses keeps its locks.  So it does not pause when other
 * backends may want them: in a transaction that has an XID, and when a backend
 * waits for one of its locks.  It keeps its snapshot and its pins, too: VACUUM
 * may wait for a pin to have the page for itself; so may replay on a standby,
 * but then the statement goes on.
 *
 * Parallel workers tick for their leader, which holds the slot, and pause as
 * it does.
 *
 * Locking: reads other backends' states and wait events without a lock.  The
 * lock manager's partition locks guard the locks of this process and its
 * leader.  Everything else is local to the process.
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
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/entries.h"
#include "core/long_share.h"
#include "long_statements.h"
#include "process.h"
#include "sampler.h"
#include "settings.h"

/* CPU time between two ticks, ms */
#define TICK	25

/*
 * How often a pausing process looks whether it may go on, ms: the first in
 * line and parallel workers, and all others
 */
#define LOOK_AGAIN	50
#define OTHERS_LOOK_AGAIN	500

static bool clock_runs = false;
static volatile sig_atomic_t tick_is_due = false;

/*
 * When the statement of the last tick began, and how many ticks it has seen
 * since its first one
 */
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
 * Start the timer of this process, unless something else uses it.
 */
static pg_noinline void
start_clock(void)
{
	struct itimerval every = {{0, TICK * 1000}, {0, TICK * 1000}};
	struct itimerval present;

	clock_runs = true;
	/* A profiler may use it. */
	if (getitimer(ITIMER_PROF, &present) != 0 || timerisset(&present.it_interval))
		return;
	pqsignal(SIGPROF, handle_tick);
	(void) setitimer(ITIMER_PROF, &every, NULL);
}

/* How many CPUs this process may use */
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
 * Does another backend wait for a lock that this process holds?  Takes the
 * partition locks of the lock manager, one at a time.
 */
static bool
others_want_locks_of(PGPROC *proc)
{
	bool		wanted = false;

	for (int i = 0; i < NUM_LOCK_PARTITIONS && !wanted; i++)
	{
		LWLock	   *lock = LockHashPartitionLockByIndex(i);

		LWLockAcquire(lock, LW_SHARED);
		for (PROCLOCK *held = gate_first_lock_of(proc, i); held != NULL;
			 held = gate_next_lock_of(proc, i, held))
			wanted |= held->tag.myLock->nRequested > held->tag.myLock->nGranted;
		LWLockRelease(lock);
	}
	return wanted;
}

/*
 * The proc number of the holder that this process works for: itself or its
 * leader; -1 if there is none.
 */
static int
holder(void)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;

	if (!IsParallelWorker())
		return slots_my_procno();
	return leader != NULL ? GATE_PROC_NUMBER(leader) : -1;
}

/* Would a pause of this process delay other backends, or replay? */
static bool
is_in_the_way(void)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;

	if (HoldingBufferPinThatDelaysRecovery() || others_want_locks_of(MyProc))
		return true;
	if (leader == NULL || leader == MyProc)
		return false;
	/* The leader needs no more rows and waits for its workers to end. */
	return wait_event_of(leader) == WAIT_EVENT_PARALLEL_FINISH ||
		others_want_locks_of(leader);
}

/* Error context callback of a pause */
static void
say_pausing(void *arg)
{
	errcontext("while pausing for short statements");
}

/*
 * Sleep until the statement of this holder may go on.  Raises whatever
 * interrupts bring.
 */
static void
pause_statement(int procno)
{
	static uint32 wait_event = 0;
	bool		timed_out = false;
	ErrorContextCallback context = {
		.callback = say_pausing,
		.previous = error_context_stack
	};

	if (wait_event == 0)
		wait_event = GATE_PAUSE_EVENT_NEW();

	error_context_stack = &context;
	for (;;)
	{
		bool		is_first = slots_long_is_first(procno);

		/*
		 * The first looks, and others from time to time: the first may have
		 * caught an error here, and do something else.
		 */
		if (is_first || timed_out)
			slots_look_at_long(sampler_short_at_work(procno), usable_cpus());
		if (!slots_long_pauses(procno))
			break;
		if (is_in_the_way())
		{
			slots_long_resume(procno);
			break;
		}
		/* Only the leader's latch is set when its turn comes. */
		timed_out = (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							   is_first || IsParallelWorker() ? LOOK_AGAIN : OTHERS_LOOK_AGAIN,
							   wait_event) & WL_TIMEOUT) != 0;
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	error_context_stack = context.previous;
}

/*
 * The statement of this process has used more CPU time and is long: pause it
 * unless it may go on.  If its transaction has begun to write, it needs a slot
 * again and never pauses.
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
	if (!slots_tick_long(procno, sampler_short_at_work(procno), usable_cpus()))
		pause_statement(procno);
}

/* ExecProcNode of nodes that test the flag */
static TupleTableSlot *
exec_and_tick(PlanState *node)
{
	if (unlikely(tick_is_due))
		tick();
	return node->ExecProcNodeReal(node);
}

/* Is this node the whole plan, as in many short statements? */
static inline bool
is_alone(const PlanState *node)
{
	return (IsA(node, IndexScanState) || IsA(node, IndexOnlyScanState) ||
			IsA(node, SeqScanState) || IsA(node, ResultState)) &&
		outerPlanState(node) == NULL && node->initPlan == NIL && node->subPlan == NIL;
}

/*
 * Have nodes test the flag: those without children, and some that can yield
 * many tuples without asking their children.
 */
static bool
watch_node(PlanState *node, void *context)
{
	if (node == NULL)
		return false;
	if ((outerPlanState(node) == NULL && innerPlanState(node) == NULL) ||
		IsA(node, BitmapHeapScanState) || IsA(node, ProjectSetState) ||
		IsA(node, AggState) || IsA(node, WindowAggState) || IsA(node, HashJoinState) ||
		IsA(node, MaterialState) || IsA(node, MemoizeState) ||
		IsA(node, SortState) || IsA(node, IncrementalSortState))
		node->ExecProcNode = exec_and_tick;
	return planstate_tree_walker(node, watch_node, context);
}

/*
 * Have this query pause when it is long and not its turn.  Not if its nodes
 * are instrumented: that replaces their ExecProcNode as well.
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
