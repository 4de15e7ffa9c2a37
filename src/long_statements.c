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
 * What is counted is the outermost query that the executor runs, with all that
 * its functions run, and over all calls of the executor: so a cursor is long
 * by what all its FETCHes have used.  Many short queries are not long by their
 * sum.
 *
 * A tick only sets a flag.  Nodes of the plan that yield tuples of their own
 * test it whenever they are asked for the next one: there the process holds no
 * lock inside the server, and can raise errors and sleep.
 *
 * A statement that pauses keeps its locks.  So it does not pause when other
 * backends may want them: in a transaction that has run anything but queries
 * that only read, here or through a foreign table, and when a backend waits
 * for one of its locks.  It keeps its snapshot and its pins, too: it goes on
 * when VACUUM or replay waits for such.  What a function does on another
 * server without the executor, such as dblink_exec(), is not known here.
 *
 * A parallel worker ticks and pauses by itself; its ticks count for the
 * statement of its leader, which may only wait for its workers.
 *
 * Other modules may instrument nodes or put functions of their own into them:
 * such nodes are left alone.  So is SIGPROF, if anything else uses it.
 *
 * Locking: the lock manager's partition locks guard the locks of this process
 * and its leader.  Everything else is local to the process.
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
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "gate.h"

/* CPU time between two ticks, ms */
#define TICK	25

/*
 * How often a process that pauses wakes up, ms: the first, which sees to the
 * samples that resume the others, and workers, whose leader may wait for their
 * end; and all others
 */
#define SAMPLE_AGAIN	50
#define LOOK_AGAIN		500

/* What a query used until its executor was last left, in its own memory */
typedef struct SuspendedQuery
{
	const QueryDesc *query;
	uint32		ticks;
	struct SuspendedQuery *next;
	MemoryContextCallback forget;
} SuspendedQuery;

static SuspendedQuery *suspended = NULL;

/*
 * The query that is counted, NULL if none is, and the start of its statement:
 * an error may have ended it
 */
static const QueryDesc *volatile counted_query = NULL;
static volatile TimestampTz counted_statement;

/* The subtransaction in which it was called */
static int	counted_level;

/*
 * How many ticks this process has seen, and how many of them core/long_share.c
 * knows
 */
static volatile uint32 ticks = 0;
static uint32 ticks_told = 0;

/*
 * May the statement have seen ticks, by this process or a parallel worker?
 * Short ones hardly ever have: this is all that they test.
 */
static volatile sig_atomic_t may_have_ticks = false;

/* Is it long? */
static bool is_long = false;

static volatile sig_atomic_t tick_is_due = false;

/* Has the present transaction run anything but queries that only read? */
static bool may_have_written = false;

static volatile sig_atomic_t clock_runs = false;

/* What a node's ExecProcNode is before its first call */
static ExecProcNodeMtd pg_first_call = NULL;

/*
 * The proc number of the holder that this process works for: itself or its
 * leader; -1 if there is none.
 */
static int
holder(void)
{
	if (!IsParallelWorker())
		return slots_my_procno();
	return MyProc->lockGroupLeader != NULL ? GATE_PROC_NUMBER(MyProc->lockGroupLeader) : -1;
}

/* Can a statement of this process be long? */
static inline bool
can_be_long(void)
{
	return gate_long_after >= 0 && gate_max_active_backends != 0 && !bypass_in_force &&
		holder() >= 0 && slots_may_be_long(holder());
}

static void
set_clock(int interval_ms)
{
	struct itimerval every = {{0, interval_ms * 1000}, {0, interval_ms * 1000}};

	(void) setitimer(ITIMER_PROF, &every, NULL);
	clock_runs = interval_ms > 0;
}

/* Is the query counted that began last? */
static inline bool
is_counting(void)
{
	return counted_query != NULL && counted_statement == GetCurrentStatementStartTimestamp();
}

/*
 * Signal handler of the timer.  Stops it where no statement can be long any
 * more; the next one that can starts it again.
 */
static void
handle_tick(SIGNAL_ARGS)
{
	int			save_errno = errno;

	if (proc_exit_inprogress || !can_be_long())
		set_clock(0);
	else if (is_counting())
	{
		ticks++;
		may_have_ticks = true;
		if ((slots_count_tick(holder()) - 1) * TICK >= (uint32) gate_long_after || is_long)
			tick_is_due = true;
	}
	errno = save_errno;
}

/*
 * Start the timer of this process, unless something else uses it.
 */
