/*-------------------------------------------------------------------------
 *
 * long_share.c
 *		Long statements give their slots up, and run in turns beside the others.
 *
 * A statement that has used much CPU time (src/long_statements.c measures it)
 * is long until it ends.  Its slot passes to the next in the queue, and it
 * runs on without one.  While short statements work, only as many processes of
 * long ones work at a time as there are CPUs left, and one in MIN_SHARE of the
 * CPUs in any case; the others pause.  Each works until it has used TURN of
 * CPU time; then the one that has paused for the longest time does, after a
 * rest if their share is less than a CPU.  While no short statement works, all
 * of them do.
 *
 * The process is what has turns: the backend of a statement, and each of its
 * parallel workers.  A sample (src/sampler.c) counts those at work, as it
 * counts short ones, and then resumes those that may go on: one that waits for
 * its client or a lock takes no share.
 *
 * Only statements of the pool "default" can be long, and only if it has no
 * limit of its own: an administrator who defines pools knows better.
 *
 * Locking: see slots_internal.h.  A backend makes its own statement long, or a
 * parallel worker does that for its leader, under the lock.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots_internal.h"

#define TURN			200000	/* us of CPU time */
#define LONGEST_TURN	1000000 /* us, for one that mostly waits for disks */

/*
 * How long after its last tick a process at work counts, us: it may sort for
 * minutes without coming to where it would pause, but others must have turns
 */
#define TICKED_WITHIN	3000000

#define AWAKE_AFTER		50000	/* us, for a process that was resumed */
#define MIN_SHARE		4		/* one in so many CPUs, or so much of one */
#define AVERAGE_OVER	1000000 /* us, of short statements at work */
#define NONE_AT_WORK	0.5		/* fewer than that are none */
#define MAX_RESUMED		2		/* processes, by one section */

/*
 * How many processes of long statements may work now?  If their share is less
 * than a CPU, none until what the last turn used is no more than that share of
 * the time since it began.  now: by monotonic_us().  Lock held.
 */
static int
may_work(uint64 now)
{
	double		left = Slots->cpus - Slots->short_working;
	double		share = Max(left, (double) Slots->cpus / MIN_SHARE);

	if (Slots->others_need_long || Slots->short_working < NONE_AT_WORK)
		return MaxBackends;
	if (share < 1 && (int64) (now - Slots->long_turn_began) < Slots->long_turn_used / share)
		return 0;
	return Max(Max((int) (left + 0.5), Slots->cpus / MIN_SHARE), 1);
}

/* Set what a process does, and move it to or from the list.  Lock held. */
static void
change_state(int procno, LongState state, TimestampTz since)
{
	SlotEntry  *entry = entry_of(procno);

	if (entry->long_state == state)
		return;
	if (entry->long_state == LONG_PAUSED)
		slots_list_remove(&Slots->long_paused, procno);
	else if (entry->long_state == LONG_RUNNING)
		Slots->long_working = Max(Slots->long_working - 1, 0);
	if (state == LONG_PAUSED)
		slots_list_append(&Slots->long_paused, procno);
	else if (state == LONG_RUNNING)
		Slots->long_working++;
	entry->long_state = state;
	if (state != LONG_NOT)
		pg_atomic_write_u64(&entry->since, since);
}

/* Lock held. */
static void
begin_turn(SlotEntry *entry, uint64 now)
{
	entry->turn_began = now;
	entry->turn_used = 0;
}

/* Let a process that pauses go on.  Lock held. */
static void
resume(int procno, LockedSection *section)
{
	change_state(procno, LONG_RUNNING, section->timestamp);
	begin_turn(entry_of(procno), section->now);
	entry_of(procno)->ticked = section->now;
	slots_wake_later(section, procno);
}

/* Resume those that may go on, at most MAX_RESUMED.  Lock held. */
static void
resume_next(LockedSection *section)
{
	for (int i = 0; i < MAX_RESUMED && Slots->long_paused.head != INVALID_PROC_NUMBER &&
		 Slots->long_working < may_work(section->now); i++)
		resume(Slots->long_paused.head, section);
}

