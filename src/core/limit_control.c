/*-------------------------------------------------------------------------
 *
 * limit_control.c
 *		How many of the contenders of a hot spot are at work at a time.
 *
 * A hot spot has no limit unless there is evidence that fewer of its
 * contenders at a time get more done.  Where many transactions want the same
 * rows, or the same lock inside the server, they wait there for each other,
 * and each is woken and put to sleep again for nearly every transaction before
 * it.  So:
 *
 *	 - If more than CONTENDED percent of the contenders at work wait for each
 *	   other, at nearly every sample for LIMIT_AFTER, the hot spot gets a
 *	   limit: as many as TARGET percent of them would wait with.  From there it
 *	   goes down by a quarter at a time, once the last step has taken effect, while more than
 *	   TOO_MANY percent wait, and up while TOO_FEW percent or fewer do, as about
 *	   a third blocked gets the most done (Moenkeberg and Weikum, Thomasian).
 *	 - If all that have a place wait for each other and nothing is completed for
 *	   STANDSTILL, they wait in circles, and the deadlock detector is the clock.
 *	   Then the limit is halved, down to one, and not raised for a while, the
 *	   longer the more often that happens.
 *	 - Once the limit is down, the rate of completed transactions is compared
 *	   with that before, again and again.  If it is lower by more
 *	   than a tenth, the limit was a mistake: the contenders may mostly do
 *	   something else.  Then there is none, and none is tried for a while, the
 *	   longer the more often this has happened.
 *	 - When no contender waits in the queue at nearly every sample for
 *	   OPEN_AFTER, or the limit has grown to the number of contenders, there is
 *	   none any more.
 *
 * What in test/simulator needs the less obvious rules: the judgement of the
 * rate, ten rows on 64 cores; STANDSTILL, that a limit is not raised after it,
 * and that a judgement waits for ENOUGH_DONE, 60 sessions that lock 4 of 60
 * rows; that many are seen before a step, a row that a tenth of the
 * transactions want.  No load there notices RARE, MIN_SLOW_PLACES, OPEN_AFTER
 * or CONTRARY_WEIGHT.
 *
 * Nothing here knows of shared memory, processes or clocks: test/simulator
 * compiles the same file and tries it on loads whose best limit is known.
 *
 * No locks: core/hot_spots.c calls it with a copy of what is shared.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/limit_control.h"

#define MS				INT64CONST(1000)
#define SECOND			(1000 * MS)

/*
 * No process samples while no statement comes.  At most LONGEST_GAP of the
 * time between two samples counts; after a PAUSE, what was seen before says
 * nothing.
 */
#define LONGEST_GAP		(100 * MS)
#define PAUSE			(1 * SECOND)

/*
 * Percentages of the contenders at work that wait for each other: above
 * CONTENDED, they need a limit; TARGET is where its first value leads; above
 * TOO_MANY, it is lowered further; up to TOO_FEW, it is raised.
 */
#define CONTENDED		50
#define TARGET			33
#define TOO_MANY		40
#define TOO_FEW			30

/*
 * How long there must be contention before there is a limit; and how long if
 * there is a crowd, which takes the longer to dissolve the later that comes:
 * at least CROWD contenders, more than CROWDED percent of them blocked
 */
#define LIMIT_AFTER		(1 * SECOND)
#define LIMIT_CROWD_AFTER	(100 * MS)
#define CROWD			64
#define CROWDED			90

/*
 * A sample to the contrary takes this many times its time from the evidence
 * that there is contention, or that nobody waits.
 */
#define CONTRARY_WEIGHT			2

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
 * A step down is decided once this many contenders at work have been seen
 * since the last step took effect, over several samples if need be, as the few
 * of one sample say little; or after LONG_ENOUGH, as there may be none.  A
 * step up always takes that long, as those let in last may have yet to be
 * blocked.
 */
#define ENOUGH_SEEN		64
#define LONG_ENOUGH		(100 * MS)

/* A step is one place, plus one in this many of the limit. */
#define PLACES_PER_STEP	4

/*
 * How long nothing moves before that is a standstill; and how long so many
 * places have been good before it is a rare one
 */
