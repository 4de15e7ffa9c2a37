/*-------------------------------------------------------------------------
 *
 * admission.c
 *		Admission of one backend: whether it needs a slot, whether it may wait
 *		for one, and how it waits.
 *
 * The hooks (admission_gate.c) decide when a statement meets the gate.  Here
 * its backend acquires a slot if one is free, waits if it may, and otherwise
 * enters above the limit.  It may not wait if its transaction was admitted
 * before, bypassed the gate, or began before this backend knew of a limit:
 * other backends may wait for that transaction already, and PostgreSQL would
 * not detect the deadlock.  Anything else that a transaction did without being
 * admitted is no reason to let it in; else users could enter at will.
 *
 * Instead of waiting, up to superuser_reserved_connections superusers enter
 * above the limit, so that the gate never keeps an administrator out.
 *
 * If BEGIN is refused, the block begins nevertheless, and its first statement
 * that needs a slot fails with the error.  An error of BEGIN itself would
 * leave the session outside a block, and a client that goes on would commit
 * the statements of its transaction one by one.
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
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "gate.h"

/*
 * How often a waiter checks that the watcher still watches, ms.  A stopped one
 * is late after some 250 ms, and so replaced within a second.
 */
#define GUARD_INTERVAL	750

/*
 * How often one that is awake, as it watches or guards, checks its client
 * at most, us
 */
#define CLIENT_INTERVAL	500000

/* A wait in the queue */
typedef struct QueueWait
{
	uint64		start;			/* by monotonic_us() */
	int			queue_length;	/* waiters in its queue when it began */
} QueueWait;

/*
 * Is this backend admitted?  Its slot may be lent, or given up by a long
 * statement.
 */
static bool admitted = false;

/* Has the present transaction been admitted, even if it has left since? */
static bool admitted_in_xact = false;

/* Has it bypassed the gate, or run a command that needs no slot but locks? */
static bool bypassed_in_xact = false;

/* The error of its refused BEGIN, to be raised later; or NULL */
static ErrorData *refusal = NULL;

/*
 * May this backend wait?  Not if other backends may wait for its transaction,
 * nor where the wait could not be interrupted.
 */
static bool
may_wait(void)
{
	return !admitted_in_xact && !bypassed_in_xact &&
		!xact_predates_gate() &&
		INTERRUPTS_CAN_BE_PROCESSED() &&
		!proc_exit_inprogress;
}

/*
 * DETAIL of the gate's errors.  hot_spot: what hot_spot_describe() says if the
 * limit is of one; waited: ms.
 */
static int
errdetail_gate(const SlotLimit *limit, const char *hot_spot, long waited)
{
	if (limit->hot_spot.kind != HOT_SPOT_NONE)
		return errdetail_plural("Backends contend for %s: %d is at work at a time (%d in use, %d waiting); this backend has waited for %ld ms.",
								"Backends contend for %s: %d are at work at a time (%d in use, %d waiting); this backend has waited for %ld ms.",
								limit->slots,
								hot_spot, limit->slots, limit->in_use, limit->waiting, waited);
	if (limit->is_of_queue)
		return errdetail_plural("The limit of pool \"%s\" is %d slot (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
								"The limit of pool \"%s\" is %d slots (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
								limit->slots,
								limit->pool, limit->slots, limit->in_use, limit->lent,
								limit->waiting, waited);
	return errdetail_plural("The limit is %d slot (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
							"The limit is %d slots (%d in use, %d lent, %d waiting); this backend has waited for %ld ms.",
							limit->slots,
							limit->slots, limit->in_use, limit->lent, limit->waiting, waited);
}

/*
 * HINT of the gate's errors: increase this setting, that of the pool if
 * of_pool, or the limit; but not that of a hot spot, which nobody has set.
 */
static int
errhint_gate(const SlotLimit *limit, const char *setting, bool of_pool)
{
	bool		is_of_hot_spot = limit->hot_spot.kind != HOT_SPOT_NONE;
	bool		is_of_pool = limit->is_of_queue && !is_of_hot_spot;

	if (of_pool && is_of_pool)
		return errhint("Try again later, or increase %s or max_active of pool \"%s\" in admission_gate.pools.",
					   setting, limit->pool);
	if (is_of_pool)
		return errhint("Try again later, or increase admission_gate.%s, or max_active of pool \"%s\" in admission_gate.pools.",
					   setting, limit->pool);
	if (of_pool && is_of_hot_spot)
		return errhint("Try again later, or increase %s of pool \"%s\" in admission_gate.pools.",
					   setting, limit->pool);
	if (of_pool)
		return errhint("Try again later, or increase %s of pool \"%s\" in admission_gate.pools, or admission_gate.max_active_backends.",
					   setting, limit->pool);
	if (is_of_hot_spot)
		return errhint("Try again later, or increase admission_gate.%s.", setting);
	return errhint("Try again later, or increase admission_gate.%s or admission_gate.max_active_backends.",
				   setting);
}

