/*-------------------------------------------------------------------------
 *
 * slots_turns.c
 *		Turns: slots retained from one transaction to the next.
 *
 * While others wait, a backend may keep its slot from one transaction to the
 * next until its turn is over (turn_length), so that processes with warm caches
 * do more of the work.  In between it is in the list of retained entries, oldest
 * first.  The watcher takes the slots of those whose client lets more than
 * RETAIN_US pass; and a backend whose client did so the last time retains none.
 * The watcher sleeps until the first of them is due as long as it finds that slots
 * are retained; when it sleeps for longer, the next to retain a slot wakes it.
 *
 * Locking: see slots_shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "settings.h"
#include "slots.h"
#include "slots_shared.h"

/* How long a retained slot waits for its client, us. */
#define RETAIN_US		5000

/* Has this backend retained its slot, unless it was taken meanwhile? */
bool		slots_retained_mine = false;

/*
 * When this backend was done with its last slot, if there were turns and others
 * waited; else 0.
 */
TimestampTz slots_away_since = 0;

/* When this backend's turn ends; only kept while there are turns. */
static TimestampTz turn_end = 0;

/* How long its client last was away from one transaction to the next, us. */
static int64 client_away = 0;

/* This backend's turn begins. */
void
slots_begin_turn(void)
{
	turn_end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
										   gate_turn_length);
}

/*
 * The client is back, since then: go on with the slot that this backend
 * retained, if it did and still has it.
 */
bool
slots_resume_turn(TimestampTz since)
{
	bool		still_mine;

	/* What came in the same message as the last one says nothing. */
	if (since >= slots_away_since)
		client_away = since - slots_away_since;
	slots_away_since = 0;
	if (!slots_retained_mine)
		return false;
	if (since >= turn_end)
	{
		slots_end_my_turn();
		return false;
	}

	SpinLockAcquire(&Slots->mutex);
	still_mine = pg_atomic_read_u32(&MySlotEntry->state) == SLOT_RETAINED;
	if (still_mine)
	{
		slots_list_remove(&Slots->retained, my_slot_procno);
		pg_atomic_write_u64(&MySlotEntry->since, since);
		pg_atomic_write_u32(&MySlotEntry->state, SLOT_RUNNING);
	}
	SpinLockRelease(&Slots->mutex);

	slots_retained_mine = false;
	return still_mine;
}

/* Is there more in use than the limit for all, as it is now, or for this pool? */
static bool
above_limit(void)
{
	SlotPool   *pool = pool_of(MySlotEntry);

	return slots_in_use() > pg_atomic_read_u32(&Slots->effective_limit) ||
		(pg_atomic_read_u32(&pool->word) & WORD_COUNT) > pg_atomic_read_u32(&pool->effective_limit);
}

/*
 * Keep this backend's slot for its next transaction, if others wait (else it
 * can as well be free), the next of them not of higher priority, the turn is not
 * over, and the client is not known to be slow.
 */
bool
slots_retain(void)
{
	WakeList	wakes = {0};
	TimestampTz now;
	int			next;
	uint32		running = SLOT_RUNNING;

	if (!slots_others_wait() || !my_pool_is_current())
		return false;
	now = GetCurrentTimestamp();
	slots_away_since = now;
	if (now >= turn_end || client_away > RETAIN_US)
		return false;

	SpinLockAcquire(&Slots->mutex);
	next = slots_next_waiter(now);
	if ((next != NOBODY || pool_of(MySlotEntry)->queue.head != NOBODY) && !above_limit() &&
		slots_priority_of(next, now) <= my_pool_priority &&
		pg_atomic_compare_exchange_u32(&MySlotEntry->state, &running,
									   SLOT_RETAINED))
	{
		slots_retained_mine = true;
		pg_atomic_write_u64(&MySlotEntry->since, now);
		slots_list_append(&Slots->retained, my_slot_procno);
		if (Slots->watcher_dozes)
		{
			Slots->watcher_dozes = false;
			wake_later(&wakes, Slots->watcher);
		}
	}
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	return slots_retained_mine;
}

/*
 * Take a retained slot away from its backend and pass it on.  Mutex held.
 */
void
slots_end_turn(int procno, TimestampTz now, WakeList *wakes)
{
	SlotEntry  *entry = entry_of(procno);

	slots_list_remove(&Slots->retained, procno);
	(void) slots_count_out_of_pool(entry);
	pg_atomic_write_u32(&entry->state, SLOT_NONE);
	slots_pass_on(now, true, wakes);
}

/*
 * Pass the slot on that this backend has retained, if it still has it.
 */
void
slots_end_my_turn(void)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_RETAINED)
		slots_end_turn(my_slot_procno, now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	slots_retained_mine = false;
}

/*
 * The watcher's duty while there are turns: pass on the slots of those whose
 * clients are late.  Returns in how many ms to look again, -1 if it need not
 * be soon.
 */
long
slots_end_idle_turns(void)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		again = true;
	long		until_due = -1;

	while (again)
	{
		WakeList	wakes = {0};
		int			oldest;

		again = false;
		SpinLockAcquire(&Slots->mutex);
		oldest = Slots->retained.head;
		if (oldest != NOBODY)
		{
			int64		left = (int64) pg_atomic_read_u64(&entry_of(oldest)->since) + RETAIN_US - now;

			if (left <= 0)
			{
				slots_end_turn(oldest, now, &wakes);
				again = true;
			}
			else
				until_due = left / 1000 + 1;
		}
		if (!again && Slots->watcher == my_slot_procno)
			Slots->watcher_dozes = until_due < 0;
		SpinLockRelease(&Slots->mutex);
		slots_wake_all(&wakes);
	}
	return until_due;
}
