/*-------------------------------------------------------------------------
 *
 * wait_queue.c
 *		The queues, the order in them, and the lock.
 *
 * Each pool has a queue, first come first served.  The next waiter is the head of a queue
 * whose pool has a free slot: pools that have aged go before others, then higher
 * priorities before lower ones, then earlier waiters before later ones.  A waiter sleeps
 * on its own latch and is woken in one of two ways:
 *
 * granted	The slot changes hands: the count stays, the waiter is taken out of
 *			its queue and made a holder before its latch is set.  So a grant is
 *			never lost: whatever the waiter does next, it holds a slot and will
 *			release it.
 * called	Only the next: its latch is set and it has to claim a free slot
 *			itself, in competition with backends that are on a CPU already
 *			(barging).  It may find that it came too late and sleeps on.
 *			Once it has waited for longer than handoff_after, the next slot
 *			released is granted to it, or soon after: see below.
 *
 * A slot that is handed off stays idle until its new holder gets a CPU.  If every slot
 * were handed off, a convoy would form.  So the next waiter is handed a released slot only
 * if it has waited for n times handoff_after while fewer than n hand-offs, and fewer than
 * half of the slots, are in flight; or if there was no hand-off for handoff_after, lest
 * the queue wait for backends that do not wake up.  Otherwise it is called.  With
 * handoff_after = 0 every slot is handed off.
 *
 * Only slots_unlock() releases the lock, and it calls the next waiter if a slot is free.
 * So whenever the lock is free and a waiter could use a free slot, the next waiter has
 * been called and has not answered yet.
 *
 * Loops under the lock are bounded: over the pools with waiters, at most 64 and four times
 * per section, or over a small constant.  bench/NOTEBOOK.md has what that takes with 31
 * pools.
 *
 * One of the waiters is the watcher, which wakes up from time to time (src/watcher.c).
 * When appointed, it is the last in a queue and so waits longest: the duty changes hands,
 * which costs a wake-up, about once per length of the queue.
 *
 * Locking: "the lock" is the one of this file; see shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "core/counting.h"
#include "core/effective_limit.h"
#include "core/shared.h"
#include "core/wait_queue.h"

/* How late a watcher may be before another backend takes its duty over, ms. */
#define WATCH_GRACE		200

/* How long pools of higher priority may be admitted ahead of a pool, ms */
#define AGED_AFTER		1000

StaticAssertDecl(SLOTS_MAX_POOLS <= 64, "waiting_pools has a bit for each pool");

/* ----------------------------------------------------------------
 *		The order
 * ----------------------------------------------------------------
 */

/*
 * Return the next pool in *left, a copy of waiting_pools, and clear its bit there; NULL if
 * none is left.
 */
SlotPool *
slots_next_waiting_pool(uint64 *left)
{
	SlotPool   *pool;

	if (*left == 0)
		return NULL;
	pool = &Slots->pools[pg_rightmost_one_pos64(*left)];
	*left &= *left - 1;
	return pool;
}

/* The first in one of the queues, or INVALID_PROC_NUMBER.  Lock held. */
int
slots_any_waiter(void)
{
	uint64		left = Slots->waiting_pools;
	SlotPool   *pool = slots_next_waiting_pool(&left);

	return pool != NULL ? pool->queue.head : INVALID_PROC_NUMBER;
}

/*
 * Priority aging: has this pool been passed over for AGED_AFTER?  Then its head precedes
 * higher priorities.  Lock held.
 */
static bool
pool_has_aged(const SlotPool *pool, TimestampTz now)
{
	return pool->passed_over_since != 0 &&
		passed_since(pool->passed_over_since, AGED_AFTER, now);
}

/*
 * The waiter that a free slot is for, or INVALID_PROC_NUMBER if none could use one.  Lock
 * held.
 */
