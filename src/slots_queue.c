/*-------------------------------------------------------------------------
 *
 * slots_queue.c
 *		The queues: who waits, who is next, and to whom a slot goes.
 *
 * There is one for each pool, first come first served.  What they promise, and
 * why no wake-up is lost, is at the head of slots.c.
 *
 * Locking: see slots_shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "slots.h"
#include "slots_shared.h"

/* How late a watcher may be before another backend takes its duty over, ms. */
#define WATCH_GRACE		200

/* For how long higher priorities may go before a pool, ms */
#define AGED_AFTER		1000

/* Set the latches collected under the mutex.  The mutex is released. */
void
slots_wake_all(const WakeList *wakes)
{
	for (int i = 0; i < wakes->n; i++)
		SetLatch(&GetPGProcByNumber(wakes->procno[i])->procLatch);
}

/* Put an entry at the end of a list.  Mutex held. */
void
slots_list_append(EntryList *list, int procno)
{
	SlotEntry  *entry = entry_of(procno);

	entry->prev = list->tail;
	entry->next = NOBODY;
	if (list->tail == NOBODY)
		list->head = procno;
	else
		entry_of(list->tail)->next = procno;
	list->tail = procno;
	list->length++;
}

/* Take an entry out of its list.  Mutex held. */
void
slots_list_remove(EntryList *list, int procno)
{
	SlotEntry  *entry = entry_of(procno);

	if (entry->prev == NOBODY)
		list->head = entry->next;
	else
		entry_of(entry->prev)->next = entry->next;
	if (entry->next == NOBODY)
		list->tail = entry->prev;
	else
		entry_of(entry->next)->prev = entry->prev;
	list->length--;
	Assert((list->length == 0) == (list->head == NOBODY));
}

/* That backend is watcher from now on, and is to look at once.  Mutex held. */
static void
appoint_watcher(int procno, TimestampTz now)
{
	Slots->watcher = procno;
	Slots->watcher_dozes = true;
	Slots->watch_due = now;
}

/*
 * Has the watcher not looked although it should have long since, as a process does
 * that is stopped?  Mutex held, or a hint.
 */
static bool
watcher_is_late(TimestampTz now)
{
	TimestampTz due = *(volatile TimestampTz *) &Slots->watch_due;

	/* If it is far ahead, the clock was set back. */
	return passed_since(due, WATCH_GRACE, now) ||
		due > TimestampTzPlusMilliseconds(now, 10 * WATCH_GRACE);
}

/*
 * To be asked by a waiter whenever it is awake: is it its duty to watch?  If the
 * watcher is late, it is from now on.
 */
bool
slots_am_watcher(void)
{
	TimestampTz now;

	if (Slots->watcher == my_slot_procno)
		return true;
	now = GetCurrentTimestamp();
	if (!watcher_is_late(now))
		return false;

	SpinLockAcquire(&Slots->mutex);
	if (watcher_is_late(now) && pg_atomic_read_u32(&MySlotEntry->state) == SLOT_WAITING)
		appoint_watcher(my_slot_procno, now);
	SpinLockRelease(&Slots->mutex);
	return Slots->watcher == my_slot_procno;
}

/* The watcher goes to sleep for so many ms. */
void
slots_watch_again_in(long interval)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);
	if (Slots->watcher == my_slot_procno)
		Slots->watch_due = TimestampTzPlusMilliseconds(now, interval);
	SpinLockRelease(&Slots->mutex);
}

/*
 * Put an entry, whose backend is awake, at the end of its pool's queue.  Mutex held,
 * the flag of the pool set.
 */
void
slots_queue_append(int procno, TimestampTz now)
{
	SlotEntry  *entry = entry_of(procno);
	SlotPool   *pool = pool_of(entry);

	if (Slots->watcher == NOBODY)
		slots_note_first_waiter(&Slots->stall, now);
	if (pool->queue.head == NOBODY)
		slots_note_first_waiter(&pool->stall, now);

	entry->called = false;
	slots_list_append(&pool->queue, procno);
	if (Slots->watcher == NOBODY || watcher_is_late(now))
		appoint_watcher(procno, now);
}

/* Somebody who will wait for long: the last in some queue, or NOBODY. */
static int
last_in_a_queue(void)
{
	for (int i = 0; i < Slots->npools; i++)
	{
		if (Slots->pools[i].queue.tail != NOBODY)
			return Slots->pools[i].queue.tail;
	}
	return NOBODY;
}

/*
 * Take an entry out of its queue; pass its duty as watcher on.  Mutex held, to
 * be followed by slots_settle().
 */
void
slots_queue_remove(int procno, TimestampTz now, WakeList *wakes)
{
	SlotPool   *pool = pool_of(entry_of(procno));

	slots_list_remove(&pool->queue, procno);
	if (pool->queue.head == NOBODY)
	{
		pg_atomic_fetch_and_u32(&pool->word, ~WORD_WAITERS);
		pool->passed_over_since = 0;
	}

	if (Slots->watcher == procno)
	{
		appoint_watcher(pool->queue.tail != NOBODY ? pool->queue.tail : last_in_a_queue(), now);
		if (Slots->watcher != NOBODY)
			wake_later(wakes, Slots->watcher);
	}
}

/*
 * A backend of that priority has had a slot since then: take down which pools'
 * waiters could have had it.  Mutex held.
 */
void
slots_note_passed_over(int priority, TimestampTz since)
{
	for (int i = 0; i < Slots->npools; i++)
	{
		SlotPool   *pool = &Slots->pools[i];

		if (pool->queue.head != NOBODY && pool->passed_over_since == 0 &&
			pool->definition.priority < priority && pool_has_slot_free(pool) &&
			since > (TimestampTz) pg_atomic_read_u64(&entry_of(pool->queue.head)->since))
			pool->passed_over_since = since;
	}
}

