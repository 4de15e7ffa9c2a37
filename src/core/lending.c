/*-------------------------------------------------------------------------
 *
 * lending.c
 *		Lending: the slots of idle holders count as free; and the last resort.
 *
 * The sampler (src/sampler.c) finds out what holders do.  One that has been
 * idle for lend_after becomes a lender: its slot is counted out until it works
 * again, then counted in, above the limits if necessary.
 *
 * The last resort helps if a holder waits for a backend in the queue but does
 * not lend.  If no waiter has entered for a second, the next one enters above
 * the limit, then others after 2, 4 ... 60 s; the delay starts over once the
 * queue moves.  That timer does not help a queue whose own places are all in
 * use: other queues may move.  The queue of a hot spot has its own timer,
 * because its limit is an estimate.  The limit of a pool is intended: a waiter
 * enters above it only if none has entered for 60 s.
 *
 * Locking: see slots_internal.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots_internal.h"

#define MIN_STALL	1000		/* ms that a queue may stand still */
#define MAX_STALL	60000

/*
 * A process that uses less than this part of a CPU, 5 %, is idle.  One that
 * receives rows or short statements one by one from its client uses less.
 */
#define IDLE_PART	20

int
slots_lend_after(void)
{
	return Slots->settings.lend_after;
}

/*
 * Must the worker watch the holders?  If a backend waits, or would wait, or a
 * lender may work again.  A hint.
 */
bool
slots_holders_matter(void)
{
	return slots_any_waits() || Slots->settings.observing ||
		pg_atomic_read_u32(&Slots->lent) > 0;
}

/* Does this state have a counted slot, or a place in a pool, to lend? */
static inline bool
is_of_use(uint32 state)
{
	return ((state & STATE_COUNTED) != 0 && slots_are_limited()) || place_in(state) != NO_QUEUE;
}

/* Does this holder lend, or could it?  A hint. */
bool
slots_may_lend(int procno)
{
	uint32		state = pg_atomic_read_u32(&entry_of(procno)->state);

	return state_in(state) == SLOT_LENT || is_of_use(state);
}

/* Lend an entry's slot: it counts as free.  Lock held. */
static void
lend(SlotEntry *entry)
{
	uint32		running = pg_atomic_read_u32(&entry->state);
	Hold		had = hold_in(running);

	if (state_in(running) != SLOT_RUNNING || !is_of_use(running) ||
		!pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LENT))
		return;
	pg_atomic_fetch_add_u32(&Slots->lent, 1);
	pool_of(entry)->totals[TOTAL_LENDS]++;
	if (had.place == LONG_QUEUE)
		pg_atomic_fetch_sub_u32(&queue_at(LONG_QUEUE)->usage, entry->workers);
	count_out(&had);
	pg_atomic_write_u64(&entry->since, locked.timestamp);
}

/* If an entry's slot is lent, count it again.  Lock held. */
static void
end_lending(SlotEntry *entry)
{
	uint32		lent = SLOT_LENT;
	Hold		hold;

	if (state_of(entry) != SLOT_LENT)
		return;
	/* Count first: after the exchange, the backend may release it. */
	(void) count_in(entry->pool, COUNT_ALWAYS, &hold);
	pg_atomic_write_u64(&entry->since, locked.timestamp);
	if (pg_atomic_compare_exchange_u32(&entry->state, &lent, state_with(SLOT_RUNNING, &hold)))
		pg_atomic_fetch_sub_u32(&Slots->lent, 1);
	else
		count_out(&hold);		/* the backend left */
}

/*
 * Has the holder used CPU time since quiet_since, or been admitted?  A new
 * statement alone is no work.  A lower CPU time is: parallel workers take
 * theirs with them when they exit.  Lock held, or a hint.
 */
static bool
has_worked(const SlotEntry *entry, uint16 admission, uint64 cpu, uint64 now)
{
	return admission != entry->admission_seen || cpu < entry->cpu_seen ||
		(cpu - entry->cpu_seen) * IDLE_PART > (uint64) Max((int64) (now - entry->quiet_since), 0);
}

/*
 * Has this holder been idle since quiet_since?  cpu: CPU time (us) of it and
 * its workers.  A hint.
 */
bool
slots_seems_idle(int procno, uint64 cpu)
{
	SlotEntry  *entry = entry_of(procno);

	return state_of(entry) == SLOT_RUNNING &&
		!has_worked(entry, *(volatile uint16 *) &entry->admission, cpu, monotonic_us());
}

