/*-------------------------------------------------------------------------
 *
 * semaphore.c
 *		The shared semaphore: acquire, wait, release, barge.  Knows nothing of
 *		SQL, time-outs, wait events or settings.
 *
 * While no backend waits, a slot is acquired and released by one compare-and-exchange
 * (counting.h).  Else a backend enters the queue of its pool, and is granted a slot or
 * called to claim one (wait_queue.c).  A backend of a pool that has a limit of its own
 * counts itself there, too.  The waiters' flag of a pool's word says that its queue is not
 * empty; that of the word for all, that a backend waits whose pool has a slot free.  So
 * backends of other pools do not notice a queue that only waits for its own pool's slots.
 *
 * No wake-up is lost, because:
 *	 - a backend releases a slot, or undoes a pool count, without the lock only if the
 *	   atomic operation that does so finds the waiters' flag clear.  An arriving waiter
 *	   sets the flags before its last check for a free slot.  The pool's count is lowered
 *	   before the count of all;
 *	 - only slots_unlock() releases the lock, and it calls the next waiter if a slot is
 *	   free.
 * test/model mirrors this protocol in a model checker's language.
 *
 * A holder that has done nothing for long enough lends its slot: it keeps it on paper
 * while the slot counts as free (lending.c).  One whose statement is long gives it up and
 * goes on without (long_share.c).
 *
 * States of an entry, and which process changes them:
 *	 NONE -> RUNNING	its backend, after it raised the count
 *	 NONE -> WAITING	its backend, under the lock
 *	 WAITING -> RUNNING	any process, under the lock
 *	 WAITING -> NONE	its backend, under the lock
 *	 RUNNING -> LENT	any process, under the lock, by compare-and-exchange
 *	 LENT -> RUNNING	any process, under the lock, by compare-and-exchange
 *	 RUNNING -> LONG	any process, under the lock, by compare-and-exchange
 *	 LONG -> RUNNING	its backend, under the lock
 *	 RUNNING -> NONE	its backend, by exchange
 *	 LENT -> NONE		its backend, by exchange
 *	 LONG -> NONE		its backend, by exchange
 * A backend may leave while others lend its slot or demote it.  The exchanges decide which
 * comes first: the backend releases what the state that it found says.
 *
 * Locking: see shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/ipc.h"

#include "core/counting.h"
#include "core/effective_limit.h"
#include "core/entries.h"
#include "core/lending.h"
#include "core/long_share.h"
#include "core/pools.h"
#include "core/semaphore.h"
#include "core/shared.h"
#include "core/wait_queue.h"

/* Does this backend hold a slot that it acquired from the reserve? */
static bool in_reserve = false;

static void slots_at_exit(int code, Datum arg);

/* Does this backend know the pools as they are? */
static inline bool
my_pool_is_current(void)
{
	return my_pool.generation == pg_atomic_read_u32(&Slots->generation);
}

/*
 * Take possession of this backend's entry, and release it at exit.  MyProc exists and
 * remains ours until the on_shmem_exit callbacks have run.
 */
static pg_noinline void
attach_entry(void)
{
	my_slot_procno = MY_PROC_NUMBER;
	Assert(my_slot_procno >= 0 && my_slot_procno < Slots->nentries);
	MySlotEntry = &Slots->entries[my_slot_procno].entry;
	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	Assert(!MySlotEntry->counted_in_pool);
	pg_atomic_write_u64(&MySlotEntry->last_wait, 0);	/* of an earlier process */
	on_shmem_exit(slots_at_exit, (Datum) 0);
}

/* ----------------------------------------------------------------
 *		Acquire
 * ----------------------------------------------------------------
 */

/*
 * Count one slot of this backend in its pool and in all, if both have one free;
 * with barge, even if others wait.  The lock is not held; it may be taken.
 */
static pg_noinline bool
count_in_with_pool(bool barge)
{
	if (!count_in_pool_if_free(MySlotEntry, barge))
		return false;
	if (count_up_if_free(&Slots->word, &Slots->effective_limit, barge))
		return true;

	if (count_out_of_pool(MySlotEntry))
	{
		LockedSection section;

		slots_lock(&section);
		slots_unlock(&section);
	}
	return false;
}

/* Let the watcher see that this is not the same wait as before. */
static inline void
show_progress(void)
{
	pg_atomic_write_u32(&MySlotEntry->progress,
						pg_atomic_read_u32(&MySlotEntry->progress) + 1);
}

