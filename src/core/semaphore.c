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
 *	 - a slot is released, or a step taken back, without the lock only if
 *	   the same atomic instruction sees the waiters' flag clear, and an arriving
 *	   waiter sets the flags before it looks for a free slot for the last time;
 *	   a slot is given back to the pool before it is to all;
 *	 - the lock is left in one way, by slots_unlock(), which calls the next waiter if a
 *	   slot is free.
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
 * The exchanges decide which process wins when a backend leaves while others lend its
 * slot or take it as that of a long statement: the backend releases what the state it
 * found says.
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
 * Take possession of this backend's entry, and have it left in order at exit.
 * By now MyProc exists and is ours until after on_shmem_exit callbacks ran.
 */
static pg_noinline void
attach_entry(void)
{
	my_slot_procno = MY_PROC_NUMBER;
	Assert(my_slot_procno >= 0 && my_slot_procno < Slots->nentries);
	MySlotEntry = &Slots->entries[my_slot_procno].entry;
	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	Assert(!MySlotEntry->counted);
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
count_in_beside_pool(bool barge)
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
	pg_atomic_write_u64(&MySlotEntry->since, since);
	pg_atomic_write_u32(&MySlotEntry->state, SLOT_RUNNING);
	count_admission();
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
	if (unlikely(my_pool.has_limit) ? count_in_beside_pool(false) :
		count_up_if_free(&Slots->word, &Slots->effective_limit, false))
	{
		become_holder(since);
		return true;
	}
	return false;
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
	if (my_pool.has_limit ? !count_in_beside_pool(true) :
		!count_up_if_free(&Slots->word, &Slots->effective_limit, true))
		return false;

	become_holder(since);
	if (others_wait)
		add_to_own(TOTAL_BARGED, 1);
	return true;
}

/*
 * Acquire a slot at once, above the limit if need be: for a backend that may not
 * wait, because others may wait for it.  Returns whether it is above the limit.
 */
bool
slots_force(TimestampTz since)
{
	bool		forced;

	if (slots_try_acquire(since))
		return false;

	forced = !count_in_beside_pool(true);
	if (forced)
		count_in(MySlotEntry);
	become_holder(since);
	if (forced)
		add_to_own(TOTAL_FORCED, 1);
	return forced;
}

/*
 * Acquire a slot above the limit if fewer than size backends hold one of the reserve.
 * Returns whether this backend has a slot now.  Whether it may is the caller's business.
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
	if (!slots_force(since))
		in_reserve = MySlotEntry->reserved = false; /* one was free after all */
	return true;
}

/*
 * May this backend, which has just arrived, have a free slot before the next waiter,
 * which may be INVALID_PROC_NUMBER?  Lock held.
 */
static bool
goes_before(int next, TimestampTz now)
{
	return pool_of(MySlotEntry)->queue.head == INVALID_PROC_NUMBER &&
		my_pool.priority > slots_priority_of(next, now);
}

/*
 * Take the lock, as a backend that belongs to a pool that is there.
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
 * What becomes of this backend at the queue of its pool, the flags being set.  Lock held.
 */
static SlotEnqueued
enter_queue(SlotPool *pool, int max_queue_length, LockedSection *section)
{
	if (goes_before(slots_next_waiter(section->now), section->now) &&
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

	if (max_queue_length >= 0 && pool->queue.length >= max_queue_length)
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
 * Enter the queue, unless a slot is free after all, there is no limit any more or it
 * is only observed, or the queue is full, that is, max_queue_length backends wait already
 * (-1: no bound; the pool's own value counts instead if it has one).  *queue_length
 * receives how many wait already.
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
			mine = true;
		}
	}
	slots_unlock(&section);
	return mine;
}

/*
 * To be asked by a waiter whenever its latch was set: does it hold a slot?
 * Either it was granted one, or it was called, is still the next and finds one
 * free.
 */
bool
slots_claim(void)
{
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_WAITING &&
		!(MySlotEntry->wakeup_pending && claim_free_slot()))
		return false;

	pg_read_barrier();			/* see slots_grant */
	finish_handoff();
	count_admission();
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_LENT)
		slots_holder_works(my_slot_procno); /* we were slow to wake up */
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
	slots_hand_over(&section);
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
 * The backend, which holds a slot, goes on working, with another statement or the same: tell
 * the watcher, and take the slot back if it was lent, or given up for a long statement
 * that is over, above the limit if need be.
 */
void
slots_resume(bool other_statement)
{
	SlotState	state = pg_atomic_read_u32(&MySlotEntry->state);

	show_progress();
	if (unlikely(state == SLOT_LENT))
		slots_holder_works(my_slot_procno);
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
 * on_shmem_exit callback: whatever this backend was about, leave no trace.
 * By before_shmem_exit callbacks, it has left the queue, unless it had no room
 * for one, and its transaction has been aborted already.
 */
static void
slots_at_exit(int code, Datum arg)
{
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_WAITING &&
		!slots_leave_queue(SLOT_LEAVE_CANCEL))
		slots_refuse_grant();

	if (pg_atomic_read_u32(&MySlotEntry->state) != SLOT_NONE)
	{
		pg_read_barrier();		/* see slots_grant */
		finish_handoff();		/* of a slot granted since it had no room */
		slots_release(true);
	}

	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	Assert(!MySlotEntry->handoff_pending);
	MySlotEntry->reserved = false;	/* it may have ended on the way to its
									 * slot */
	MySlotEntry = NULL;
}
