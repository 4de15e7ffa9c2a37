/*-------------------------------------------------------------------------
 *
 * long_turns.c
 *		Long statements give their slots up for others, and queue again.
 *
 * A statement that has used much CPU time (src/long_statements.c measures it)
 * is long until it ends.  It keeps its slot while no other backend waits.
 * Otherwise it gives the slot up, and waits in the queue of long statements,
 *	 - for a short statement, if long ones have more than their share: see
 *	   long_share().  Under a limit of one slot, a turn begins LONGEST_TURN
 *	   after the last one;
 *	 - for another long one, when its turn is over: after TURN of CPU time of
 *	   its processes together, or LONGEST_TURN divided by their number.
 * If no short statement has found all slots in use for SPARE_AFTER, long ones
 * may use all free slots.
 *
 * A parallel query has one slot.  Its workers count for the share and for the
 * turn, and wait while it waits.  A worker may queue the query: its leader may
 * be waiting for tuples.  For the same reason, a long statement is granted its
 * slot, and is not called to claim one.
 *
 * Only statements of the default pool can be long, and only if it has no limit
 * of its own: the administrator's pools take precedence.
 *
 * Locking: see slots_internal.h.
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
	return procno >= 0 && long_may_wait(entry_of(procno));
}

/* The CPU time that the statement of this holder has used, in ticks */
pg_atomic_uint32 *
slots_ticks_of(int procno)
{
	return &entry_of(procno)->ticks;
}

/* Must this long statement give up its slot?  Lock held. */
static bool
must_give_up(SlotEntry *entry)
{
	uint32		used = pg_atomic_read_u32(&entry->ticks) - entry->turn_ticks;
	bool		is_over = used * LONG_TICK >= TURN ||
	passed_since(entry->turn_began, LONGEST_TURN / long_weight(entry), locked.now);
	SlotEntry  *next = slots_next_waiter();
	int			share = long_share();

	if (Slots->long_needed)
		return false;
	if (is_over && queue_at(LONG_QUEUE)->nwaiters > 0)
		return true;
	if (next == NULL || next->queue == LONG_QUEUE)
		return false;
	return share > 0 ? (int) places_in_use(LONG_QUEUE) - long_weight(entry) >= share : is_over;
}

/* Queue a long statement, unless it leaves its slot.  Lock held. */
static void
queue_again(SlotEntry *entry)
{
	uint32		state = pg_atomic_read_u32(&entry->state);
	Hold		had = hold_in(state);

	if (had.place != LONG_QUEUE ||
		!pg_atomic_compare_exchange_u32(&entry->state, &state, SLOT_WAITING))
		return;
	leave_reserve(entry);
	pool_of(entry)->totals[TOTAL_PAUSES]++;
	count_turn(entry, -1);
	queue_at(LONG_QUEUE)->moved = locked.now;
	slots_hand_off(entry, &had);
	pg_atomic_write_u64(&entry->since, locked.timestamp);
	entry->queued = locked.now;
	entry->queue = LONG_QUEUE;
	/* What its processes use until they pause counts for the next turn. */
	entry->turn_ticks = pg_atomic_read_u32(&entry->ticks);
	slots_queue_append(entry);
}

/*
 * Does this holder have a turn?  It does if its statement may be long and has
 * a slot; the first turn begins here.  Lock held.
 */
static bool
take_turn(SlotEntry *entry)
{
	uint32		state = pg_atomic_read_u32(&entry->state);
	Hold		hold = hold_in(state);

	if (state_in(state) != SLOT_RUNNING || !hold.counted ||
		!entry->can_pause || !long_may_wait(entry))
		return false;
	if (hold.place == LONG_QUEUE)
		return true;
	hold.place = LONG_QUEUE;
	if (!pg_atomic_compare_exchange_u32(&entry->state, &state, state_with(SLOT_RUNNING, &hold)))
		return false;
	count_turn(entry, 1);
	entry->turn_began = locked.now;
	entry->turn_ticks = pg_atomic_read_u32(&entry->ticks);
	return true;
}

/*
 * The statement of this holder is long, and this process works for it: the
 * holder or a parallel worker.  Returns false if it must wait while
 * slots_is_paused().
 */
bool
slots_has_turn(int procno)
{
	SlotEntry  *entry = entry_of(procno);
	bool		has_turn;

	slots_lock();
	if (take_turn(entry) && must_give_up(entry))
		queue_again(entry);
	has_turn = !is_paused(entry);
	slots_unlock();
	return has_turn;
}

/* A hint. */
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

	slots_lock();
	entry->workers += begins ? 1 : -1;
	if (place_in(pg_atomic_read_u32(&entry->state)) == LONG_QUEUE)
		pg_atomic_fetch_add_u32(&queue_at(LONG_QUEUE)->usage, begins ? 1 : -1);
	slots_unlock();
}

/* This backend's statement may be long.  before: ticks that it used earlier. */
void
slots_begin_counting(uint32 before)
{
	MySlotEntry->can_pause = true;
	pg_atomic_write_u32(&MySlotEntry->ticks, before);
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
	uint64		moved;
	Hold		hold;

	if (me == NULL)
		return;
	me->can_pause = false;
	state = pg_atomic_read_u32(&me->state);

	/*
	 * Only parallel workers could change it now.  Most have ended; otherwise
	 * drop_slot() looks again.
	 */
	if (likely(state_in(state) != SLOT_WAITING && place_in(state) != LONG_QUEUE))
		return;
	slots_lock();
	moved = queue_at(LONG_QUEUE)->moved;
	if (is_paused(me))
		slots_grant_above_limit(me);
	queue_at(LONG_QUEUE)->moved = moved;	/* it was no turn */
	hold = hold_in(pg_atomic_read_u32(&me->state));
	if (hold.place == LONG_QUEUE)
	{
		count_turn(me, -1);
		hold.place = NO_QUEUE;
		pg_atomic_write_u32(&me->state, state_with(SLOT_RUNNING, &hold));
	}
	slots_unlock();
}

/* Does VACUUM or replay wait for what they may hold?  The worker calls this. */
void
slots_need_long(bool needed)
{
	Slots->long_needed = needed;
	if (needed)
		slots_grant_free();
}
