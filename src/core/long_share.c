/*-------------------------------------------------------------------------
 *
 * long_share.c
 *		Long statements give their slots up, and run in turns beside the others.
 *
 * A statement that has used much CPU time (src/long_statements.c measures it)
 * is long.  Its slot passes to the next in the queue, and it runs on without
 * one.  While short statements work, only as many long ones run at a time as
 * there are CPUs left, and a LEAST_SHARE of the CPUs in any case; the others
 * pause.  Each runs for TURN, then the one that has paused for the longest
 * time does; if their share is less than a CPU, after a rest.  While no short
 * statement works, all run.
 *
 * If a limit is set, at most as many statements are long as it has slots;
 * others keep theirs.  Only statements of the pool "default" can be long, and
 * only if it has no limit of its own: an administrator who defines pools knows
 * better.
 *
 * A running long statement is seen only at its ticks, that is, when it has
 * used some CPU time.  One that has not ticked for LEASE waits for something
 * else and does not count until its next tick.  So none pauses without end.
 *
 * The statement that has paused for the longest time looks at the others, and
 * resumes those that may run.
 *
 * Locking: see shared.h.  The process that ticks for a statement, its backend
 * or a parallel worker of it, changes its state under the lock.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/counting.h"
#include "core/entries.h"
#include "core/long_share.h"
#include "core/shared.h"
#include "core/wait_queue.h"

/* How long a statement runs before a paused one may take its turn, us */
#define TURN			INT64CONST(200000)

/* How long a running statement counts after its last tick, us */
#define LEASE			INT64CONST(3000000)

/*
 * Long statements have one in LEAST_SHARE of the CPUs in any case: if that is
 * less than a CPU, one runs for a part of the time.
 */
#define LEAST_SHARE		4

/* Over which time the number of short statements at work is averaged, us */
#define AVERAGE_OVER	INT64CONST(1000000)

/* Fewer than that at work are none. */
#define NONE_AT_WORK	0.5

/* How many are woken by one section, at most */
#define MOST_WOKEN		2

/*
 * Set how much CPU time makes a statement long: ms, -1 = none.  With -1,
 * paused statements resume at their next look.
 */
void
slots_set_long_after(int long_after)
{
	pg_atomic_write_u32(&Slots->long_after, (uint32) long_after);
}

/* Have interval us passed since then, or was the clock set back? */
static inline bool
has_passed(TimestampTz then, int64 interval, TimestampTz now)
{
	return now - then >= interval || now < then;
}

/* How many long statements may run at a time?  Lock held. */
static int
long_share(void)
{
	int			left = Slots->cpus - (int) (Slots->short_working + 0.5);

	if (Slots->short_working < NONE_AT_WORK)
		return Slots->nentries;
	return Max(Max(left, Slots->cpus / LEAST_SHARE), 1);
}

/*
 * How long (us) no long statement runs after each turn, so that together they
 * have no more than their share of less than a CPU.  Lock held.
 */
static int64
rest_after_turn(void)
{
	double		share = Max(Slots->cpus - Slots->short_working, (double) Slots->cpus / LEAST_SHARE);

	if (Slots->short_working < NONE_AT_WORK || share >= 1)
		return 0;
	return (int64) (TURN * (1 / share - 1));
}

/* How many long statements may run now.  Lock held. */
static int
may_run(TimestampTz now)
{
	return has_passed(Slots->long_turn_ended, rest_after_turn(), now) ? long_share() : 0;
}

/* Set a statement's long_state and move it between the lists.  Lock held. */
static void
change_state(int procno, LongState state, TimestampTz now)
{
	SlotEntry  *entry = entry_of(procno);

	if (entry->long_state == LONG_RUNNING)
		slots_list_remove(&Slots->long_running, procno);
	else if (entry->long_state == LONG_PAUSED)
		slots_list_remove(&Slots->long_paused, procno);

	entry->long_state = state;
	if (state == LONG_RUNNING)
		slots_list_append(&Slots->long_running, procno);
	else if (state == LONG_PAUSED)
		slots_list_append(&Slots->long_paused, procno);
	if (state != LONG_NOT)
	{
		pg_atomic_write_u64(&entry->since, now);
		entry->quiet_since = now;	/* it has just been seen */
	}
}

/*
 * Record that working short statements run on cpus CPUs.  Then resume paused
 * statements, up to the share of long ones, at most MOST_WOKEN.  Lock held.
 */
static void
look(int working, int cpus, LockedSection *section)
{
	int64		passed = Max(section->now - Slots->long_looked, 0);
	double		weight = (double) Min(passed, AVERAGE_OVER) / AVERAGE_OVER;
	int			first;
	int			woken = 0;

	/* Those that wait for a slot want a CPU as well. */
	working += queue_at(DEFAULT_POOL)->waiters.length;
	Slots->short_working += (working - Slots->short_working) * weight;
	Slots->long_looked = section->now;
	Slots->cpus = cpus;

	first = Slots->long_running.head;
	if (first != INVALID_PROC_NUMBER &&
		has_passed(entry_of(first)->quiet_since, LEASE, section->now))
		change_state(first, LONG_UNCOUNTED, section->now);

	while ((first = Slots->long_paused.head) != INVALID_PROC_NUMBER &&
		   Slots->long_running.length < may_run(section->now) && woken < MOST_WOKEN)
	{
		change_state(first, LONG_RUNNING, section->now);
		slots_wake_later(section, first);
		woken++;
	}
	/* It is to look from now on. */
	if (woken > 0 && first != INVALID_PROC_NUMBER)
		slots_wake_later(section, first);
}

