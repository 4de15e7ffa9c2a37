/*-------------------------------------------------------------------------
 *
 * limit_law.c
 *		The law of the limit: how many slots to give out, by what holders do.
 *
 * All slots are given out unless there is evidence that fewer get more done;
 * "all" are as many as are set, or if the limit finds itself, open_limit.
 * Where many transactions want the same rows, or the same lock inside the
 * server, they wait there for each other, and each is woken and put to sleep
 * again for nearly every transaction before it.  So:
 *
 *	 - If more than half of the holders wait for each other, at nearly every
 *	   look for EVIDENCE, the limit is lowered: by a quarter at a time, once
 *	   the last step has taken effect, while more than TOO_MANY percent wait;
 *	   and it is raised by a quarter at a time while TOO_FEW percent or
 *	   fewer do.  So it stays where about a third of the holders wait, as that
 *	   gets the most done.  Holders that wait for a lock that does not move
 *	   do not count; while they hold most slots, the limit is raised by as many.
 *	 - Once the limit is down, the law compares the rate of completed
 *	   transactions with that before, in a trial and from then on.  If it is
 *	   lower by more than a tenth, lowering was a mistake: beside one
 *	   contended row, many transactions may want something else.  Then all
 *	   slots are given out, and nothing is tried for a while, the longer the
 *	   more often this has happened.
 *	 - If it was a gain, the next time needs little evidence, unless it comes
 *	   much later.
 *	 - An open gate has some slots more than are in use, and grows at every
 *	   look.  So when thousands of backends come at once and hinder each other,
 *	   a few hundred are in by the time the limit is lowered.  These leave
 *	   within a second; thousands would take many.
 *
 * Nothing here knows of shared memory, processes or clocks: test/simulator
 * compiles the same file and tries it on loads whose best limit is known.
 *
 * Locking: core/load_control.c and core/effective_limit.c call it with
 * Slots->mutex held.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/limit_law.h"

#define MS				INT64CONST(1000)
#define SECOND			(1000 * MS)

/*
 * No process looks while no statement comes.  At most LONGEST_GAP of the time
 * between two looks counts; after a PAUSE, what was seen before says nothing.
 */
#define LONGEST_GAP		(100 * MS)
#define PAUSE			(1 * SECOND)

/*
 * Percentages of the holders that wait for each other: above CONTENDED, the
 * limit is lowered from all slots; above TOO_MANY, it is lowered further; up
 * to TOO_FEW, it is raised.
 */
#define CONTENDED		50
#define TOO_MANY		40
#define TOO_FEW			30

/*
 * How long contention must last before the limit is lowered; and how long if
 * fewer slots are known to get more done, or if there is a crowd, which takes
 * the longer to dissolve the later the limit is lowered
 */
#define EVIDENCE		(1 * SECOND)
#define QUICK_EVIDENCE	(100 * MS)

/*
 * A crowd: at least this many holders, more than this percentage of which wait
 * for each other
 */
#define CROWD			64
#define CROWDED			90

/*
 * A crowd that was gone before a trial could judge would have gone by itself,
 * as one behind a process that lost the CPU: for so long, the next one needs
 * as much evidence as others.
 */
#define PATIENCE		(10 * SECOND)

/*
 * An open gate has LEAST_ROOM slots more than are in use, and GROWTH times as
 * many as were in use at most without contention; what was fades with a time
 * constant of PEAK_MEMORY.
 */
#define LEAST_ROOM		64
#define GROWTH			2
#define PEAK_MEMORY		(60 * SECOND)

/*
 * A look without contention takes this many times its time from the evidence.
 */
#define DOUBT			2

/*
 * While fewer slots are given out, the next step is decided once this many
 * working holders have been seen since the last one took effect, over several
 * looks if need be, as the few of one look say little; or after LONG_ENOUGH,
 * as there may be none.
 */
#define ENOUGH_SEEN		64
#define LONG_ENOUGH		(100 * MS)

/* A step is one slot, plus one in this many of the limit. */
#define SLOTS_PER_STEP	4

/*
 * A trial ends after SHORT_TRIAL if its result is clear by then, else after
 * LONG_TRIAL.  CLEAR_GAIN, GAIN, NO_LOSS and CLEAR_LOSS are parts of the rate
 * before.
 */
#define SHORT_TRIAL		(250 * MS)
#define LONG_TRIAL		(2 * SECOND)
#define CLEAR_GAIN		1.2
#define GAIN			1.1
#define NO_LOSS			0.9
#define CLEAR_LOSS		0.5

/*
 * A later count has a weight of one in this many in the rate with fewer slots.
 */
#define RATE_WEIGHT		3

