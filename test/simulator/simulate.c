/*-------------------------------------------------------------------------
 *
 * simulate.c
 *		The law of the limit on loads whose best limit is known.
 *
 * A load tells, for so many at work, how many of them wait for each other and how many
 * statements are done in a second; both waver by some 20 % and remember how they did.
 * The law is looked up as the server does it: often while some wait, else now and then.
 * Each load is run with a thousand seeds, under the law and with fixed limits, and what
 * is done is compared.  Prints TAP, and with an argument instead what one run of the
 * load of that name did, second by second.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/limit_law.h"

/* The tests are no part of a server. */
#undef printf
#undef snprintf

#define SEEDS			1000
#define FIXED_SEEDS		20		/* for a fixed limit */
#define TICK			5000	/* us; how often the server looks while some
								 * wait */
#define TICKS_PER_SECOND (1000000 / TICK)
#define OPEN_TICKS		4		/* ticks from one look to the next while none
								 * does */
#define MOST			1000	/* backends there can be */

/* How much and for how long (ticks) noise wavers */
#define NOISE			0.2
#define NOISE_MEMORY	40.0

/* What so many at work do */
typedef struct Work
{
	double		rate;			/* completed per second */
	double		blocked;		/* how many wait for each other */
	double		working;		/* how many do that or anything else */
} Work;

typedef struct Load
{
	const char *name;
	int			clients;
	int			seconds;
	Work		(*work) (double at_work, double time);
	double		share_of_best;	/* of the best fixed limit, at least */
	double		share_of_open;	/* of no limit, at least */
	int			most;			/* the limit as set, or 0 */
} Load;

typedef struct Outcome
{
	double		done;			/* statements per second, but for the first
								 * five */
	double		closed;			/* part of the time with fewer slots than
								 * there are clients */
	double		by_second[120];
	int			limit_by_second[120];
} Outcome;

/* ----------------------------------------------------------------
 *		Loads
 * ----------------------------------------------------------------
 */

/* Of so many that want any of so many rows, how many can go on? */
static double
not_blocked(double at_work, double rows)
{
	return rows * (1 - exp(-at_work / rows));
}

/* One row; each that waits for it makes the others slower. */
static Work
hot_row(double at_work, double time)
{
	double		blocked = Max(at_work - 1, 0);

	return (Work)
	{
		3000	   *Min(at_work, 1) / (1 + blocked / 90),
					blocked,
					at_work
	};
}

/* TPC-B: ten branches, two cores */
static Work
ten_rows(double at_work, double time)
{
	double		going = not_blocked(at_work, 10);
	double		blocked = at_work - going;

	return (Work)
	{
		800		   *Min(going, 4) / (1 + blocked / 300),
					blocked,
					at_work
	};
}

/* Rows wanted by one in a thousand */
static Work
random_rows(double at_work, double time)
{
	double		going = not_blocked(at_work, 100000);

	return (Work)
	{
		13000	   *Min(going / 16, 1),
					at_work - going,
					at_work
	};
}

/* Two cores, no locks */
static Work
reads(double at_work, double time)
{
	return (Work)
	{
		15000	   *Min(at_work, 2),
					0,
					at_work
	};
}

/* A lock inside the server on 64 cores: best at some fifty, and worse the more there are */
static Work
many_cores(double at_work, double time)
{
	double		blocked = Max(at_work - 50, 0) * 0.9;

	return (Work)
	{
		10000	   *Min(at_work, 50) / (1 + blocked / 200),
					blocked,
					at_work
	};
}

/* Disks that do two hundred things at a time */
static Work
slow_disk(double at_work, double time)
{
	return (Work)
	{
		20		   *Min(at_work, 200),
					at_work * 0.05,
					at_work
	};
}

/* Fewer than a half wait for each other, and fewer slots would do less. */
static Work
below_half(double at_work, double time)
{
	return (Work)
	{
		20		   *at_work,
					at_work * 0.35,
					at_work
	};
}

/* Half of the clients want one row, and the others read. */
static Work
row_beside_reads(double at_work, double time)
{
	/* First come, first served: as many of each are let in. */
	double		row = at_work / 2;
	Work		work = hot_row(row, time);

	work.rate += at_work >= 400 ? 20000 : work.rate;
	work.working += Min(at_work / 2, 3);
	return work;
}

/* Most wait for each other, but with fewer slots a fifth less is done. */
static Work
needs_all(double at_work, double time)
{
	return (Work)
	{
		5000	   *(at_work >= 400 ? 1 : 0.8),
					at_work * 0.7,
					at_work
	};
}

