/*-------------------------------------------------------------------------
 *
 * lending.c
 *		Lending: slots that count as free while their holders do nothing.
 *
 * The watcher (src/watcher.c) tells what the holders have done.  One that has done next
 * to nothing for lend_after becomes a lender: what it holds is counted out until it
 * works again, and then counted in, above the limits if need be.
 *
 * Locking: see shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/counting.h"
#include "core/lending.h"
#include "core/shared.h"
#include "core/wait_queue.h"
#include "core/watch_duty.h"

/* How often an arriving backend looks for returned lenders, at most: us. */
#define LENDERS_UNSEEN_AFTER	10000

/* A process that uses less than this part of the time of a CPU does nothing. */
#define IDLE_PART		100

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
 *		When to look
 * ----------------------------------------------------------------
 */

/*
 * Should an arriving backend look whether lenders have come back to work?
 * Yes if there are any and no other has looked lately.
 */
bool
slots_lenders_unseen(void)
{
	return (pg_atomic_read_u32(&Slots->word) & WORD_LENDERS) != 0 &&
		is_due(&Slots->lenders_seen, LENDERS_UNSEEN_AFTER,
			   GetCurrentTimestamp());
}

/*
 * Is it time to look at the holders?  Returns true to one caller per interval (ms).  The
 * time of the last look is in shared memory, as watchers may change more often.
 */
bool
slots_holders_unseen(long interval)
{
	return is_due(&Slots->holders_seen, (uint64) interval * 1000,
				  GetCurrentTimestamp());
}

/* ----------------------------------------------------------------
 *		Lenders
 * ----------------------------------------------------------------
 */

/* A backend of that pool lends no more.  Lock held. */
static void
forget_lender(SlotPool *pool)
{
	Assert(Slots->lent > 0);
	pool->lent--;
	if (--Slots->lent == 0)
		pg_atomic_fetch_and_u32(&Slots->word, ~WORD_LENDERS);
}

/*
 * This backend has ended while its slot was lent.
 */
void
slots_forget_lending(void)
{
	LockedSection section;

	slots_lock(&section);
	forget_lender(pool_of(MySlotEntry));
	slots_unlock(&section);
}

/* Lend an entry's slot: it counts as free from now on.  Lock held. */
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

/* If an entry's slot is lent, take it back: it counts again.  Lock held. */
static void
end_lending(SlotEntry *entry, TimestampTz now)
{
	uint32		lent = SLOT_LENT;
	SlotPool   *pool = pool_of(entry);

	if (pg_atomic_read_u32(&entry->state) != SLOT_LENT)
		return;

	/*
	 * Count first: from the exchange on, the backend may release it, and
	 * change its pool.
	 */
	count_in(entry);
	pg_atomic_write_u64(&entry->since, now);
	if (pg_atomic_compare_exchange_u32(&entry->state, &lent, SLOT_RUNNING))
		forget_lender(pool);
	else
		count_out(entry);		/* the backend left */
}

/*
 * Has the holder worked since quiet_since?  cpu, busy: as for slots_note_holder().  A CPU
 * time lower than cpu_seen counts as work: parallel workers take theirs with them when
 * they exit.  Lock held, or a hint.
 */
static bool
has_worked(const SlotEntry *entry, uint32 progress, uint64 cpu, bool busy, TimestampTz now)
{
	return busy || entry->quiet_since > now ||	/* the clock was set back */
		progress != entry->progress_seen || cpu < entry->cpu_seen ||
		(cpu - entry->cpu_seen) * IDLE_PART > (uint64) Max(now - entry->quiet_since, 0);
}

/*
 * Does this backend hold a slot without having worked, by its progress and CPU time, since
 * it was last found working?  cpu: as for slots_note_holder().  A hint, no lock.
 */
bool
slots_seems_idle(int procno, uint64 cpu)
{
	SlotEntry  *entry = entry_of(procno);

	return pg_atomic_read_u32(&entry->state) == SLOT_RUNNING &&
		!has_worked(entry, pg_atomic_read_u32(&entry->progress), cpu, false,
					GetCurrentTimestamp());
}

/*
 * Record what the watcher saw of a holder.  cpu: CPU time (us) of the backend and its
 * workers; busy: it works even if cpu has not grown.  Lends the slot if the holder has
 * been idle for lend_after; takes a lent slot back if it works.
 */
void
slots_note_holder(int procno, uint64 cpu, bool busy)
{
	SlotEntry  *entry = entry_of(procno);
	int			lend_after = slots_lend_after();
	LockedSection section;
	uint32		progress;

	slots_lock(&section);
	progress = pg_atomic_read_u32(&entry->progress);
	entry->at_work = has_worked(entry, progress, cpu, busy, section.now);
	if (entry->at_work)
		end_lending(entry, section.now);
	else if (lend_after >= 0 && passed_since(entry->quiet_since, lend_after, section.now))
		lend(entry, section.now);

	/* How much a lender did long ago must not hide that it works now. */
	if (entry->at_work || pg_atomic_read_u32(&entry->state) == SLOT_LENT)
	{
		entry->progress_seen = progress;
		entry->cpu_seen = cpu;
		entry->quiet_since = section.now;
	}
	slots_unlock(&section);
}

/*
 * This backend works: if its slot was lent, it counts again, above the limit if need be.
 */
void
slots_end_lending(void)
{
	LockedSection section;

	slots_lock(&section);
	end_lending(MySlotEntry, section.now);
	slots_unlock(&section);
}