int
slots_next_waiter(TimestampTz now)
{
	int			next = INVALID_PROC_NUMBER;
	bool		next_aged = false;
	uint64		left = Slots->waiting_pools;
	SlotPool   *pool;

	while ((pool = slots_next_waiting_pool(&left)) != NULL)
	{
		int			head = pool->queue.head;
		bool		aged;
		int			order;

		if (!pool_has_slot_free(pool))
			continue;
		aged = pool_has_aged(pool, now);
		order = next == INVALID_PROC_NUMBER ? 1 : (int) aged - (int) next_aged;
		if (order == 0)
			order = pool->definition.priority - pool_of(entry_of(next))->definition.priority;
		if (order == 0)
			order = pg_atomic_read_u64(&entry_of(head)->since) <
				pg_atomic_read_u64(&entry_of(next)->since) ? 1 : -1;
		if (order > 0)
		{
			next = head;
			next_aged = aged;
		}
	}
	return next;
}

/*
 * The lowest priority that may barge ahead of next, the next waiter; NO_PRIORITY if that
 * is INVALID_PROC_NUMBER.  Lock held.
 */
int
slots_priority_of(int next, TimestampTz now)
{
	const SlotPool *pool;

	if (next == INVALID_PROC_NUMBER)
		return NO_PRIORITY;
	pool = pool_of(entry_of(next));
	return pool_has_aged(pool, now) ? Slots->highest_priority : pool->definition.priority;
}

/*
 * A backend of this priority has had a slot since that time.  Start the aging of pools of
 * lower priority whose waiters could have used it.  Lock held.
 */
void
slots_note_passed_over(int priority, TimestampTz since)
{
	uint64		left = Slots->waiting_pools;
	SlotPool   *pool;

	while ((pool = slots_next_waiting_pool(&left)) != NULL)
	{
		if (pool->passed_over_since == 0 && pool->definition.priority < priority &&
			pool_has_slot_free(pool) &&
			since > (TimestampTz) pg_atomic_read_u64(&entry_of(pool->queue.head)->since))
			pool->passed_over_since = since;
	}
}

/* ----------------------------------------------------------------
 *		The lock
 * ----------------------------------------------------------------
 */

/*
 * Take the lock.  section->now is read before: times in shared memory may be a little
 * later.  The caller holds no spinlock; until slots_unlock, nothing may raise errors,
 * allocate, or take another lock.
 */
void
slots_lock(LockedSection *section)
{
	section->now = GetCurrentTimestamp();
	section->nwakeups = 0;
	SpinLockAcquire(&Slots->mutex);
}

/* Have that backend's latch set once the lock is released.  Lock held. */
void
slots_wake_later(LockedSection *section, int procno)
{
	Assert(section->nwakeups < MOST_WAKEUPS);
	section->wakeups[section->nwakeups++] = procno;
}

/*
 * Set or clear the waiters' flag of Slots->word.  If a slot is free, call the next waiter;
 * if no waiter could use it, restore a lowered limit.  Lock held.
 */
static void
wake_next(LockedSection *section)
{
	int			next = slots_next_waiter(section->now);
	bool		flag = waiters_flag_is_set();

	pg_atomic_write_u32(&Slots->next_priority,
						(uint32) slots_priority_of(next, section->now));

	/* First the flag, then the look, as when a waiter arrives. */
	if ((next != INVALID_PROC_NUMBER || limit_is_lowered()) && !flag)
	{
		flag = true;
		pg_atomic_fetch_or_u32(&Slots->word, WORD_WAITERS);
	}
	if (next == INVALID_PROC_NUMBER)
	{
		if (limit_is_lowered() && slot_is_free())
			slots_restore_limit(section->now);
		if (flag && !limit_is_lowered())
			pg_atomic_fetch_and_u32(&Slots->word, ~WORD_WAITERS);
	}
	else if (slot_is_free() && !entry_of(next)->wakeup_pending)
	{
		entry_of(next)->wakeup_pending = true;
		slots_wake_later(section, next);
	}
}