static pg_noinline void
start_clock(void)
{
	static bool has_handler = false;
	static bool is_refused = false;
	struct itimerval present;
	struct sigaction action;

	if (is_refused)
		return;
	/* A profiler may use it. */
	if (!has_handler &&
		(getitimer(ITIMER_PROF, &present) != 0 || timerisset(&present.it_value) ||
		 sigaction(SIGPROF, NULL, &action) != 0 ||
		 (action.sa_flags & SA_SIGINFO) != 0 ||
		 (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)))
	{
		is_refused = true;
		return;
	}
	if (!has_handler)
		pqsignal(SIGPROF, handle_tick);
	has_handler = true;
	set_clock(TICK);
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

/* Would a pause of this process delay other backends? */
static bool
is_in_the_way(void)
{
	PGPROC	   *leader = MyProc->lockGroupLeader;

	if (others_want_locks_of(MyProc))
		return true;
	if (leader == NULL || leader == MyProc)
		return false;
	/* The leader needs no more rows and waits for its workers to end. */
	return wait_event_of(leader) == WAIT_EVENT_PARALLEL_FINISH ||
		others_want_locks_of(leader);
}

/* Error context callback of a pause */
static void
pause_error_callback(void *arg)
{
	errcontext("while pausing for short statements");
}

/*
 * Sleep until this process may go on.  Raises whatever interrupts bring.
 */
static void
pause_statement(void)
{
	static uint32 wait_event = 0;
	bool		timed_out = false;
	ErrorContextCallback context = {
		.callback = pause_error_callback,
		.previous = error_context_stack
	};

	if (wait_event == 0)
		wait_event = GATE_PAUSE_EVENT_NEW();

	error_context_stack = &context;
	for (;;)
	{
		bool		is_first = slots_long_is_first(MY_PROC_NUMBER);

		/*
		 * The first sees to the samples, and others from time to time: the
		 * first may have caught an error here, and do something else.
		 */
		if (is_first || timed_out)
			sampler_sample_long();
		if (!slots_is_paused(MY_PROC_NUMBER) || !can_be_long() || is_in_the_way())
			break;
		timed_out = (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							   is_first || IsParallelWorker() ? SAMPLE_AGAIN : LOOK_AGAIN,
							   wait_event) & WL_TIMEOUT) != 0;
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		client_check();
	}
	slots_long_resume(MY_PROC_NUMBER);
	error_context_stack = context.previous;
}

/* on_shmem_exit callback of a parallel worker */
static void
worker_exits(int code, Datum arg)
{
	slots_forget_long(MY_PROC_NUMBER);
}

/*
 * The query of this process has used more CPU time and is long: pause it
 * unless it may go on.  If its transaction has begun to write, it needs a slot
 * again and never pauses.
 */
static pg_noinline void
tick(void)
{
	uint32		seen = ticks;
	int64		used = is_long ? (int64) (seen - ticks_told) * TICK * 1000 : 0;

	tick_is_due = false;
	if (!is_counting() || holder() < 0 || !INTERRUPTS_CAN_BE_PROCESSED())
		return;
	if (may_have_written || xact_predates_gate() ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()))
	{
		if (!IsParallelWorker())
			long_statements_end(true);
		return;
	}
	ticks_told = seen;
	if (!is_long && IsParallelWorker())
		on_shmem_exit(worker_exits, (Datum) 0);
	is_long = true;
	if (!IsParallelWorker() && slots_state(slots_my_procno()) == SLOT_LENT)
		slots_end_lending();
	sampler_sample_long();
	if (!slots_tick_long(MY_PROC_NUMBER, holder(), used, is_in_the_way()))
		pause_statement();
}

/* ExecProcNode of nodes that test the flag */
static TupleTableSlot *
exec_and_tick(PlanState *node)
{
	if (unlikely(tick_is_due))
		tick();
	return node->ExecProcNodeReal(node);
}

/* The same for the first call: checks the stack as PostgreSQL's own does. */
static TupleTableSlot *
exec_first_and_tick(PlanState *node)
{
	check_stack_depth();
	/* Another module may have put its own function before this one. */
	if (node->ExecProcNode == exec_first_and_tick)
		node->ExecProcNode = exec_and_tick;
	return exec_and_tick(node);
}