/*
 * A sample has found these short statements and processes of long ones at work
 * on the CPUs.  others_need: VACUUM or replay waits for what only long
 * statements may hold.  Resume those that may go on.
 */
void
slots_share_cpus(int short_working, int long_working, bool others_need, int cpus)
{
	LockedSection section;
	int64		passed;

	slots_lock(&section);
	/* Those that wait for a slot want a CPU as well. */
	short_working += queue_at(DEFAULT_POOL)->waiters.length;
	passed = Min(Max((int64) (section.now - Slots->long_sampled), 0), AVERAGE_OVER);
	Slots->short_working += (short_working - Slots->short_working) * passed / AVERAGE_OVER;
	Slots->long_sampled = section.now;
	Slots->long_working = long_working;
	Slots->others_need_long = others_need;
	Slots->cpus = cpus;
	resume_next(&section);
	slots_unlock(&section);
}

/* Can the statement of this holder be long?  Lock held, or a hint. */
bool
slots_may_be_long(int procno)
{
	SlotEntry  *entry = entry_of(procno);

	/*
	 * The leader may be a background worker, which has none.  Without a limit
	 * there is nothing to give up.
	 */
	return state_of(entry) != SLOT_NONE && (int) pg_atomic_read_u32(&Slots->long_after) >= 0 &&
		slots_are_limited() && !Slots->observing && !entry->keeps_slot &&
		entry->pool == DEFAULT_POOL && !queue_has_limit(DEFAULT_POOL);
}

/* Have this backend keep its slot, whatever its parallel workers use, or not. */
void
slots_keep_slot(bool keep)
{
	MySlotEntry->keeps_slot = keep;
}

/* The ticks of CPU time that the statement of this holder has used */
pg_atomic_uint32 *
slots_ticks_of(int procno)
{
	return &entry_of(procno)->ticks;
}

/*
 * The statement of this holder is long: release its slot.  Returns false if it
 * has none.  Lock held.
 */
static bool
demote(int procno, LockedSection *section)
{
	SlotEntry  *entry = entry_of(procno);
	int64		held = section->timestamp - (TimestampTz) pg_atomic_read_u64(&entry->since);
	uint32		running = pg_atomic_read_u32(&entry->state);
	Hold		had = hold_in(running);

	if (state_in(running) != SLOT_RUNNING || !had.counted ||
		!pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LONG))
		return false;
	entry->reserved = false;
	pool_of(entry)->totals[TOTAL_DEMOTIONS]++;

	/*
	 * It was no short statement: what it added to their average goes; more
	 * than that, for a second, if its transaction has waited.
	 */
	held = Min(Max(held, 0), AVERAGE_OVER);
	Slots->short_working = Max(Slots->short_working - (double) held / AVERAGE_OVER, 0);
	(void) count_place_out(had.place);
	slots_hand_off(entry, &had, section);
	pg_atomic_write_u64(&entry->since, section->timestamp);
	return true;
}

/* A turn is over: the others rest by what it used.  Lock held. */
static void
note_turn(const SlotEntry *entry)
{
	if (entry->turn_began < Slots->long_turn_began)
		return;
	Slots->long_turn_began = entry->turn_began;
	Slots->long_turn_used = entry->turn_used;
}

/*
 * This process has used that much more CPU time (us) for the statement of a
 * holder, its own or its leader's, that is long.  Returns false if it must
 * pause: when its turn is over, or does not begin as too many work.
 */
