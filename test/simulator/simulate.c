/*-------------------------------------------------------------------------
 *
 * simulate.c
 *		The control of a hot spot's limit on sessions that wait for each other.
 *
 * A load is some groups of sessions.  A session thinks, enters, uses the CPU,
 * locks rows, maybe thinks in between, commits and begins anew.  Sessions share
 * the CPU.  A row goes to the first in its line.  The longer the line, the more
 * work is each transaction with the row.  A session that waits in a circle
 * fails after a second.  All times vary at random.
 *
 * Samples find out what sessions contend for, and mark them, by the rules of
 * src/sampler.c and src/core/hot_spots.c.  A marked session needs a place until
 * it commits.  Where sessions mix, the row is marked, and transactions that do
 * not want it need no place.  The control is the server's own
 * (src/core/limit_control.c).
 *
 * Each load runs with many seeds.  The simulator compares what each group does
 * with no limit and with the best of some fixed limits.  A few samples made by
 * hand test what takes hours.  Then cpus.c tries the other control.  Prints TAP.
 *
 * A load is here because a mistake in the control fails it that fails no other,
 * or because it says what is promised.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "core/slots.h"
#include "lib/ilist.h"
#include "simulator.h"

/* The tests are no part of a server. */
#undef printf
#undef vprintf

#define SEEDS			30		/* of each load */
#define FIXED_SEEDS		3		/* with a fixed limit */

#define MAX_SESSIONS	1000
#define MAX_GROUPS		3
#define MAX_LOCKS		4
#define ROWS			1000

/* Times of the simulation are ms. */
#define SECOND			1000.0
#define TICK			5.0		/* between samples while some wait */
#define OPEN_TICKS		4		/* ticks between them while none does */
#define FEW_TICKS		100		/* the same while up to FEW_AT_WORK work */
/* Seconds that do not count: it takes long to get out of circles. */
#define WARM_UP(group)	((group)->locks > 1 ? load->seconds / 2 : 5)
#define DEADLOCK_TIMEOUT	(1 * SECOND)
#define STALL			500.0
#define STALL_EVERY		(5 * SECOND)
#define CROWDING		0.01	/* more work with a row for each one in line */

/* As in the server */
#define FEW_AT_WORK		4
#define MARK_IN_LINE	4
#define MAX_MARK		40
#define FORGET_AFTER	(5 * SECOND)
#define STUCK_AFTER		(1 * SECOND)
#define IDLE_AFTER		100.0
#define MAX_CHAIN		16

typedef struct Group
{
	const char *name;
	int			clients;		/* 0: no more groups */
	double		of_open;		/* it does at least this part of what it does
								 * without limit; 0 = not checked */
	double		of_best;		/* and of that with the best fixed one */
	double		between;		/* ms its client thinks between transactions */
	double		before;			/* ms on the CPU before each lock */
	double		work;			/* and after it */
	double		inside;			/* ms its client thinks after that */
	double		commit;			/* ms until all is on the disk */
	int			locks;			/* of a transaction */
	int			rows;			/* out of so many */
	double		part;			/* of its transactions that lock; 0 = all */
	double		from;			/* when it comes and goes, seconds */
	double		until;
	double		alone;			/* of these, that do not share it; 0 = all */
	bool		few_rest;		/* only with locks, shared if any, its client
								 * thinks */
	bool		reconnects;		/* each transaction is of a new session */
	bool		mixes;			/* only the part that locks needs places */
} Group;

typedef struct Load
{
	const char *name;
	int			cores;
	int			seconds;
	Group		groups[MAX_GROUPS];
	double		limited;		/* the hot spot has a limit for at most this
								 * part of the time; 0 = not checked */
	double		others_time;	/* where its sessions mix, the others take at
								 * most so many times as long as without
								 * limit; 0 = not checked */
	bool		stalls;			/* the disk, for STALL every STALL_EVERY */
} Load;

#define GROUP(...)		{__VA_ARGS__}

/*
 * Of a group: name, clients, of_open, of_best, and the times and numbers.
 * Where sessions mix, more transactions share the CPUs than without a limit,
 * because more come past the row.
 */