/*
 * Priority aging: is it that pool's turn to have a slot, ahead of higher priorities?
 * It is if these have had some for AGED_AFTER that it could have had.  Mutex held.
 */
static bool
pool_has_aged(const SlotPool *pool, TimestampTz now)
{
	return pool->passed_over_since != 0 &&
		passed_since(pool->passed_over_since, AGED_AFTER, now);
}

/*
 * Make a waiter a holder of a slot that is counted already.  Mutex held, to be
 * followed by slots_settle().
 */
void
slots_grant(int heir, TimestampTz now, WakeList *wakes)
{
	SlotEntry  *entry = entry_of(heir);

	Assert(pg_atomic_read_u32(&entry->state) == SLOT_WAITING);
	slots_queue_remove(heir, now, wakes);
	slots_note_entry(entry, now);
	slots_note_passed_over(pool_of(entry)->definition.priority, now);
	pool_of(entry)->passed_over_since = 0;
	entry->quiet_since = now;	/* what it did before is no reason to lend */
	pg_atomic_write_u64(&entry->since, now);
	pg_write_barrier();			/* the heir looks at its state without the
								 * mutex */
	pg_atomic_write_u32(&entry->state, SLOT_RUNNING);
	wake_later(wakes, heir);
}

/*
 * Who is to have the next slot, or NOBODY: the first in the queue of one of the
 * pools that have a slot free.  Of those, one that has aged, then the highest
 * priority, then who came first.  Mutex held.
 */
int
slots_next_waiter(TimestampTz now)
{
	int			next = NOBODY;
	bool		next_aged = false;

	for (int i = 0; i < Slots->npools; i++)
	{
		SlotPool   *pool = &Slots->pools[i];
		int			head = pool->queue.head;
		bool		aged;
		int			order;

		if (head == NOBODY || !pool_has_slot_free(pool))
			continue;
		aged = pool_has_aged(pool, now);
		order = next == NOBODY ? 1 : (int) aged - (int) next_aged;
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
 * The priority that it takes to barge before that waiter, or NOBODY.  Mutex held.
 */
int
slots_priority_of(int next, TimestampTz now)
{
	const SlotPool *pool;

	if (next == NOBODY)
		return NO_PRIORITY;
	pool = pool_of(entry_of(next));
	return pool_has_aged(pool, now) ? Slots->highest_priority : pool->definition.priority;
}

/*
 * The last step under the mutex: have the word say whether somebody waits who
 * could have a free slot, or the limit is lowered; and if one is free, see to it that
 * the next knows.  If there is no such waiter, the limit is not lowered any more.
 */
void
slots_settle(TimestampTz now, WakeList *wakes)
{
	int			next = slots_next_waiter(now);
	bool		flag = (pg_atomic_read_u32(&Slots->word) & WORD_WAITERS) != 0;

	pg_atomic_write_u32(&Slots->next_priority, (uint32) slots_priority_of(next, now));

	/* First the flag, then the look, as when a waiter arrives. */
	if ((next != NOBODY || slots_limit_is_lowered()) && !flag)
	{
		flag = true;
		pg_atomic_fetch_or_u32(&Slots->word, WORD_WAITERS);
	}
	if (next == NOBODY)
	{
		if (slots_limit_is_lowered() && slot_is_free())
			slots_restore_limit(now);
		if (flag && !slots_limit_is_lowered())
			pg_atomic_fetch_and_u32(&Slots->word, ~WORD_WAITERS);
	}
	else if (slot_is_free() && !entry_of(next)->called)
	{
		entry_of(next)->called = true;
		wake_later(wakes, next);
	}
}

/*
 * May a slot that is given back be handed directly to that waiter, the next?  It may
 * once the waiter has waited for handoff_after.  The longer it has waited, the more
 * heirs may be on their way besides, up to half of the slots; if these do not come, one
 * more after each handoff_after.  Mutex held.
 */
static bool
may_inherit(int next, TimestampTz now)
{
	int64		handoff_after = gate_handoff_after * INT64CONST(1000);
	int64		waited = now - (TimestampTz) pg_atomic_read_u64(&entry_of(next)->since);
	uint32		coming = pg_atomic_read_u32(&Slots->heirs_coming);
	uint32		most = Max(pg_atomic_read_u32(&Slots->effective_limit) / 2, 1);

	if (gate_handoff_after == 0)
		return true;
	if (waited < handoff_after)
		return false;
	return (coming < most && waited >= handoff_after * (coming + 1)) ||
		now - Slots->last_inheritance >= handoff_after;
}

/*
 * A slot that is counted in all, and in no pool any more, has no holder: it goes
 * to the next that waits, always or if it has waited for long enough,
 * else to whichever backend takes it.  Mutex held; this settles.
 */
void
slots_pass_on(TimestampTz now, bool to_next, WakeList *wakes)
{
	int			next = slots_next_waiter(now);

	if (next != NOBODY &&
		slots_in_use() <= pg_atomic_read_u32(&Slots->effective_limit) &&
		(to_next || may_inherit(next, now)) &&
		slots_count_in_pool_if_free(entry_of(next), true))
	{
		pg_atomic_fetch_add_u32(&Slots->heirs_coming, 1);
		Slots->last_inheritance = now;
		entry_of(next)->inheriting = true;
		slots_grant(next, now, wakes);
	}
	else
		pg_atomic_fetch_sub_u32(&Slots->word, 1);
	slots_settle(now, wakes);
}
