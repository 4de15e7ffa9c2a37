/*-------------------------------------------------------------------------
 *
 * limit_control.c
 *		How many of the contenders of a hot spot are at work at a time.
 *
 * A hot spot has no limit unless there is evidence that fewer of its
 * contenders at a time get more done.  Where many transactions want the same
 * rows, or the same lock inside the server, each is woken and put to sleep
 * again for nearly every transaction before it.  So:
 *
 *	 - If more than CONTENDED percent of the contenders at work wait for each
 *	   other, at nearly every sample for LIMIT_AFTER, the hot spot gets a
 *	   limit: as many as TARGET percent of them would wait with.  Once the last
 *	   step has taken effect, it goes down by a quarter while more than
 *	   TOO_MANY percent wait, and up while TOO_FEW percent or fewer do, as about
 *	   a third blocked gets the most done (Moenkeberg and Weikum, Thomasian).
 *	 - If all that have a place wait for each other and nothing is completed for
 *	   STANDSTILL, they wait in circles, and the deadlock detector is the clock.
 *	   Then the limit is halved, down to one, and not raised for a while.
 *	 - Once the limit is down, the rate of completed transactions is compared
 *	   with that before, again and again.  If it is lower by more than a tenth,
 *	   the contenders may mostly do something else: there is no limit any more,
 *	   and none is tried for a while, which is the longer the more often that
 *	   has happened, as is the one above.
 *	 - When no contender waits in the queue at nearly every sample for
 *	   OPEN_AFTER, or the limit has grown to the number of contenders, it ends.
 *
 * Nothing here knows of shared memory, locks, processes or clocks:
 * core/hot_spots.c calls it with a copy of what is shared, and test/simulator
 * compiles the same file and tries it on loads whose best limit is known.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots.h"

#define MS				INT64CONST(1000)
#define SECOND			(1000 * MS)

#define LONGEST_GAP		(100 * MS)	/* counts between two samples at most */
#define PAUSE			(1 * SECOND)	/* what was before says nothing */

/* Percentages of the contenders at work that wait for each other */
#define CONTENDED		50		/* above this, they need a limit */
#define TARGET			33		/* where its first value leads */
#define TOO_MANY		40		/* above this, it is lowered further */
#define TOO_FEW			30		/* up to this, it is raised */

/* A crowd takes the longer to dissolve the later there is a limit. */
#define LIMIT_AFTER		(1 * SECOND)	/* of contention, there is a limit */
#define LIMIT_CROWD_AFTER	(100 * MS)	/* the same if there is a crowd: */
#define CROWD			64		/* at least so many contenders, */
#define CROWDED			90		/* more than this percentage blocked */

#define CONTRARY_WEIGHT	2		/* of the time of a sample to the contrary */

/*
 * So few contenders do not hinder each other: there is no limit for them, and
 * none below MIN_PLACES, as the others work while a newly admitted one waits
 * for a CPU.  Where most waits are slow, that is nothing, and each of the few
 * that wait keeps others from what it has locked: MIN_SLOW_PLACES are better.
 */
#define MIN_CONTENDERS	4
#define MIN_PLACES		4
#define MIN_SLOW_PLACES	2

/*
 * A step is one place, plus one in PLACES_PER_STEP of the limit.  One down is
 * decided once ENOUGH_SEEN contenders at work have been seen since the last
 * step took effect, as the few of one sample say little; or after LONG_ENOUGH.
 * One up always takes that long: those let in last may have yet to be blocked.
 */
#define PLACES_PER_STEP	4
#define ENOUGH_SEEN		64
#define LONG_ENOUGH		(100 * MS)

#define OPEN_AFTER		(1 * SECOND)	/* nobody has waited for so long */
#define STANDSTILL		(300 * MS)	/* nothing has moved for so long */
#define RARE			(5 * SECOND)	/* if the limit was good for so long */

/*
 * Completed transactions are counted for JUDGE_AFTER to judge a limit; longer
 * if the higher one of both rates makes less than ENOUGH_DONE in that time.
 */
#define JUDGE_AFTER		(2 * SECOND)
#define ENOUGH_DONE		32
#define NO_LOSS			0.9		/* of the rate before, at least */
#define RATE_WEIGHT		3		/* a later count weighs one in this many */

