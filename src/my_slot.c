/*-------------------------------------------------------------------------
 *
 * my_slot.c
 *		Admission of one backend: does it need a slot, may it wait, and how.
 *
 * The hooks (admission_gate.c) decide when a statement meets the gate.  It may
 * not wait if its transaction was admitted before, bypassed the gate, or began
 * before this backend knew of a limit: others may wait for that transaction
 * already, and PostgreSQL would not detect the deadlock.  Nothing that users can
 * do at will exempts a transaction from waiting.
 *
 * A statement that wants a hot row or lock (wanted.c) takes a place there, at
 * any level and in the middle of its transaction.  If none is free, its
 * backend gives its slot up and waits for both.  This wait replaces one for a
 * lock, and is no worse for others: if they wait for its locks, it goes first
 * (sampler.c), and PostgreSQL's detector sees any deadlock.
 *
 * Up to superuser_reserved_connections superusers enter above the limit
 * instead of waiting: the gate never keeps an administrator out.
 *
 * The way of a transaction; it has a slot only while it is ADMITTED:
 *
 *	standing			what happens						then
 *	------------------	----------------------------------	--------------
 *	NOT_ADMITTED		it acquires a slot, or is granted	ADMITTED
 *						 one in the queue
 *						its session bypasses the gate		PASSED
 *						its BEGIN is refused				REFUSED
 *	PASSED				the bypass ends: it gets a slot		ADMITTED
 *						 without a wait
 *	REFUSED				each statement fails				REFUSED
 *	ADMITTED			its first statement is long, and	WAITS_TO_START
 *						 finds no place
 *						it finds no place at a hot spot		WAITS_INSIDE
 *						its commit begins					ENDING
 *	WAITS_TO_START,		it is granted slot and place; or	ADMITTED
 *	 WAITS_INSIDE		 fails, with a slot
 *	any					it ends								NOT_ADMITTED
 *
 * If BEGIN is refused, the block begins nevertheless.  Its first statement
 * that needs a slot, or its COMMIT, then fails with the error (docs/design.md
 * has the reason).
 *
 * Everything here is local to the backend: no locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>

#include "access/xact.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "gate.h"

/* How the present transaction stands: see above.  From ADMITTED on, its end counts. */
typedef enum Standing
{
	NOT_ADMITTED,
	PASSED,
	REFUSED,
	ADMITTED,
	WAITS_TO_START,
	WAITS_INSIDE,
	ENDING
} Standing;

static Standing standing = NOT_ADMITTED;

/* The error of the last BEGIN that was REFUSED, to be raised later; or NULL */
static ErrorData *refusal = NULL;

/* Nesting level that took its place at a hot spot; 0 = none did */
static int	place_level = 0;

#define NEARLY_ALL			16	/* of its time: one of so many parts is left */
#define MAX_REFUSAL_DELAY	500000	/* us */
#define DEADLOCK_TIMEOUT_IN_JAM	50	/* ms; longer than a wait in a line that
									 * moves */

/* The last wait in the queue */
static struct
{
	uint64		start;			/* by monotonic_us() */
	TimestampTz statement;		/* see start_of_statement() */
	int			queue_length;	/* on arrival */
	bool		holds_locks;	/* or may: the transaction has begun before */
	bool		is_long;		/* for a place of a long statement */
}			my_wait;

/* Has a wait of this transaction ended by an error? */
static bool has_given_up = false;

/*
 * When did the client send its statement?  That of a lone one counts from Parse
 * or Bind, where it waits: PostgreSQL's own clock starts anew with Execute.
 */
static TimestampTz
start_of_statement(void)
{
	return IsTransactionBlock() ? GetCurrentStatementStartTimestamp() : GetCurrentTransactionStartTimestamp();
}

/* The shorter one of two time-outs, of which 0 is none */
static int
shorter(int timeout, int other)
{
	return timeout == 0 || (other > 0 && other < timeout) ? other : timeout;
}

/* The queue_timeout that applies, ms; 0 = none.  It cannot exceed the pool's. */
static int
queue_timeout(void)
{
	return shorter(gate_queue_timeout, slots_my_pool()->queue_timeout);
}