/*
 * Can this backend's statement be long?  Lock held, or a hint.
 */
static bool
may_be_long(const SlotEntry *entry)
{
	return (int) pg_atomic_read_u32(&Slots->long_after) >= 0 &&
		Slots->max_active != 0 && !Slots->observing && entry->pool == DEFAULT_POOL &&
		!queue_has_limit(DEFAULT_POOL);
}

/*
 * Demote this holder: its statement is long, and its slot is released.
 * Returns false if that is not possible.  Lock held.
 */
static bool
demote(int procno, LockedSection *section)
{
	SlotEntry  *entry = entry_of(procno);
	TimestampTz held_since = pg_atomic_read_u64(&entry->since);
	uint32		running = pg_atomic_read_u32(&entry->state);

	if (state_in(running) != SLOT_RUNNING ||
		(Slots->max_active > 0 && Slots->nlong >= Slots->max_active) ||
		!pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LONG))
		return false;
	Slots->nlong++;
	change_state(procno, LONG_RUNNING, section->now);
	pool_of(entry)->totals[TOTAL_DEMOTIONS]++;
	(void) count_place_out(place_in(running));
	slots_note_passed_over(pool_of(entry)->definition.priority, held_since);
	slots_hand_off(place_in(running), section);
	return true;
}

/*
 * The holder's statement has used another tick of CPU time beyond long_after.
 * working, cpus: as for look().  Returns false if the statement must pause.
 */
bool
slots_tick_long(int procno, int working, int cpus)
{
	SlotEntry  *entry = entry_of(procno);
	LockedSection section;
	bool		goes_on = true;

	slots_lock(&section);
	if (may_be_long(entry) &&
		(slots_state(procno) == SLOT_LONG || demote(procno, &section)))
	{
		if (entry->long_state == LONG_UNCOUNTED)
			change_state(procno, LONG_RUNNING, section.now);
		if (entry->long_state == LONG_RUNNING)
		{
			/* To the end of the list: it was seen last. */
			slots_list_remove(&Slots->long_running, procno);
			slots_list_append(&Slots->long_running, procno);
			entry->quiet_since = section.now;
			if ((Slots->long_paused.head != INVALID_PROC_NUMBER || rest_after_turn() > 0) &&
				has_passed(pg_atomic_read_u64(&entry->since), TURN, section.now))
			{
				change_state(procno, LONG_PAUSED, section.now);
				Slots->long_turn_ended = section.now;
			}
			else if (Slots->long_running.length > may_run(section.now))
				change_state(procno, LONG_PAUSED, section.now);
		}
		look(working, cpus, &section);
		goes_on = entry->long_state != LONG_PAUSED;
	}
	slots_unlock(&section);
	return goes_on;
}

/*
 * A paused statement looks, and resumes those that may run, maybe itself.
 * working, cpus: as for look().
 */
void
slots_look_at_long(int working, int cpus)
{
	LockedSection section;

	slots_lock(&section);
	look(working, cpus, &section);
	slots_unlock(&section);
}

/* Has this backend paused for the longest time?  A hint, no lock. */
bool
slots_long_is_first(int procno)
{
	return *(volatile int *) &Slots->long_paused.head == procno;
}

/*
 * Must this statement still pause?  If no statement can be long any more,
 * resume it.
 */
bool
slots_long_pauses(int procno)
{
	if (*(volatile uint8 *) &entry_of(procno)->long_state != LONG_PAUSED)
		return false;
	if (may_be_long(entry_of(procno)))
		return true;
	slots_long_resume(procno);
	return false;
}

/* Resume a paused statement out of turn. */
void
slots_long_resume(int procno)
{
	LockedSection section;

	slots_lock(&section);
	if (entry_of(procno)->long_state == LONG_PAUSED)
		change_state(procno, LONG_RUNNING, section.now);
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
 * If this backend's statement is long, end that and reacquire its slot, above
 * the limit if need be.
 */
void
slots_end_long(void)
{
	LockedSection section;

	int			place;

	if (slots_state(my_slot_procno) != SLOT_LONG)
		return;
	slots_lock(&section);
	place = count_in(MySlotEntry->pool);
	forget(&section);
	pg_atomic_write_u64(&MySlotEntry->since, section.now);
	MySlotEntry->quiet_since = section.now;
	pg_atomic_write_u32(&MySlotEntry->state, state_with_place(SLOT_RUNNING, place));
	slots_unlock(&section);
}
