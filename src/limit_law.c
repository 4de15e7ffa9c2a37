/*-------------------------------------------------------------------------
 *
 * limit_law.c
 *		How many slots to give out, by what the holders are seen to do.
 *
 * All slots, as long as there is no evidence that fewer get more done.  Where many
 * want the same rows, or the same lock inside the server, those who are let in
 * wait there for each other, and each is woken and put to sleep again for nearly
 * every transaction before it.  So:
 *
 *	 - If more than half of the holders wait for each other, at nearly every look for
 *	   EVIDENCE, fewer slots are given out: a quarter less at each look, as soon as
 *	   the last step has come to bear, until few enough do; and a quarter more at each
 *	   look when too few do.  So the limit stays where about a third of the holders
 *	   wait, as most gets done there.
 *	 - When it has gone down, what is completed is counted and compared with
 *	   before, in a trial and from then on.  If it is less by more than a tenth,
 *	   it was a mistake, as beside one wanted row there may be many who want something
 *	   else: all slots are given out, and for a while nothing is tried, the longer the
 *	   more often this has happened.
 *	 - If it was none, the next time needs little evidence, unless it comes much later.
 *
 * Nothing here knows of shared memory, processes or clocks: the same object is in the
 * server and in test/simulator, which tries it on loads whose best limit is known.
 * slots_contention.c calls it, with Slots->mutex held.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "limit_law.h"

#define MS				INT64CONST(1000)
#define SECOND			(1000 * MS)

/*
 * Nobody looks while nobody comes.  Of the time between two looks, so much counts at
 * most; after a longer pause, what was seen before says nothing.
 */
#define LONGEST_GAP		(100 * MS)
#define PAUSE			(1 * SECOND)

/*
 * Which part (%) of the holders wait for each other: where that is reason to give out
 * fewer slots, though all were; and where it makes them fewer or more after that
 */
#define CONTENDED		50
#define TOO_MANY		40
#define TOO_FEW			30

/*
 * For how long there has to be contention before anything is done about it; and if it
 * is known that fewer slots get more done, or there is a crowd, which takes the longer to
 * get out of each other's way the later one begins
 */
#define EVIDENCE		(1 * SECOND)
#define QUICK_EVIDENCE	(100 * MS)

/* A crowd: so many at least, of whom that part (%) wait for each other */
#define CROWD			64
#define CROWDED			90

/* A look without contention takes so many times its time from the evidence. */
#define DOUBT			2

/* A step is one slot, and of the limit one slot in so many. */
#define SLOTS_PER_STEP	4

/*
 * A trial ends after SHORT_TRIAL if it is clear by then, and else after LONG_TRIAL.
 * What of the former rate is a clear gain, no loss, and a clear loss
 */
#define SHORT_TRIAL		(250 * MS)
#define LONG_TRIAL		(2 * SECOND)
#define CLEAR_GAIN		1.2
#define NO_LOSS			0.9
#define CLEAR_LOSS		0.5

/* A later count is one part in so many of the rate with fewer slots. */
#define RATE_WEIGHT		3

/* For how long the outcome of a trial is believed */
#define TRUST			(5 * SECOND)
#define FIRST_BAR		(2 * SECOND)
#define LAST_BAR		(64 * SECOND)

static void
set_limit(LimitLaw *state, uint32 limit, LimitReason reason, int64 now)
{
	state->limit = limit;
	if (state->reason != reason)
	{
		state->reason = reason;
		state->since = now;
	}
}

/* Count what is completed from this look on. */
static void
start_counting(LimitLaw *state, const LimitSight *sight)
{
	state->is_counting = true;
	state->count_start = sight->now;
	state->count_completed = sight->completed;
}

/* How many have been completed per second since then, 0 if no time has passed. */
static double
rate_since_start(const LimitLaw *state, const LimitSight *sight)
{
	int64		passed = sight->now - state->count_start;
	int32		completed = (int32) (sight->completed - state->count_completed);

	/* It may have been counted while a backend took its total elsewhere. */
	if (passed <= 0 || completed <= 0)
		return 0;
	return (double) completed * SECOND / passed;
}

/* Give out all slots, as of now. */
void
limit_law_init(LimitLaw *state, uint32 most, int64 now)
{
	memset(state, 0, sizeof(*state));
	state->limit = most;
	state->reason = LIMIT_OPEN;
	state->since = state->last.now = now;
	state->bar = FIRST_BAR;
}

/* Does more than that part (%) of the holders wait for others of them? */
static bool
blocked_above(const LimitSight *sight, int part)
{
	return (uint64) sight->blocked * 100 > (uint64) sight->working * part;
}

/* Are there many, who nearly all wait for each other? */
static bool
is_crowd(const LimitSight *sight)
{
	return sight->working >= CROWD && blocked_above(sight, CROWDED);
}

/* The least limit. */
static uint32
bottom(const LimitSight *sight)
{
	return Min(sight->most, LIMIT_LEAST_SLOTS);
}