/*
 * The same, or lock_timeout if that is shorter: a place, for which a backend
 * waits in the middle of its transaction, stands for a lock.
 */
static int
wait_timeout(void)
{
	return shorter(queue_timeout(), standing == WAITS_INSIDE ? LockTimeout : 0);
}

/* In how many us will this time-out end the statement? PG_INT64_MAX = never */
static int64
time_until(TimeoutId timeout)
{
	int64		left = PG_INT64_MAX;

	if (get_timeout_active(timeout))
		left = get_timeout_finish_time(timeout) - GetCurrentTimestamp();
	return Max(left, 1);
}

/* How much time the present statement has left, us; PG_INT64_MAX = no end */
static int64
time_left(void)
{
	int64		of_statement = time_until(STATEMENT_TIMEOUT);
	int64		of_transaction = time_until(GATE_TRANSACTION_TIMEOUT);

	return Min(of_statement, of_transaction);
}

/* After how many us will a time-out end a wait in the queue? 0 = never */
static uint64
patience(void)
{
	int64		left = time_left();

	if (wait_timeout() > 0)
		left = Min(left, wait_timeout() * INT64CONST(1000));
	return left == PG_INT64_MAX ? 0 : left;
}

/* How long the last wait has lasted, us */
static uint64
waited(void)
{
	return monotonic_us() - my_wait.start;
}

/*
 * A session that is refused again within a second waits before it gets the
 * error, each time longer, while it holds nothing: otherwise sessions that try
 * again at once would need the CPUs for that.  Interrupts may raise errors.
 */
static void
delay_refusal(void)
{
	static uint64 refused = 0;	/* the last time */
	static int	streak = 0;
	uint64		now = monotonic_us();
	uint64		until;
	int64		delay;

	streak = refused != 0 && now - refused < 1000000 ? Min(streak + 1, 6) : 0;
	if (streak > 0 && !my_wait.holds_locks && INTERRUPTS_CAN_BE_PROCESSED())
	{
		delay = Min(INT64CONST(8000) << streak, MAX_REFUSAL_DELAY);
		delay = (int64) pg_prng_uint64_range(&pg_global_prng_state, delay / 2, delay);
		until = now + Min(delay, time_left() / 2);
		while ((now = monotonic_us()) < until)
			wait_for_latch((long) ((until - now) / 1000 + 1),
						   GATE_WAIT_EVENT_NEW("AdmissionGateRefusal"));
	}
	refused = now;
}

/* A setting of this backend's pool, or of all */
static const char *
name_setting(const char *name, bool of_pool)
{
	return of_pool ? psprintf("%s of pool \"%s\"", name, slots_my_pool()->name) :
		psprintf("admission_gate.%s", name);
}

/* What the limit is of.  by_name: look a relation up, without a lock. */
static const char *
name_limited(const SlotLimit *limit, bool by_name)
{
	const HotSpotKey *key = &limit->hot_spot;
	char	   *relation = NULL;

	if (!limit->is_of_queue)
		return "the server";
	if (key->kind == HOT_SPOT_NONE)
		return psprintf("pool \"%s\"", slots_my_pool()->name);
	if (by_name && key->kind == HOT_SPOT_RELATION && key->database == MyDatabaseId)
		relation = get_rel_name(key->fields[0]);
	return relation != NULL ? psprintf("relation \"%s\"", relation) : slots_describe_hot_spot(key);
}

/*
 * Raise the error of a backend that finds a full queue, or has left the queue
 * after too long a wait.  by_name: the catalog may be read.
 */