/* Does the pool's queue_timeout count, as the shorter of the two? */
static bool
queue_timeout_is_of_pool(void)
{
	int			of_pool = slots_pool_queue_timeout();

	return of_pool > 0 &&
		(gate_queue_timeout == 0 || of_pool < gate_queue_timeout);
}

/*
 * How long a wait may take: ms, 0 = forever.  The shorter of the two settings
 * counts, so that a user cannot exceed that of the pool.
 */
static int
queue_timeout(void)
{
	return queue_timeout_is_of_pool() ? slots_pool_queue_timeout() : gate_queue_timeout;
}

/*
 * Sleep in the queue until there is a slot.  start: when the backend entered
 * it, by monotonic_us().  Returns false if queue_timeout expires first: the
 * backend has then left the queue, and *limit receives what kept it waiting.
 * Raises whatever interrupts bring.
 */
static bool
sleep_in_queue(uint64 start, SlotLimit *limit)
{
	static uint32 wait_event = 0;
	uint64		client_seen = start;

	if (wait_event == 0)
		wait_event = GATE_WAIT_EVENT_NEW();

	for (;;)
	{
		long		timeout = slots_try_become_watcher() ? sampler_watch() : GUARD_INTERVAL;
		int			max_wait = queue_timeout();

		if (max_wait > 0)
		{
			int64		waited = (monotonic_us() - start) / 1000;
			long		left = Max(max_wait - waited, 0);

			if (left == 0)
			{
				slots_get_my_limit(limit);
				if (slots_leave_queue(TOTAL_TIMEOUTS))
					return false;
			}
			timeout = Min(timeout, left);
		}

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, wait_event);
		ResetLatch(MyLatch);

		/* Do these first: they may reset the latch once more. */
		CHECK_FOR_INTERRUPTS();
		if (slots_may_claim() || monotonic_us() - client_seen >= CLIENT_INTERVAL)
		{
			client_check();
			client_seen = monotonic_us();
			if (slots_claim())
				return true;
		}
	}
}

/*
 * A wait has ended: count it, and log it if it took log_min_wait or longer.
 * As with log_lock_waits, log_min_error_statement decides whether the log has
 * the statement.  end: how it ended.  Serves no interrupts, so that it can be
 * called while an error is handled.
 */
static void
note_wait(const QueueWait *wait, const char *end)
{
	uint64		waited = monotonic_us() - wait->start;

	slots_record_wait(waited);
	if (gate_log_min_wait < 0 || waited < (uint64) gate_log_min_wait * 1000)
		return;

	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg("admission wait ended after %llu.%03llu ms: %s, pool \"%s\", queue length %d on arrival, position %d",
					(unsigned long long) (waited / 1000),
					(unsigned long long) (waited % 1000),
					end, slots_pool_name(),
					wait->queue_length, wait->queue_length + 1)));
	RESUME_INTERRUPTS();
}

/*
 * Clean up a wait that an error, or the end of the backend, interrupts.
 */
static void
abandon_wait(int code, Datum wait)
{
	if (!slots_leave_queue(TOTAL_CANCELS))
		slots_refuse_grant();
	note_wait((const QueueWait *) DatumGetPointer(wait), "canceled");
}

/* Error context callback of a wait */
static void
wait_error_callback(void *arg)
{
	errcontext("while waiting for admission");
}

/*
 * Wait in the queue for a slot, without a snapshot if possible; but if the
 * limit is only observed, acquire a slot at once.  Arguments: as for
 * admission_enter().  Raises an error if the queue is full, if queue_timeout
 * expires, and whatever interrupts bring.
 */
static pg_noinline void
wait_for_slot(QueryDesc *query, bool begins_block)
{
	SnapshotUsers snapshot_users;
	SlotLimit	limit;
	char		hot_spot[HOT_SPOT_NAME_LENGTH];
	QueueWait	wait;
	SlotEnqueued enqueued;
	bool		granted;
	ErrorContextCallback context = {
		.callback = wait_error_callback,
		.previous = error_context_stack
	};

	sampler_sample(false);
	wait.start = monotonic_us();

	enqueued = slots_enqueue(gate_max_queue_length, &wait.queue_length);
	if (enqueued == SLOT_ENQUEUE_FULL)
	{
		slots_get_my_limit(&limit);
		hot_spot_describe(&limit.hot_spot, !begins_block, hot_spot);
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many backends are waiting for admission"),
				 errdetail_gate(&limit, hot_spot, 0),
				 errhint_gate(&limit, "max_queue_length", slots_pool_has_queue_length())));
	}
	if (enqueued != SLOT_ENQUEUED)
	{
		admitted = admitted_in_xact = true;
		if (enqueued == SLOT_ENQUEUE_OBSERVED)
			sampler_sample_holders();	/* there is no watcher */
		return;
	}

	PG_ENSURE_ERROR_CLEANUP(abandon_wait, PointerGetDatum(&wait));
	{
		error_context_stack = &context;
		snapshot_release(query, &snapshot_users);
		granted = sleep_in_queue(wait.start, &limit);
		error_context_stack = context.previous;
	}
	PG_END_ENSURE_ERROR_CLEANUP(abandon_wait, PointerGetDatum(&wait));

	if (granted)
		admitted = admitted_in_xact = true;
	note_wait(&wait, granted ? "admitted" : "timed out");
	if (!granted)
	{
		hot_spot_describe(&limit.hot_spot, !begins_block, hot_spot);
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("canceling statement due to admission queue timeout"),
				 errdetail_gate(&limit, hot_spot, (monotonic_us() - wait.start) / 1000),
				 errhint_gate(&limit, "queue_timeout", queue_timeout_is_of_pool())));
	}

	/*
	 * Privileges may have been revoked meanwhile: see the catalogs as they
	 * are now.
	 */
	if (!begins_block)
		AcceptInvalidationMessages();
	snapshot_retake(&snapshot_users);
}