#define STANDSTILL		(300 * MS)
#define RARE			(5 * SECOND)

/*
 * How long completed transactions are counted to judge a limit; longer if the
 * higher one of both rates makes less than ENOUGH_DONE in that time.  With
 * less than NO_LOSS of the rate before, the limit is a loss.
 */
#define JUDGE_AFTER			(2 * SECOND)
#define ENOUGH_DONE		32
#define NO_LOSS			0.9

/* A later count has a weight of one in this many in the rate with a limit. */
#define RATE_WEIGHT		3

/*
 * How long it is believed that fewer places are a loss, or that more would
 * stand still: MIN_BACKOFF, doubled every time, to MAX_BACKOFF or MAX_HALVED
 */
#define MIN_BACKOFF		(2 * SECOND)
#define MAX_BACKOFF		(64 * SECOND)
#define MAX_HALVED		(16 * SECOND)

/*
 * How long nobody must wait in the queue, at nearly every sample, to end the
 * limit
 */
#define OPEN_AFTER			(1 * SECOND)

/*
 * Begin without a limit.  hurries: a blocked crowd is evidence enough after a
 * moment.  now: us.
 */
void
limit_control_init(LimitControl *control, bool hurries, int64 now)
{
	memset(control, 0, sizeof(*control));
	control->limit = LIMIT_OPEN;
	control->hurries = hurries;
	control->moved = control->last.now = now;
	control->open_for = MIN_BACKOFF;
	control->halved_for = MIN_BACKOFF;
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
	control->is_counting = true;
	control->count_start = sample->now;
	control->count_completed = sample->completed;
}

/* Transactions completed per second since start_counting(), 0 if unknown. */
static double
rate_since_start(const LimitControl *control, const LoadSample *sample)
{
	int64		passed = sample->now - control->count_start;

	if (passed <= 0)
		return 0;
	return (double) (sample->completed - control->count_completed) * SECOND / passed;
}

/*
 * Do more than this percentage of the contenders at work wait for each other?
 */
static bool
blocked_above(const LoadSample *sample, int part)
{
	return (uint64) sample->blocked * 100 > (uint64) sample->working * part;
}

static void
set_limit(LimitControl *control, uint32 limit, int64 now)
{
	if (limit != control->limit)
		control->changed = now;
	control->limit = limit;
}

/* End the limit. */
static void
open_up(LimitControl *control)
{
	control->limit = LIMIT_OPEN;
	control->contended_for = 0;
	control->is_counting = false;
}

/* The number of places with which TARGET percent of those seen would wait */
static uint32
first_limit(const LimitControl *control, const LoadSample *sample)
{
	double		free = 1.0 - (double) control->seen.blocked / control->seen.working;

	return Max((uint32) (sample->in_use * free * 100 / (100 - TARGET)), MIN_PLACES);
}

/*
 * There is no limit: is there reason for one?  passed: us since the last
 * sample.  Completed transactions are counted as long as there is contention,
 * also while fewer places are known to be a loss: so the rate without a limit
 * is known the better.
 */
static void
sample_while_open(LimitControl *control, const LoadSample *sample, int64 passed)
{
	bool		is_crowd = sample->working >= CROWD && blocked_above(sample, CROWDED);

	if (!blocked_above(sample, CONTENDED))
	{
		control->contended_for = Max(control->contended_for - CONTRARY_WEIGHT * passed, 0);
		control->is_counting &= control->contended_for > 0;
		return;
	}
	if (!control->is_counting)
	{
		start_counting(control, sample);
		start_seeing(control, sample->now);
	}
	control->seen.working += sample->working;
	control->seen.blocked += sample->blocked;
	control->contended_for = Min(control->contended_for + passed, LIMIT_AFTER);
	if (control->contended_for < (is_crowd && control->hurries ? LIMIT_CROWD_AFTER : LIMIT_AFTER) ||
		sample->now < control->open_until ||
		Min(sample->in_use, sample->working) <= MIN_CONTENDERS)
		return;

	set_limit(control, first_limit(control, sample), sample->now);
	control->open_rate = rate_since_start(control, sample);
	control->limited_rate = 0;
	control->has_settled = false;
	control->moved = sample->now;
	control->quiet = 0;
	start_seeing(control, sample->now);
}