static void
refuse(bool is_full, bool by_name)
{
	SlotLimit	limit;
	long		ms = is_full ? 0 : waited() / 1000;
	const char *setting;
	const char *limited;
	bool		is_set;

	has_given_up = true;
	slots_get_my_limit(&limit);
	delay_refusal();
	setting = is_full ?
		name_setting("max_queue_length", slots_my_pool()->max_queue_length != POOLS_QUEUE_LENGTH_UNSET) :
		name_setting("queue_timeout", queue_timeout() != gate_queue_timeout);
	limited = name_limited(&limit, by_name);
	/* Nobody has set the limit of a hot spot, of long statements, or of CPUs. */
	is_set = limit.hot_spot.kind == HOT_SPOT_NONE && (limit.is_of_queue || gate_max_active_backends > 0);
	ereport(ERROR,
			(errcode(is_full ? ERRCODE_CONFIGURATION_LIMIT_EXCEEDED : ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg(is_full ? "too many backends are waiting for admission" :
					"canceling statement due to admission queue timeout"),
			 errdetail("The limit of %s is %d at a time (%d in use, %d waiting); this backend has waited for %ld ms.",
					   limited, limit.max_active, limit.in_use, limit.waiting, ms),
			 !is_set ? errhint("Try again later, or increase %s.", setting) :
			 errhint("Try again later, or increase %s or %s.", setting,
					 limit.is_of_queue ? name_setting("max_active", true) :
					 name_setting("max_active_backends", false))));
}

/*
 * Sleep in the queue until this backend has a slot.  Returns false if a
 * time-out expires first: the backend has left the queue.  Interrupts may
 * raise errors.
 */
static bool
sleep_in_queue(void)
{
	uint32		wait_event = GATE_WAIT_EVENT_NEW("AdmissionGateQueue");
	long		next_look = slots_look_after(my_slot_procno);

	for (;;)
	{
		int			max_wait = wait_timeout();
		long		ms = waited() / 1000;
		long		wake_at = max_wait > 0 ? Min(max_wait, next_look) : next_look;

		if (max_wait > 0 && ms >= max_wait && slots_leave_queue(TOTAL_TIMEOUTS, false))
			return false;
		wait_for_latch(Max(wake_at - ms, 0), wait_event);
		if (slots_claim())
			return true;
		ms = waited() / 1000;
		if (ms >= next_look)
		{
			slots_move_queue_of(my_slot_procno);
			next_look = ms + slots_look_after(my_slot_procno);
		}
	}
}

/*
 * Count a wait that has ended, and log it if it took log_min_wait or longer.
 * log_min_error_statement decides whether the log has the statement, as with
 * log_lock_waits.  Safe in an error handler: serves no interrupts.
 */
static void
note_wait(const char *end)
{
	uint64		us = waited();

	slots_record_wait(us);
	if (gate_log_min_wait < 0 || us < (uint64) gate_log_min_wait * 1000)
		return;

	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg("admission wait ended after %.3f ms: %s%s, pool \"%s\", queue length %d on arrival",
					us / 1000.0, end, my_wait.is_long ? " long" : "",
					slots_my_pool()->name, my_wait.queue_length)));
	RESUME_INTERRUPTS();
}

/*
 * How much time does statement_timeout leave the present statement, us?  Less
 * than 1 if it has expired; PG_INT64_MAX = any.
 */
static int64
time_of_statement(void)
{
	TimestampTz end = get_timeout_finish_time(STATEMENT_TIMEOUT);

	/* It may have been disabled meanwhile, or be that of another statement. */
	return StatementTimeout == 0 || end < GetCurrentStatementStartTimestamp() ? PG_INT64_MAX :
		end - GetCurrentTimestamp();
}

/* Does this error mean that the client has given up: cancels, or hangs up? */
static bool
client_gives_up(int sqlerrcode)
{
	return sqlerrcode == ERRCODE_CONNECTION_FAILURE ||
		(sqlerrcode == ERRCODE_QUERY_CANCELED && time_of_statement() > 0);
}

/*
 * Clean up a wait that an error, or the exit of the backend (code > 0),
 * interrupts.
 */
static void
abandon_wait(int code, Datum arg)
{
	if (!slots_leave_queue(TOTAL_CANCELS, code > 0 ? ClientConnectionLost : client_gives_up(geterrcode())))
		slots_refuse_grant();
	has_given_up = true;
	note_wait("canceled");
}

static void
wait_error_callback(void *arg)
{
	errcontext("while waiting for admission");
}