/* Nearly all are idle in their transactions, and two of the other three wait. */
static Work
mostly_idle(double at_work, double time)
{
	return (Work)
	{
		1000	   *at_work / 500,
					2,
					3
	};
}

/* One row and reads, in turns of thirty seconds */
static Work
in_turns(double at_work, double time)
{
	return fmod(time, 60) < 30 ? hot_row(at_work, time) : reads(at_work, time);
}

static Work
in_other_turns(double at_work, double time)
{
	return fmod(time, 60) < 30 ? reads(at_work, time) : hot_row(at_work, time);
}

/* Every ten seconds all stand still for three, behind a lock that is kept. */
static Work
with_stalls(double at_work, double time)
{
	if (fmod(time, 10) > 7)
		return (Work)
	{
		0, 0, 0
	};
	return random_rows(at_work, time);
}

/* And behind one that moves now and then */
static Work
with_jams(double at_work, double time)
{
	if (fmod(time, 10) > 9.7)
		return (Work)
	{
		100, at_work * 0.9, at_work
	};
	return random_rows(at_work, time);
}

static const Load loads[] = {
	{"one row, 64 clients", 64, 40, hot_row, 0.95, 0.98, 0},
	{"one row, 500 clients", 500, 40, hot_row, 0.95, 0.98, 0},
	{"one row, 1000 clients", 1000, 40, hot_row, 0.95, 0.98, 0},
	{"ten rows, 64 clients", 64, 40, ten_rows, 0.95, 0.98, 0},
	{"ten rows, 500 clients", 500, 40, ten_rows, 0.95, 0.98, 0},
	{"a lock on many cores, 500 clients", 500, 40, many_cores, 0.85, 0.98, 0},
	{"a lock on many cores, 60 clients", 60, 40, many_cores, 0.95, 0.98, 0},
	{"random rows", 500, 40, random_rows, 0, 0.98, 0},
	{"reads", 500, 40, reads, 0, 0.98, 0},
	{"reads of one client", 1, 40, reads, 0, 0.98, 0},
	{"reads of four clients", 4, 40, reads, 0, 0.98, 0},
	{"a slow disk", 500, 40, slow_disk, 0, 0.98, 0},
	{"fewer than a half blocked", 500, 40, below_half, 0, 0.98, 0},
	{"one row beside reads", 500, 120, row_beside_reads, 0, 0.95, 0},
	{"fewer slots get less done", 500, 120, needs_all, 0, 0.94, 0},
	{"most are idle in transaction", 500, 40, mostly_idle, 0, 0.98, 0},
	{"one row and reads in turns", 500, 120, in_turns, 0, 0.98, 0},
	{"reads and one row in turns", 500, 120, in_other_turns, 0, 0.98, 0},
	{"stalls", 500, 60, with_stalls, 0, 0.98, 0},
	{"jams", 500, 60, with_jams, 0, 0.98, 0},
	{"one row, 8 slots set", 500, 40, hot_row, 0.95, 0.98, 8},
	{"reads, 8 slots set", 500, 40, reads, 0, 0.98, 8},
};

/* ----------------------------------------------------------------
 *		Runs
 * ----------------------------------------------------------------
 */

static uint64 seed;

/* A number from 0 to 1 */
static double
random_number(void)
{
	seed = seed * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (double) (seed >> 11) / (UINT64CONST(1) << 53);
}

/* One of mean 0 and deviation 1, nearly normal */
static double
random_normal(void)
{
	return (random_number() + random_number() + random_number() + random_number() - 2) * sqrt(3);
}

/* The next value of a noise that remembers */
static double
waver(double noise)
{
	static double memory = 0;
	static double news = 0;

	if (memory == 0)
	{
		memory = exp(-1 / NOISE_MEMORY);
		news = NOISE * sqrt(1 - memory * memory);
	}
	return memory * noise + news * random_normal();
}

/*
 * Run a load with that seed, under the law if fixed is 0, else with so many slots.
 */