/*
 * Call the next waiter if a slot is free, release the lock, and set the latches that are
 * due.  section->now may still be read.
 */
void
slots_unlock(LockedSection *section)
{
	wake_next(section);
	SpinLockRelease(&Slots->mutex);
	for (int i = 0; i < section->nwakeups; i++)
		SetLatch(&GetPGProcByNumber(section->wakeups[i])->procLatch);
}

/* ----------------------------------------------------------------
 *		The watcher
 * ----------------------------------------------------------------
 */

/* Make this backend the watcher; it must look at once.  Lock held. */
void
slots_appoint_watcher(int procno, TimestampTz now)
{
	Slots->watcher = procno;
	Slots->watch_due = now;
}

/*
 * Is the watcher overdue, for instance because it was stopped?  Lock held, or a hint.
 */
bool
slots_watcher_is_late(TimestampTz now)
{
	TimestampTz due = *(volatile TimestampTz *) &Slots->watch_due;

	/* If it is far ahead, the clock was set back. */
	return passed_since(due, WATCH_GRACE, now) ||
		due > TimestampTzPlusMilliseconds(now, 10 * WATCH_GRACE);
}

/* A waiter that will wait for long: the last in some queue, or INVALID_PROC_NUMBER. */
static int
last_in_a_queue(void)
{
	uint64		left = Slots->waiting_pools;
	SlotPool   *pool = slots_next_waiting_pool(&left);

	return pool != NULL ? pool->queue.tail : INVALID_PROC_NUMBER;
}

/* ----------------------------------------------------------------
 *		The queues
 * ----------------------------------------------------------------
 */

/* Put an entry into the queue of its pool, whose flag is set.  Lock held. */
static void
add_to_queue(int procno, LockedSection *section)
{
	SlotPool   *pool = pool_of(entry_of(procno));

	slots_list_append(&pool->queue, procno);
	Slots->waiting_pools |= UINT64CONST(1) << (pool - Slots->pools);
}

/* Take an entry out of the queue of that pool.  Lock held. */
static void
take_out_of_queue(int procno, SlotPool *pool)
{
	slots_list_remove(&pool->queue, procno);
	if (pool->queue.head == INVALID_PROC_NUMBER)
	{
		pg_atomic_fetch_and_u32(&pool->word, ~WORD_WAITERS);
		pool->passed_over_since = 0;
		Slots->waiting_pools &= ~(UINT64CONST(1) << (pool - Slots->pools));
	}
}

/*
 * Put an entry, whose backend is awake, at the end of its pool's queue.  Lock held,
 * the flag of the pool set.
 */
void
slots_queue_append(int procno, LockedSection *section)
{
	entry_of(procno)->wakeup_pending = false;
	add_to_queue(procno, section);
	if (Slots->watcher == INVALID_PROC_NUMBER || slots_watcher_is_late(section->now))
		slots_appoint_watcher(procno, section->now);
}

/*
 * Take an entry out of its queue; pass its duty as watcher on.  Lock held.
 */
void
slots_queue_remove(int procno, LockedSection *section)
{
	SlotPool   *pool = pool_of(entry_of(procno));

	take_out_of_queue(procno, pool);
	if (Slots->watcher == procno)
	{
		slots_appoint_watcher(pool->queue.tail != INVALID_PROC_NUMBER ?
							  pool->queue.tail : last_in_a_queue(), section->now);
		if (Slots->watcher != INVALID_PROC_NUMBER)
			slots_wake_later(section, Slots->watcher);
	}
}

/*
 * Move a waiter to the end of another pool's queue.  If it is the watcher, it remains so.
 * Lock held, and pools_lock exclusively.
 */
void
slots_queue_move(int procno, SlotPool *from, int to, LockedSection *section)
{
	take_out_of_queue(procno, from);
	from->passed_over_since = 0;
	entry_of(procno)->pool = to;
	pg_atomic_fetch_or_u32(&Slots->pools[to].word, WORD_WAITERS);
	add_to_queue(procno, section);
}