/*
 * Wait in the queue for a slot, or acquire one if the limit is only observed.
 * Raises an error if the queue is full or queue_timeout expires; interrupts
 * may, too.
 */
static pg_noinline void
wait_for_slot(QueryDesc *query, bool begins_block)
{
	SlotState	state;
	bool		granted;
	ErrorContextCallback context = {error_context_stack, wait_error_callback, NULL};
	bool		is_lone = snapshot_release(query, standing != WAITS_INSIDE) && !IsTransactionBlock() &&
	!IsSubTransaction() && !TransactionIdIsValid(GetTopTransactionIdIfAny());

	my_wait.start = monotonic_us();
	my_wait.statement = start_of_statement();
	/* A lone statement of the client holds nothing but relation locks. */
	my_wait.holds_locks = standing == WAITS_INSIDE && !is_lone;
	my_wait.is_long = standing == WAITS_TO_START;
	state = slots_enqueue(gate_max_queue_length, my_wait.holds_locks, patience(),
						  &my_wait.queue_length);
	if (state == SLOT_NONE)
		refuse(true, !begins_block);
	if (state != SLOT_WAITING)
	{
		standing = ADMITTED;
		snapshot_retake();
		return;
	}

	PG_ENSURE_ERROR_CLEANUP(abandon_wait, (Datum) 0);
	{
		error_context_stack = &context;
		granted = sleep_in_queue();
		error_context_stack = context.previous;
		/* From here on, the end of the transaction releases the slot. */
		if (granted)
			standing = ADMITTED;
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon_wait, (Datum) 0);

	note_wait(granted ? "admitted" : "timed out");
	if (!granted && wait_timeout() != queue_timeout())
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
	if (!granted)
		refuse(false, !begins_block);

	/*
	 * A cancel since the grant would be lost if this is Bind: PostgreSQL
	 * reads the next message then.  Nothing may make BEGIN fail: what follows
	 * would run outside of a block.  Privileges may have been revoked
	 * meanwhile.
	 */
	if (!begins_block)
	{
		CHECK_FOR_INTERRUPTS();
		AcceptInvalidationMessages();
	}
	snapshot_retake();
}

/*
 * wait_for_slot() for BEGIN: keep its error for a later statement.  Only the
 * wait can fail: the transaction stays intact.
 */
static pg_noinline void
wait_for_slot_at_begin(void)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		wait_for_slot(NULL, true);
	}
	PG_CATCH();
	{
		/* An error after admission is not a refusal. */
		if (standing == ADMITTED)
			PG_RE_THROW();
		LWLockReleaseAll();
		pgstat_report_wait_end();
		MemoryContextSwitchTo(TopMemoryContext);
		if (refusal != NULL)
			FreeErrorData(refusal);
		refusal = NULL;
		refusal = CopyErrorData();
		standing = REFUSED;
		FlushErrorState();
		MemoryContextSwitchTo(context);
	}
	PG_END_TRY();
}

/*
 * Enter above the limit if the session may use the reserve and some of it is
 * left.  From PostgreSQL 16 on, it includes reserved_connections.
 */
static pg_noinline bool
enter_reserved(TimestampTz since)
{
	Oid			user = GetSessionUserId();
	int			size = 0;

	/* A cancel here would make BEGIN itself fail. */
	HOLD_INTERRUPTS();
	if (superuser_arg(user))
		size = GATE_SUPERUSER_RESERVED + GATE_RESERVED;
	else if (GATE_RESERVED > 0 && GATE_MAY_USE_RESERVED(user))
		size = GATE_RESERVED;
	RESUME_INTERRUPTS();
	return size > 0 && slots_acquire_reserved(size, since);
}

/*
 * May this statement begin without another slot, as its transaction has one, or
 * the session bypasses the gate?  Raises the error of a refused BEGIN.
 */
static pg_noinline bool
may_go_on(void)
{
	if (standing == REFUSED)
		ReThrowError(refusal);
	if (standing == ADMITTED)
		slots_resume();
	/* If the bypass ends, it does not wait: it may have locks. */
	else if (standing == NOT_ADMITTED)
		standing = PASSED;

	/*
	 * A callback of the commit runs this if it is ENDING: it keeps nobody
	 * out.
	 */
	return standing != PASSED || bypass_in_force;
}

