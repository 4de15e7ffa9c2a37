/*-------------------------------------------------------------------------
 *
 * slots_long.c
 *		Long statements: they give their slots up, and run in turns beside them.
 *
 * A statement that has used much CPU time (long_statements.c tells) is long.  It gives
 * its slot to the next in the queue and goes on without one.  While short statements
 * work, only so many long ones go on at a time as these leave CPUs, or LEAST_SHARE of
 * the CPUs; the others pause.  Each goes on for TURN, and then the one that has paused for
 * longest.  While no short statement works, all go on.
 *
 * Only statements of the pool "default" without a limit of its own are told apart:
 * whoever makes pools knows better.
 *
 * A long statement that goes on is seen at its ticks only, that is, when it has used
 * some CPU time.  One that has not been seen to end its turn for LEASE waits for
 * something itself; then one more goes on.  So none pauses without end.
 *
 * Locking: see slots_shared.h.  Whoever ticks for a statement, its backend or a parallel
 * worker of it, changes its state under the mutex.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "slots.h"
#include "slots_shared.h"

/* For how long one goes on while others pause; and if nothing is seen of it: us */
#define TURN			INT64CONST(200000)
#define LEASE			INT64CONST(1000000)

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

/* So many short statements work now, on so many CPUs.  Mutex held. */
static void
note_load(int working, int cpus, TimestampTz now)
{
	int64		passed = Max(now - Slots->long_looked, 0);
	double		weight = (double) Min(passed, AVERAGE_OVER) / AVERAGE_OVER;

	Slots->short_working += (working - Slots->short_working) * weight;
	Slots->long_looked = now;
	Slots->cpus = cpus;
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

/* The same for the view, where 0 means all, also if there is none.  Mutex held. */
int
slots_long_share(void)
{
	return share() < Slots->nentries ? share() : 0;
}

/* Let that one go on.  Mutex held. */
static void
let_go_on(int procno, TimestampTz now, WakeList *wakes)
{
	SlotEntry  *entry = entry_of(procno);

	slots_list_remove(&Slots->long_paused, procno);
	entry->long_state = LONG_GOES_ON;
	pg_atomic_write_u64(&entry->since, now);
	Slots->long_going_on++;
	Slots->long_let_go_on = now;
	if (wakes->n < (int) lengthof(wakes->procno))
		wake_later(wakes, procno);	/* others see it when they look next */
}

/* Let as many go on as may.  Mutex held. */
static void
let_next_go_on(TimestampTz now, WakeList *wakes)
{
	while (Slots->long_paused.head != NOBODY &&
		   (Slots->long_going_on < share() ||
			now - Slots->long_let_go_on >= LEASE))
		let_go_on(Slots->long_paused.head, now, wakes);
}

/* Are long statements of that pool told apart?  Mutex held. */
static bool
applies_to(const SlotEntry *entry)
{
	return (int) pg_atomic_read_u32(&Slots->long_after) >= 0 &&
		Slots->limit != 0 && !Slots->observing && entry->pool == 0 &&
		!pool_has_limit(pool_of(entry));
}

/* That holder is long from now on, and its slot goes to others.  Mutex held. */
static bool
make_long(SlotEntry *entry, TimestampTz now, WakeList *wakes)
{
	uint32		running = SLOT_RUNNING;

	if (!pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LONG))
		return false;
	entry->long_state = LONG_GOES_ON;
	pg_atomic_write_u64(&entry->since, now);
	Slots->long_going_on++;
	pool_of(entry)->totals[TOTAL_DEMOTIONS]++;
	(void) slots_count_out_of_pool(entry);
	slots_note_passed_over(pool_of(entry)->definition.priority, now);
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
	WakeList	next = {0};
	TimestampTz now = GetCurrentTimestamp();
	bool		goes_on = true;

	SpinLockAcquire(&Slots->mutex);
	note_load(working, cpus, now);
	if (applies_to(entry) &&
		(pg_atomic_read_u32(&entry->state) == SLOT_LONG || make_long(entry, now, &wakes)))
	{
		bool		turn_is_over = now - (TimestampTz) pg_atomic_read_u64(&entry->since) >= TURN;

		if (entry->long_state == LONG_GOES_ON &&
			(Slots->long_going_on > share() ||
			 (turn_is_over && Slots->long_paused.head != NOBODY)))
		{
			entry->long_state = LONG_PAUSES;
			pg_atomic_write_u64(&entry->since, now);
			Slots->long_going_on--;
			if (Slots->long_paused.head == NOBODY)
				Slots->long_let_go_on = now;
			slots_list_append(&Slots->long_paused, procno);
			let_next_go_on(now, &next);
		}
		goes_on = entry->long_state == LONG_GOES_ON;
	}
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	slots_wake_all(&next);
	return goes_on;
}

/*
 * The same for one that pauses, asked again and again.  Whoever asks lets others go on,
 * too.
 */
bool
slots_long_may_go_on(int procno, int working, int cpus)
{
	SlotEntry  *entry = entry_of(procno);
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();
	bool		goes_on;

	SpinLockAcquire(&Slots->mutex);
	note_load(working, cpus, now);
	let_next_go_on(now, &wakes);
	if (entry->long_state == LONG_PAUSES && !applies_to(entry))
		let_go_on(procno, now, &wakes);
	goes_on = entry->long_state != LONG_PAUSES;
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	return goes_on;
}

/* Is that the one that has paused for longest?  A hint, no lock. */
bool
slots_long_is_first(int procno)
{
	return *(volatile int *) &Slots->long_paused.head == procno;
}

/* That one goes on, whether or not it is its turn. */
void
slots_long_goes_on(int procno)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);
	if (entry_of(procno)->long_state == LONG_PAUSES)
		let_go_on(procno, now, &wakes);
	SpinLockRelease(&Slots->mutex);
}

/* This backend's statement is not long any more.  Mutex held. */
static void
forget(TimestampTz now, WakeList *wakes)
{
	LongState	state = MySlotEntry->long_state;

	MySlotEntry->long_state = LONG_NOT;
	if (state == LONG_PAUSES)
	{
		slots_list_remove(&Slots->long_paused, my_slot_procno);
		return;
	}
	Assert(state == LONG_GOES_ON);
	Slots->long_going_on--;
	if (Slots->long_paused.head != NOBODY)
		let_go_on(Slots->long_paused.head, now, wakes);
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
 * This backend goes on with another statement of its transaction: it needs its slot
 * back, above the limit if need be.
 */
void
slots_end_long(void)
{
	WakeList	wakes = {0};
	WakeList	next = {0};
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&Slots->mutex);
	slots_count_in(MySlotEntry);
	pg_atomic_write_u64(&MySlotEntry->since, now);
	pg_atomic_write_u32(&MySlotEntry->state, SLOT_RUNNING);
	forget(now, &next);
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	slots_wake_all(&next);
}
