/*-------------------------------------------------------------------------
 *
 * admission.c
 *		One backend at the gate: whether it needs a slot, may wait for one,
 *		and what happens while it waits.
 *
 * The front door (admission_gate.c) decides when the gate is met; here a
 * backend takes a slot if one is free, waits if it may, and is forced in if it
 * may not wait: if its transaction was admitted before, or began before there was
 * a gate, others may wait for it already, and waiting for them in the queue would be
 * a deadlock that nobody detects.  What a transaction did without being admitted is no
 * reason: else a user could enter so at will.
 *
 * Instead of waiting, as many superusers as superuser_reserved_connections says
 * enter above the limit, so that an administrator is never kept out.
 *
 * If BEGIN is refused, the block begins all the same, and its first statement that
 * needs a slot fails for that reason.  An error of BEGIN itself would leave the session
 * outside of a block, and a client that goes on would commit the statements of what it
 * takes for one transaction one by one.
 *
 * Everything here is the backend's own: no locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sched.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "admission.h"
#include "bypass.h"
#include "compat.h"
#include "contention.h"
#include "lending.h"
#include "query_waits.h"
#include "settings.h"
#include "slots.h"
#include "snapshot.h"
#include "wait_log.h"

/*
 * For how long the watcher sleeps at most, ms; and the other waiters, which look then
 * whether it still watches.
 */
#define WATCH_INTERVAL	50
#define GUARD_INTERVAL	5000

/* A wait in the queue */
typedef struct QueueWait
{
	TimestampTz start;
	int			queue_length;	/* how many waited when it began */
	int64		query_id;		/* of the statement that waits, or 0 */
} QueueWait;

/* Does this backend hold a slot, lent or not? */
static bool holds_slot = false;

/* When the statement began that came to the gate last: tells it from others */
static TimestampTz statement_start = 0;

/* Has the present transaction held one, now or before? */
static bool admitted_in_xact = false;

/* Has it passed without one, by the right of its session? */
static bool bypassed_in_xact = false;

/* The error that refused it at its BEGIN, to be raised later; or NULL */
static ErrorData *refusal = NULL;

/*
 * How long the present transaction has waited, and how long the last one before
 * it that met the gate did: us; -1 if it has not, and if none did.
 */
static int64 xact_wait = -1;
static int64 last_xact_wait = -1;

static inline void
note_admission(void)
{
	holds_slot = true;
	admitted_in_xact = true;
}

/* The backend, which holds a slot, goes on with this statement, or begins it. */
static inline void
resume(void)
{
	TimestampTz start = GetCurrentStatementStartTimestamp();

	slots_resume(start != statement_start);
	statement_start = start;
}

/* Has the present transaction come to the gate, whatever came of it? */
static inline bool
met_gate_in_xact(void)
{
	return admitted_in_xact || xact_wait >= 0;
}

/*
 * May this backend wait?  Not if others may be waiting for its transaction,
 * nor where the wait could not be interrupted.
 */
static bool
may_wait(void)
{
	return !admitted_in_xact && !bypassed_in_xact &&
		!gate_is_younger_than_xact() &&
		INTERRUPTS_CAN_BE_PROCESSED() &&
		!proc_exit_inprogress;
}

/*
 * DETAIL of the gate's errors.  waited: ms.
 */
static int
errdetail_gate(const SlotLimit *limit, long waited)
{
	if (limit->is_of_pool)
		return errdetail_plural("The limit of pool \"%s\" is %d slot (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
								"The limit of pool \"%s\" is %d slots (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
								limit->slots,
								limit->pool, limit->slots, limit->in_use, limit->lent,
								limit->waiting, waited);
	if (limit->finds_itself && limit->effective < limit->slots)
		return errdetail_plural("The limit has found itself at %d slot, as running backends wait for each other (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
								"The limit has found itself at %d slots, as running backends wait for each other (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
								limit->effective,
								limit->effective, limit->in_use, limit->lent, limit->waiting, waited);
	if (limit->effective < limit->slots)
		return errdetail("The limit is %d slots, lowered to %d as running backends wait for each other (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
						 limit->slots, limit->effective, limit->in_use, limit->lent,
						 limit->waiting, waited);
	return errdetail_plural("The limit is %d slot (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
							"The limit is %d slots (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
							limit->slots,
							limit->slots, limit->in_use, limit->lent, limit->waiting, waited);
}