/*
 * A top-level statement begins: acquire a slot if one is free, unless the
 * session bypasses the gate.  Otherwise return false: call my_slot_wait().
 * begins_block: it is BEGIN.  The caller holds no LWLock.
 */
bool
my_slot_acquire(bool begins_block)
{
	if ((standing != NOT_ADMITTED || unlikely(bypass_in_force)) && may_go_on())
		return true;
	if (!slots_try_acquire(GetCurrentStatementStartTimestamp(), begins_block))
		return false;
	standing = ADMITTED;
	return true;
}

/*
 * my_slot_acquire() failed: take a free slot although others wait, or enter
 * above the limit, or wait.  query: the argument of ExecutorStart, or NULL;
 * begins_block: it is BEGIN.  May raise errors.
 */
void
my_slot_wait(QueryDesc *query, bool begins_block)
{
	TimestampTz since = GetCurrentStatementStartTimestamp();
	bool		may_wait = standing == NOT_ADMITTED && !xact_predates_gate() &&
	INTERRUPTS_CAN_BE_PROCESSED() && !proc_exit_inprogress;
	bool		entered = slots_try_barge(since);

	if (!entered && !may_wait)
	{
		(void) slots_force(since);
		entered = true;
	}
	if (!entered)
	{
		/* A holder that gets the CPU meanwhile may release its slot. */
		sched_yield();
		entered = slots_try_barge(since);
	}
	if (entered || enter_reserved(since))
		standing = ADMITTED;
	else if (begins_block)
		wait_for_slot_at_begin();
	else
		wait_for_slot(query, false);
}

/* A top-level statement continues: like my_slot_acquire(), but never waits. */
void
my_slot_resume(void)
{
	if (my_slot_acquire(false))
		return;
	(void) slots_force(GetCurrentStatementStartTimestamp());
	standing = ADMITTED;
}

/*
 * No place was free: wait for one, and for a slot.  If that fails, the backend
 * gets a slot back: a subtransaction may catch the error.  meanwhile: how the
 * transaction stands while it waits.
 */
static pg_noinline void
wait_for_place(QueryDesc *query, int hot_spot, Standing meanwhile)
{
	standing = meanwhile;
	slots_give_up_for(hot_spot, meanwhile == WAITS_INSIDE);
	PG_TRY();
	{
		wait_for_slot(query, false);
	}
	PG_FINALLY();
	{
		slots_end_readmission(GetCurrentStatementStartTimestamp());
		standing = ADMITTED;
	}
	PG_END_TRY();
}

bool
my_slot_is_held(void)
{
	return standing == ADMITTED;
}

/* May a statement of this backend want a place?  It has at most one. */
bool
my_slot_may_want(void)
{
	return standing == ADMITTED && place_level == 0 && !bypass_in_force;
}

/*
 * A statement is about to want a place there: take it, or wait for it.  query
 * and errors: as for my_slot_wait(); meanwhile: as for wait_for_place().
 */
static void
take_place(QueryDesc *query, int place, Standing meanwhile)
{
	if (slots_has_place())
	{
		/* Of its pool, or taken at BEGIN: it lasts. */
		place_level = 1;
		return;
	}
	if (!slots_take_place(place))
	{
		/* It cannot wait, or would fail for lack of privileges anyway. */
		if (!INTERRUPTS_CAN_BE_PROCESSED() || proc_exit_inprogress ||
			(query != NULL && !GATE_HAS_PRIVILEGES(query->plannedstmt)))
			return;
		sched_yield();
		if (!slots_take_place(place))
			wait_for_place(query, place, meanwhile);
	}
	place_level = GetCurrentTransactionNestLevel();
}