/*
 * How long the result of a trial is believed: TRUST if fewer slots are a gain;
 * from MIN_BACKOFF, doubled every time, to MAX_BACKOFF if they are a loss
 */
#define TRUST			(5 * SECOND)
#define MIN_BACKOFF		(2 * SECOND)
#define MAX_BACKOFF		(64 * SECOND)

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

/* Count the holders seen from now on, for the next step. */
static void
start_seeing(LimitLaw *state, int64 now)
{
	state->seen.now = now;
	state->seen.working = state->seen.blocked = 0;
}

/* Count completed transactions from this look on. */
static void
start_counting(LimitLaw *state, const LimitSight *sight)
{
	state->is_counting = true;
	state->count_start = sight->now;
	state->count_completed = sight->completed;
}

/* Transactions completed per second since start_counting(), 0 if unknown. */
static double
rate_since_start(const LimitLaw *state, const LimitSight *sight)
{
	int64		passed = sight->now - state->count_start;
	int32		completed = (int32) (sight->completed - state->count_completed);

	/* A backend that changes its pool may be missed or count twice. */
	if (passed <= 0 || completed <= 0)
		return 0;
	return (double) completed * SECOND / passed;
}

/*
 * Begin without contention.  most, finds_itself: as in LimitLaw; now: us.
 */
void
limit_law_init(LimitLaw *state, uint32 most, bool finds_itself, int64 now)
{
	memset(state, 0, sizeof(*state));
	state->most = most;
	state->finds_itself = finds_itself;
	state->limit = state->open_limit = finds_itself ? Min(most, LEAST_ROOM) : most;
	state->reason = LIMIT_OPEN;
	state->since = now;
	state->backoff = MIN_BACKOFF;
}

/* Do more than this percentage of the holders wait for each other? */
static bool
blocked_above(const LimitSight *sight, int part)
{
	return (uint64) sight->blocked * 100 > (uint64) sight->working * part;
}

static bool
is_crowd(const LimitSight *sight)
{
	return sight->working >= CROWD && blocked_above(sight, CROWDED);
}

/* The lowest limit */
static uint32
bottom(const LimitLaw *state)
{
	return Min(state->most, LIMIT_LEAST_SLOTS);
}

/* One step down, from the slots in use if these are fewer */
static void
lower(LimitLaw *state, const LimitSight *sight)
{
	uint32		base = Min(state->limit, sight->in_use);
	uint32		step = 1 + base / SLOTS_PER_STEP;

	set_limit(state, Max(base - Min(base, step), bottom(state)), LIMIT_CONTENTION, sight->now);
}

/*
 * Are most slots held by backends that wait for a lock that does not move?
 * Then the few others say nothing, and fewer slots would not make it move.
 */
static bool
most_are_stuck(const LimitSight *sight)
{
	return sight->stuck > sight->in_use / 2;
}

/* One step up, and a slot more for every one that is of no use to others */
static void
raise_limit(LimitLaw *state, const LimitSight *sight)
{
	uint32		step = 1 + state->limit / SLOTS_PER_STEP + sight->stuck;

	set_limit(state, Min(state->limit + step, state->open_limit), LIMIT_RELIEF, sight->now);
	if (state->limit >= state->open_limit)
		state->on_trial = state->is_counting = false;
}

/*
 * All slots are given out: is there reason to give out fewer?  passed: us
 * since the last look.  Completed transactions are counted as long as there is
 * contention, also while fewer slots are known to be a loss: the more often
 * they were tried, the better the rate with all slots is known.
 */
static void
look_while_open(LimitLaw *state, const LimitSight *sight, int64 passed)
{
	bool		trusted = sight->now < state->trusted_until;
	bool		urgent = is_crowd(sight) && sight->now >= state->patient_until;
	int64		wanted = trusted || urgent ? QUICK_EVIDENCE : EVIDENCE;

	if (!blocked_above(sight, CONTENDED))
	{
		state->evidence = Max(state->evidence - DOUBT * passed, 0);
		state->is_counting &= state->evidence > 0;
		return;
	}
	if (!state->is_counting)
		start_counting(state, sight);
	state->evidence = Min(state->evidence + passed, EVIDENCE);
	if (state->evidence < wanted || sight->now < state->backoff_until ||
		Min(sight->in_use, sight->working) <= bottom(state))
		return;

	state->on_trial = !trusted;
	state->at_bottom = false;
	if (!trusted)
	{
		state->open_rate = rate_since_start(state, sight);
		state->closed_rate = 0;
	}
	state->evidence = 0;
	start_seeing(state, sight->now);
	lower(state, sight);
}