static Outcome
run(const Load *load, uint64 number, int fixed)
{
	int			most = load->most > 0 ? load->most : MOST;
	int			ticks = load->seconds * TICKS_PER_SECOND;
	double		at_work = Min(load->clients, fixed > 0 ? fixed : most);
	double		completed = 0;
	double		rate_noise = 0;
	double		sight_noise = 0;
	LimitLaw	state;
	Outcome		outcome = {0};

	seed = number * UINT64CONST(0x9E3779B97F4A7C15) + 1;
	limit_law_init(&state, most, load->most == 0, 1);
	for (int tick = 1; tick <= ticks; tick++)
	{
		double		time = (double) tick / TICKS_PER_SECOND;
		int			second = (tick - 1) / TICKS_PER_SECOND;
		int			slots = fixed > 0 ? fixed : state.limit;
		double		may_work = Min(load->clients, slots);
		Work		work;
		double		done;

		rate_noise = waver(rate_noise);
		sight_noise = waver(sight_noise);
		work = load->work(at_work, time);
		done = Max(work.rate * (1 + rate_noise), 0) / TICKS_PER_SECOND;
		completed += done;
		outcome.by_second[second] += done;
		outcome.limit_by_second[second] = slots;
		if (second >= 5)
			outcome.done += done / (load->seconds - 5);
		if (slots < Min(load->clients, most))
			outcome.closed += 1.0 / ticks;

		/* Who is at work leaves when it is done; who waits comes at once. */
		at_work = at_work > may_work ? Max(at_work - done, may_work) : may_work;

		if (fixed == 0 && (load->clients > state.limit || tick % OPEN_TICKS == 0))
		{
			double		blocked = Min(Max(work.blocked * (1 + sight_noise), 0), work.working);
			LimitSight	sight = {
				.now = (int64) tick * TICK,
				.in_use = (uint32) lround(at_work),
				.working = (uint32) lround(work.working),
				.blocked = (uint32) lround(blocked),
				.completed = (uint32) (int64) completed
			};

			limit_law_look(&state, &sight);
		}
	}
	return outcome;
}

/* What the best of the fixed limits does, on the average of some seeds */
static double
best_fixed(const Load *load, int *limit)
{
	static const int limits[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 50, 64, 128, 256, 450, 1000};
	double		best = 0;

	for (int i = 0; i < (int) lengthof(limits); i++)
	{
		double		done = 0;

		if (load->most > 0 && limits[i] > load->most)
			continue;
		for (int number = 0; number < FIXED_SEEDS; number++)
			done += run(load, number, limits[i]).done / FIXED_SEEDS;
		if (done > best)
		{
			best = done;
			*limit = limits[i];
		}
	}
	return best;
}

/* Run a load with all seeds; returns whether the law is good enough. */
static bool
try(const Load *load, int number)
{
	int			best_limit = 0;
	double		best = best_fixed(load, &best_limit);
	double		done = 0;
	double		open = 0;
	double		closed = 0;
	double		worst = 1e9;
	bool		ok;

	for (int i = 0; i < SEEDS; i++)
	{
		Outcome		outcome = run(load, i, 0);

		done += outcome.done / SEEDS;
		closed += outcome.closed / SEEDS;
		worst = Min(worst, outcome.done);
	}
	for (int i = 0; i < FIXED_SEEDS; i++)
		open += run(load, i, load->most > 0 ? load->most : MOST).done / FIXED_SEEDS;
	ok = done >= load->share_of_best * best && done >= load->share_of_open * open;
	printf("%sok %d - %s: %.2f of the best limit (%d), %.2f of none (worst seed %.2f), closed %.0f %% of the time\n",
		   ok ? "" : "not ", number, load->name, done / best, best_limit, done / open, worst / open,
		   closed * 100);
	return ok;
}

/* After a change of the load, is the new level reached within five seconds? */
static bool
try_changes(const Load *load, int number)
{
	int			late = 0;

	for (int i = 0; i < SEEDS; i++)
	{
		Outcome		outcome = run(load, i, 0);

		for (int change = 0; change < load->seconds; change += 30)
		{
			double		level = 0;
			double		then = 0;

			for (int s = 10; s < 30; s++)
				level += outcome.by_second[change + s] / 20;
			for (int s = 5; s < 10; s++)
				then += outcome.by_second[change + s] / 5;
			late += then < 0.8 * level;
		}
	}
	printf("%sok %d - %s: on the new level within 5 s, but %d of %d times\n",
		   late * 1000 > SEEDS * load->seconds / 30 ? "not " : "", number, load->name, late,
		   SEEDS * load->seconds / 30);
	return late * 1000 <= SEEDS * load->seconds / 30;
}

/* The law at a look after so many us more, with so many completed more */
static void
look(LimitLaw *state, LimitSight *sight, int64 later, uint32 more)
{
	sight->now += later;
	sight->completed += more;
	limit_law_look(state, sight);
}

