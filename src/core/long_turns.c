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
 * be waiting for tuples.
 *
 * Locking: see slots_internal.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/ipc.h"

#include "core/slots_internal.h"

#define TURN			200		/* ms of CPU time */

/* Must this long statement give up its slot?  Lock held. */
static bool
must_give_up(SlotEntry *entry)
{
	uint32		used = pg_atomic_read_u32(&entry->ticks) - entry->turn_ticks;
	bool		is_over = used * LONG_TICK >= TURN ||
	passed_since(entry->turn_began, LONGEST_TURN / long_weight(entry), locked.now);
	SlotEntry  *next = slots_next_waiter();
	int			share = long_share();

	if (is_over && queue_at(LONG_QUEUE)->nwaiters > 0)
		return true;
	if (next == NULL || next->queue == LONG_QUEUE)
		return false;
	return share > 0 ? (int) places_in_use(LONG_QUEUE) - long_weight(entry) >= share : is_over;
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
	int			of_pool = hold.place;

	if (state_in(state) != SLOT_RUNNING || !hold.counted ||
		!entry->can_pause || !long_may_wait(entry))
		return false;
	if (hold.place == LONG_QUEUE)
		return true;
	hold.place = LONG_QUEUE;
	if (!pg_atomic_compare_exchange_u32(&entry->state, &state, state_with(SLOT_RUNNING, &hold)))
		return false;
	(void) count_place_out(of_pool);	/* if the pool had a limit before */
	count_turn(entry, 1);
	entry->turn_began = locked.now;
	entry->turn_ticks = pg_atomic_read_u32(&entry->ticks);
	return true;
}

/*
 * The statement of this holder is long.  If it must give up its slot, queue
 * it: its processes sleep while slots_awaited_turn().
 */
void
slots_check_turn(int procno)
{
	SlotEntry  *entry = entry_of(procno);
	const Hold	had = {true, LONG_QUEUE};

	slots_lock();
	if (take_turn(entry) && !Slots->long_needed && must_give_up(entry))
	{
		/* Its backend does not leave without the lock while it has a turn. */
		entry->queue = LONG_QUEUE;
		pg_write_barrier();		/* see is_paused() */
		pg_atomic_write_u32(&entry->state, SLOT_WAITING);
		leave_reserve(entry);
		pool_of(entry)->totals[TOTAL_PAUSES]++;
		count_turn(entry, -1);
		queue_at(LONG_QUEUE)->moved = locked.now;
		slots_hand_off(entry, &had);
		pg_atomic_write_u64(&entry->since, locked.timestamp);
		entry->queued = locked.now;
		/* What its processes use until they sleep counts for the next turn. */
		entry->turn_ticks = pg_atomic_read_u32(&entry->ticks);
		slots_queue_append(entry);
	}
	slots_unlock();
}

/* What its workers wait for, or NULL if it does not wait for a turn.  A hint. */
ConditionVariable *
slots_awaited_turn(int procno)
{
	SlotEntry  *entry = entry_of(procno);

	return is_paused(entry) ? &entry->turn : NULL;
}

/* A parallel worker starts (1) or stops (-1) working for this statement. */
static void
count_worker(int procno, int change)
{
	SlotEntry  *entry = entry_of(procno);

	slots_lock();
	entry->workers += change;
	if (place_in(pg_atomic_read_u32(&entry->state)) == LONG_QUEUE)
		pg_atomic_fetch_add_u32(&queue_at(LONG_QUEUE)->usage, change);
	slots_unlock();
}

/* on_shmem_exit callback of a parallel worker */
static void
worker_exits(int code, Datum procno)
{
	count_worker(DatumGetInt32(procno), -1);
}

/*
 * This process works for the statement of that holder from now on: its backend,
 * or a parallel worker, until it exits.  before: ticks that the statement has
 * used.  Returns where to count more, or NULL if it cannot be long.
 */
pg_atomic_uint32 *
slots_begin_counting(int procno, uint32 before)
{
	if (procno < 0 || !long_may_wait(entry_of(procno)))
		return NULL;
	if (procno == my_slot_procno)
	{
		MySlotEntry->can_pause = true;
		pg_atomic_write_u32(&MySlotEntry->ticks, before);
	}
	else
	{
		on_shmem_exit(worker_exits, Int32GetDatum(procno));
		count_worker(procno, 1);
	}
	return &entry_of(procno)->ticks;
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
	/* A parallel worker may change it yet: drop_slot() looks again. */
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