/*
 * Fewer slots got less done: give out all, and do not try again for a while.
 */
static void
give_up(LimitLaw *state, const LimitSight *sight)
{
	state->on_trial = false;
	state->trusted_until = 0;
	state->backoff_until = sight->now + state->backoff;
	state->backoff = Min(2 * state->backoff, MAX_BACKOFF);
	state->is_counting = false;
	set_limit(state, state->open_limit, LIMIT_NO_GAIN, sight->now);
}

/*
 * Judge the trial once it has shown enough.  After it, every further
 * LONG_TRIAL counts as well: the trial may have been lucky.
 */
static void
judge(LimitLaw *state, const LimitSight *sight)
{
	int64		passed = sight->now - state->count_start;
	double		rate = rate_since_start(state, sight);
	bool		is_gain = rate >= CLEAR_GAIN * state->open_rate;
	bool		is_loss = rate < CLEAR_LOSS * state->open_rate;
	bool		is_clear = state->on_trial && (is_gain || is_loss);

	if (!state->on_trial && state->closed_rate >= GAIN * state->open_rate)
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
		state->backoff = MIN_BACKOFF;
	}
}

/* Fewer slots are given out: adapt the limit, and judge its effect. */
static void
look_while_closed(LimitLaw *state, const LimitSight *sight)
{
	bool		has_taken_effect = sight->in_use <= state->limit;
	bool		stuck = most_are_stuck(sight);
	bool		seen_enough;
	bool		too_many;

	state->seen.working += sight->working;
	state->seen.blocked += sight->blocked;
	seen_enough = state->seen.working >= ENOUGH_SEEN || sight->now - state->seen.now >= LONG_ENOUGH;
	too_many = !stuck && blocked_above(&state->seen, TOO_MANY);

	if (stuck)
		raise_limit(state, sight);
	else if (seen_enough && too_many && has_taken_effect)
		lower(state, sight);
	else if (seen_enough && !blocked_above(&state->seen, TOO_FEW))
		raise_limit(state, sight);
	if (stuck || seen_enough || !has_taken_effect)
		start_seeing(state, sight->now);

	if (state->at_bottom)
		judge(state, sight);
	else if (has_taken_effect && ((seen_enough && !too_many) || state->limit == bottom(state)))
	{
		state->at_bottom = true;
		start_counting(state, sight);
	}
}

/*
 * Adapt how many slots an open gate has, if the limit finds itself.  They grow
 * as fast as without contention while fewer slots are known to be a loss; and
 * a lowered limit stays below them until it is raised.  passed: us since the
 * last look.
 */
static void
adapt_open_limit(LimitLaw *state, const LimitSight *sight, int64 passed)
{
	uint32		room = sight->in_use + LEAST_ROOM;

	if (!state->finds_itself)
		return;
	if (state->limit < state->open_limit)
		room = Max(room, state->limit + 1);
	state->peak -= state->peak * Min(Max(passed, 0), PEAK_MEMORY) / PEAK_MEMORY;
	if (!blocked_above(sight, CONTENDED) || sight->now < state->backoff_until)
		state->peak = Max(state->peak, sight->in_use);
	state->open_limit = Min(Max(room, (uint32) (GROWTH * state->peak)), state->most);
}

/*
 * Adapt state->limit to a look at the holders.  Returns whether it has
 * changed.
 */
bool
limit_law_look(LimitLaw *state, const LimitSight *sight)
{
	int64		passed = sight->now - state->last.now;
	uint32		old_limit = state->limit;
	bool		is_open = state->limit >= state->open_limit;

	adapt_open_limit(state, sight, passed);

	/* The clock may have been set forward or back. */
	if (passed < 0 || passed > PAUSE)
	{
		state->evidence = 0;
		start_counting(state, sight);
		passed = 0;
	}
	passed = Min(passed, LONGEST_GAP);
	state->backoff_until = Min(state->backoff_until, sight->now + MAX_BACKOFF);
	state->trusted_until = Min(state->trusted_until, sight->now + TRUST);
	state->patient_until = Min(state->patient_until, sight->now + PATIENCE);
	state->last = *sight;

	if (is_open)
	{
		state->limit = state->open_limit;
		look_while_open(state, sight, passed);
	}
	else
		look_while_closed(state, sight);
	return state->limit != old_limit;
}

/* A slot is free and no waiter could have it: give out all slots. */
void
limit_law_no_waiter(LimitLaw *state, int64 now)
{
	if (state->on_trial)
		state->patient_until = now + PATIENCE;
	state->on_trial = state->is_counting = false;
	set_limit(state, state->open_limit, LIMIT_NO_WAITER, now);
}
