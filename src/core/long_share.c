/*-------------------------------------------------------------------------
 *
 * long_share.c
 *		Long statements give their slots up, and run in turns beside the others.
 *
 * A statement that has used much CPU time (long_statements.c tells) is long.  It gives
 * its slot to the next in the queue and goes on without one.  While short statements
 * work, only as many long ones go on at a time as these leave CPUs, and one in any case;
 * the others pause.  Each goes on for TURN; then the one that has paused for longest
 * does.  While no short statement works, all go on.
 *
 * Of a limit that is set there are at most as many long statements as it has slots: others
 * keep theirs.  Only statements of the pool "default" without a limit of its own are told
 * apart: an administrator who makes pools knows better.
 *
 * A long statement that goes on is seen at its ticks only, that is, when it has used
 * some CPU time.  One that has not been seen for LEASE waits for something else: it does
 * not count until its next tick.  So none pauses without end.
 *
 * The one that has paused for longest looks how things stand, and lets others go on.
 *
 * Locking: see shared.h.  The process that ticks for a statement, its backend or a
 * parallel worker of it, changes its state under the lock.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/counting.h"
#include "core/long_share.h"
#include "core/shared.h"
#include "core/wait_queue.h"

/* For how long one goes on while others pause; and counts though it is not seen: us */
#define TURN			INT64CONST(200000)
#define LEASE			INT64CONST(3000000)

/* Long statements have one in LEAST_SHARE of the CPUs in any case. */
#define LEAST_SHARE		5

/* Over which time the number of short statements at work is averaged, us */
#define AVERAGE_OVER	INT64CONST(1000000)

/* Fewer than that at work are none. */
#define NONE_AT_WORK	0.5

/* How many are woken by one section, at most */
#define MOST_WOKEN		2

/*
 * Set how much CPU time makes a statement long: ms, -1 = none.  Those that pause go on in
 * time if it is none.
 */
void
slots_set_long_after(int long_after)
{
	pg_atomic_write_u32(&Slots->long_after, (uint32) long_after);
}

/* Has it been that long (us) since then, or was the clock set back? */
static inline bool
has_passed(TimestampTz then, int64 interval, TimestampTz now)
{
	return now - then >= interval || now < then;
}

/* How many long statements may go on.  Lock held. */
static int
long_share(void)
{
	int			left = Slots->cpus - (int) (Slots->short_working + 0.5);

	if (Slots->short_working < NONE_AT_WORK)
		return Slots->nentries;
	return Max(Max(left, Slots->cpus / LEAST_SHARE), 1);
}

/*
 * How many long statements may go on, 0 if all, and how many short ones work, on average.
 */
void
slots_get_long_share(int *share, double *short_working)
{
	LockedSection section;

	slots_lock(&section);
	*share = long_share() < Slots->nentries ? long_share() : 0;
	*short_working = Slots->short_working;
	slots_unlock(&section);
}

/* That long statement comes into that state, and out of the list of the old.  Lock held. */
static void
change_state(int procno, LongState state, TimestampTz now)
{
	SlotEntry  *entry = entry_of(procno);

	if (entry->long_state == LONG_GOES_ON)
		slots_list_remove(&Slots->long_going_on, procno);
	else if (entry->long_state == LONG_PAUSES)
		slots_list_remove(&Slots->long_paused, procno);

	entry->long_state = state;
	if (state == LONG_GOES_ON)
		slots_list_append(&Slots->long_going_on, procno);
	else if (state == LONG_PAUSES)
		slots_list_append(&Slots->long_paused, procno);
	if (state != LONG_NOT)
	{
		pg_atomic_write_u64(&entry->since, now);
		entry->quiet_since = now;	/* it has just been seen */
	}
}

/*
 * That many short statements work now, on that many CPUs: count, and let as many long
 * ones go on as may, but no more than can be woken at once.  Lock held.
 */
static void
look(int working, int cpus, LockedSection *section)
{
	int64		passed = Max(section->now - Slots->long_looked, 0);
	double		weight = (double) Min(passed, AVERAGE_OVER) / AVERAGE_OVER;
	int			first;
	int			woken = 0;

	Slots->short_working += (working - Slots->short_working) * weight;
	Slots->long_looked = section->now;
	Slots->cpus = cpus;

	first = Slots->long_going_on.head;
	if (first != INVALID_PROC_NUMBER &&
		has_passed(entry_of(first)->quiet_since, LEASE, section->now))
		change_state(first, LONG_UNSEEN, section->now);

	while ((first = Slots->long_paused.head) != INVALID_PROC_NUMBER &&
		   Slots->long_going_on.length < long_share() && woken < MOST_WOKEN)
	{
		change_state(first, LONG_GOES_ON, section->now);
		slots_wake_later(section, first);
		woken++;
	}
	/* It is to look from now on. */
	if (woken > 0 && first != INVALID_PROC_NUMBER)
		slots_wake_later(section, first);
}