/*
 * How long it is believed that fewer places are a loss, or that more would
 * stand still: MIN_BACKOFF, doubled every time
 */
#define MIN_BACKOFF		(2 * SECOND)
#define MAX_BACKOFF		(64 * SECOND)	/* a loss */
#define MAX_HALVED		(16 * SECOND)	/* a standstill */

/* Begin without a limit.  now: us. */
void
limit_control_init(LimitControl *control, bool hurries, int64 now)
{
	memset(control, 0, sizeof(*control));
	control->limit = LIMIT_OPEN;
	control->hurries = hurries;
	control->moved = control->last.now = now;
	control->open_for = control->halved_for = MIN_BACKOFF;
}

/* Add up the contenders seen from now on, for the next step. */
static void
start_seeing(LimitControl *control, int64 now)
{
	control->seen.now = now;
	control->seen.working = control->seen.blocked = control->seen.slow = 0;
}

/* Count completed transactions from this sample on. */
static void
start_counting(LimitControl *control, const LoadSample *sample)
{
	control->count_start = sample->now;
	control->count_completed = sample->completed;
}

/* Transactions completed per second since start_counting(), 0 if unknown. */
static double
rate_since_start(const LimitControl *control, const LoadSample *sample)
{
	int64		passed = sample->now - control->count_start;

	return passed <= 0 ? 0 :
		(double) (sample->completed - control->count_completed) * SECOND / passed;
}

/* Do more than this percentage of those at work wait for each other? */
static bool
blocked_above(const LoadSample *sample, int part)
{
	return (uint64) sample->blocked * 100 > (uint64) sample->working * part;
}

static void
open_up(LimitControl *control)
{
	control->limit = LIMIT_OPEN;
	control->contended_for = 0;
}

/*
 * There is no limit: is there reason for one?  Completed transactions are
 * counted as long as there is contention, to know the rate without a limit.
 */
static void
sample_while_open(LimitControl *control, const LoadSample *sample, int64 passed)
{
	bool		is_crowd = sample->working >= CROWD && blocked_above(sample, CROWDED);
	int64		limit_after = control->hurries && is_crowd ? LIMIT_CROWD_AFTER : LIMIT_AFTER;
	double		free;

	if (!blocked_above(sample, CONTENDED))
	{
		control->contended_for = Max(control->contended_for - CONTRARY_WEIGHT * passed, 0);
		return;
	}
	if (control->contended_for == 0)
	{
		start_counting(control, sample);
		start_seeing(control, sample->now);
	}
	control->seen.working += sample->working;
	control->seen.blocked += sample->blocked;
	control->contended_for = Min(control->contended_for + passed, LIMIT_AFTER);
	if (control->contended_for < limit_after || sample->now < control->open_until ||
		Min(sample->in_use, sample->working) <= MIN_CONTENDERS)
		return;

	/* TARGET percent of those seen would wait with that. */
	free = 1.0 - (double) control->seen.blocked / control->seen.working;
	control->limit = Max((uint32) (sample->in_use * free * 100 / (100 - TARGET)), MIN_PLACES);
	control->open_rate = rate_since_start(control, sample);
	control->limited_rate = 0;
	control->has_settled = false;
	control->moved = sample->now;
	control->quiet = 0;
	start_seeing(control, sample->now);
}

/*
 * Is the limit so low after a standstill that a contender may not be blocked
 * due to it?  now: us.
 */
bool
limit_control_is_held_down(const LimitControl *control, int64 now)
{
	return control->limit != LIMIT_OPEN &&
		(control->limit == 1 || now < control->halved_until);
}

/* One step down */
static void
lower(LimitControl *control, const LoadSample *sample)
{
	uint32		base = Min(control->limit, sample->in_use);
	uint32		step = 1 + base / PLACES_PER_STEP;
	bool		is_slow = control->seen.slow > control->seen.blocked / 2;
	uint32		lowest = Min(control->limit, is_slow ? MIN_SLOW_PLACES : MIN_PLACES);

	control->limit = Max(base - Min(base, step), lowest);
}

/*
 * All that have a place wait in circles: give out half of the places, unless
 * that is rare with so many.
 */
