/*-------------------------------------------------------------------------
 *
 * long_share.c
 *		Long statements give their slots up, and run in turns beside the others.
 *
 * A statement that has used much CPU time (src/long_statements.c measures it)
 * is long until it ends.  Its slot passes to the next in the queue, and it
 * runs on without one.  While short statements work, only as many processes of
 * long ones work at a time as there are CPUs left, and a MIN_SHARE of the
 * CPUs in any case; the others pause.  Each works until it has used TURN of
 * CPU time, then the one that has paused for the longest time does; if their
 * share is less than a CPU and they have had that, after a rest.  While no
 * short statement works, all do.
 *
 * The process is what has turns: the backend of a statement, and each of its
 * parallel workers.  A sample (src/sampler.c) counts those at work, as it
 * counts short ones: one that waits for its client or a lock takes no share.
 * It then resumes those that may go on.  The one that has paused for the
 * longest time sees to it that samples are taken.
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

/* CPU time of a process before one that pauses may take its turn, us */
#define TURN			INT64CONST(200000)

/* The same in time, us: for one that waits for disks most of the time */
#define LONGEST_TURN	INT64CONST(1000000)

/*
 * How long after its last tick a process at work counts, us: it may sort for
 * minutes without coming to where it would pause, but others must have turns
 */
#define TICKED_WITHIN	INT64CONST(3000000)

/* How long after it was resumed a process may not be awake yet, us */
#define AWAKE_AFTER		INT64CONST(50000)

/*
 * Long statements have one in MIN_SHARE of the CPUs in any case: if that is
 * less than a CPU, one works for a part of the time.
 */
#define MIN_SHARE		4

/* Over which time the number of short statements at work is averaged, us */
#define AVERAGE_OVER	INT64CONST(1000000)

/* Fewer than that at work are none. */
#define NONE_AT_WORK	0.5

/* How many one section resumes, at most */
#define MAX_RESUMED		2

/* How many processes of long statements may work at a time?  Lock held. */
static int
long_share(void)
{
	int			left = Slots->cpus - (int) (Slots->short_working + 0.5);

	if (Slots->others_need_long || Slots->short_working < NONE_AT_WORK)
		return Slots->nentries;
	return Max(Max(left, Slots->cpus / MIN_SHARE), 1);
}

/*
 * How many may work now.  If their share is less than a CPU, none does until
 * the last turn that is over has taken no more than that: where short ones
 * leave it so little of a CPU that it takes longer, none rests.  now: by
 * monotonic_us().  Lock held.
 */