/* What was seen before a pause, or before the clock was set, says nothing. */
static bool
try_pauses(int *number)
{
	static const int64 pauses[] = {INT64CONST(3600000000), INT64CONST(-3600000000)};
	bool		all_ok = true;

	for (int i = 0; i < (int) lengthof(pauses); i++)
	{
		LimitSight	sight = {.now = INT64CONST(86400000000),.in_use = 100,.working = 100,.blocked = 90};
		LimitLaw	state;
		bool		ok;

		limit_law_init(&state, MOST, false, sight.now);
		for (int n = 0; n < 180; n++)
			look(&state, &sight, TICK, 10);
		look(&state, &sight, pauses[i], 10);
		ok = state.limit == MOST;
		for (int n = 0; n < 300 && state.limit == MOST; n++)
			look(&state, &sight, TICK, 10);
		ok &= state.limit < MOST && fabs(state.open_rate - 2000) < 100;

		/* In a trial, which ends all the same */
		sight.in_use = sight.working = 4;
		while (!state.at_bottom)
			look(&state, &sight, TICK, 10);
		look(&state, &sight, pauses[i], 10);
		ok &= state.on_trial;
		for (int n = 0; n < 500; n++)
			look(&state, &sight, TICK, 15);
		ok &= !state.on_trial && fabs(state.closed_rate - 3000) < 200;
		printf("%sok %d - a pause of %d s is no evidence, and no trial\n", ok ? "" : "not ", ++*number,
			   (int) (pauses[i] / 1000000));
		all_ok &= ok;
	}
	return all_ok;
}

/*
 * Most holders get stuck behind a lock that somebody keeps, while the limit is lowered:
 * it is raised to all within ten looks, though one that is not waits for another.
 */
static bool
try_stuck_holders(int *number)
{
	LimitSight	sight = {.now = INT64CONST(86400000000),.in_use = 100,.working = 100,.blocked = 90};
	LimitLaw	state;
	bool		ok;
	int			looks = 0;

	limit_law_init(&state, MOST, false, sight.now);
	for (int n = 0; n < 1000 && state.limit > LIMIT_LEAST_SLOTS; n++)
	{
		look(&state, &sight, TICK, 10);
		sight.in_use = sight.working = Min(sight.in_use, state.limit);
		sight.blocked = sight.working * 9 / 10;
	}
	ok = state.limit == LIMIT_LEAST_SLOTS;
	sight.working = sight.blocked = 1;
	for (; looks < 100 && state.limit < MOST; looks++)
	{
		sight.in_use = state.limit;
		sight.stuck = state.limit - 1;
		look(&state, &sight, TICK, 0);
	}
	ok &= looks <= 10;
	printf("%sok %d - holders behind a lock that does not move give way within %d looks\n",
		   ok ? "" : "not ", ++*number, looks);
	return ok;
}

/* How many looks at this contention until the limit is lowered?  At most 1000. */
static int
looks_until_lowered(LimitLaw *state, LimitSight *sight)
{
	int			looks = 0;

	while (looks < 1000 && state->limit == MOST)
	{
		look(state, sight, TICK, 10);
		looks++;
	}
	return looks;
}

/*
 * All give up their slots at once, as behind a process that lost the CPU: a crowd that is
 * gone before there was a trial needs more evidence from then on, for ten seconds.
 */
static bool
try_passing_crowd(int *number)
{
	LimitSight	sight = {.now = INT64CONST(86400000000),.in_use = 100,.working = 100,.blocked = 95};
	LimitLaw	state;
	int			looks[3];
	bool		ok;

	limit_law_init(&state, MOST, false, sight.now);
	looks[0] = looks_until_lowered(&state, &sight);
	limit_law_no_waiter(&state, sight.now);
	looks[1] = looks_until_lowered(&state, &sight);
	limit_law_no_waiter(&state, sight.now);
	look(&state, &sight, INT64CONST(11000000), 10);
	looks[2] = looks_until_lowered(&state, &sight);

	ok = looks[1] > 5 * looks[0] && looks[1] < 1000 && looks[2] <= looks[0] + 1;
	printf("%sok %d - a crowd that passed is no reason to hurry: %d, %d and then %d looks\n",
		   ok ? "" : "not ", ++*number, looks[0], looks[1], looks[2]);
	return ok;
}

/*
 * If fewer slots got a fifth more done, less evidence is enough the next time; not if they
 * got as much done.
 */
