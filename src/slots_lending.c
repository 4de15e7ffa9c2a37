/*-------------------------------------------------------------------------
 *
 * slots_lending.c
 *		Lending: slots that count as free while their holders do nothing.
 *
 * The watcher (lending.c) tells what the holders have done.  One that has done next
 * to nothing for lend_after becomes a lender: what it holds is counted out until it
 * works again, and then counted in, above the limits if need be.
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

/* A process that uses less than this part of the time of a CPU does nothing. */
#define IDLE_PART		100

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

/* Set for how long a holder must have done nothing to lend: ms, -1 = never. */
void
slots_set_lend_after(int lend_after)
{
	pg_atomic_write_u32(&Slots->lend_after, (uint32) lend_after);
	slots_wake_watcher();
}

int
slots_lend_after(void)
{
	return (int) pg_atomic_read_u32(&Slots->lend_after);
}

/* ----------------------------------------------------------------
 *		The watcher
 * ----------------------------------------------------------------
 */

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
 * Are the holders to be looked at, as that is to be done every so many ms?  Only one
 * of those who ask is told so.  The time is not the watcher's own: watchers may
 * change faster than that.
 */
bool
slots_holders_unseen(long interval)
{
	return is_due(&Slots->holders_seen, (uint64) interval * 1000,
				  GetCurrentTimestamp());
}

SlotState
slots_state(int procno)
{
	return pg_atomic_read_u32(&entry_of(procno)->state);
}

/* How many of its transactions, or statements, have failed while it is in its pool. */
uint64
slots_failures(int procno)
{
	return pg_atomic_read_u64(&entry_of(procno)->totals[TOTAL_FAILED]);
}

/* ----------------------------------------------------------------
 *		Lenders
 * ----------------------------------------------------------------
 */

/* The slot of that entry is no longer in use.  Mutex held. */
static void
count_out(SlotEntry *entry)
{
	(void) slots_count_out_of_pool(entry);
	pg_atomic_fetch_sub_u32(&Slots->word, 1);
}

/* That entry lends no more.  Mutex held. */
static void
forget_lender(const SlotEntry *entry)
{
	Assert(Slots->lent > 0);
	pool_of(entry)->lent--;
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
	forget_lender(MySlotEntry);
	SpinLockRelease(&Slots->mutex);
}

/* What that entry holds counts as free from now on.  Mutex held. */
static void
lend(SlotEntry *entry, TimestampTz now)
{
	uint32		running = SLOT_RUNNING;

	if (!pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LENT))
		return;
	Slots->lent++;
	pool_of(entry)->lent++;
	pool_of(entry)->totals[TOTAL_LENDS]++;
	pg_atomic_fetch_or_u32(&Slots->word, WORD_LENDERS);
	count_out(entry);
	pg_atomic_write_u64(&entry->since, now);
}

/* If that entry lends, what it holds counts again.  Mutex held. */
static void
take_back(SlotEntry *entry, TimestampTz now)
{
	uint32		lent = SLOT_LENT;

	if (pg_atomic_read_u32(&entry->state) != SLOT_LENT)
		return;

	/* Count first: from the exchange on, the owner may give it back. */
	slots_count_in(entry);
	if (pg_atomic_compare_exchange_u32(&entry->state, &lent, SLOT_RUNNING))
	{
		forget_lender(entry);
		pg_atomic_write_u64(&entry->since, now);
	}
	else
		count_out(entry);		/* the owner left */
}

/*
 * Has that holder worked since it was last seen to?  cpu, busy: as for
 * slots_note_holder.  Workers take their CPU time with them when they end, so less
 * of it says that there was work, too.  Mutex held, or a hint.
 */
static bool
has_worked(const SlotEntry *entry, uint32 progress, uint64 cpu, bool busy, TimestampTz now)
{
	return busy || entry->quiet_since > now ||	/* the clock was set back */
		progress != entry->progress_seen || cpu < entry->cpu_seen ||
		(cpu - entry->cpu_seen) * IDLE_PART > (uint64) Max(now - entry->quiet_since, 0);
}

/*
 * Is that holder, whose slot is not lent, to lend it unless it is busy?  cpu: as for
 * slots_note_holder.  A hint, no lock.
 */
bool
slots_may_lend(int procno, uint64 cpu)
{
	SlotEntry  *entry = entry_of(procno);

	return pg_atomic_read_u32(&entry->state) == SLOT_RUNNING &&
		!has_worked(entry, pg_atomic_read_u32(&entry->progress), cpu, false,
					GetCurrentTimestamp());
}

/*
 * A holder was looked at: it and its workers have used so much CPU time in their
 * lives (us); busy: it works for certain, whatever that says.  If it has done nothing
 * for lend_after, its slot is lent; if it lends and works again, its slot counts again.
 */
void
slots_note_holder(int procno, uint64 cpu, bool busy)
{
	SlotEntry  *entry = entry_of(procno);
	int			lend_after = slots_lend_after();
	TimestampTz now = GetCurrentTimestamp();
	WakeList	wakes = {0};
	uint32		progress;

	SpinLockAcquire(&Slots->mutex);
	progress = pg_atomic_read_u32(&entry->progress);
	entry->at_work = has_worked(entry, progress, cpu, busy, now);
	if (entry->at_work)
		take_back(entry, now);
	else if (lend_after >= 0 && passed_since(entry->quiet_since, lend_after, now))
		lend(entry, now);

	/* How much a lender did long ago must not hide that it works now. */
	if (entry->at_work || pg_atomic_read_u32(&entry->state) == SLOT_LENT)
	{
		entry->progress_seen = progress;
		entry->cpu_seen = cpu;
		entry->quiet_since = now;
	}
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}

/*
 * A holder works: if its slot was lent, it counts again, above the limit if need be.
 */
void
slots_holder_works(int procno)
{
	SlotEntry  *entry = entry_of(procno);
	WakeList	wakes = {0};
	TimestampTz now;

	if (pg_atomic_read_u32(&entry->state) != SLOT_LENT)
		return;

	now = GetCurrentTimestamp();
	SpinLockAcquire(&Slots->mutex);
	take_back(entry, now);
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}