/* What every admission begins with, whichever way it came about. */
static inline void
count_admission(void)
{
	show_progress();
	add_to_own(TOTAL_ADMITTED, 1);
}

/* This backend, whose slot is counted, is a holder from now on. */
static inline void
become_holder(TimestampTz since)
{
	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	count_admission();
	pg_atomic_write_u64(&MySlotEntry->since, since);
	pg_atomic_write_u32(&MySlotEntry->state, SLOT_RUNNING);
}

/*
 * Count one slot of this backend if one is free; with barge, even if others
 * wait.
 */
static inline bool
count_me_in(bool barge)
{
	if (unlikely(my_pool.has_limit))
		return count_in_with_pool(barge);
	return count_up_if_free(&Slots->word, &Slots->effective_limit, barge);
}

/*
 * Acquire a slot if one is free and no backend waits.  This is the hot path.
 * since: when this backend's work began, for the views.
 */
bool
slots_try_acquire(TimestampTz since)
{
	if (unlikely(MySlotEntry == NULL))
		attach_entry();
	if (unlikely(!my_pool_is_current()))
		slots_join_pool();
	if (!count_me_in(false))
		return false;
	become_holder(since);
	return true;
}

/* Does another backend wait for a slot of this backend's pool, or of all? */
static inline bool
others_are_waiting(void)
{
	return waiters_flag_is_set() ||
		(pg_atomic_read_u32(&pool_of(MySlotEntry)->word) & WORD_WAITERS) != 0;
}

/*
 * Acquire a free slot although others wait.  Not if handoff_after is 0, or if a waiter of
 * higher priority could have it.
 */
bool
slots_try_barge(TimestampTz since)
{
	bool		others_wait = others_are_waiting();

	if (others_wait &&
		(pg_atomic_read_u32(&Slots->handoff_after) == 0 ||
		 my_pool.priority < (int32) pg_atomic_read_u32(&Slots->next_priority)))
		return false;
	if (!count_me_in(true))
		return false;

	become_holder(since);
	if (others_wait)
		add_to_own(TOTAL_BARGED, 1);
	return true;
}

/*
 * Acquire a slot at once, a free one or else above the limit.  Returns whether it is above
 * the limit.  Raises no error.
 */
static bool
barge_or_force(TimestampTz since)
{
	bool		forced = !count_me_in(true);

	if (forced)
		count_in(MySlotEntry);
	become_holder(since);
	if (forced)
		add_to_own(TOTAL_FORCED, 1);
	return forced;
}

/*
 * Acquire a slot at once, above the limit if need be: for a backend that may not
 * wait, because others may wait for it.  Returns whether it is above the limit.
 */
bool
slots_force(TimestampTz since)
{
	return !slots_try_acquire(since) && barge_or_force(since);
}

/*
 * Acquire a slot above the limit if fewer than size backends hold one of the reserve.
 * Returns whether this backend has a slot now.  The caller checks privileges.
 */
bool
slots_acquire_reserved(int size, TimestampTz since)
{
	int			used = 0;

	LWLockAcquire(Slots->pools_lock, LW_EXCLUSIVE);
	for (int procno = 0; procno < Slots->nentries && used < size; procno++)
	{
		if (entry_of(procno)->reserved)
			used++;
	}
	in_reserve = MySlotEntry->reserved = used < size;
	LWLockRelease(Slots->pools_lock);

	if (!in_reserve)
		return false;
	if (!barge_or_force(since))
		in_reserve = MySlotEntry->reserved = false; /* one was free after all */
	return true;
}

/*
 * May this backend, which has just arrived, take a free slot ahead of next, the next
 * waiter or INVALID_PROC_NUMBER?  Lock held.
 */
static bool
may_overtake(int next, TimestampTz now)
{
	return pool_of(MySlotEntry)->queue.head == INVALID_PROC_NUMBER &&
		my_pool.priority > slots_priority_of(next, now);
}

/*
 * Take the lock with my_pool up to date.
 */
static void
lock_as_member(LockedSection *section)
{
	for (;;)
	{
		if (!my_pool_is_current())
			slots_join_pool();
		slots_lock(section);
		if (my_pool_is_current())
			return;
		slots_unlock(section);
	}
}