/*
 * HINT of the gate's errors: what to increase, that setting, which may be the
 * pool's, or the limit; not the limit if less than it is given out.
 */
static int
errhint_gate(const SlotLimit *limit, const char *setting, bool of_pool)
{
	if (of_pool && limit->is_of_pool)
		return errhint("Try again later, or increase %s or max_active of pool \"%s\" in admission_gate.pools.",
					   setting, limit->pool);
	if (limit->is_of_pool)
		return errhint("Try again later, or increase admission_gate.%s, or max_active of pool \"%s\" in admission_gate.pools.",
					   setting, limit->pool);
	if (of_pool && (limit->finds_itself || limit->effective < limit->slots))
		return errhint("Try again later, or increase %s of pool \"%s\" in admission_gate.pools.",
					   setting, limit->pool);
	if (of_pool)
		return errhint("Try again later, or increase %s of pool \"%s\" in admission_gate.pools, or admission_gate.max_active_backends.",
					   setting, limit->pool);
	if (limit->finds_itself || limit->effective < limit->slots)
		return errhint("Try again later, or increase admission_gate.%s.", setting);
	return errhint("Try again later, or increase admission_gate.%s or admission_gate.max_active_backends.",
				   setting);
}

/* The time since then in us; 0 if the clock was set back. */
static inline uint64
elapsed_since(TimestampTz start)
{
	return Max(GetCurrentTimestamp() - start, 0);
}

/* Is it the pool's queue_timeout that counts, as the shorter of the two? */
static bool
queue_timeout_is_of_pool(void)
{
	int			of_pool = slots_pool_queue_timeout();

	return of_pool > 0 &&
		(gate_queue_timeout == 0 || of_pool < gate_queue_timeout);
}

/*
 * After how many ms a wait for a slot fails, 0 if it never does.  So that a user
 * cannot exceed what is set for the pool, the shorter of the two counts.
 */
static int
queue_timeout(void)
{
	return queue_timeout_is_of_pool() ? slots_pool_queue_timeout() : gate_queue_timeout;
}

/*
 * The watcher's duties.  Returns for how many ms it may sleep.
 */
static long
watch(void)
{
	long		until_turns = slots_end_idle_turns();
	long		interval = Min(lending_interval(), WATCH_INTERVAL);

	lending_watch();
	contention_watch();
	slots_relieve_stall();

	if (until_turns >= 0)
		interval = Min(interval, until_turns);
	slots_watch_again_in(interval);
	return interval;
}

/*
 * Sleep in the queue until there is a slot.  Returns false if queue_timeout
 * expires first; the backend has left the queue then, and *limit receives what
 * kept it waiting.  start: when it entered.  Any error, and any way to end the
 * backend, may come in between.
 */
static bool
sleep_in_queue(TimestampTz start, SlotLimit *limit)
{
	static uint32 wait_event = 0;

	if (wait_event == 0)
		wait_event = GATE_WAIT_EVENT_NEW();

	for (;;)
	{
		long		timeout = slots_am_watcher() ? watch() : GUARD_INTERVAL;
		int			max_wait = queue_timeout();

		if (max_wait > 0)
		{
			long		left;

			left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
												   TimestampTzPlusMilliseconds(start, max_wait));
			if (left <= 0)
			{
				slots_get_my_limit(limit);
				if (slots_leave_queue(SLOT_LEAVE_TIMEOUT))
					return false;
			}
			timeout = Min(timeout, left);
		}

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, wait_event);
		ResetLatch(MyLatch);

		/* First this: it may reset the latch again, for reasons of its own. */
		CHECK_FOR_INTERRUPTS();

		if (slots_claim())
			return true;
	}
}

/*
 * A wait is over, and what it was for is settled: count it, by its query as
 * well, and log it if it was long.
 */
static void
note_wait(const QueueWait *wait, WaitEnd end)
{
	uint64		waited = elapsed_since(wait->start);

	xact_wait = waited;
	slots_record_wait(waited);
	query_waits_count(wait->query_id, waited);
	wait_log_if_long(end, waited, wait->queue_length);
}

/*
 * Called when an error, or the end of the backend, interrupts the wait.
 */
static void
abandon_wait(int code, Datum wait)
{
	if (!slots_leave_queue(SLOT_LEAVE_CANCEL))
		slots_refuse_grant();
	note_wait((const QueueWait *) DatumGetPointer(wait), WAIT_END_CANCEL);
}

