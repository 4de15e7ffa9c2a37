/*-------------------------------------------------------------------------
 *
 * limit_control.c
 *		How many of the contenders of a hot spot are at work at a time.
 *
 * A hot spot has no limit unless there is evidence that fewer of its
 * contenders at a time get more done.  Where many transactions want the same
 * rows, each is woken and put to sleep again for nearly every transaction
 * before it.  So:
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
 *	 - Once the limit is down, a trial finds out whether it is better than none:
 *	   it counts what is completed, then gives out more places in a few steps,
 *	   up to all, and counts again at each.  If the rate falls, or does not
 *	   rise with all, the limit stays.  Otherwise it counts once more with the limit: the machine
 *	   may have been busy for other reasons before.  If the limit is a loss both
 *	   times, there is none.  Either is believed for a while, which doubles with
 *	   each trial that finds the same.  A limit that gains nothing is no loss:
 *	   nobody else waits for it, and it bounds the line.
 *	 - When no contender waits in the queue for OPEN_AFTER, or the limit has
 *	   grown to the number of contenders, it ends; also when more than that are
 *	   at work for NO_EFFECT, and do not get fewer: there are contenders that do
 *	   not queue.
 *
 * Nothing here knows of shared memory, locks, processes or clocks:
 * the worker calls it (core/hot_spots.c), and test/simulator
 * compiles the same file and tries it on loads whose best limit is known.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

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

/* Where a row changes hands, all that want it may be awake for a moment. */
#define CONTRARY_WEIGHT	2		/* of the time of a sample to the contrary */

/*
 * So few contenders do not hinder each other: there is no limit for them, and
 * only a standstill leads below, because the others work while a newly
 * admitted one waits for a CPU.
 */
#define MIN_PLACES		4

/*
 * A step is one place, plus one in PLACES_PER_STEP of the limit.  One down is
 * decided once ENOUGH_SEEN contenders at work have been seen since the last
 * step took effect, as the few of one sample say little; or after LONG_ENOUGH.
 * One up always takes that long: those let in last may have yet to be blocked.
 */
#define PLACES_PER_STEP	4
#define ENOUGH_SEEN		64
#define LONG_ENOUGH		(100 * MS)

#define OPEN_AFTER		(3 * SECOND)	/* nobody has waited for so long */
#define NO_EFFECT		(16 * SECOND)	/* more have had places for so long */

/* A disk that stalls is no circle: wait nearly as long as the detector does. */
#define STANDSTILL		(700 * MS)
#define HALVED_FOR		(8 * SECOND)	/* no raise, no trial */

/*
 * A trial gives out TRIAL_STEP times as many places, lets them have an effect
 * for SETTLE_FOR, and counts for COUNT_FOR.
 */
#define TRIAL_STEP		4
#define SETTLE_FOR		(300 * MS)
#define COUNT_FOR		(1 * SECOND)
#define NO_LOSS			0.95	/* of what is compared, at least */
#define MIN_BELIEVED	(10 * SECOND)
#define MAX_BELIEVED	(640 * SECOND)

/* Begin without a limit.  now: us. */
void
limit_control_init(LimitControl *control, int64 now)
{
	memset(control, 0, sizeof(*control));
	control->limit = LIMIT_OPEN;
	control->moved = control->last.now = now;
	control->believed_for = MIN_BELIEVED / 2;
}

/* Add up the contenders seen from now on, for the next step. */
static void
start_seeing(LimitControl *control, int64 now)
{
	control->seen.now = now;
	control->seen.working = control->seen.blocked = 0;
}

/* Do more than this percentage of those at work wait for each other? */
static bool
blocked_above(const LoadSample *sample, int part)
{
	return (uint64) sample->blocked * 100 > (uint64) sample->working * part;
}

/* Have a limit from now on: a new one, or the one before a trial. */
static void
begin_limit(LimitControl *control, const LoadSample *sample, uint32 limit)
{
	control->limit = limit;
	control->kept = 0;
	control->has_settled = false;
	control->quiet = 0;
	control->moved = control->effective = sample->now;
	control->fewest = sample->in_use;
	start_seeing(control, sample->now);
}

static void
open_up(LimitControl *control)
{
	control->limit = LIMIT_OPEN;
	control->contended_for = 0;
	control->kept = 0;
	control->open_rate = 0;
}

/* There is no limit: is there reason for one? */
static void
sample_while_open(LimitControl *control, const LoadSample *sample, int64 passed)
{
	bool		is_crowd = sample->working >= CROWD && blocked_above(sample, CROWDED);
	int64		limit_after = is_crowd ? LIMIT_CROWD_AFTER : LIMIT_AFTER;
	double		free;

	if (!blocked_above(sample, CONTENDED))
	{
		control->contended_for = Max(control->contended_for - CONTRARY_WEIGHT * passed, 0);
		return;
	}
	if (control->contended_for == 0)
		start_seeing(control, sample->now);
	control->seen.working += sample->working;
	control->seen.blocked += sample->blocked;
	control->contended_for = Min(control->contended_for + passed, LIMIT_AFTER);
	if (control->contended_for < limit_after || (!control->is_better && sample->now < control->believed_until) ||
		Min(sample->in_use, sample->working) <= MIN_PLACES)
		return;

	/* TARGET percent of those seen would wait with that. */
	free = 1.0 - (double) control->seen.blocked / control->seen.working;
	begin_limit(control, sample,
				Max((uint32) (sample->in_use * free * 100 / (100 - TARGET)), MIN_PLACES));
}

/*
 * Do the contenders at work wait in circles?  There is a limit, and either they
 * all wait now, or only a standstill can have led to so few places.
 */