static const Load loads[] = {
	{"one row, 500 clients", 2, 20, {GROUP("row", 500, 2, 0.95, 0, 0.2, 0.2, 0, 0.5, 1, 1)}},
	{"four clients of one row", 2, 20, {GROUP("row", 4, 0.98, 0, 0, 0.2, 0.2, 0, 0.5, 1, 1)}},
	{"one row, then ten, 64 cores", 64, 30, {GROUP("row", 100, 1, 0.95, 0, 0.2, 0.2, 0, 0.5, 1, 1,.until = 12), GROUP("tpcb", 100, 0.9, 0.85, 1, 4, 3, 2, 2, 1, 10,.from = 12)}},
	{"deadlocks", 2, 60, {GROUP("order", 60, 4, 0.5, 0, 0.1, 0.1, 0, 0.5, 4, 60)}},
	{"one row in a tenth, a disk that stalls", 2, 60, {GROUP("mixed", 200, 0.98, 0.8, 0, 0.2, 0.2, 1, 0.5, 1, 1, 0.1)},.stalls = true},
	{"a shared row", 2, 60, {GROUP("19 to 1", 150, 1.85, 0, 0, 0.2, 0.2, 20, 0.5, 1, 1,.alone = 0.05,.few_rest = true)},.limited = 0.6},
	{"new sessions beside others", 2, 60, {GROUP("new", 60, 0.95, 0, 0, 0.2, 0.2, 0, 0.5, 1, 1,.reconnects = true), GROUP("block", 20, 0.4, 0, 0, 0.2, 0.2, 1, 0.5, 1, 1)},.limited = 0.9},
	{"sessions that mix, a tenth", 2, 20, {GROUP("mixed", 200, 1.1, 0, 1, 0.2, 0.2, 1, 0.5, 1, 1, 0.1,.few_rest = true,.mixes = true)},.others_time = 1.5},
};

typedef enum State
{
	THINK,						/* outside any transaction */
	QUEUED,						/* waits for a place */
	WORKING,					/* wants the CPU */
	BLOCKED,					/* waits for a row */
	RESTING,					/* its client thinks */
	COMMITTING					/* waits for the disk, without a place */
} State;

typedef struct Session Session;

typedef struct Row
{
	Session    *owner;			/* that has it alone, or NULL */
	int			sharers;		/* that have it together */
	dlist_head	line;
	int			waiting;		/* so many in it */
	double		moved;			/* when one left the line */
} Row;

typedef struct Spot
{
	bool		exists;
	double		seen;			/* when one was last in line for it */
	int			mark;			/* of its row, where sessions mix */
	LimitControl control;
	uint32		in_use;
	uint32		completed;
	dlist_head	queue;
	int			waiting;
} Spot;

struct Session
{
	const Group *group;
	State		state;
	double		since;
	double		due;			/* when that ends, if it does so by itself */
	double		began;			/* when the transaction did, or queued */
	dlist_node	node;			/* in the same line */

	bool		locks_any;		/* this transaction takes locks, */
	bool		shares;			/* and shares them */
	bool		has_lock;		/* works with the lock that it took last */
	Row		   *wanted;			/* that it waits for, while it is blocked */
	Row		   *held[MAX_LOCKS];
	int			nheld;
	int			ntaken;

	Spot	   *spot;			/* that it is marked for, or NULL */
	int			mark;
	Spot	   *place;			/* the hot spot where it has one, or NULL */
};

/* Sessions that are due, the next one last */
typedef struct Agenda
{
	Session    *members[MAX_SESSIONS];
	int			size;
} Agenda;

static const Load *load;
static uint32 fixed_limit;		/* 0 = the control finds it */
static Session sessions[MAX_SESSIONS];
static int	nsessions;
static Row	rows[ROWS];
static Spot hot_spot;
static Agenda timers;			/* due at a time */
static Agenda workers;			/* due at a time of the CPU, which goes the
								 * slower the more want it */
static double now;
static double cpu_now;
static double done[MAX_GROUPS]; /* transactions that count */
static double limited;			/* part of the time that counts with a limit */
static double others_time;		/* that the first group's transactions take
								 * that lock nothing, on the average */
static double others;			/* so many */
static uint64 random_state;
static int	number;				/* of what was asserted so far */
static bool all_ok = true;