/*
 * Are long statements told apart, and may that one be one of them?  Lock held, or a hint.
 */
static bool
may_be_long(const SlotEntry *entry)
{
	return (int) pg_atomic_read_u32(&Slots->long_after) >= 0 &&
		Slots->limit != 0 && !Slots->observing && entry->pool == DEFAULT_POOL &&
		!pool_has_limit(pool_of(entry));
}

/* That holder is long from now on, and its slot goes to others.  Lock held. */
static bool
make_long(int procno, LockedSection *section)
{
	SlotEntry  *entry = entry_of(procno);
	TimestampTz held_since = pg_atomic_read_u64(&entry->since);
	uint32		running = SLOT_RUNNING;

	if ((Slots->limit > 0 && Slots->nlong >= Slots->limit) ||
		!pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LONG))
		return false;
	Slots->nlong++;
	change_state(procno, LONG_GOES_ON, section->now);
	pool_of(entry)->totals[TOTAL_DEMOTIONS]++;
	(void) count_out_of_pool(entry);
	slots_note_passed_over(pool_of(entry)->definition.priority, held_since);
	slots_hand_over(section);
	return true;
}

/*
 * The statement of that holder has used more CPU time, and is long: that many short ones
 * were seen at work just now, on that many CPUs.  Returns whether it may go on, or has to
 * pause.
 */
bool
slots_tick_long(int procno, int working, int cpus)
{
	SlotEntry  *entry = entry_of(procno);
	LockedSection section;
	bool		goes_on = true;

	slots_lock(&section);
	if (may_be_long(entry) &&
		(pg_atomic_read_u32(&entry->state) == SLOT_LONG || make_long(procno, &section)))
	{
		if (entry->long_state == LONG_UNSEEN)
			change_state(procno, LONG_GOES_ON, section.now);
		if (entry->long_state == LONG_GOES_ON)
		{
			/* To the end of the list: it was seen last. */
			slots_list_remove(&Slots->long_going_on, procno);
			slots_list_append(&Slots->long_going_on, procno);
			entry->quiet_since = section.now;
			if (Slots->long_going_on.length > long_share() ||
				(Slots->long_paused.head != INVALID_PROC_NUMBER &&
				 has_passed(pg_atomic_read_u64(&entry->since), TURN, section.now)))
				change_state(procno, LONG_PAUSES, section.now);
		}
		look(working, cpus, &section);
		goes_on = entry->long_state != LONG_PAUSES;
	}
	slots_unlock(&section);
	return goes_on;
}

/*
 * To be called by the first that pauses: look, and let others go on, maybe itself.
 */
void
slots_look_at_long(int working, int cpus)
{
	LockedSection section;

	slots_lock(&section);
	look(working, cpus, &section);
	slots_unlock(&section);
}

/* Is that the one that has paused for longest?  A hint, no lock. */
bool
slots_long_is_first(int procno)
{
	return *(volatile int *) &Slots->long_paused.head == procno;
}

/* Is that statement to go on pausing?  Not if none is long any more. */
bool
slots_long_pauses(int procno)
{
	if (*(volatile uint8 *) &entry_of(procno)->long_state != LONG_PAUSES)
		return false;
	if (may_be_long(entry_of(procno)))
		return true;
	slots_long_goes_on(procno);
	return false;
}

/* That one goes on, whether or not it is its turn. */
void
slots_long_goes_on(int procno)
{
	LockedSection section;

	slots_lock(&section);
	if (entry_of(procno)->long_state == LONG_PAUSES)
		change_state(procno, LONG_GOES_ON, section.now);
	slots_unlock(&section);
}

/* This backend's statement is not long any more.  Lock held. */
static void
forget(LockedSection *section)
{
	Assert(Slots->nlong > 0);
	Assert(MySlotEntry->long_state != LONG_NOT);
	Slots->nlong--;
	change_state(my_slot_procno, LONG_NOT, section->now);
	if (Slots->long_paused.head != INVALID_PROC_NUMBER)
		slots_wake_later(section, Slots->long_paused.head); /* to look */
}

/* This backend has ended its long statement, and what it held. */
void
slots_forget_long(void)
{
	LockedSection section;

	slots_lock(&section);
	forget(&section);
	slots_unlock(&section);
}

/*
 * This backend's statement is not long any more, if it was: it needs its slot back, above
 * the limit if need be.
 */
void
slots_end_long(void)
{
	LockedSection section;

	if (MySlotEntry == NULL || pg_atomic_read_u32(&MySlotEntry->state) != SLOT_LONG)
		return;
	slots_lock(&section);
	count_in(MySlotEntry);
	forget(&section);
	pg_atomic_write_u64(&MySlotEntry->since, section.now);
	MySlotEntry->quiet_since = section.now;
	pg_atomic_write_u32(&MySlotEntry->state, SLOT_RUNNING);
	slots_unlock(&section);
}