bool
limit_control_stands_still(const LimitControl *control, int64 now)
{
	return control->limit != LIMIT_OPEN &&
		(control->limit < MIN_PLACES || now - control->moved >= STANDSTILL);
}

/* One step down */
static void
lower(LimitControl *control, const LoadSample *sample)
{
	uint32		base = Min(control->limit, sample->in_use);
	uint32		step = 1 + base / PLACES_PER_STEP;

	control->limit = Max(base - Min(base, step), Min(control->limit, MIN_PLACES));
}

/* All that have a place wait in circles: give out half of the places. */
static void
end_standstill(LimitControl *control, const LoadSample *sample)
{
	control->limit = Max(control->limit / 2, 1);
	control->halved_until = sample->now + HALVED_FOR;
	control->counted = *sample; /* that was no rate to compare */
	control->open_rate = 0;
	control->moved = sample->now;
	start_seeing(control, sample->now);
}

/* End the limit unless it is better, and believe for some time what it is. */
static void
conclude(LimitControl *control, const LoadSample *sample, bool is_better)
{
	control->believed_for = control->is_better != is_better ? MIN_BELIEVED :
		Min(2 * control->believed_for, MAX_BELIEVED);
	control->believed_until = sample->now + control->believed_for;
	control->is_better = is_better;
	control->open_rate = 0;
	if (!is_better)
		open_up(control);
	else if (control->kept > 0)
		begin_limit(control, sample, control->kept);
}

/* Is so much less completed than before that it is not by chance? */
static bool
is_loss(double completed, double before)
{
	return completed + sqrt(completed) < NO_LOSS * before;
}

/* Try more places, or all. */
static void
step_up(LimitControl *control, const LoadSample *sample)
{
	if (control->limit < sample->contenders / TRIAL_STEP)
		control->limit *= TRIAL_STEP;
	else
		control->limit = LIMIT_OPEN;
	control->stepped = sample->now;
}

/* A trial is under way: is it worse with more places? */
static void
sample_in_trial(LimitControl *control, const LoadSample *sample)
{
	int64		passed = sample->now - control->counted.now;
	double		completed = sample->completed - control->counted.completed;
	double		limited = control->limited_rate * passed;

	if (sample->now - control->moved >= STANDSTILL)
		conclude(control, sample, true);
	else if (sample->now - control->stepped < SETTLE_FOR)
		control->counted = *sample;
	else if (passed < COUNT_FOR)
		return;
	else if (is_loss(completed, limited))
		conclude(control, sample, true);
	else if (control->limit != LIMIT_OPEN)
		step_up(control, sample);
	else if (!is_loss(limited, completed))
		conclude(control, sample, true);
	else
	{
		control->open_rate = completed / passed;
		begin_limit(control, sample, control->kept);
	}
}

/*
 * Count what is completed with the limit, until it is time for a trial, and
 * once after it.
 */
static void
judge(LimitControl *control, const LoadSample *sample)
{
	int64		passed = sample->now - control->counted.now;
	double		completed = sample->completed - control->counted.completed;

	if (passed < COUNT_FOR)
		return;
	control->limited_rate = completed / passed;
	control->counted = *sample;
	if (control->open_rate > 0)
		conclude(control, sample, !is_loss(completed, control->open_rate * passed));
	else if (sample->now >= Max(control->believed_until, control->halved_until))
	{
		control->kept = control->limit;
		step_up(control, sample);
	}
}

/* There is a limit: adapt it, and judge its effect. */
static void
sample_while_limited(LimitControl *control, const LoadSample *sample, int64 passed)
{
	bool		has_taken_effect = sample->in_use <= control->limit;
	bool		long_enough = sample->now - control->seen.now >= LONG_ENOUGH;
	bool		seen_enough;
	bool		too_many;

	control->quiet = sample->waiting > 0 ? 0 : control->quiet + passed;
	if (has_taken_effect || sample->in_use < control->fewest)
		control->effective = sample->now;
	control->fewest = Min(control->fewest, sample->in_use);
	if (!has_taken_effect &&
		(control->quiet >= OPEN_AFTER || sample->now - control->effective >= NO_EFFECT))
	{
		conclude(control, sample, false);
		return;
	}
	if (control->quiet >= OPEN_AFTER)
	{
		open_up(control);
		return;
	}

	control->seen.working += sample->working;
	control->seen.blocked += sample->blocked;
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
		control->counted = *sample;
	}
}

/* Adapt control->limit to a sample of the contenders. */
void
limit_control_sample(LimitControl *control, const LoadSample *sample)
{
	/* Time that counts is never 0. */
	int64		passed = Max(sample->now - control->last.now, 1);

	if (sample->completed != control->last.completed || sample->blocked < sample->working ||
		sample->working == 0)
		control->moved = sample->now;

	/*
	 * A sample may be late.  If they waited at the last one and nothing has
	 * been completed since, they have waited since.
	 */
	if (sample->completed == control->last.completed && blocked_above(&control->last, CONTENDED))
		passed = Min(passed, PAUSE);
	else
	{
		if (passed > PAUSE)		/* start anew */
		{
			control->contended_for = control->quiet = 0;
			control->moved = control->effective = sample->now;
			control->counted = *sample;
			start_seeing(control, sample->now);
		}
		passed = Min(passed, LONGEST_GAP);
	}
	control->last = *sample;

	if (control->kept > 0)
		sample_in_trial(control, sample);
	else if (control->limit == LIMIT_OPEN)
		sample_while_open(control, sample, passed);
	else
		sample_while_limited(control, sample, Min(passed, LONGEST_GAP));
}
