/*-------------------------------------------------------------------------
 *
 * slots_long.c
 *		Long statements: they give their slots up, and run in turns beside them.
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
 * Locking: see slots_shared.h.  The process that ticks for a statement, its backend or a
 * parallel worker of it, changes its state under the mutex.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "slots.h"
#include "slots_shared.h"

/* For how long one goes on while others pause; and counts though it is not seen: us */
#define TURN			INT64CONST(200000)
#define LEASE			INT64CONST(3000000)

/* Which part of the CPUs they have in any case, one in so many */
#define LEAST_SHARE		5

/* Over which time the number of short statements at work is averaged, us */
#define AVERAGE_OVER	INT64CONST(1000000)

/* Fewer than that at work are none. */
#define NONE_AT_WORK	0.5

/*
 * Set how much CPU time makes a statement long: ms, -1 = none.  Those that pause go on in
 * time if it is none.
 */
void
slots_set_long_after(int long_after)
{
	pg_atomic_write_u32(&Slots->long_after, (uint32) long_after);
}

/* Have so many us passed since then, or was the clock set back?  */
static inline bool
has_passed(TimestampTz then, int64 interval, TimestampTz now)
{
	return now - then >= interval || now < then;
}

/* How many long statements may go on.  Mutex held. */
static int
share(void)
{
	int			left = Slots->cpus - (int) (Slots->short_working + 0.5);

	if (Slots->short_working < NONE_AT_WORK)
		return Slots->nentries;
	return Max(Max(left, Slots->cpus / LEAST_SHARE), 1);
}

/* The same for the view, where 0 means all.  Mutex held. */
int
slots_long_share(void)
{
	return share() < Slots->nentries ? share() : 0;
}

/* That long statement comes into that state, and out of the list of the old.  Mutex held. */
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
 * So many short statements work now, on so many CPUs: count, and let as many long ones go
 * on as may, but no more than can be woken at once.  Mutex held.
 */
static void
look(int working, int cpus, TimestampTz now, WakeList *wakes)
{
	int64		passed = Max(now - Slots->long_looked, 0);
	double		weight = (double) Min(passed, AVERAGE_OVER) / AVERAGE_OVER;
	int			first;

	Slots->short_working += (working - Slots->short_working) * weight;
	Slots->long_looked = now;
	Slots->cpus = cpus;

	first = Slots->long_going_on.head;
	if (first != NOBODY && has_passed(entry_of(first)->quiet_since, LEASE, now))
		change_state(first, LONG_UNSEEN, now);

	while ((first = Slots->long_paused.head) != NOBODY &&
		   Slots->long_going_on.length < share() &&
		   wakes->n < (int) lengthof(wakes->procno) - 1)
	{
		change_state(first, LONG_GOES_ON, now);
		wake_later(wakes, first);
	}
	/* It is to look from now on. */
	if (wakes->n > 0 && first != NOBODY)
		wake_later(wakes, first);
}

/* Are long statements told apart, and may that one be one of them?  Mutex held. */
static bool
may_be_long(const SlotEntry *entry)
{
	return (int) pg_atomic_read_u32(&Slots->long_after) >= 0 &&
		Slots->limit != 0 && !Slots->observing && entry->pool == DEFAULT_POOL &&
		!pool_has_limit(pool_of(entry));
}

/* That holder is long from now on, and its slot goes to others.  Mutex held. */
static bool
make_long(int procno, TimestampTz now, WakeList *wakes)
{
	SlotEntry  *entry = entry_of(procno);
	TimestampTz held_since = pg_atomic_read_u64(&entry->since);
	uint32		running = SLOT_RUNNING;

	if ((Slots->limit > 0 && Slots->nlong >= Slots->limit) ||
		!pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LONG))
		return false;
	Slots->nlong++;
	change_state(procno, LONG_GOES_ON, now);
	pool_of(entry)->totals[TOTAL_DEMOTIONS]++;
	(void) slots_count_out_of_pool(entry);
	slots_note_passed_over(pool_of(entry)->definition.priority, held_since);
	slots_pass_on(now, false, wakes);
	return true;
}

/*
 * The statement of that holder has used more CPU time, and is long: working short ones
 * were seen just now, on so many CPUs.  Returns whether it may go on, or has to pause.
 */
bool
slots_long_ticks(int procno, int working, int cpus)
{
	SlotEntry  *entry = entry_of(procno);
	WakeList	wakes = {0};
	WakeList	others = {0};
	TimestampTz now = GetCurrentTimestamp();
	bool		goes_on = true;

	SpinLockAcquire(&Slots->mutex);
	if (may_be_long(entry) &&
		(pg_atomic_read_u32(&entry->state) == SLOT_LONG || make_long(procno, now, &wakes)))
	{
		if (entry->long_state == LONG_UNSEEN)
			change_state(procno, LONG_GOES_ON, now);
		if (entry->long_state == LONG_GOES_ON)
		{
			/* To the end of the list: it was seen last. */
			slots_list_remove(&Slots->long_going_on, procno);
			slots_list_append(&Slots->long_going_on, procno);
			entry->quiet_since = now;
			if (Slots->long_going_on.length > share() ||
				(Slots->long_paused.head != NOBODY &&
				 has_passed(pg_atomic_read_u64(&entry->since), TURN, now)))
				change_state(procno, LONG_PAUSES, now);
		}
		look(working, cpus, now, &others);
		goes_on = entry->long_state != LONG_PAUSES;
	}
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	slots_wake_all(&others);
	return goes_on;
}

/*
 * To be asked by the first that pauses: look, and let others go on, maybe itself.
 */
void
slots_long_look(int working, int cpus)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);
	look(working, cpus, now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}

/* Is that the one that has paused for longest?  A hint, no lock. */
bool
slots_long_is_first(int procno)
{
	return *(volatile int *) &Slots->long_paused.head == procno;
}

/* Does that statement pause, if it is to?  It goes on if nothing is long any more. */
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
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);
	if (entry_of(procno)->long_state == LONG_PAUSES)
		change_state(procno, LONG_GOES_ON, now);
	SpinLockRelease(&Slots->mutex);
}

/* This backend's statement is not long any more.  Mutex held. */
static void
forget(TimestampTz now, WakeList *wakes)
{
	Assert(Slots->nlong > 0);
	Assert(MySlotEntry->long_state != LONG_NOT);
	Slots->nlong--;
	change_state(my_slot_procno, LONG_NOT, now);
	if (Slots->long_paused.head != NOBODY)
		wake_later(wakes, Slots->long_paused.head); /* to look */
}

/* This backend has ended its long statement, and what it held. */
void
slots_forget_long(void)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);
	forget(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}

/*
 * This backend's statement is no long one any more, if it was: it needs its slot back, above
 * the limit if need be.
 */
void
slots_end_long(void)
{
	WakeList	wakes = {0};
	WakeList	others = {0};
	TimestampTz now;

	if (MySlotEntry == NULL || pg_atomic_read_u32(&MySlotEntry->state) != SLOT_LONG)
		return;
	now = GetCurrentTimestamp();
	SpinLockAcquire(&Slots->mutex);
	slots_count_in(MySlotEntry);
	forget(now, &others);
	pg_atomic_write_u64(&MySlotEntry->since, now);
	MySlotEntry->quiet_since = now;
	pg_atomic_write_u32(&MySlotEntry->state, SLOT_RUNNING);
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	slots_wake_all(&others);
}
