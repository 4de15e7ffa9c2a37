/*-------------------------------------------------------------------------
 *
 * slots_lending.c
 *		Lending: slots that count as free while their holders wait.
 *
 * Whoever watches (lending.c) tells what the holders do.  A holder that has been
 * in the same wait for lend_after becomes a lender: what it holds is counted out
 * until it works again, and then counted in, above the limits if need be.
 *
 * Locking: see slots_shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "slots.h"
#include "slots_shared.h"

/* How often an arriving backend looks for returned lenders, at most: us. */
#define LENDERS_UNSEEN_AFTER	10000

/* ----------------------------------------------------------------
 *		Settings
 * ----------------------------------------------------------------
 */

/* Have the watcher go by a new setting. */
void
slots_wake_watcher(void)
{
	WakeList	wakes = {0};

	SpinLockAcquire(&Slots->mutex);
	if (Slots->watcher != NOBODY)
		wake_later(&wakes, Slots->watcher);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}

/* Set how long a holder must have been seen waiting to lend: ms, -1 = never. */
void
slots_set_lend_after(int lend_after)
{
	pg_atomic_write_u32(&Slots->lend_after, (uint32) lend_after);
	slots_wake_watcher();
}

/* Set in waits of which classes a holder lends: see lending.h for the bits. */
void
slots_set_lend_classes(uint32 lend_classes)
{
	pg_atomic_write_u32(&Slots->lend_classes, lend_classes);
	slots_wake_watcher();
}

int
slots_lend_after(void)
{
	return (int) pg_atomic_read_u32(&Slots->lend_after);
}

uint32
slots_lend_classes(void)
{
	return pg_atomic_read_u32(&Slots->lend_classes);
}

/* ----------------------------------------------------------------
 *		The watcher
 * ----------------------------------------------------------------
 */

/* Is it this waiter's duty to look at the holders?  A hint, no lock. */
bool
slots_am_watcher(void)
{
	return Slots->watcher == my_slot_procno;
}

/*
 * Should an arriving backend look whether lenders have come back to work?
 * Yes if there are any and nobody has looked lately.
 */
bool
slots_lenders_unseen(void)
{
	return (pg_atomic_read_u32(&Slots->word) & WORD_LENDERS) != 0 &&
		is_due(&Slots->lenders_seen, LENDERS_UNSEEN_AFTER,
			   GetCurrentTimestamp());
}

/*
 * In how many ms the watcher is to look at the holders, if that is to be done
 * every so many ms; 0 if it is due, and then only one of those who ask is told
 * so.  The time is that of the pool, not of the watcher: the watchers may change
 * faster than that.
 */
long
slots_until_look(long interval)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		left;

	if (is_due(&Slots->holders_seen, (uint64) interval * 1000, now))
		return 0;
	left = pg_atomic_read_u64(&Slots->holders_seen) + interval * 1000 - now;
	return Max(1, Min(left / 1000 + 1, interval));
}

SlotState
slots_state(int procno)
{
	return pg_atomic_read_u32(&entry_of(procno)->state);
}

/*
 * Are these, some of which may have been holders once, all that hold a slot now,
 * lent or not?  No lock: it may be wrong about somebody who enters or leaves at
 * this moment.
 */
bool
slots_are_all_holders(const int *procnos, int n)
{
	uint32		in_use = 0;
	int			lent = 0;

	for (int i = 0; i < n; i++)
	{
		SlotState	state = slots_state(procnos[i]);

		if (state == SLOT_LENT)
			lent++;
		else if (state == SLOT_RUNNING || state == SLOT_RETAINED)
			in_use += entry_of(procnos[i])->weight;
	}
	return in_use == slots_in_use() && lent == *(volatile int *) &Slots->lent;
}

/* A number that changes whenever the holder is seen to work. */
uint32
slots_progress(int procno)
{
	return pg_atomic_read_u32(&entry_of(procno)->progress);
}

/* ----------------------------------------------------------------
 *		Lenders
 * ----------------------------------------------------------------
 */

/* All slots of that entry are no longer in use.  Mutex held. */
static void
count_out(SlotEntry *entry)
{
	(void) slots_count_out_of_pool(entry);
	pg_atomic_fetch_sub_u32(&Slots->word, entry->weight);
}

/* One lender less.  Mutex held. */
static void
forget_lender(void)
{
	Assert(Slots->lent > 0);
	if (--Slots->lent == 0)
		pg_atomic_fetch_and_u32(&Slots->word, ~WORD_LENDERS);
}

/*
 * This backend has given up what it had lent.
 */
void
slots_forget_lending(void)
{
	SpinLockAcquire(&Slots->mutex);
	forget_lender();
	SpinLockRelease(&Slots->mutex);
}

/*
 * A holder was seen waiting, at that time, for what wait_id says: the same
 * number means the same wait.  If this has been so for lend_after, its slot
 * is lent.
 */
void
slots_holder_waits(int procno, uint64 wait_id, TimestampTz now)
{
	SlotEntry  *entry = entry_of(procno);
	WakeList	wakes = {0};
	uint32		running = SLOT_RUNNING;
	int			lend_after = slots_lend_after();

	if (lend_after < 0)
		return;

	SpinLockAcquire(&Slots->mutex);
	if (entry->wait_id != wait_id)
	{
		entry->wait_id = wait_id;
		entry->wait_seen = now;
	}
	if (passed_since(entry->wait_seen, lend_after, now) &&
		pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LENT))
	{
		Slots->lent++;
		pool_of(entry)->totals[TOTAL_LENDS]++;
		pg_atomic_fetch_or_u32(&Slots->word, WORD_LENDERS);
		count_out(entry);
		pg_atomic_write_u64(&entry->since, now);
	}
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}

/*
 * A holder was seen to work: if its slot was lent, it counts again, above the
 * limit if need be.
 */
void
slots_holder_works(int procno)
{
	SlotEntry  *entry = entry_of(procno);
	WakeList	wakes = {0};
	TimestampTz now;
	uint32		lent = SLOT_LENT;

	if (entry->wait_id == 0 &&
		pg_atomic_read_u32(&entry->state) != SLOT_LENT)
		return;

	now = GetCurrentTimestamp();
	SpinLockAcquire(&Slots->mutex);
	entry->wait_id = 0;
	if (pg_atomic_read_u32(&entry->state) == SLOT_LENT)
	{
		/* Count first: from the exchange on, the owner may give it back. */
		slots_count_in(entry, entry->weight);
		if (pg_atomic_compare_exchange_u32(&entry->state, &lent, SLOT_RUNNING))
			forget_lender();
		else
			count_out(entry);	/* the owner left */
	}
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}