/* One step down */
static void
lower(LimitControl *control, const LoadSample *sample)
{
	uint32		base = Min(control->limit, sample->in_use);
	uint32		step = 1 + base / PLACES_PER_STEP;
	bool		is_slow = control->seen.slow > control->seen.blocked / 2;
	uint32		lowest = Min(control->limit, is_slow ? MIN_SLOW_PLACES : MIN_PLACES);

	set_limit(control, Max(base - Min(base, step), lowest), sample->now);
}

/*
 * Is the limit kept lower than where some contenders wait for each other,
 * after a standstill?  Then one that is not blocked may be so due to the
 * limit.  now: us.
 */
bool
limit_control_is_held_down(const LimitControl *control, int64 now)
{
	return control->limit != LIMIT_OPEN &&
		(control->limit == 1 || now < control->halved_until);
}

/* One step up, but not soon after a standstill */
static void
raise_limit(LimitControl *control, const LoadSample *sample)
{
	uint32		limit = control->limit + 1 + control->limit / PLACES_PER_STEP;

	if (sample->now < control->halved_until)
		return;
	set_limit(control, limit, sample->now);
	if (control->limit >= sample->contenders)
		open_up(control);
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
	set_limit(control, Max(control->limit / 2, 1), sample->now);
}

/*
 * Judge the limit, once enough has been counted, and again and again: it may
 * have been lucky.
 */
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
	start_counting(control, sample);

	if (control->limited_rate < NO_LOSS * control->open_rate)
	{
		control->open_until = sample->now + control->open_for;
		control->open_for = Min(2 * control->open_for, MAX_BACKOFF);
		open_up(control);
	}
	else
		control->open_for = MIN_BACKOFF;
}

/*
 * There is a limit: adapt it, and judge its effect.  passed: us since the last
 * sample.
 */
static void
sample_while_limited(LimitControl *control, const LoadSample *sample, int64 passed)
{
	bool		has_taken_effect = sample->in_use <= control->limit;
	bool		long_enough;
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
	long_enough = sample->now - control->seen.now >= LONG_ENOUGH;
	seen_enough = long_enough || control->seen.working >= ENOUGH_SEEN;
	too_many = blocked_above(&control->seen, TOO_MANY);

	if (control->limit > 1 && sample->in_use < 2 * control->limit &&
		sample->now - control->moved >= STANDSTILL)
		end_standstill(control, sample);
	else if (seen_enough && too_many && has_taken_effect)
		lower(control, sample);
	else if (long_enough && !blocked_above(&control->seen, TOO_FEW))
		raise_limit(control, sample);
	if (control->limit == LIMIT_OPEN)
		return;
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

/* There was no sample for long: what was seen before says nothing. */
static void
start_anew(LimitControl *control, const LoadSample *sample)
{
	control->contended_for = control->quiet = 0;
	control->moved = sample->now;
	start_counting(control, sample);
	start_seeing(control, sample->now);
	control->is_counting = control->limit != LIMIT_OPEN;
}

/*
 * Adapt control->limit to a sample of the contenders.
 */
void
limit_control_sample(LimitControl *control, const LoadSample *sample)
{
	/* Samples may overlap. */
	int64		passed = Max(sample->now - control->last.now, 0);

	if (sample->completed != control->last.completed || sample->blocked < sample->working ||
		sample->working == 0)
		control->moved = sample->now;

	/* If they waited then and nothing was completed since, they waited since. */
	if (sample->completed == control->last.completed && blocked_above(&control->last, CONTENDED))
		passed = Min(passed, PAUSE);
	else
	{
		if (passed > PAUSE)
			start_anew(control, sample);
		passed = Min(passed, LONGEST_GAP);
	}
	control->last = *sample;

	if (control->limit == LIMIT_OPEN)
		sample_while_open(control, sample, passed);
	else
		sample_while_limited(control, sample, Min(passed, LONGEST_GAP));
}