/*
 * Acquire a slot, or enter the queue of the pool; the guts of slots_enqueue().  Lock held,
 * flags set.
 */
static SlotEnqueued
enter_queue(SlotPool *pool, int max_queue_length, LockedSection *section)
{
	if (may_overtake(slots_next_waiter(section->now), section->now) &&
		count_in_if_free(MySlotEntry))
		return SLOT_ENQUEUE_ACQUIRED;

	if (Slots->limit == 0)
	{
		/* It has yet to hear that the gate is off. */
		count_in(MySlotEntry);
		return SLOT_ENQUEUE_ACQUIRED;
	}

	if (Slots->observing)
	{
		pool->totals[TOTAL_WOULD_QUEUE]++;
		count_in(MySlotEntry);
		return SLOT_ENQUEUE_OBSERVED;
	}

	if (max_queue_length >= 0 && pool->queue.length >= max_queue_length &&
		!is_opening(pool))
	{
		pool->totals[TOTAL_REJECTIONS]++;
		return SLOT_ENQUEUE_FULL;
	}

	pool->totals[TOTAL_QUEUED]++;
	pg_atomic_write_u64(&MySlotEntry->since, section->now);
	pg_atomic_write_u32(&MySlotEntry->state, SLOT_WAITING);
	slots_queue_append(my_slot_procno, section);
	return SLOT_ENQUEUED;
}

/*
 * Enter the queue.  Instead, the backend acquires a slot if one is free, or if there is no
 * limit or it is only observed; and is refused if max_queue_length backends wait already (-1: no bound; a pool's
 * own value takes precedence).  *queue_length receives the number of waiters found.
 */
SlotEnqueued
slots_enqueue(int max_queue_length, int *queue_length)
{
	SlotEnqueued result;
	SlotPool   *pool;
	LockedSection section;

	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);

	lock_as_member(&section);
	pool = pool_of(MySlotEntry);
	if (pool->definition.max_queue_length != POOLS_QUEUE_LENGTH_UNSET)
		max_queue_length = pool->definition.max_queue_length;
	*queue_length = pool->queue.length;

	/*
	 * First the flags, then a last look for a free slot: a slot released
	 * before is seen here, one released later comes to the queue.
	 */
	if (!Slots->observing && Slots->limit != 0)
	{
		pg_atomic_fetch_or_u32(&pool->word, WORD_WAITERS);
		pg_atomic_fetch_or_u32(&Slots->word, WORD_WAITERS);
	}
	result = enter_queue(pool, max_queue_length, &section);
	if (pool->queue.head == INVALID_PROC_NUMBER)
		pg_atomic_fetch_and_u32(&pool->word, ~WORD_WAITERS);
	slots_unlock(&section);

	if (result == SLOT_ENQUEUE_ACQUIRED || result == SLOT_ENQUEUE_OBSERVED)
		become_holder(section.now);
	return result;
}

/* If this backend has been handed a slot, it is awake now. */
static void
finish_handoff(void)
{
	if (!MySlotEntry->handoff_pending)
		return;
	MySlotEntry->handoff_pending = false;
	Assert(pg_atomic_read_u32(&Slots->handoffs_in_flight) > 0);
	pg_atomic_fetch_sub_u32(&Slots->handoffs_in_flight, 1);
}

/*
 * This backend was called: if it still waits, is the next, and a slot is free, take it.
 * Returns whether this backend holds one.
 */
static bool
claim_free_slot(void)
{
	LockedSection section;
	bool		mine;

	slots_lock(&section);
	mine = pg_atomic_read_u32(&MySlotEntry->state) != SLOT_WAITING;
	if (!mine)
	{
		MySlotEntry->wakeup_pending = false;
		if (slots_next_waiter(section.now) == my_slot_procno &&
			count_in_if_free(MySlotEntry))
		{
			slots_make_holder(my_slot_procno, &section);
			slots_note_moved(section.now);
			mine = true;
		}
	}
	slots_unlock(&section);
	return mine;
}

/*
 * Does this waiter hold a slot now?  Call whenever its latch was set.  Either it was
 * granted one, or it was called, is still the next and finds one free.
 */
bool
slots_claim(void)
{
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_WAITING &&
		!(MySlotEntry->wakeup_pending && claim_free_slot()))
		return false;

	pg_read_barrier();			/* pairs with pg_write_barrier() in
								 * slots_make_holder() */
	finish_handoff();
	count_admission();
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_LENT)
		slots_end_lending();	/* we were slow to wake up */
	return true;
}