bool
slots_tick_long(int procno, int holder, int64 used)
{
	SlotEntry  *entry = entry_of(procno);
	bool		must_pause = false;
	LockedSection section;

	slots_lock(&section);
	if (slots_may_be_long(holder) &&
		(state_of(entry_of(holder)) == SLOT_LONG || demote(holder, &section)))
	{
		bool		begins = entry->long_state == LONG_NOT;
		bool		is_over;

		if (begins)
			begin_turn(entry, section.now);
		entry->ticked = section.now;
		entry->turn_used += used;
		is_over = entry->turn_used >= TURN ||
			(int64) (section.now - entry->turn_began) >= LONGEST_TURN;
		if (is_over)
			note_turn(entry);
		change_state(procno, LONG_RUNNING, section.timestamp);
		/* A sample may not have counted this one. */
		must_pause = !Slots->others_need_long && (begins || is_over) &&
			(Max(Slots->long_working, 1) > may_work(section.now) ||
			 (is_over && Slots->long_paused.head != INVALID_PROC_NUMBER));
		if (must_pause)
		{
			change_state(procno, LONG_PAUSED, section.timestamp);
			resume_next(&section);
		}
		else if (is_over)
			begin_turn(entry, section.now);
	}
	slots_unlock(&section);
	return !must_pause;
}

/* Which process has paused for the longest time, if any?  A hint, no lock. */
int
slots_first_paused(void)
{
	return *(volatile int *) &Slots->long_paused.head;
}

/* Does this process pause?  A hint, no lock. */
bool
slots_is_paused(int procno)
{
	return *(volatile uint8 *) &entry_of(procno)->long_state == LONG_PAUSED;
}

/*
 * Does this process work for a long statement, if it is seen to work?  One
 * that was just resumed and may not be awake yet does.  A hint, no lock.
 */
bool
slots_long_works(int procno, bool is_seen_to_work, uint64 now)
{
	const SlotEntry *entry = entry_of(procno);

	return *(const volatile uint8 *) &entry->long_state == LONG_RUNNING &&
		(is_seen_to_work ? (int64) (now - entry->ticked) < TICKED_WITHIN :
		 (int64) (now - entry->turn_began) < AWAKE_AFTER);
}

/* Resume a process out of turn, if it pauses. */
void
slots_long_resume(int procno)
{
	LockedSection section;

	slots_lock(&section);
	if (entry_of(procno)->long_state == LONG_PAUSED)
		resume(procno, &section);
	slots_unlock(&section);
}

/* This process works for no long statement any more.  Lock held. */
static void
end_turn(int procno, LockedSection *section)
{
	if (entry_of(procno)->long_state == LONG_RUNNING)
		note_turn(entry_of(procno));
	change_state(procno, LONG_NOT, section->timestamp);
	resume_next(section);
}

/*
 * This process, which has no slot, works for no long statement any more: a
 * parallel worker that exits, or a backend that has ended all that it held.
 */
void
slots_forget_long(int procno)
{
	LockedSection section;

	slots_lock(&section);
	end_turn(procno, &section);
	slots_unlock(&section);
}

/*
 * This backend's statement is not long any more.  works: the backend goes on
 * working, with a slot, above the limit if need be; else it lends the slot
 * that it has on paper.  cpu: CPU time (us) that it has used.
 */
void
slots_end_long(bool works, uint64 cpu)
{
	LockedSection section;

	Assert(state_of(entry_of(my_slot_procno)) == SLOT_LONG);
	slots_lock(&section);
	end_turn(my_slot_procno, &section);
	pg_atomic_write_u64(&MySlotEntry->since, section.timestamp);
	MySlotEntry->quiet_since = section.now;
	MySlotEntry->cpu_seen = cpu;
	MySlotEntry->admission_seen = MySlotEntry->admission;
	if (works || !slots_are_limited() || slots_lend_after() < 0)
	{
		Hold		hold = count_in(MySlotEntry->pool);

		pg_atomic_write_u32(&MySlotEntry->state, state_with(SLOT_RUNNING, &hold));
	}
	else
	{
		slots_note_lender(pool_of(MySlotEntry));
		pg_atomic_write_u32(&MySlotEntry->state, SLOT_LENT);
	}
	slots_unlock(&section);
}
