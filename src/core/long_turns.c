/*-------------------------------------------------------------------------
 *
 * long_turns.c
 *		Long statements give their slots up for others, and queue again.
 *
 * A statement that has used much CPU time (src/long_statements.c measures it)
 * is long until it ends.  It keeps its slot while no other backend waits.  It
 * gives the slot up, and waits in the queue of long statements,
 *	 - for a short statement, if long ones have more than their share;
 *	 - for another long one, when its turn is over: after TURN of CPU time, or
 *	   LONGEST_TURN.
 * While short statements wait, the share of long ones is a quarter of the
 * slots, at most half of the CPUs, because each uses a CPU all the time, and at
 * least one slot.  Under a limit of one slot, a turn begins LONGEST_TURN after
 * the last one.  If no short statement has found all slots in use for
 * SPARE_AFTER, long ones may use all free slots.  The next turn goes to the
 * statement that has had the least since it became long.
 *
 * A parallel query has one slot.  Its workers count for the share and for the
 * turn, and wait while it waits.  A worker may queue the query: its leader may
 * be waiting for tuples.  For the same reason, a long statement is granted its
 * slot, and is not called to claim one.
 *
 * Only statements of the default pool can be long, and only if it has no limit
 * of its own: the administrator's pools take precedence.
 *
 * Locking: see slots_internal.h.  A backend, or a parallel worker of it, makes
 * its statement long, and queues it, under the lock.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots_internal.h"

#define TURN			200		/* ms of CPU time */

bool
slots_may_be_long(int procno)
{
	return long_may_wait(entry_of(procno));
}

/* The CPU time that the statement of this holder has used, in ticks */
pg_atomic_uint32 *
slots_ticks_of(int procno)
{
	return &entry_of(procno)->ticks;
}

/* Is the turn of this long statement over?  Lock held. */
static bool
turn_is_over(SlotEntry *entry, uint64 now)
{
	uint32		used = pg_atomic_read_u32(&entry->ticks) - entry->turn_ticks;

	return used * LONG_TICK >= TURN || passed_since(entry->turn_began, LONGEST_TURN, now);
}

/* Has this waiter had no more than that long statement, or waited long?  Lock held. */
static bool
goes_before(const SlotEntry *waiter, SlotEntry *entry, uint64 now)
{
	uint32		had = entry->had + pg_atomic_read_u32(&entry->ticks) - entry->turn_ticks;

	return (int32) (waiter->had - had) <= 0 || passed_since(waiter->queued, LONGEST_TURN, now);
}

/* Must this long statement give up its slot?  Lock held. */
static bool
must_give_up(SlotEntry *entry, uint64 now)
{
	bool		is_over = turn_is_over(entry, now);
	int			head = queue_at(LONG_QUEUE)->waiters.head;
	int			next;
	int			share = long_share();

	if (Slots->long_needed)
		return false;
	if (is_over && head != INVALID_PROC_NUMBER && goes_before(entry_of(head), entry, now))
		return true;
	next = slots_next_waiter(now);
	if (next == INVALID_PROC_NUMBER || entry_of(next)->queue == LONG_QUEUE)
		return false;
	return share > 0 ? (int) places_in_use(LONG_QUEUE) - long_weight(entry) >= share : is_over;
}

/*
 * Queue a long statement for its next turn.  Does nothing if its backend has
 * changed its state, running.  Lock held.
 */
static void
queue_again(int procno, uint32 running, LockedSection *section)
{
	SlotEntry  *entry = entry_of(procno);
	Hold		had = hold_in(running);

	if (!pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_WAITING))
		return;
	leave_reserve(entry);
	pool_of(entry)->totals[TOTAL_PAUSES]++;
	count_turn_out(entry);
	queue_at(LONG_QUEUE)->moved = section->now;
	slots_hand_off(entry, &had, section);
	pg_atomic_write_u64(&entry->since, section->timestamp);
	entry->queued = section->now;
	entry->queue = LONG_QUEUE;
	entry->had += pg_atomic_read_u32(&entry->ticks) - entry->turn_ticks;
	slots_queue_append(procno, section);
}