static void
end_standstill(LimitControl *control, const LoadSample *sample)
{
	bool		is_rare = sample->now - control->changed >= RARE;

	control->moved = control->changed = sample->now;
	start_seeing(control, sample->now);
	if (is_rare)
		return;
	if (sample->now - control->halved_until > control->halved_for)
		control->halved_for = MIN_BACKOFF;
	control->halved_until = sample->now + control->halved_for;
	control->halved_for = Min(2 * control->halved_for, MAX_HALVED);
	control->limit = Max(control->limit / 2, 1);
}

/* Once enough has been counted, judge the limit. */
static void
judge(LimitControl *control, const LoadSample *sample)
{
	int64		passed = sample->now - control->count_start;
	double		rate = rate_since_start(control, sample);

	if (passed < JUDGE_AFTER || Max(rate, control->open_rate) * passed < ENOUGH_DONE * SECOND)
		return;

	if (control->limited_rate == 0)
		control->limited_rate = rate;
	else
		control->limited_rate += (rate - control->limited_rate) / RATE_WEIGHT;
	start_counting(control, sample);	/* again: it may have been lucky */

	if (control->limited_rate < NO_LOSS * control->open_rate)
	{
		control->open_until = sample->now + control->open_for;
		control->open_for = Min(2 * control->open_for, MAX_BACKOFF);
		open_up(control);
	}
	else
		control->open_for = MIN_BACKOFF;
}

/* There is a limit: adapt it, and judge its effect. */
static void
sample_while_limited(LimitControl *control, const LoadSample *sample, int64 passed)
{
	bool		has_taken_effect = sample->in_use <= control->limit;
	bool		long_enough = sample->now - control->seen.now >= LONG_ENOUGH;
	bool		seen_enough;
	bool		too_many;

	if (sample->waiting > 0 || !has_taken_effect)
		control->quiet = Max(control->quiet - CONTRARY_WEIGHT * passed, 0);
	else
		control->quiet += passed;
	if (control->quiet >= OPEN_AFTER)
	{
		open_up(control);
		return;
	}

	control->seen.working += sample->working;
	control->seen.blocked += sample->blocked;
	control->seen.slow += sample->slow;
	seen_enough = long_enough || control->seen.working >= ENOUGH_SEEN;
	too_many = blocked_above(&control->seen, TOO_MANY);

	if (control->limit > 1 && sample->in_use < 2 * control->limit &&
		sample->now - control->moved >= STANDSTILL)
		end_standstill(control, sample);
	else if (seen_enough && too_many && has_taken_effect)
		lower(control, sample);
	else if (long_enough && !blocked_above(&control->seen, TOO_FEW) &&
			 sample->now >= control->halved_until)
	{
		control->limit += 1 + control->limit / PLACES_PER_STEP;
		if (control->limit >= sample->contenders)
		{
			open_up(control);
			return;
		}
	}
	if (long_enough || (seen_enough && too_many) || !has_taken_effect)
		start_seeing(control, sample->now);

	if (control->has_settled)
		judge(control, sample);
	else if (has_taken_effect && seen_enough && (!too_many || control->limit <= MIN_PLACES))
	{
		control->has_settled = true;
		start_counting(control, sample);
	}
}

/* Adapt control->limit to a sample of the contenders. */
void
limit_control_sample(LimitControl *control, const LoadSample *sample)
{
	/* Samples may overlap; and time that counts is never 0. */
	int64		passed = Max(sample->now - control->last.now, 1);
	uint32		old_limit = control->limit;

	if (sample->completed != control->last.completed || sample->blocked < sample->working ||
		sample->working == 0)
		control->moved = sample->now;

	/*
	 * No process samples while no statement comes.  If they waited then and
	 * nothing was completed since, they waited since.
	 */
	if (sample->completed == control->last.completed && blocked_above(&control->last, CONTENDED))
		passed = Min(passed, PAUSE);
	else
	{
		if (passed > PAUSE)		/* start anew */
		{
			control->contended_for = control->quiet = 0;
			control->moved = sample->now;
			start_counting(control, sample);
			start_seeing(control, sample->now);
		}
		passed = Min(passed, LONGEST_GAP);
	}
	control->last = *sample;

	if (control->limit == LIMIT_OPEN)
		sample_while_open(control, sample, passed);
	else
		sample_while_limited(control, sample, Min(passed, LONGEST_GAP));
	if (control->limit != old_limit)
		control->changed = sample->now;
}