/* Say in errors that interrupt the wait where it was. */
static void
say_waiting(void *arg)
{
	errcontext("while waiting for admission");
}

/*
 * Raise an error if the wait would end by statement_timeout, as far as one can
 * tell.
 */
static void
refuse_hopeless_wait(void)
{
	uint64		expected;
	uint64		left;
	SlotLimit	limit;

	if (!gate_deadline_shedding || !get_timeout_active(STATEMENT_TIMEOUT))
		return;
	expected = slots_expected_wait();
	left = Max(get_timeout_finish_time(STATEMENT_TIMEOUT) - GetCurrentTimestamp(), 0);
	if (expected <= left)
		return;

	slots_count_rejection();
	slots_get_my_limit(&limit);
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("statement would time out while waiting for admission"),
			 errdetail_plural("With %d other backend waiting, its wait is expected to take %llu ms, but statement_timeout leaves %llu ms.",
							  "With %d other backends waiting, its wait is expected to take %llu ms, but statement_timeout leaves %llu ms.",
							  limit.waiting,
							  limit.waiting,
							  (unsigned long long) (expected / 1000),
							  (unsigned long long) (left / 1000)),
			 limit.finds_itself ?
			 errhint("Try again later, increase statement_timeout, or set admission_gate.deadline_shedding to off.") :
			 errhint("Try again later, increase statement_timeout or admission_gate.max_active_backends, or set admission_gate.deadline_shedding to off.")));
}

/*
 * Enter the queue and sleep there until there is a slot, holding no snapshot
 * as far as possible; but if the limit is only observed, take a slot at once.
 * Raises an error if the queue is full or there is no hope to get through it in
 * time, if queue_timeout expires, and whatever interrupts bring.
 */
static pg_noinline void
wait_for_slot(QueryDesc *query, bool begins_block)
{
	SnapshotUsers snapshot_users;
	SlotLimit	limit;
	QueueWait	wait;
	bool		granted;
	ErrorContextCallback context = {
		.callback = say_waiting,
		.previous = error_context_stack
	};

	xact_wait = 0;
	contention_look();
	refuse_hopeless_wait();
	wait.query_id = query_waits_current_id();
	wait.start = GetCurrentTimestamp();

	switch (slots_enqueue(gate_max_queue_length, wait.start, &wait.queue_length))
	{
		case SLOT_ENQUEUE_TAKEN:
			note_admission();
			return;

		case SLOT_ENQUEUE_OBSERVED:
			note_admission();
			(void) watch();		/* nobody waits who would do it */
			return;

		case SLOT_ENQUEUE_FULL:
			slots_get_my_limit(&limit);
			ereport(ERROR,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("too many backends are waiting for admission"),
					 errdetail_gate(&limit, 0),
					 errhint_gate(&limit, "max_queue_length", slots_pool_has_queue_length())));
			break;

		case SLOT_ENQUEUED:
			break;
	}

	PG_ENSURE_ERROR_CLEANUP(abandon_wait, PointerGetDatum(&wait));
	{
		error_context_stack = &context;
		snapshot_let_go(query, &snapshot_users);
		granted = sleep_in_queue(wait.start, &limit);
		error_context_stack = context.previous;
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon_wait, PointerGetDatum(&wait));

	if (granted)
	{
		note_admission();
		slots_record_pace(elapsed_since(wait.start), wait.queue_length);
	}
	note_wait(&wait, granted ? WAIT_END_ADMITTED : WAIT_END_TIMEOUT);
	if (!granted)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("canceling statement due to admission queue timeout"),
				 errdetail_gate(&limit, elapsed_since(wait.start) / 1000),
				 errhint_gate(&limit, "queue_timeout", queue_timeout_is_of_pool())));

	/*
	 * Rights may have been taken away meanwhile: see the catalogs as they
	 * are.
	 */
	if (!begins_block)
		AcceptInvalidationMessages();
	snapshot_take_again(&snapshot_users);
}

/*
 * The same for BEGIN: an error is kept for the first statement of the block.
 * The transaction is as good as before, since all that can fail is the wait.
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
		/* With a slot, it was no refusal. */
		if (holds_slot)
			PG_RE_THROW();
		LWLockReleaseAll();
		pgstat_report_wait_end();
		MemoryContextSwitchTo(TopMemoryContext);
		refusal = CopyErrorData();
		FlushErrorState();
		MemoryContextSwitchTo(context);
	}
	PG_END_TRY();
}