/*
 * Leave the queue without a slot.  Returns false if it is too late for that,
 * because a slot has been granted meanwhile: the caller then either uses it,
 * by slots_claim, or refuses it, by slots_refuse_grant.
 */
bool
slots_leave_queue(SlotLeaveReason reason)
{
	LockedSection section;
	bool		left = false;

	slots_lock(&section);
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_WAITING)
	{
		slots_queue_remove(my_slot_procno, &section);
		pg_atomic_write_u32(&MySlotEntry->state, SLOT_NONE);
		pool_of(MySlotEntry)->totals[reason == SLOT_LEAVE_TIMEOUT ?
									 TOTAL_TIMEOUTS : TOTAL_CANCELS]++;
		left = true;
	}
	slots_unlock(&section);
	return left;
}

/* Release a slot that is counted in all, and in no pool any more, while others wait. */
static pg_noinline void
free_slot_to_waiters(void)
{
	LockedSection section;

	slots_lock(&section);
	slots_note_passed_over(pool_of(MySlotEntry)->definition.priority,
						   pg_atomic_read_u64(&MySlotEntry->since));
	slots_hand_off(&section);
	slots_unlock(&section);
}

/*
 * Release a slot that the caller no longer counts as its own.
 */
static void
free_slot(void)
{
	uint32		word;
	bool		pool_waits;

	pool_waits = count_out_of_pool(MySlotEntry);
	word = pg_atomic_read_u32(&Slots->word);
	Assert((word & WORD_COUNT) > 0);
	while (likely(!pool_waits) && (word & WORD_WAITERS) == 0)
	{
		if (pg_atomic_compare_exchange_u32(&Slots->word, &word, word - 1))
			return;
	}
	free_slot_to_waiters();
}

/*
 * End this backend's hold on its slot, lent or not.
 */
static void
drop_slot(void)
{
	SlotState	state = pg_atomic_exchange_u32(&MySlotEntry->state, SLOT_NONE);

	if (unlikely(in_reserve))
		in_reserve = MySlotEntry->reserved = false;
	if (likely(state == SLOT_RUNNING))
		free_slot();
	else if (state == SLOT_LONG)
		slots_forget_long();
	else
	{
		Assert(state == SLOT_LENT);
		slots_forget_lending();
	}
}

/*
 * Pass a slot on that was granted too late to be of use.
 */
void
slots_refuse_grant(void)
{
	LockedSection section;

	finish_handoff();
	drop_slot();
	slots_lock(&section);
	pool_of(MySlotEntry)->totals[TOTAL_CANCELS]++;
	slots_unlock(&section);
}

/*
 * A backend that was admitted begins or continues a statement: show progress to the
 * watcher, and take a lent slot back.  If other_statement, also reacquire the slot that a
 * long statement gave up.  Both may exceed the limit.
 */
void
slots_resume(bool other_statement)
{
	SlotState	state = pg_atomic_read_u32(&MySlotEntry->state);

	show_progress();
	if (unlikely(state == SLOT_LENT))
		slots_end_lending();
	else if (unlikely(state == SLOT_LONG) && other_statement)
		slots_end_long();
}

/*
 * The backend's work is done, well or not: release its slot.
 */
void
slots_release(bool failed)
{
	add_to_own(failed ? TOTAL_FAILED : TOTAL_COMPLETED, 1);
	drop_slot();
}

/*
 * on_shmem_exit callback: release everything.  Normally the before_shmem_exit callbacks
 * have already left the queue and aborted the transaction; this covers an exit in which
 * the first could not be registered.
 */
static void
slots_at_exit(int code, Datum arg)
{
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_WAITING &&
		!slots_leave_queue(SLOT_LEAVE_CANCEL))
		slots_refuse_grant();

	if (pg_atomic_read_u32(&MySlotEntry->state) != SLOT_NONE)
	{
		pg_read_barrier();		/* pairs with pg_write_barrier() in
								 * slots_make_holder() */
		finish_handoff();		/* a slot may have been granted meanwhile */
		slots_release(true);
	}

	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	Assert(!MySlotEntry->handoff_pending);
	MySlotEntry->reserved = false;	/* it may have ended on the way to its
									 * slot */
	MySlotEntry = NULL;
}