void
seed_random(uint64 seed)
{
	random_state = seed * UINT64CONST(0x9E3779B97F4A7C15) + 1;
}

double
random_number(void)
{
	random_state = random_state * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (double) (random_state >> 11) / (UINT64CONST(1) << 53);
}

double
random_time(double mean)
{
	return mean * (0.5 - 0.5 * log(1 - random_number()));
}

/* Let a session be in that state; for that time, if it ends by itself. */
static void
stay(Session *s, State state, double time)
{
	Agenda	   *agenda = state == WORKING ? &workers : &timers;
	int			at = agenda->size;

	s->state = state;
	s->since = now;
	s->due = (state == WORKING ? cpu_now : now) + time;
	if (state == QUEUED || state == BLOCKED)
		return;
	for (; at > 0 && agenda->members[at - 1]->due <= s->due; at--)
		agenda->members[at] = agenda->members[at - 1];
	agenda->members[at] = s;
	agenda->size++;
}

static void
begin_work(Session *s)
{
	s->nheld = s->ntaken = 0;
	s->has_lock = false;
	stay(s, WORKING, random_time(s->group->before));
}

static void
grant_places(Spot *spot)
{
	while (spot->waiting > 0 && spot->in_use < spot->control.limit)
	{
		Session    *s = dlist_container(Session, node, dlist_pop_head_node(&spot->queue));

		spot->waiting--;
		s->place = spot;
		spot->in_use++;
		begin_work(s);
	}
}

static void
leave_place(Session *s)
{
	Spot	   *spot = s->place;

	s->place = NULL;
	if (!spot)
		return;
	spot->in_use--;
	grant_places(spot);
}

/* It has got the lock that it wanted, or needs none. */
static void
own(Session *s, Row *row)
{
	double		crowd = 1;

	s->wanted = NULL;
	if (row)
	{
		if (s->shares)
			row->sharers++;
		else
			row->owner = s;
		s->held[s->nheld++] = row;
		crowd += CROWDING * row->waiting;
	}
	s->ntaken++;
	s->has_lock = true;
	stay(s, WORKING, random_time(s->group->work) * crowd);
}

/* As in PostgreSQL, those that share a row pass by those that want it alone. */
static bool
may_own(const Session *s, const Row *row)
{
	return !row->owner && (s->shares || row->sharers == 0);
}

static void
release_all(Session *s)
{
	while (s->nheld > 0)
	{
		Row		   *row = s->held[--s->nheld];

		if (s->shares)
			row->sharers--;
		else
			row->owner = NULL;
		while (row->waiting > 0)
		{
			Session    *first = dlist_head_element(Session, node, &row->line);

			if (!may_own(first, row))
				break;
			dlist_delete(&first->node);
			row->moved = now;
			row->waiting--;
			own(first, row);
		}
	}
}

static void
take_lock(Session *s)
{
	Row		   *row;

	do
		row = &rows[(int) (random_number() * s->group->rows)];
	while (row->owner == s);
	if (may_own(s, row))
	{
		own(s, row);
		return;
	}
	stay(s, BLOCKED, 0);
	s->wanted = row;
	if (row->waiting++ == 0)
		row->moved = now;
	dlist_push_tail(&row->line, &s->node);
}

static void
end_transaction(Session *s)
{
	if (s->group == load->groups && !s->locks_any && s->began >= WARM_UP(s->group) * SECOND)
		others_time += (now - s->began - others_time) / ++others;
	release_all(s);
	stay(s, THINK, random_time(s->group->between));
}

/* Commit, or take the next lock. */
static void
begin_next_step(Session *s)
{
	if (s->locks_any && s->ntaken < s->group->locks)
	{
		s->has_lock = false;
		stay(s, WORKING, random_time(s->group->before));
		return;
	}
	if (now >= (s->group->from + WARM_UP(s->group)) * SECOND)
		done[s->group - load->groups]++;
	if (s->locks_any)
		hot_spot.completed++;
	leave_place(s);
	stay(s, COMMITTING, random_time(s->group->commit) +
		 (load->stalls ? Max(STALL - fmod(now, STALL_EVERY), 0) : 0));
}