/*
 * If the session may use the reserve and there is some left, enter by it: as many
 * backends at a time as superuser_reserved_connections and, from PostgreSQL 16 on,
 * reserved_connections say for those who connect.
 */
static pg_noinline bool
enter_reserved(TimestampTz since)
{
	Oid			user = GetSessionUserId();
	int			size = 0;

	/* A cancel here would be an error of BEGIN itself. */
	HOLD_INTERRUPTS();
	if (superuser_arg(user))
		size = GATE_SUPERUSER_RESERVED + GATE_RESERVED;
	else if (GATE_RESERVED > 0 && GATE_MAY_USE_RESERVED(user))
		size = GATE_RESERVED;
	RESUME_INTERRUPTS();
	return size > 0 && slots_enter_reserved(size, since);
}

/*
 * Let other processes have the CPU, then look for a free slot once more.  Where
 * more want a CPU than there are, holders of slots are among them, and a slot
 * may be free by the time it is our turn again: that is a wait in the kernel's
 * queue, as without the gate, instead of one in each.  Otherwise this costs next
 * to nothing.  since: as in slots_try_take.
 */
static pg_noinline bool
try_after_yield(TimestampTz since)
{
	if (gate_handoff_after == 0)
		return false;
	sched_yield();
	return slots_try_barge(since);
}

/*
 * The free path was not free: take a slot if one is there all the same, enter above the
 * limit if this backend may not or need not wait, or wait.  As admission_enter.
 */
static pg_noinline void
enter_or_wait(QueryDesc *query, bool begins_block, TimestampTz since)
{
	if (slots_lenders_unseen())
		lending_recall();

	if (slots_try_barge(since))
		note_admission();
	else if (!may_wait())
	{
		slots_force(since);
		note_admission();
	}
	else if (try_after_yield(since) || enter_reserved(since))
		note_admission();
	else if (begins_block)
		wait_for_slot_at_begin();
	else
		wait_for_slot(query, false);
}

/*
 * A top-level statement begins: see to it that this backend holds a slot.
 * query: the descriptor that ExecutorStart was called with, otherwise NULL.
 * begins_block: it is BEGIN; then an error of the wait is kept for the next one.
 * May wait and raise errors; the caller holds no LWLock.
 */
void
admission_enter(QueryDesc *query, bool begins_block)
{
	TimestampTz since;

	if (holds_slot)
	{
		resume();
		return;
	}
	if (bypass_in_force)
	{
		bypassed_in_xact = true;
		return;
	}
	if (unlikely(refusal != NULL))
		ReThrowError(refusal);

	since = statement_start = GetCurrentStatementStartTimestamp();
	if (likely(slots_try_take(since)))
		note_admission();
	else
		enter_or_wait(query, begins_block, since);
	if (unlikely(slots_look_is_due(since)))
		contention_look();
}

/*
 * A top-level statement that has begun goes on: as admission_enter, but
 * without waiting.
 */
void
admission_continue(void)
{
	if (holds_slot)
		resume();
	else if (!bypass_in_force)
	{
		statement_start = GetCurrentStatementStartTimestamp();
		slots_force(statement_start);
		note_admission();
	}
}

/*
 * Give the slot back if there is one.
 */
void
admission_leave(bool failed)
{
	if (holds_slot)
	{
		holds_slot = false;
		slots_give_back(failed);
	}
}

/*
 * The transaction is over: as admission_leave, and the next one may wait.
 */
void
admission_end_transaction(bool failed)
{
	admission_leave(failed);
	if (met_gate_in_xact())
		last_xact_wait = Max(xact_wait, 0);
	xact_wait = -1;
	admitted_in_xact = bypassed_in_xact = false;
	if (unlikely(refusal != NULL))
	{
		FreeErrorData(refusal);
		refusal = NULL;
	}
}

/*
 * How long the present transaction has waited: us; -1 if it has not come to the
 * gate.
 */
int64
admission_wait(void)
{
	return met_gate_in_xact() ? Max(xact_wait, 0) : -1;
}

/*
 * How long the session's last transaction at the gate has waited: us; -1 if
 * there was none.  In a transaction block, that is the present one.  A lone
 * statement rather asks for the one before, than for what it is itself.
 */
int64
admission_last_wait(void)
{
	if (IsTransactionBlock() && met_gate_in_xact())
		return admission_wait();
	return last_xact_wait;
}