/*
 * wait_for_slot() for BEGIN: save an error instead of raising it; the first
 * statement of the block that needs a slot raises it.  Only the wait can fail,
 * so the transaction stays intact.
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
		if (admitted)
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
 * Enter above the limit if the session may use the reserve and some of it is
 * left.  Its size, and the roles that may use it, are those of
 * superuser_reserved_connections and, from PostgreSQL 16 on, of
 * reserved_connections.  since: as for slots_try_acquire().
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
	return size > 0 && slots_acquire_reserved(size, since);
}

/*
 * slots_try_acquire() failed.  What a statement passes before it sleeps, in
 * this order:
 *
 *	1. Lenders that work again get their slots back, before any is given out.
 *	2. It barges: it takes a free slot although others wait, if handoff_after
 *	   and priorities allow.
 *	3. If it may not wait, it enters, above the limit if need be.
 *	4. It yields the CPU, then barges.  If more processes want a CPU than there
 *	   are CPUs, holders are among them, and one may have released its slot
 *	   meanwhile: the backend has then waited in the kernel's queue, as without
 *	   the gate, but not in ours as well.  Otherwise this costs next to nothing.
 *	5. It takes a place of the reserve, if the session may.
 *	6. A sample is taken, if one is due.
 *	7. Under the lock (slots_enqueue): it overtakes waiters of lower priority;
 *	   enters if the gate is off by now, or only observes; fails if the queue is
 *	   full; or enters the queue.
 *	8. It sleeps until it is granted a slot or may claim one.
 *
 * Arguments: as for admission_enter().
 */
static pg_noinline void
enter_or_wait(QueryDesc *query, bool begins_block, TimestampTz since)
{
	sampler_recall_lenders();

	admitted = slots_try_barge(since);
	if (!admitted && !may_wait())
	{
		slots_force(since);
		admitted = true;
	}
	if (!admitted && gate_handoff_after != 0)
	{
		sched_yield();
		admitted = slots_try_barge(since);
	}
	if (!admitted)
		admitted = enter_reserved(since);

	if (admitted)
		admitted_in_xact = true;
	else if (begins_block)
		wait_for_slot_at_begin();
	else
		wait_for_slot(query, false);
}

/*
 * A top-level statement begins: have this backend hold a slot, unless its
 * session bypasses the gate.  query: the argument of ExecutorStart, NULL from
 * other hooks.  begins_block: it is BEGIN; an error of the wait is then kept
 * for the first statement of the block.  May wait and raise errors; the caller
 * holds no LWLock.
 */
void
admission_enter(QueryDesc *query, bool begins_block)
{
	TimestampTz since;

	if (admitted)
	{
		slots_resume();
		return;
	}
	if (bypass_in_force)
	{
		bypassed_in_xact = true;
		return;
	}
	if (unlikely(refusal != NULL))
		ReThrowError(refusal);

	since = GetCurrentStatementStartTimestamp();
	if (likely(slots_try_acquire(since)))
		admitted = admitted_in_xact = true;
	else
		enter_or_wait(query, begins_block, since);
	if (unlikely(slots_sample_is_due(since)))
		sampler_sample(false);
}

/*
 * The present transaction is about to run a command that may lock much, and
 * needs no slot as it seems to be alone; but in a pipeline, more statements
 * may follow.  They do not wait, since it keeps its locks.
 */
void
admission_pass(void)
{
	bypassed_in_xact = true;
}

/*
 * A top-level statement that has begun goes on: as admission_enter(), but
 * never waits.
 */
void
admission_resume(void)
{
	if (admitted)
		slots_resume();
	else if (!bypass_in_force)
	{
		slots_force(GetCurrentStatementStartTimestamp());
		admitted = admitted_in_xact = true;
	}
}

/*
 * Release the slot, if there is one.  failed: the work counts as failed, not
 * as completed.
 */
void
admission_leave(bool failed)
{
	if (admitted)
	{
		admitted = false;
		slots_release(failed);
	}
}

/*
 * The transaction has ended: as admission_leave(), and the next one may wait.
 */
void
admission_end_transaction(bool failed)
{
	admission_leave(failed);
	admitted_in_xact = bypassed_in_xact = false;
	if (unlikely(refusal != NULL))
	{
		FreeErrorData(refusal);
		refusal = NULL;
	}
}
