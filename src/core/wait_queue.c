/*-------------------------------------------------------------------------
 *
 * wait_queue.c
 *		The queues, the order in them, and the lock.
 *
 * There is a queue for each pool, first come first served.  The next of all waiters is
 * the first in one of the queues: of those whose pool has a slot free, one of a pool that
 * has aged, then the one of the highest priority, then the one that came first.  A waiter
 * sleeps on its own latch and is woken in one of two ways:
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
 * A granted slot is idle until its new holder has been given a CPU, and that may take
 * longer than many statements: if every slot were handed over, every backend would have
 * to queue because every other one does.  So, unless handoff_after is 0, a waiter that has
 * waited for n times handoff_after is handed a released slot if fewer than n hand-overs
 * are in flight, and fewer than half of the slots; and in any case if none was handed over
 * for handoff_after, as backends that do not wake up are not waited for.  Else it is
 * called.
 *
 * The lock is taken by slots_lock() and left by slots_unlock() only, which calls the
 * next waiter if a slot is free.  So when the lock is free, "a slot is free and a waiter
 * could have it" implies that the next one has been called and has not answered yet.
 *
 * Under the lock, nothing loops but over the pools whose queues are not empty, of which
 * there are 64 at most, and no more than four times in one section.  bench/NOTEBOOK.md
 * has what that takes with 32 pools.
 *
 * One of the waiters is the watcher, which wakes up from time to time (src/watcher.c).
 * It was the last in a queue when it was appointed, as that will be there longest: the
 * duty, and with it one wake-up, changes hands about once per length of the queue.
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

/* For how long higher priorities may go before a pool, ms */
#define AGED_AFTER		1000

StaticAssertDecl(SLOTS_MAX_POOLS <= 64, "waiting_pools has a bit for each pool");

/* ----------------------------------------------------------------
 *		The order
 * ----------------------------------------------------------------
 */

/*
 * The first of the pools in *left, a copy of waiting_pools, whose bit is cleared there;
 * NULL if none is left.
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
 * Priority aging: is it that pool's turn to have a slot, ahead of higher priorities?
 * It is if these have had some for AGED_AFTER that it could have had.  Lock held.
 */
static bool
pool_has_aged(const SlotPool *pool, TimestampTz now)
{
	return pool->passed_over_since != 0 &&
		passed_since(pool->passed_over_since, AGED_AFTER, now);
}

/*
 * The waiter that is to have the next slot, or INVALID_PROC_NUMBER.  Lock held.
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
 * The priority that a backend needs at least to barge before that waiter, which may be
 * INVALID_PROC_NUMBER.  Lock held.
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
 * A backend of that priority has had a slot since then: note which pools of lower
 * priority had a waiter that could have had it.  Lock held.
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
 * Have the word say whether a backend waits that could have a free slot, or the limit is
 * lowered; and if a slot is free, have the next waiter called, or if there is none, give
 * out all slots again.  Lock held.
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

/* That backend is watcher from now on, and is to look at once.  Lock held. */
void
slots_appoint_watcher(int procno, TimestampTz now)
{
	Slots->watcher = procno;
	Slots->watch_due = now;
}

/*
 * Has the watcher not looked although it should have long since, as a process does
 * that is stopped?  Lock held, or a hint.
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

void
slots_init_stall_clock(StallClock *clock)
{
	clock->moved = 0;
	clock->patience = FIRST_PATIENCE;
}

/*
 * A queue that was empty has a waiter: what happened long ago does not count.  What
 * happened of late does, or backends that come one by one would all be let in soon.
 * Lock held.
 */
static void
note_first_waiter(StallClock *clock, TimestampTz now)
{
	if (passed_since(clock->moved, 2 * clock->patience, now))
		clock->patience = FIRST_PATIENCE;
}

/* That entry is let in from its queue.  Lock held. */
static void
note_entry(SlotEntry *entry, TimestampTz now)
{
	StallClock *of_pool = &pool_of(entry)->stall;

	of_pool->moved = Slots->stall.moved = now;
	of_pool->patience = Slots->stall.patience = FIRST_PATIENCE;
}

/* Put an entry into the queue of its pool, whose flag is set.  Lock held. */
static void
add_to_queue(int procno, LockedSection *section)
{
	SlotPool   *pool = pool_of(entry_of(procno));

	if (pool->queue.head == INVALID_PROC_NUMBER)
		note_first_waiter(&pool->stall, section->now);
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
	if (Slots->watcher == INVALID_PROC_NUMBER)
		note_first_waiter(&Slots->stall, section->now);
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
 * Have a waiter wait in the queue of another pool, behind those that do so already.
 * Its duty stays.  Lock held, and pools_lock exclusively.
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
	note_entry(entry, section->now);
	slots_note_passed_over(pool_of(entry)->definition.priority, section->now);
	pool_of(entry)->passed_over_since = 0;
	entry->quiet_since = section->now;	/* what it did before is no reason to
										 * lend */
	pg_atomic_write_u64(&entry->since, section->now);
	pg_write_barrier();			/* the backend looks at its state without the
								 * lock */
	pg_atomic_write_u32(&entry->state, SLOT_RUNNING);
}

/* The same of a waiter that sleeps.  Lock held. */
void
slots_grant(int procno, LockedSection *section)
{
	slots_make_holder(procno, section);
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

/* Make waiters holders while slots are free, in order.  The lock is not held. */
void
slots_grant_all_free(void)
{
	while (grant_one())
		 /* the lock is free in between */ ;
}

/*
 * May a released slot be handed directly to that waiter, the next?  See the top of this
 * file.  Lock held.
 */
static bool
may_hand_over(int next, TimestampTz now)
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
 * Dispose of a slot that is counted in all, and in no pool any more: hand it over to the
 * next waiter if that has waited for long enough, else leave it to any backend that
 * acquires it.  Lock held.
 */
void
slots_hand_over(LockedSection *section)
{
	int			next = slots_next_waiter(section->now);

	if (next != INVALID_PROC_NUMBER &&
		slots_in_use() <= pg_atomic_read_u32(&Slots->effective_limit) &&
		may_hand_over(next, section->now) &&
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
