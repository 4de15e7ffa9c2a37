/*-------------------------------------------------------------------------
 *
 * limit_control.c
 *		How many of the contenders of a hot spot work at a time.
 *
 * If many transactions want the same rows, each of them is woken and put to
 * sleep again for nearly every transaction before it.  Fewer at a time get
 * more done.  A hot spot has a limit only while there is evidence of that:
 *
 *	 - It gets a limit when more than TOO_MANY percent of the contenders at work
 *	   have waited for each other for LIMIT_AFTER.  It begins with as many
 *	   places as contenders did not wait.
 *	 - The limit goes down by one place while more than TOO_MANY percent wait,
 *	   and up by one while TOO_FEW percent or fewer wait.  Throughput is highest
 *	   when about a third wait (Moenkeberg and Weikum, Thomasian).
 *	 - If all contenders at work wait and nothing is completed for STANDSTILL,
 *	   they wait in circles, and only the deadlock detector helps.  The limit
 *	   is halved, down to one, and stays low for HALVED_FOR; twice as long, up
 *	   to MAX_HALVED, if the last standstill was not long ago.
 *	 - A trial finds out whether the limit is better than none.  It counts what
 *	   is completed with the limit, then with more places, in a few steps up to
 *	   all.  The limit stays if a step completes less, or if all places complete
 *	   no more: only contenders wait for it, and it bounds the line.  Otherwise
 *	   the trial counts with the limit once more: the load may have changed.
 *	   The limit ends if it loses both times.
 *	 - The result is believed for MIN_BELIEVED.  Each trial that finds the same
 *	   doubles that time, up to MAX_BELIEVED.
 *	 - The limit ends when nobody has waited in the queue for OPEN_AFTER.  It
 *	   also ends when more contenders than the limit are at work, and their
 *	   number has not fallen for NO_EFFECT: some of them do not queue.  It ends
 *	   at once when more have passed the queue by than have come from it, by
 *	   MAX_PASSED: those that queue would wait for these.
 *
 * This file knows nothing of shared memory, locks, processes or clocks.
 * test/simulator tries it on loads whose best limit is known; each constant
 * has a load or a test there that fails if it is clearly wrong.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots.h"

#define MS				INT64CONST(1000)
#define SECOND			(1000 * MS)

/* One sample is evidence for the time since the last one, up to this. */
#define LONGEST_GAP		(100 * MS)

/* Percentages of the contenders at work that wait for each other */
#define TOO_MANY		50		/* above this, there is a limit, and it sinks */
#define TOO_FEW			30		/* up to this, it rises */

#define LIMIT_AFTER		(1 * SECOND)	/* of contention, there is a limit */
#define STEP_AFTER		(100 * MS)	/* from one step to the next */

#define MIN_PLACES		4		/* with fewer, a CPU may idle between two */
#define OPEN_AFTER		(3 * SECOND)
#define NO_EFFECT		(16 * SECOND)
#define MAX_PASSED		100

/* Longer than a disk stalls, shorter than the deadlock detector waits */
#define STANDSTILL		(700 * MS)
#define HALVED_FOR		(8 * SECOND)	/* no step up, no trial */
#define MAX_HALVED		(64 * SECOND)

#define TRIAL_STEP		4		/* times as many places */
#define COUNT_FOR		(1 * SECOND)
#define NO_LOSS			0.95	/* this part of another rate is no loss */
#define MIN_BELIEVED	(10 * SECOND)
#define MAX_BELIEVED	(640 * SECOND)

/* Begin without a limit.  now: us. */
void
limit_control_init(LimitControl *control, int64 now)
{
	memset(control, 0, sizeof(*control));
	control->limit = NO_LIMIT;
	control->last.now = now;
}

/* Do more than this percentage of those at work wait for each other? */
static bool
blocked_above(const LoadSample *sample, int percentage)
{
	return (uint64) sample->blocked * 100 > (uint64) sample->working * percentage;
}

/* Set a limit, or end it by NO_LIMIT.  Everything is counted anew. */
static void
set_limit(LimitControl *control, const LoadSample *sample, uint32 limit)
{
	control->limit = limit;
	control->kept = 0;
	control->open_rate = 0;
	control->contended_for = control->stalled_for = 0;
	control->quiet_for = control->no_effect_for = 0;
	control->passed_by = 0;
	control->fewest = sample->working;
	control->counted = *sample;
	memset(&control->seen, 0, sizeof(LoadSample));
	control->seen.now = sample->now;
}

/* There is no limit: is there reason for one? */
static void
sample_while_open(LimitControl *control, const LoadSample *sample, int64 passed)
{
	bool		contended = blocked_above(sample, TOO_MANY);

	control->contended_for = contended ? Min(control->contended_for + passed, LIMIT_AFTER) :
		Max(control->contended_for - passed, 0);
	if (contended && control->contended_for == LIMIT_AFTER &&
		(control->is_better || sample->now >= control->believed_until))
		set_limit(control, sample, Max(sample->working - sample->blocked, MIN_PLACES));
}