/* What it did, or waited for, is over. */
static void
go_on(Session *s)
{
	if (s->state == THINK)
	{
		if (s->group->until > 0 && now >= s->group->until * SECOND)
			return;
		if (s->group->reconnects || (s->spot && !s->spot->exists))
		{
			s->spot = NULL;
			s->mark = 0;
		}
		s->began = now;
		s->locks_any = s->group->locks > 0 && (s->group->part == 0 || random_number() < s->group->part);
		s->shares = s->group->alone > 0 && random_number() >= s->group->alone;
		if (s->group->mixes)
			s->spot = s->locks_any && hot_spot.mark > 0 ? &hot_spot : NULL;
		if (!s->spot)
		{
			begin_work(s);
			return;
		}
		stay(s, QUEUED, 0);
		dlist_push_tail(&s->spot->queue, &s->node);
		s->spot->waiting++;
		grant_places(s->spot);
	}
	else if (s->state == COMMITTING)
		end_transaction(s);
	else if (s->state == RESTING)
		begin_next_step(s);
	else if (!s->has_lock && s->locks_any)
		take_lock(s);
	else if (!s->has_lock)
		own(s, NULL);
	else
	{
		if (s->group->inside > 0 &&
			!(s->group->few_rest && (!s->locks_any || (s->group->alone > 0 && !s->shares))))
			stay(s, RESTING, random_time(s->group->inside));
		else
			begin_next_step(s);
	}
}

/* Those that wait in a circle fail, and begin anew. */
static void
check_for_deadlocks(void)
{
	for (Session *s = sessions; s < sessions + nsessions; s++)
	{
		Session    *other = s;
		int			n = 0;

		if (!s->wanted || now - s->since < DEADLOCK_TIMEOUT || now - s->since >= DEADLOCK_TIMEOUT + TICK)
			continue;
		do
			other = other->wanted->owner;
		while (other && other->wanted && other != s && n++ < nsessions);
		if (other != s)
			continue;
		dlist_delete(&s->node);
		s->wanted->waiting--;
		s->wanted = NULL;
		leave_place(s);
		end_transaction(s);
	}
}

/* What follows is as in src/sampler.c and src/core/hot_spots.c. */

/* Does this one, which others wait for, do nothing? */
static bool
is_idle(const Session *s)
{
	return s->state == RESTING && now - s->since >= IDLE_AFTER;
}

/* Does this session, which is in line, wait for one that does nothing? */
static bool
is_stuck(const Session *s)
{
	const Row  *row = NULL;

	for (int n = 0; n < MAX_CHAIN && s->wanted; n++)
	{
		row = s->wanted;
		s = row->owner;
		if (!s)					/* those that share it come and go */
			return false;
	}
	return is_idle(s) || (!s->wanted && now - row->moved >= STUCK_AFTER);
}

/* Note what a session does, and add it to the sample of the hot spot. */
static void
note_activity(Session *s, LoadSample *sample)
{
	bool		contends = s->wanted && !is_stuck(s);
	bool		works = s->state == WORKING || (s->state == RESTING && !is_idle(s));
	int		   *mark = s->group->mixes ? &hot_spot.mark : &s->mark;

	if (s->spot && !s->spot->exists)
	{
		s->spot = NULL;
		s->mark = 0;
	}
	if (contends)
	{
		s->spot = &hot_spot;
		if (!s->spot->exists)
		{
			s->spot->exists = true;
			limit_control_init(&s->spot->control, now * 1000);
			if (fixed_limit > 0)
				s->spot->control.limit = fixed_limit;
		}
		s->spot->seen = now;
		*mark = Min(*mark + MARK_IN_LINE, MAX_MARK);
	}
	if (!s->spot)
		return;

	sample->contenders++;
	sample->working += contends || works;
	if (contends)
		sample->blocked++;
	else if (s->wanted || is_idle(s))
		leave_place(s);
	else if (s->state == WORKING && s->spot->control.limit != 1 && --*mark <= 0)
	{
		s->spot = NULL;
		*mark = 0;
		leave_place(s);
	}
}