/* Up to the end of its transaction, like SET LOCAL, this backend does so. */
static void
look_for_deadlocks_soon(void)
{
	if (DeadlockTimeout > DEADLOCK_TIMEOUT_IN_JAM && !IsInParallelMode())
		(void) set_config_option("deadlock_timeout", CppAsString2(DEADLOCK_TIMEOUT_IN_JAM),
								 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * A statement, at any level, is about to want this key of a hot spot; see
 * slots_want().  If it is hot, take a place, and wait if none is free, unless
 * interrupts are held off.  Call only if my_slot_may_want().  query and
 * errors: as for my_slot_wait().
 */
void
my_slot_want(QueryDesc *query, int hot_spot, uint32 key, uint32 shape)
{
	if (!slots_want(hot_spot, key, shape))
		return;
	take_place(query, hot_spot, WAITS_INSIDE);
	if (slots_is_jammed(hot_spot, shape))
		look_for_deadlocks_soon();
}

/*
 * The first statement of a transaction is about to start, and expected to use
 * so much CPU time (us): take a place for it, as in my_slot_want().
 */
void
my_slot_want_long(QueryDesc *query, uint64 expected)
{
	take_place(query, slots_expect_long(expected), WAITS_TO_START);
}

/* That statement has ended: its place is free, unless a sample has taken it. */
void
my_slot_end_long(void)
{
	if (slots_end_long())
		place_level = 0;
}

/*
 * This error is about to be reported: count it if a time-out, of the server or
 * by a cancel of the client, ends a statement that was admitted, or that was
 * on its way to the gate and did not wait there; or if the client has hung up
 * meanwhile.
 */
void
my_slot_note_error(const ErrorData *error)
{
	bool		was_admitted = standing == ADMITTED || standing == ENDING;
	bool		comes = standing == NOT_ADMITTED && gate_max_active_backends != 0 && !bypass_in_force;
	uint64		after = 0;

	if (error->elevel < ERROR || has_given_up)
		return;
	/* Had it waited, others in that queue have as much time. */
	if (my_wait.statement == start_of_statement() && client_gives_up(error->sqlerrcode))
		after = Max(GetCurrentTimestamp() - my_wait.statement, 1);
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED ? was_admitted || comes :
		was_admitted &&
		(error->sqlerrcode == GATE_ERRCODE_TRANSACTION_TIMEOUT ||
		 (error->elevel == FATAL && error->sqlerrcode == ERRCODE_CONNECTION_FAILURE)))
		slots_count_overdue(after);
}

/*
 * Count the statement that ends its transaction if it has used up nearly all of
 * its time.  For its client, whose clock started earlier, it may be late.
 */
static pg_noinline void
note_nearly_overdue(void)
{
	if (time_of_statement() < StatementTimeout * (INT64CONST(1000) / NEARLY_ALL))
		slots_count_nearly_overdue();
}

/*
 * The transaction is about to commit: release its slot and place.  Its end is
 * not counted yet.  Raise the error of a refused BEGIN if no statement has.
 */
void
my_slot_begin_commit(void)
{
	if (standing == ADMITTED)
	{
		if (gate_max_active_backends < 0 && StatementTimeout != 0)
			note_nearly_overdue();
		standing = ENDING;
	}
	else if (standing == REFUSED)
		ReThrowError(refusal);
	slots_release();
}

/* The transaction has ended: the next one may wait. */
void
my_slot_end_transaction(bool failed)
{
	bool		was_admitted = standing >= ADMITTED;

	standing = NOT_ADMITTED;
	place_level = 0;
	has_given_up = false;
	slots_end(failed, was_admitted);
}

/* The same inside a command, which keeps its slot: release only the place. */
void
my_slot_end_inner_transaction(bool failed)
{
	place_level = 0;
	if (standing == ADMITTED)
	{
		slots_end_transaction(failed);
		slots_release_place();
	}
}

/*
 * A subtransaction has ended.  Its place is now its parent's, unless it has
 * failed and released the lock that its place was for.
 */
void
my_slot_end_subtransaction(bool failed)
{
	int			level = GetCurrentTransactionNestLevel();

	if (place_level < level)
		return;
	place_level = failed ? 0 : level - 1;
	if (failed)
		slots_release_place();
}