/* The long statement of this holder works.  running: its state.  Lock held. */
static void
note_long(int procno, uint32 running, LockedSection *section)
{
	SlotEntry  *entry = entry_of(procno);
	Hold		hold = hold_in(running);

	if (!entry->is_long)
		entry->had = Slots->long_had;
	entry->is_long = true;
	if (hold.place != LONG_QUEUE)
	{
		hold.place = LONG_QUEUE;
		if (!pg_atomic_compare_exchange_u32(&entry->state, &running,
											state_with(SLOT_RUNNING, &hold)))
			return;
		running = state_with(SLOT_RUNNING, &hold);
		count_turn(entry);
		slots_begin_turn(entry, section->now);
	}
	if (must_give_up(entry, section->now))
		queue_again(procno, running, section);
}

/*
 * This process works for the long statement of this holder, its own or its
 * leader's.  Returns false if it must wait while slots_is_paused().
 */
bool
slots_has_turn(int procno)
{
	SlotEntry  *entry = entry_of(procno);
	uint32		state;
	bool		has_turn;
	LockedSection section;

	slots_lock(&section);
	state = pg_atomic_read_u32(&entry->state);
	if (state_in(state) == SLOT_RUNNING && hold_in(state).counted && long_may_wait(entry))
		note_long(procno, state, &section);
	has_turn = !is_paused(entry);
	slots_unlock(&section);
	return has_turn;
}

/* A hint, no lock. */
bool
slots_is_paused(int procno)
{
	return is_paused(entry_of(procno));
}

/* What its parallel workers wait for meanwhile */
ConditionVariable *
slots_turn_of(int procno)
{
	return &entry_of(procno)->turn;
}

/* A parallel worker starts or stops working for this long statement. */
void
slots_count_worker(int procno, bool begins)
{
	SlotEntry  *entry = entry_of(procno);
	LockedSection section;

	slots_lock(&section);
	entry->workers += begins ? 1 : -1;
	if (place_in(pg_atomic_read_u32(&entry->state)) == LONG_QUEUE)
		pg_atomic_fetch_add_u32(&queue_at(LONG_QUEUE)->usage, begins ? 1 : -1);
	slots_unlock(&section);
}

/*
 * The statement of this backend is no longer long.  If it waits for a turn, it
 * gets a slot, above the limit if necessary.
 */
void
slots_end_turns(void)
{
	SlotEntry  *me = MySlotEntry;
	uint32		state;
	Hold		hold;
	LockedSection section;

	if (me == NULL || likely(!*(volatile bool *) &me->is_long))
		return;
	slots_lock(&section);
	me->is_long = false;
	state = pg_atomic_read_u32(&me->state);
	hold = hold_in(state);
	if (is_paused(me))
	{
		slots_queue_remove(my_slot_procno);
		slots_end_pause(me, section.now);
		hold = count_in(me->pool);
		pg_atomic_write_u64(&me->since, section.timestamp);
		pg_atomic_write_u32(&me->state, state_with(SLOT_RUNNING, &hold));
	}
	else if (hold.place == LONG_QUEUE)
	{
		count_turn_out(me);
		hold.place = NO_QUEUE;
		pg_atomic_write_u32(&me->state, state_with(SLOT_RUNNING, &hold));
	}
	slots_unlock(&section);
	if (me->workers > 0)
		ConditionVariableBroadcast(&me->turn);
}

/* Let this backend keep its slot, or not: a statement that does is not long. */
void
slots_keep_slot(bool keep)
{
	if (MySlotEntry->keeps_slot == keep)
		return;
	MySlotEntry->keeps_slot = keep;
	slots_end_turns();
}

/*
 * VACUUM or replay waits for what long statements may hold, or no longer
 * waits.  If it waits, let them all in.  The worker calls this.
 */
void
slots_need_long(bool needed)
{
	int			next;
	LockedSection section;

	if (!needed && !Slots->long_needed)
		return;
	do
	{
		slots_lock(&section);
		Slots->long_needed = needed;
		next = needed ? queue_at(LONG_QUEUE)->waiters.head : INVALID_PROC_NUMBER;
		if (next != INVALID_PROC_NUMBER)
			slots_grant_above_limit(next, &section);
		slots_unlock(&section);
	} while (next != INVALID_PROC_NUMBER);
}