static int
may_work(uint64 now)
{
	double		share = Max(Slots->cpus - Slots->short_working, (double) Slots->cpus / MIN_SHARE);

	if (!Slots->others_need_long && Slots->short_working >= NONE_AT_WORK && share < 1 &&
		(int64) (now - Slots->long_turn_began) < Slots->long_turn_used / share)
		return 0;
	return long_share();
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
resume(int procno, uint64 now, LockedSection *section)
{
	change_state(procno, LONG_RUNNING, section->timestamp);
	begin_turn(entry_of(procno), now);
	entry_of(procno)->ticked = now;
	slots_wake_later(section, procno);
}

/* That process was the first that paused: the next sees to the samples. */
static void
wake_first(int was_first, int procno, LockedSection *section)
{
	if (was_first == procno && Slots->long_paused.head != INVALID_PROC_NUMBER)
		slots_wake_later(section, Slots->long_paused.head);
}

/*
 * Resume those that may go on, at most MAX_RESUMED.  now: by monotonic_us().
 * Lock held.
 */
static void
resume_next(uint64 now, LockedSection *section)
{
	int			first;
	int			resumed = 0;

	while ((first = Slots->long_paused.head) != INVALID_PROC_NUMBER &&
		   Slots->long_working < may_work(now) && resumed < MAX_RESUMED)
	{
		resume(first, now, section);
		resumed++;
	}
	/* It sees to the samples from now on. */
	if (resumed > 0 && first != INVALID_PROC_NUMBER)
		slots_wake_later(section, first);
}

/*
 * A sample has found so many short statements and processes of long ones at
 * work on cpus CPUs.  others_need: VACUUM or replay waits for what only long
 * statements may hold.  Resume those that may go on.
 */
void
slots_share_cpus(int short_working, int long_working, bool others_need, int cpus)
{
	LockedSection section;
	uint64		now = monotonic_us();
	double		weight;

	slots_lock(&section);
	/* Those that wait for a slot want a CPU as well. */
	short_working += queue_at(DEFAULT_POOL)->waiters.length;
	weight = (double) Min(Max((int64) (now - Slots->long_sampled), 0), AVERAGE_OVER) / AVERAGE_OVER;
	Slots->short_working += (short_working - Slots->short_working) * weight;
	Slots->long_sampled = now;
	Slots->long_working = long_working;
	Slots->others_need_long = others_need;
	Slots->cpus = cpus;
	resume_next(now, &section);
	slots_unlock(&section);
}

/*
 * Can the statement of this holder be long?  Lock held, or a hint.
 */
bool
slots_may_be_long(int procno)
{
	SlotEntry  *entry = entry_of(procno);

	return (int) pg_atomic_read_u32(&Slots->long_after) >= 0 &&
		Slots->max_active != 0 && !Slots->observing && entry->pool == DEFAULT_POOL &&
		!queue_has_limit(DEFAULT_POOL);
}

/*
 * Have this backend keep its slot whatever its parallel workers use, or not.
 */
void
slots_keep_slot(bool keep)
{
	MySlotEntry->keeps_slot = keep;
}

/*
 * Set how many ticks of CPU time the statement of this backend has used, which
 * begins or goes on.
 */
void
slots_set_ticks(uint32 ticks)
{
	pg_atomic_write_u32(&MySlotEntry->ticks, ticks);
}

/* How many it has used until now, with its parallel workers */
uint32
slots_ticks(void)
{
	return pg_atomic_read_u32(&MySlotEntry->ticks);
}

/*
 * Count one more for a holder, by itself or by a parallel worker of it; returns
 * the sum.  May be called by a signal handler.
 */
uint32
slots_count_tick(int holder)
{
	return pg_atomic_add_fetch_u32(&entry_of(holder)->ticks, 1);
}

/*
 * Demote this holder: its statement is long, and its slot is released.
 * Returns false if that is not possible.  Lock held.
 */
static bool
demote(int procno, LockedSection *section)
{
	SlotEntry  *entry = entry_of(procno);
	uint64		held_since = began(entry, section);
	uint32		running = pg_atomic_read_u32(&entry->state);

	if (state_in(running) != SLOT_RUNNING ||
		!pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LONG))
		return false;
	entry->reserved = false;
	pool_of(entry)->totals[TOTAL_DEMOTIONS]++;
	pg_atomic_write_u64(&entry->since, section->timestamp);
	(void) count_place_out(place_in(running));
	slots_note_passed_over(pool_of(entry)->definition.priority, held_since);
	slots_hand_off(place_in(running), section);
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
 * This process has used so much more CPU time (us) for the statement of a
 * holder, its own or its leader's, that is long.  in_the_way: others want what
 * it holds.  Returns false if it must pause: when its turn is over, or does
 * not begin as too many work.
 */
bool
slots_tick_long(int procno, int holder, int64 used, bool in_the_way)
{
	SlotEntry  *entry = entry_of(procno);
	uint64		now = monotonic_us();
	bool		must_pause = false;
	LockedSection section;

	slots_lock(&section);
	if (slots_may_be_long(holder) && !(procno != holder && entry_of(holder)->keeps_slot) &&
		(state_of(entry_of(holder)) == SLOT_LONG || demote(holder, &section)))
	{
		bool		begins = entry->long_state == LONG_NOT;
		bool		is_over;

		if (begins)
			begin_turn(entry, now);
		entry->ticked = now;
		entry->in_the_way = in_the_way;
		entry->turn_used += used;
		is_over = entry->turn_used >= TURN || (int64) (now - entry->turn_began) >= LONGEST_TURN;
		if (is_over && !in_the_way)
			note_turn(entry);
		change_state(procno, LONG_RUNNING, section.timestamp);
		/* A sample may not have counted this one. */
		must_pause = !in_the_way && !Slots->others_need_long && (begins || is_over) &&
			(Max(Slots->long_working, 1) > may_work(now) ||
			 (is_over && Slots->long_paused.head != INVALID_PROC_NUMBER));
		if (must_pause)
		{
			change_state(procno, LONG_PAUSED, section.timestamp);
			resume_next(now, &section);
		}
		else if (is_over)
			begin_turn(entry, now);
	}
	slots_unlock(&section);
	return !must_pause;
}

/* Has this process paused for the longest time?  A hint, no lock. */
bool
slots_long_is_first(int procno)
{
	return *(volatile int *) &Slots->long_paused.head == procno;
}

/* Does any process pause?  A hint, no lock. */
bool
slots_any_paused(void)
{
	return *(volatile int *) &Slots->long_paused.head != INVALID_PROC_NUMBER;
}

/* Does this process pause?  A hint, no lock. */
bool
slots_is_paused(int procno)
{
	return *(volatile uint8 *) &entry_of(procno)->long_state == LONG_PAUSED;
}

/*
 * Does this process count as one that works for a long statement, if it is
 * seen to work?  One that was just resumed and may not be awake yet does; one
 * that may not pause does not, lest the others never have a turn.  A hint, no
 * lock.
 */
bool
slots_long_works(int procno, bool is_seen_to_work, uint64 now)
{
	SlotEntry  *entry = entry_of(procno);

	return *(volatile uint8 *) &entry->long_state == LONG_RUNNING && !entry->in_the_way &&
		(is_seen_to_work ? (int64) (now - entry->ticked) < TICKED_WITHIN :
		 (int64) (now - entry->turn_began) < AWAKE_AFTER);
}

/* Resume a process out of turn, if it pauses. */
void
slots_long_resume(int procno)
{
	uint64		now = monotonic_us();
	int			was_first;
	LockedSection section;

	slots_lock(&section);
	was_first = Slots->long_paused.head;
	if (entry_of(procno)->long_state == LONG_PAUSED)
	{
		resume(procno, now, &section);
		wake_first(was_first, procno, &section);
	}
	slots_unlock(&section);
}

/* This process works for no long statement any more.  Lock held. */
static void
end_turn(int procno, LockedSection *section)
{
	int			was_first = Slots->long_paused.head;

	if (entry_of(procno)->long_state == LONG_RUNNING && !entry_of(procno)->in_the_way)
		note_turn(entry_of(procno));
	change_state(procno, LONG_NOT, section->timestamp);
	entry_of(procno)->in_the_way = false;
	wake_first(was_first, procno, section);
	resume_next(monotonic_us(), section);
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
		pg_atomic_write_u32(&MySlotEntry->state,
							state_with_place(SLOT_RUNNING, count_in(MySlotEntry->pool)));
	else
	{
		slots_note_lender(pool_of(MySlotEntry));
		pg_atomic_write_u32(&MySlotEntry->state, state_with_place(SLOT_LENT, NO_QUEUE));
	}
	slots_unlock(&section);
}