/* One step down, from what is in use if that is less. */
static void
lower(LimitLaw *state, const LimitSight *sight)
{
	uint32		base = Min(state->limit, sight->in_use);
	uint32		step = 1 + base / SLOTS_PER_STEP;

	set_limit(state, Max(base - Min(base, step), bottom(sight)), LIMIT_CONTENTION, sight->now);
}

/* One step up. */
static void
raise_limit(LimitLaw *state, const LimitSight *sight)
{
	uint32		step = 1 + state->limit / SLOTS_PER_STEP;

	set_limit(state, Min(state->limit + step, sight->most), LIMIT_RELIEF, sight->now);
}

/*
 * All slots are given out: is there reason to give out fewer?  What is completed is
 * counted as long as there is contention, also while it is known that fewer slots are no gain:
 * so it is known the better, the more often that was tried.
 */
static void
look_while_open(LimitLaw *state, const LimitSight *sight, int64 passed)
{
	bool		trusted = sight->now < state->trusted_until;
	int64		wanted = trusted || is_crowd(sight) ? QUICK_EVIDENCE : EVIDENCE;

	if (!blocked_above(sight, CONTENDED))
	{
		state->evidence = Max(state->evidence - DOUBT * passed, 0);
		state->is_counting &= state->evidence > 0;
		return;
	}
	if (!state->is_counting)
		start_counting(state, sight);
	state->evidence = Min(state->evidence + passed, EVIDENCE);
	if (state->evidence < wanted || sight->now < state->barred_until ||
		Min(sight->in_use, sight->working) <= bottom(sight))
		return;

	state->on_trial = !trusted;
	state->at_bottom = false;
	if (!trusted)
	{
		state->open_rate = rate_since_start(state, sight);
		state->closed_rate = 0;
	}
	state->evidence = 0;
	lower(state, sight);
}

/* Fewer slots got less done: give out all, and try that no more for a while. */
static void
give_up(LimitLaw *state, const LimitSight *sight)
{
	state->on_trial = false;
	state->trusted_until = 0;
	state->barred_until = sight->now + state->bar;
	state->bar = Min(2 * state->bar, LAST_BAR);
	state->is_counting = false;
	set_limit(state, sight->most, LIMIT_NO_GAIN, sight->now);
}

/*
 * Has the trial shown what it is to show?  Then go by it.  After it, what each further
 * LONG_TRIAL shows is taken into account: the trial may have had good luck.
 */
static void
judge(LimitLaw *state, const LimitSight *sight)
{
	int64		passed = sight->now - state->count_start;
	double		rate = rate_since_start(state, sight);
	bool		is_gain = rate >= CLEAR_GAIN * state->open_rate;
	bool		is_loss = rate < CLEAR_LOSS * state->open_rate;
	bool		is_clear = state->on_trial && (is_gain || is_loss);

	if (!state->on_trial)
		state->trusted_until = sight->now + TRUST;
	if (passed < (is_clear ? SHORT_TRIAL : LONG_TRIAL))
		return;

	if (state->closed_rate == 0)
		state->closed_rate = rate;
	else
		state->closed_rate += (rate - state->closed_rate) / RATE_WEIGHT;
	start_counting(state, sight);

	if (state->closed_rate < NO_LOSS * state->open_rate)
		give_up(state, sight);
	else if (state->on_trial)
	{
		state->on_trial = false;
		state->bar = FIRST_BAR;
	}
}

/* Fewer slots are given out. */
static void
look_while_closed(LimitLaw *state, const LimitSight *sight)
{
	bool		has_come_to_bear = sight->in_use <= state->limit;
	bool		too_many = blocked_above(sight, TOO_MANY);

	if (too_many && has_come_to_bear)
		lower(state, sight);
	else if (!blocked_above(sight, TOO_FEW))
		raise_limit(state, sight);

	if (state->at_bottom)
		judge(state, sight);
	else if (has_come_to_bear && (!too_many || state->limit == bottom(sight)))
	{
		state->at_bottom = true;
		start_counting(state, sight);
	}
}

/*
 * A look at the holders was taken: set state->limit by it.  Returns whether that has
 * changed.
 */
bool
limit_law_look(LimitLaw *state, const LimitSight *sight)
{
	int64		passed = sight->now - state->last.now;
	uint32		old_limit = state->limit;

	/* The clock may have been set, either way. */
	if (passed < 0 || passed > PAUSE)
	{
		state->evidence = 0;
		start_counting(state, sight);
		passed = 0;
	}
	passed = Min(passed, LONGEST_GAP);
	state->barred_until = Min(state->barred_until, sight->now + LAST_BAR);
	state->trusted_until = Min(state->trusted_until, sight->now + TRUST);
	state->last = *sight;

	if (state->limit >= sight->most)
	{
		state->limit = sight->most;
		look_while_open(state, sight, passed);
	}
	else
		look_while_closed(state, sight);
	return state->limit != old_limit;
}

/* Nobody waits any more, and a slot is free: give out all. */
void
limit_law_no_waiter(LimitLaw *state, uint32 most, int64 now)
{
	state->on_trial = state->is_counting = false;
	set_limit(state, most, LIMIT_NO_WAITER, now);
}