static bool
try_next_time(int *number)
{
	int			next[2];
	bool		ok;

	for (int gains = 0; gains < 2; gains++)
	{
		LimitSight	sight = {.now = INT64CONST(86400000000),.in_use = 50,.working = 50,.blocked = 30};
		LimitLaw	state;

		limit_law_init(&state, MOST, false, sight.now);
		looks_until_lowered(&state, &sight);
		sight.in_use = sight.working = 4;
		sight.blocked = 3;
		for (int n = 0; n < 1000; n++)
			look(&state, &sight, TICK, gains ? 12 : 10);
		limit_law_no_waiter(&state, sight.now);
		sight.in_use = sight.working = 50;
		sight.blocked = 30;
		next[gains] = looks_until_lowered(&state, &sight);
	}
	ok = next[0] > 5 * next[1] && next[0] < 1000;
	printf("%sok %d - only a gain makes the next time easier: %d looks, and %d without\n",
		   ok ? "" : "not ", ++*number, next[1], next[0]);
	return ok;
}

/*
 * Thousands come at once, who are looked at every 40 ms: if they hinder each other, few of
 * them are in by the time the limit is lowered; else all are in within some looks.
 */
static bool
try_large_crowd(int *number)
{
	int			looks[2];
	uint32		in[2];
	bool		ok;

	for (int contended = 0; contended < 2; contended++)
	{
		LimitSight	sight = {.now = INT64CONST(86400000000)};
		LimitLaw	state;

		limit_law_init(&state, 4000, true, sight.now);
		looks[contended] = 0;
		do
		{
			sight.in_use = sight.working = state.limit;
			sight.blocked = contended ? sight.working * 95 / 100 : 0;
			in[contended] = sight.in_use;
			look(&state, &sight, 8 * TICK, 10);
			looks[contended]++;
		} while (looks[contended] < 1000 && state.limit >= state.open_limit && state.limit < 4000);
	}
	ok = looks[0] <= 7 && in[1] <= 400 && looks[1] < 1000;
	printf("%sok %d - a crowd of 4000 enters within %d looks; if contended, %u of them do\n",
		   ok ? "" : "not ", ++*number, looks[0], in[1]);
	return ok;
}

/*
 * While the limit is lowered, all holders go idle, or half of them leave at once: it is
 * raised until the gate is open again.
 */
static bool
try_idle_holders(int *number)
{
	bool		ok = true;
	int			looks[2];

	for (int leave = 0; leave < 2; leave++)
	{
		LimitSight	sight = {.now = INT64CONST(86400000000)};
		LimitLaw	state;

		limit_law_init(&state, MOST, true, sight.now);
		for (int n = 0; n < 1000 && (n < 100 || state.limit >= state.open_limit); n++)
		{
			sight.in_use = sight.working = Min(state.limit, 300);
			sight.blocked = sight.working * 95 / 100;
			look(&state, &sight, TICK, 10);
		}
		ok &= state.limit < state.open_limit;
		sight.in_use = leave ? state.limit / 2 : state.limit;
		sight.working = leave ? sight.in_use : 0;
		sight.blocked = 0;
		look(&state, &sight, TICK, 10);
		ok &= state.limit < state.open_limit;
		for (looks[leave] = 0; looks[leave] < 1000 && state.limit < state.open_limit; looks[leave]++)
		{
			sight.in_use = leave ? sight.in_use : state.limit;
			look(&state, &sight, TICK, 10);
		}
		ok &= looks[leave] < 600 && !state.on_trial;
	}
	printf("%sok %d - idle holders open the gate within %d looks, and leaving ones within %d\n",
		   ok ? "" : "not ", ++*number, looks[0], looks[1]);
	return ok;
}

int
main(int argc, char **argv)
{
	int			number = 0;
	bool		ok = true;

	for (int i = 0; i < (int) lengthof(loads); i++)
	{
		const Load *load = &loads[i];

		if (argc > 1)
		{
			Outcome		outcome;

			if (strcmp(argv[1], load->name) != 0)
				continue;
			outcome = run(load, 1, 0);
			for (int s = 0; s < load->seconds; s++)
				printf("%3d s: %7.0f done, %4d slots\n", s, outcome.by_second[s], outcome.limit_by_second[s]);
			continue;
		}
		ok &= try(load, ++number);
		if (load->work == in_turns || load->work == in_other_turns)
			ok &= try_changes(load, ++number);
	}
	if (argc <= 1)
	{
		ok &= try_pauses(&number);
		ok &= try_stuck_holders(&number);
		ok &= try_passing_crowd(&number);
		ok &= try_next_time(&number);
		ok &= try_large_crowd(&number);
		ok &= try_idle_holders(&number);
		printf("1..%d\n", number);
	}
	return ok ? 0 : 1;
}