/* ----------------------------------------------------------------
 *		Slots for waiters
 * ----------------------------------------------------------------
 */

/*
 * Make a waiter, whose backend is awake, a holder of a slot that is counted already.
 * Lock held.
 */
void
slots_make_holder(int procno, LockedSection *section)
{
	SlotEntry  *entry = entry_of(procno);

	Assert(pg_atomic_read_u32(&entry->state) == SLOT_WAITING);
	slots_queue_remove(procno, section);
	slots_note_passed_over(pool_of(entry)->definition.priority, section->now);
	pool_of(entry)->passed_over_since = 0;
	pool_of(entry)->moved = section->now;
	entry->quiet_since = section->now;	/* what it did before is no reason to
										 * lend */
	pg_atomic_write_u64(&entry->since, section->now);
	pg_write_barrier();			/* the backend looks at its state without the
								 * lock */
	pg_atomic_write_u32(&entry->state, SLOT_RUNNING);
}

/* A waiter was admitted in the ordinary way: see lending.c.  Lock held. */
void
slots_note_moved(TimestampTz now)
{
	Slots->moved = now;
	Slots->patience = 0;
}

/*
 * Make a sleeping waiter the holder of a slot that is already counted, and wake it.  Lock
 * held.
 */
void
slots_grant(int procno, LockedSection *section)
{
	slots_make_holder(procno, section);
	slots_note_moved(section->now);
	slots_wake_later(section, procno);
}

/* Make the next waiter a holder if a slot is free.  Returns false if there is none. */
static bool
grant_one(void)
{
	LockedSection section;
	int			next;
	bool		granted = false;

	slots_lock(&section);
	next = slots_next_waiter(section.now);
	if (next != INVALID_PROC_NUMBER && count_in_if_free(entry_of(next)))
	{
		slots_grant(next, &section);
		granted = true;
	}
	slots_unlock(&section);
	return granted;
}

/*
 * Make waiters holders while slots are free, in order, and that many at most.  The lock is
 * not held.
 */
void
slots_grant_free(uint32 most)
{
	while (most-- > 0 && grant_one())
		 /* the lock is free in between */ ;
}

/*
 * May a released slot be handed off to next, the next waiter?  See the top of this file.
 * Lock held.
 */
static bool
may_hand_off(int next, TimestampTz now)
{
	int64		handoff_after = pg_atomic_read_u32(&Slots->handoff_after) * INT64CONST(1000);
	int64		waited = now - (TimestampTz) pg_atomic_read_u64(&entry_of(next)->since);
	uint32		in_flight = pg_atomic_read_u32(&Slots->handoffs_in_flight);
	uint32		most = Max(pg_atomic_read_u32(&Slots->effective_limit) / 2, 1);

	if (handoff_after == 0)
		return true;
	if (waited < handoff_after)
		return false;
	return (in_flight < most && waited >= handoff_after * (in_flight + 1)) ||
		now - Slots->last_handoff >= handoff_after;
}

/*
 * Release a slot that Slots->word counts and no pool counts any more: hand it off to the
 * next waiter if that is allowed, else leave it free for any backend to acquire.  Lock
 * held.
 */
void
slots_hand_off(LockedSection *section)
{
	int			next = slots_next_waiter(section->now);

	if (next != INVALID_PROC_NUMBER &&
		slots_in_use() <= pg_atomic_read_u32(&Slots->effective_limit) &&
		may_hand_off(next, section->now) &&
		count_in_pool_if_free(entry_of(next), true))
	{
		pg_atomic_fetch_add_u32(&Slots->handoffs_in_flight, 1);
		Slots->last_handoff = section->now;
		entry_of(next)->handoff_pending = true;
		slots_grant(next, section);
	}
	else
		pg_atomic_fetch_sub_u32(&Slots->word, 1);
}