/* Have this node test the flag, if its function is PostgreSQL's own. */
static inline void
watch(PlanState *node)
{
	if (node->instrument != NULL)
		return;
	if (node->ExecProcNode == pg_first_call)
		node->ExecProcNode = exec_first_and_tick;
	else if (node->ExecProcNode == node->ExecProcNodeReal)
		node->ExecProcNode = exec_and_tick;
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
watch_nodes(PlanState *node, void *context)
{
	if (node == NULL)
		return false;
	if ((outerPlanState(node) == NULL && innerPlanState(node) == NULL) ||
		IsA(node, BitmapHeapScanState) || IsA(node, ProjectSetState) ||
		IsA(node, AggState) || IsA(node, WindowAggState) || IsA(node, HashJoinState) ||
		IsA(node, MaterialState) || IsA(node, MemoizeState) ||
		IsA(node, SortState) || IsA(node, IncrementalSortState))
		watch(node);
	return planstate_tree_walker(node, watch_nodes, context);
}

/* What a query has used until now, if it was suspended. */
static SuspendedQuery *
find_suspended(const QueryDesc *query)
{
	SuspendedQuery *found = suspended;

	while (found != NULL && found->query != query)
		found = found->next;
	return found;
}

/* Callback of a query's memory context */
static void
forget_suspended(void *arg)
{
	SuspendedQuery **link = &suspended;

	while (*link != NULL && *link != arg)
		link = &(*link)->next;
	if (*link != NULL)
		*link = (*link)->next;
}

/* Remember what the counted query has used: it may go on. */
static pg_noinline void
remember_ticks(const QueryDesc *query)
{
	SuspendedQuery *entry = find_suspended(query);

	if (entry == NULL)
	{
		entry = MemoryContextAlloc(query->estate->es_query_cxt, sizeof(SuspendedQuery));
		entry->query = query;
		entry->next = suspended;
		entry->forget.func = forget_suspended;
		entry->forget.arg = entry;
		MemoryContextRegisterResetCallback(query->estate->es_query_cxt, &entry->forget);
		suspended = entry;
	}
	entry->ticks = slots_ticks();
}

/* Count this query from now on, with what it used before. */
static inline void
start_counting(const QueryDesc *query)
{
	const SuspendedQuery *before = unlikely(suspended != NULL) ? find_suspended(query) : NULL;

	counted_query = NULL;
	if (unlikely(may_have_ticks || before != NULL) && !IsParallelWorker())
	{
		may_have_ticks = before != NULL || query->plannedstmt->parallelModeNeeded;
		slots_set_ticks(before != NULL ? before->ticks : 0);
	}
	is_long = before != NULL && (before->ticks - 1) * TICK >= (uint32) gate_long_after;
	tick_is_due = is_long;
	ticks_told = ticks;
	counted_statement = GetCurrentStatementStartTimestamp();
	counted_level = GetCurrentTransactionNestLevel();
	counted_query = query;
}

/*
 * The executor is about to run this query.  If it may write, this transaction
 * keeps its slot; else have it pause when it is long and not its turn.
 */
void
long_statements_begin(const QueryDesc *query)
{
	if (query->operation != CMD_SELECT || query->plannedstmt->hasModifyingCTE ||
		query->plannedstmt->rowMarks != NIL)
		long_statements_note_write();
	if (unlikely(query->plannedstmt->parallelModeNeeded) && !IsParallelWorker() &&
		slots_my_procno() >= 0)
	{
		/* Its workers count ticks whatever this backend knows. */
		may_have_ticks = true;
		slots_keep_slot(may_have_written || xact_predates_gate());
	}
	if (may_have_written || !can_be_long())
		return;
	if (!is_counting())
		start_counting(query);
	/* That replaces their ExecProcNode as well. */
	if (query->instrument_options != 0)
		return;
	if (unlikely(!clock_runs))
		start_clock();
	if (unlikely(pg_first_call == NULL))
	{
		PlanState	node = {0};

		ExecSetExecProcNode(&node, exec_and_tick);
		pg_first_call = node.ExecProcNode;
	}
	if (is_alone(query->planstate))
		watch(query->planstate);
	else
		(void) watch_nodes(query->planstate, NULL);
}

/*
 * The executor has run this query, to its end or not.  ends_statement: it was
 * a statement of the client.
 */
void
long_statements_leave(const QueryDesc *query, bool ends_statement)
{
	if (query != counted_query)
		return;
	if (unlikely(may_have_ticks) && !IsParallelWorker() && slots_ticks() > 0)
		remember_ticks(query);
	if (ends_statement)
		long_statements_end(false);
	counted_query = NULL;
	is_long = false;
}

/*
 * If the statement of this backend is long, it is no more.  works: the backend
 * goes on working; else it is long up to the end of its transaction, if that
 * comes now.
 */
void
long_statements_end(bool works)
{
	uint64		cpu = 0;

	if (slots_my_procno() < 0 || likely(slots_state(slots_my_procno()) != SLOT_LONG) ||
		!(works || IsTransactionBlock()))
		return;
	(void) process_cpu_time(MyProcPid, &cpu);
	slots_end_long(works, cpu);
	is_long = false;
}

/*
 * This transaction runs something that may write: it keeps its slot from now
 * on, or has it back.
 */
void
long_statements_note_write(void)
{
	if (!may_have_written)
		long_statements_end(true);
	may_have_written = true;
	if (slots_my_procno() >= 0)
		slots_keep_slot(true);
}

/*
 * A subtransaction is aborted.  If the query that is counted was called inside
 * it, that has ended; else it may have caught an error where it paused.
 */
void
long_statements_abort_subtransaction(void)
{
	if (counted_query == NULL || counted_level >= GetCurrentTransactionNestLevel())
	{
		counted_query = NULL;
		is_long = false;
		long_statements_end(true);
	}
	else if (slots_is_paused(MY_PROC_NUMBER))
		slots_long_resume(MY_PROC_NUMBER);
}

/* The transaction has ended. */
void
long_statements_end_transaction(void)
{
	may_have_written = is_long = false;
	counted_query = NULL;
}