/*
 * Record what a sample saw of a holder.  cpu: as above; busy: it works even if
 * cpu has not grown; is_stuck: it waits for an idle backend.  Lend its slot if
 * it is stuck, or has been idle for lend_after.  Take it back if it works.
 */
void
slots_note_holder(int procno, uint64 cpu, bool busy, bool is_stuck)
{
	SlotEntry  *entry = entry_of(procno);
	int			lend_after = slots_lend_after();
	uint16		admission;
	bool		worked;

	slots_lock();
	admission = *(volatile uint16 *) &entry->admission;
	worked = !is_stuck && (busy || has_worked(entry, admission, cpu, locked.now));
	if (worked)
		end_lending(entry);
	else if (lend_after >= 0 &&
			 (is_stuck || passed_since(entry->quiet_since, lend_after, locked.now)))
		lend(entry);

	/* Restart the measurement: past work must not hide present work. */
	if (worked || state_of(entry) == SLOT_LENT)
	{
		entry->admission_seen = admission;
		entry->cpu_seen = cpu;
		entry->quiet_since = locked.now;
	}
	slots_unlock();
}

/* This backend works again. */
void
slots_end_lending(void)
{
	slots_lock();
	end_lending(MySlotEntry);
	slots_unlock();
}

/*
 * A waiter last entered at moved: if the next one may enter above the
 * limits by now, let it in.  first: the initial delay, ms; *stall_after: the
 * present one, if longer.  Lock held.
 */
static bool
enter_late(SlotEntry *entry, uint64 moved, int first, int *stall_after)
{
	int			stall = Max(*stall_after, first);

	/*
	 * Start over after a time without waiters.  Do not start over for each
	 * new waiter, or all would enter at once.
	 */
	if (passed_since(moved, stall, entry->queued))
		stall = first;
	if (!passed_since(Max(moved, entry->queued), stall, locked.now))
		return false;
	slots_grant_above_limit(entry);
	*stall_after = Min(2 * stall, MAX_STALL);
	return true;
}

/* The last resort: let the next waiter in if it is time.  Lock held. */
static bool
relieve_next(int first)
{
	SlotEntry  *next = slots_next_waiter();

	/* A long statement only waits for its turn. */
	for (int index = NO_QUEUE; next != NULL && next->queue == LONG_QUEUE &&
		 (index = slots_next_queue(index)) != NO_QUEUE;)
		if (queue_has_place_free(index))
			next = first_waiter(index);
	if (next == NULL || next->queue == LONG_QUEUE ||
		!enter_late(next, Slots->moved, first, &Slots->stall_after))
		return false;
	Slots->moved = locked.now;
	return true;
}

/* The same for the first waiter of a queue without a free place. */
static void
relieve_full_queue(int first)
{
	for (int index = NO_QUEUE; (index = slots_next_queue(index)) != NO_QUEUE;)
	{
		SlotQueue  *queue = queue_at(index);
		SlotEntry  *head = first_waiter(index);
		uint32		completed;

		if (queue_has_place_free(index))
			continue;
		if (is_of_hot_spot(index))
		{
			/*
			 * While its contenders complete transactions, too many may have
			 * places, and leave one by one.
			 */
			completed = pg_atomic_read_u32(&hot_spot_at(index)->completed);
			if (queue->completed != completed)
				queue->completed_seen = locked.now;
			queue->completed = completed;
			if (enter_late(head, Max(queue->moved, queue->completed_seen), first,
						   &queue->stall_after))
				return;
		}
		if (enter_late(head, queue->moved, MAX_STALL, &queue->stall_after))
			return;
	}
}

/* If a queue stands still, let one waiter in. */
void
slots_relieve_stall(void)
{
	/* Both settings delay waiters on purpose. */
	int64		delay = Max(Slots->settings.handoff_after, slots_lend_after());
	int			first = Min(MIN_STALL + delay, MAX_STALL);

	slots_lock();
	if (!relieve_next(first))
		relieve_full_queue(first);
	slots_unlock();
}

/* Let in a waiter that another backend waits for, above the limits. */
void
slots_let_in(int procno)
{
	slots_lock();
	if (state_of(entry_of(procno)) == SLOT_WAITING)
		slots_grant_above_limit(entry_of(procno));
	slots_unlock();
}