static void
take_sample(int tick)
{
	LoadSample	sample = {.now = (int64) (now * 1000)};
	uint32		at_work = 0;

	if (hot_spot.waiting == 0)
	{
		for (int i = 0; i < nsessions; i++)
			at_work += sessions[i].state != THINK && sessions[i].state != COMMITTING;
		if (tick % (at_work <= FEW_AT_WORK ? FEW_TICKS : OPEN_TICKS) != 0)
			return;
	}
	for (int i = 0; i < nsessions; i++)
		note_activity(&sessions[i], &sample);
	if (!hot_spot.exists)
		return;
	if (fixed_limit == 0 && hot_spot.control.limit == NO_LIMIT && now - hot_spot.seen >= FORGET_AFTER)
		memset(&hot_spot, 0, offsetof(Spot, control));
	else if (fixed_limit == 0)
	{
		sample.in_use = hot_spot.in_use;
		sample.waiting = hot_spot.waiting;
		sample.completed = hot_spot.completed;
		limit_control_sample(&hot_spot.control, &sample);
	}
	grant_places(&hot_spot);
}

/* Go on to that time, or to when the next session is due: that one. */
static Session *
next_due(double until)
{
	double		speed = Min(1.0, (double) load->cores / Max(workers.size, 1));
	double		timer = timers.size > 0 ? timers.members[timers.size - 1]->due : until;
	double		work = workers.size > 0 ? now + (workers.members[workers.size - 1]->due - cpu_now) / speed : until;
	double		next = Min(Min(timer, work), until);

	cpu_now += (next - now) * speed;
	now = next;
	if (next == until)
		return NULL;
	return work < timer ? workers.members[--workers.size] : timers.members[--timers.size];
}

/*
 * What each group does per second, on the average of that many seeds, under
 * the control unless limit is a fixed one
 */
static void
run(const Load *which, int seeds, uint32 limit, double rates[MAX_GROUPS])
{
	int			ticks = (int) (which->seconds * SECOND / TICK);

	load = which;
	fixed_limit = limit;
	limited = others_time = others = 0;
	memset(rates, 0, MAX_GROUPS * sizeof(double));
	for (uint64 seed = 0; seed < seeds; seed++)
	{
		seed_random(seed);
		memset(done, 0, sizeof(done));
		memset(&hot_spot, 0, sizeof(hot_spot));
		memset(rows, 0, sizeof(rows));
		memset(sessions, 0, sizeof(sessions));
		now = cpu_now = 0;
		timers.size = workers.size = nsessions = 0;
		hot_spot.control.limit = NO_LIMIT;
		for (const Group *group = load->groups; group < load->groups + MAX_GROUPS; group++)
			for (int n = 0; n < group->clients; n++)
			{
				sessions[nsessions].group = group;
				stay(&sessions[nsessions++], THINK, group->from * SECOND + random_number() * 100);
			}
		for (int tick = 1; tick <= ticks; tick++)
		{
			Session    *s;

			while ((s = next_due(tick * TICK)) != NULL)
				go_on(s);
			check_for_deadlocks();
			take_sample(tick);
			if (now >= WARM_UP(load->groups) * SECOND && hot_spot.control.limit != NO_LIMIT)
				limited += TICK / SECOND / (load->seconds - WARM_UP(load->groups)) / seeds;
		}
		for (int i = 0; i < MAX_GROUPS; i++)
		{
			const Group *group = &load->groups[i];
			double		end = group->until > 0 ? group->until : load->seconds;

			rates[i] += done[i] / (end - group->from - WARM_UP(group)) / seeds;
		}
	}
}

/* Compare a load under the control, without limit and with fixed ones. */
static void
try(const Load *which)
{
	static const uint32 limits[] = {1, 2, 4, 8, 16, 64};
	double		open[MAX_GROUPS];
	double		best[MAX_GROUPS];
	double		controlled[MAX_GROUPS];
	double		part;
	double		others_part;

	run(which, FIXED_SEEDS, NO_LIMIT, open);
	others_part = 1 / others_time;
	run(which, SEEDS, 0, controlled);
	part = limited;
	others_part *= others_time;
	memcpy(best, open, sizeof(best));
	for (int n = 0; n < (int) lengthof(limits); n++)
	{
		double		rates[MAX_GROUPS];

		if (which->groups[0].of_best == 0 && which->groups[1].of_best == 0)
			break;
		run(which, FIXED_SEEDS, limits[n], rates);
		for (int i = 0; i < MAX_GROUPS; i++)
			best[i] = Max(best[i], rates[i]);
	}

	for (int i = 0; i < MAX_GROUPS; i++)
	{
		const Group *group = &which->groups[i];

		if (group->of_open > 0)
			assert_true(controlled[i] >= group->of_open * open[i] && controlled[i] >= group->of_best * best[i],
						"%s, %s: %.0f per second, %.2f of no limit, %.2f of the best", which->name, group->name,
						controlled[i], controlled[i] / open[i], controlled[i] / best[i]);
	}
	if (which->limited > 0)
		assert_true(part <= which->limited, "%s: %.2f of the time with a limit", which->name, part);
	if (which->others_time > 0)
		assert_true(others_part <= which->others_time, "%s: the others take %.2f of the time without limit",
					which->name, others_part);
}