/* Do they stand still, or did they lately?  Only that leads to so few places. */
bool
limit_control_stood_still(const LimitControl *control)
{
	return control->limit < MIN_PLACES ||
		(control->limit != NO_LIMIT && control->stalled_for >= STANDSTILL);
}

/* They stand still: halve the limit. */
static void
halve(LimitControl *control, int64 now)
{
	if (now >= control->halved_until + control->halved_for)
		control->halved_for = HALVED_FOR;
	else if (now >= control->halved_until)
		control->halved_for = Min(2 * control->halved_for, MAX_HALVED);
	control->halved_until = now + control->halved_for;
	control->limit = Max(control->limit / 2, 1);
	control->stalled_for = 0;
}

/* It has turned out whether the limit is better than none. */
static void
conclude(LimitControl *control, const LoadSample *sample, bool is_better)
{
	control->believed_for = control->is_better != is_better ? MIN_BELIEVED :
		Min(Max(2 * control->believed_for, MIN_BELIEVED), MAX_BELIEVED);
	control->believed_until = sample->now + control->believed_for;
	control->is_better = is_better;
	control->open_rate = 0;
	if (!is_better)
		set_limit(control, sample, NO_LIMIT);
	else if (control->kept > 0)
		set_limit(control, sample, control->kept);
}

static bool
is_loss(double rate, double other)
{
	return rate < NO_LOSS * other;
}

/* Try more places, or all. */
static void
step_up(LimitControl *control, const LoadSample *sample)
{
	control->limit = control->limit < sample->contenders / TRIAL_STEP ?
		control->limit * TRIAL_STEP : NO_LIMIT;
}

/* Has COUNT_FOR passed?  Then set *rate, completed per us, and count anew. */
static bool
finish_count(LimitControl *control, const LoadSample *sample, double *rate)
{
	int64		passed = sample->now - control->counted.now;

	if (passed < COUNT_FOR)
		return false;
	*rate = (double) (sample->completed - control->counted.completed) / passed;
	control->counted = *sample;
	return true;
}

/* A trial is under way: is it worse with more places? */
static void
sample_in_trial(LimitControl *control, const LoadSample *sample)
{
	double		rate;

	if (!finish_count(control, sample, &rate))
		return;
	if (is_loss(rate, control->limited_rate) ||
		(control->limit == NO_LIMIT && !is_loss(control->limited_rate, rate)))
		conclude(control, sample, true);
	else if (control->limit != NO_LIMIT)
		step_up(control, sample);
	else
	{
		set_limit(control, sample, control->kept);
		control->open_rate = rate;
	}
}

/* End a trial with what was counted after it, or begin one if it is time. */
static void
judge(LimitControl *control, const LoadSample *sample)
{
	if (control->open_rate > 0)
		conclude(control, sample, !is_loss(control->limited_rate, control->open_rate));
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
	bool		has_effect = sample->in_use <= control->limit;

	control->quiet_for = sample->waiting > 0 ? 0 : control->quiet_for + passed;
	control->no_effect_for = sample->working <= control->limit || sample->working < control->fewest ? 0 :
		control->no_effect_for + passed;
	control->fewest = Min(control->fewest, sample->working);
	if (control->quiet_for >= OPEN_AFTER || control->no_effect_for >= NO_EFFECT ||
		control->passed_by > MAX_PASSED)
	{
		if (sample->working <= control->limit && control->passed_by <= MAX_PASSED)
			set_limit(control, sample, NO_LIMIT);
		else
			conclude(control, sample, false);
		return;
	}

	control->seen.working += sample->working;
	control->seen.blocked += sample->blocked;
	if (control->stalled_for >= STANDSTILL && sample->in_use < 2 * control->limit)
		halve(control, sample->now);
	else if (sample->now - control->seen.now >= STEP_AFTER)
	{
		if (blocked_above(&control->seen, TOO_MANY) && has_effect && control->limit > MIN_PLACES)
			control->limit--;
		else if (!blocked_above(&control->seen, TOO_FEW) && sample->now >= control->halved_until)
			control->limit++;
		memset(&control->seen, 0, sizeof(LoadSample));
		control->seen.now = sample->now;
	}

	if (!has_effect)
		control->counted = *sample;
	else if (finish_count(control, sample, &control->limited_rate))
		judge(control, sample);
}

/* Adapt control->limit to a sample of the contenders. */
void
limit_control_sample(LimitControl *control, const LoadSample *sample)
{
	int64		passed = Min(sample->now - control->last.now, LONGEST_GAP);
	bool		stalled = sample->completed == control->last.completed &&
	sample->working > 0 && sample->blocked >= sample->working;

	control->stalled_for = stalled ? control->stalled_for + passed : 0;
	control->passed_by += (uint32) (sample->passed - control->last.passed);
	control->passed_by -= (uint32) (sample->admitted - control->last.admitted);
	control->passed_by = Max(control->passed_by, 0);
	control->last = *sample;

	if (control->kept > 0)
		sample_in_trial(control, sample);
	else if (control->limit == NO_LIMIT)
		sample_while_open(control, sample, passed);
	else
		sample_while_limited(control, sample, passed);
}