/*
 * Take samples of that many contenders, of which most wait for each other.  With
 * up to 20 places they complete twice as much.  Returns how many trials began.
 */
static int
sample_for(LimitControl *control, LoadSample *sample, double seconds, double every, int contenders)
{
	int			trials = 0;

	for (int n = 0; n < seconds / every; n++)
	{
		bool		in_trial = control->kept > 0;

		sample->now += (int64) (every * 1000000);
		sample->contenders = contenders;
		sample->in_use = sample->working = Min(control->limit, contenders);
		sample->blocked = sample->working * 7 / 8;
		sample->waiting = contenders - sample->in_use;
		sample->completed += (uint32) (every * (sample->in_use > 20 ? 1000 : 2000));
		limit_control_sample(control, sample);
		trials += control->kept > 0 && !in_trial;
	}
	return trials;
}

void
assert_true(bool ok, const char *what,...)
{
	va_list		args;

	va_start(args, what);
	printf("%sok %d - ", ok ? "" : "not ", ++number);
	vprintf(what, args);
	printf("\n");
	fflush(stdout);
	va_end(args);
	all_ok &= ok;
}

/* What takes too long for the loads, or comes too rarely there */
static void
try_samples(void)
{
	LoadSample	sample = {0};
	LimitControl control;
	int			trials;

	limit_control_init(&control, 0);
	sample_for(&control, &sample, 0.8, 0.02, 100);
	sample_for(&control, &sample, 0.8, 0.02, 0);
	sample_for(&control, &sample, 0.8, 0.02, 100);
	sample_for(&control, &sample, 3600, 3600, 100);
	assert_true(control.limit == NO_LIMIT, "neither short contention nor a pause leads to a limit");
	sample_for(&control, &sample, 0.02, 0.02, 0);
	sample_for(&control, &sample, 0.2, 0.1, 100);
	assert_true(control.limit != NO_LIMIT, "late samples do, and a moment without contention does not matter");

	sample_for(&control, &sample, 3, 0.02, 100);
	assert_true(control.limit == 4 || control.kept == 4, "four places are left");

	sample_for(&control, &sample, 4 * 3600, 0.1, 100);
	trials = sample_for(&control, &sample, 2 * 3600, 0.1, 100);
	assert_true(trials >= 8 && trials <= 16, "a good limit is tried every ten minutes");

	sample_for(&control, &sample, 2, 0.02, 0);
	assert_true(control.limit != NO_LIMIT, "it stays while nobody waits for a moment");
	sample_for(&control, &sample, 2, 0.02, 0);
	assert_true(control.limit == NO_LIMIT, "it ends if nobody waits");
	sample_for(&control, &sample, 2, 0.02, 100);
	assert_true(control.limit != NO_LIMIT, "it comes back when they wait again");

	/* Those at work go one by one. */
	limit_control_init(&control, sample.now);
	for (int n = 0; n < 600; n++)
	{
		sample.now += 40000;
		sample.in_use = sample.working = 100 - n / 10;
		sample.blocked = sample.working - 1;
		sample.waiting = 100 - sample.in_use;
		sample.completed += n % 10 == 0;
		limit_control_sample(&control, &sample);
	}
	assert_true(control.limit != NO_LIMIT, "it stays while those above it get fewer");
}

int
main(void)
{
	for (int i = 0; i < (int) lengthof(loads); i++)
		try(&loads[i]);
	try_samples();
	try_cpu_loads();
	printf("1..%d\n", number);
	return all_ok ? 0 : 1;
}
