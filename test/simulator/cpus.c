/*-------------------------------------------------------------------------
 *
 * cpus.c
 *		The control of the CPUs on clients that give each statement some time.
 *
 * A load is some groups of clients.  Those of a closed group send a statement
 * as soon as they have the answer to the last one; to an open group, statements
 * come at random.  A statement uses a CPU, which it shares with others, and may
 * sleep in the middle with its slot.  If it has not ended in its time, it fails,
 * wherever it is.
 *
 * The queue is that of the server: a waiter that has used half of its time
 * exchanges its place with the one that came last.  Holders that sleep do not
 * count.  The control is the server's own (src/core/cpu_control.c).
 *
 * Each load runs with a few seeds, and also without limit and with fixed ones.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "core/slots.h"
#include "simulator.h"

/* The tests are no part of a server. */
#undef printf

#define SEEDS			3
#define MAX_CLIENTS		1000
#define MAX_GROUPS		3

/* Times are ms, unless they are seconds. */
#define SECOND			1000.0
#define WARM_UP			(load->warm_up > 0 ? load->warm_up : 5)
#define MIN_STEP		0.25

/* As in the server */
#define WAITING_TICK	5.0		/* between samples while some wait */
#define TICK			20.0
#define SMOOTH			0.2		/* weight of the last sample of the sleepers */

#define UNLIMITED		PG_UINT32_MAX	/* a fixed limit that is none */

typedef struct Group
{
	const char *name;
	int			clients;
	double		work;			/* of a statement, on a CPU */
	double		patience;		/* time that it has; 0 = any */
	double		of_open;		/* it has at least this part in time of what
								 * it has without limit; 0 = not checked */
	double		of_best;		/* and of that with the best fixed one */
	double		sleep;			/* in the middle, with its slot */
	bool		disk;			/* it sleeps for a disk: it is at work */
	double		spread;			/* of the work, at most this part of it more
								 * or less; 0 = as random_time() */
	double		lag;			/* until the server's clock starts: an answer
								 * may be late though the server had the time */
	double		rate;			/* open: so many per second; 0 = closed */
	double		from;			/* when it comes and goes, seconds */
	double		until;
} Group;

typedef struct Load
{
	const char *name;
	int			cpus;
	int			seconds;
	Group		groups[MAX_GROUPS];
	double		warm_up;		/* seconds of each group that do not count; 0
								 * = 5 */
	bool		unlimited;		/* there is never a limit */
	bool		ends_open;		/* there is none at the end */
} Load;

/* Of a group: name, clients, work and patience, of_open, of_best */
static const Load loads[] = {
	{"closed", 2, 25, {{"6 ms in 300 ms", 400, 6, 300, 10, 0.95}}},
	{"closed, at the edge", 2, 25, {{"6 ms in 1 s", 320, 6, 1000, 1.2, 0.95,.lag = 50,.spread = 0.05}}},
	{"closed, few", 2, 60, {{"300 ms in 3 s", 20, 300, 3000, 1.1, 0.85}},.warm_up = 10},
	{"closed, fewer", 2, 60, {{"500 ms in 2 s", 12, 500, 2000, 1.1, 0.85}},.warm_up = 10},
	{"open, 3 times as many", 2, 25, {{"6 ms in 300 ms", 900, 6, 300, 10, 0.95,.rate = 1000}}},
	{"patient and not", 2, 25, {{"patient", 50, 6, 0, 0, 0.3}, {"6 ms in 300 ms", 200, 6, 300, 0, 0.3}}},
	{"a disk", 2, 25, {{"20 ms for a disk", 400, 2, 150, 10, 0.95,.sleep = 20,.disk = true}}},
	{"64 CPUs", 64, 15, {{"10 ms in 100 ms", 1000, 10, 100, 2, 0.95}}},
	{"a burst beside others", 2, 60, {{"6 ms in 300 ms", 400, 6, 300, 10, 0.9,.until = 10}, {"patient", 50, 6, 0, 1, 0.95,.from = 5}},.warm_up = 1,.ends_open = true},
	{"a burst", 2, 40, {{"few", 2, 6, 0, 0, 0}, {"6 ms in 300 ms", 400, 6, 300, 10, 0.9,.from = 20,.until = 30}},.warm_up = 1,.ends_open = true},
	{"patient, and a few not", 2, 25, {{"6 ms", 100, 6, 0, 0.99}, {"6 ms in 300 ms", 5, 6, 300}},.unlimited = true},
	{"reports, and one statement in vain", 2, 60, {{"10 s", 20, 10000, 0}, {"1 s", 1, 1000, 1000}},.unlimited = true},
	{"enough time", 2, 15, {{"6 ms in 300 ms", 50, 6, 300, 0.99}},.unlimited = true},
	{"in vain, not for want of CPUs", 2, 25, {{"sleeps", 100, 1, 300, 0, 0,.sleep = 2000}, {"6 ms", 6, 6, 0, 0.99}},.unlimited = true},
};

typedef enum State
{
	AWAY,						/* its client sends nothing */
	QUEUED,
	WORKING,
	SLEEPING
} State;

typedef struct Client
{
	const Group *group;
	State		state;
	bool		counted;		/* against the limit */
	bool		has_slept;
	double		arrived;
	double		due;			/* when it sends again, or has slept */
	double		left;			/* work until it sleeps, or ends */
} Client;

static const Load *load;
static Client clients[MAX_CLIENTS];
static int	nclients;
static Client *queue[MAX_CLIENTS];	/* by ticket */
static int	waiting;
static int	counted;			/* holders */
static double sleeping;			/* of these, smoothed */
static CpuControl control;
static uint32 fixed_limit;		/* 0 = the control finds it */
static double now;
static int64 completed;
static int64 overdue;
static int64 nearly;
static double in_time[MAX_GROUPS];
static double limited;			/* part of the time with a limit */

static bool
is_limited(void)
{
	return fixed_limit > 0 ? fixed_limit != UNLIMITED : control.limit > 0;
}

static bool
slot_is_free(void)
{
	uint32		limit = fixed_limit > 0 ? fixed_limit : control.limit;

	return !is_limited() || counted < limit + (int) (sleeping + 0.5);
}

static void
begin(Client *client)
{
	client->state = WORKING;
	client->counted = is_limited();
	counted += client->counted;
	client->has_slept = false;
	if (client->group->spread > 0)
		client->left = client->group->work * (1 + client->group->spread * (2 * random_number() - 1));
	else
		client->left = random_time(client->group->work) / (client->group->sleep > 0 ? 2 : 1);
}

/* When does it send the next statement? */
static void
go_away(Client *client)
{
	const Group *group = client->group;

	client->state = AWAY;
	client->due = now + (group->rate > 0 ? -log(1 - random_number()) * SECOND * group->clients / group->rate : 0.1);
	if (group->until > 0 && now >= group->until * SECOND)
		client->due = INFINITY;
}

static void
end(Client *client, bool well)
{
	const Group *group = client->group;

	completed += well;
	/* What began without a limit is no evidence against it. */
	if (client->counted == is_limited() && group->patience > 0)
	{
		overdue += !well;
		nearly += well && now - client->arrived > group->patience * 15 / 16;
	}
	if (well && now >= (group->from + WARM_UP) * SECOND &&
		(group->lag == 0 || now - client->arrived + group->lag < group->patience))
		in_time[group - load->groups]++;
	counted -= client->counted;
	go_away(client);
}

static bool
is_late(const Client *client)
{
	return now - client->arrived > client->group->patience / 2;
}

/* The next in the queue is out of it. */
static Client *
dequeue(void)
{
	Client	   *next = queue[0];

	if (next->group->patience > 0 && is_late(next))
	{
		int			last = 0;	/* that arrived */

		for (int i = 1; i < waiting; i++)
			if (queue[i]->group->patience > 0 && queue[i]->arrived > queue[last]->arrived)
				last = i;
		if (!is_late(queue[last]))
		{
			next = queue[last];
			queue[last] = queue[0];
		}
	}
	memmove(&queue[0], &queue[1], --waiting * sizeof(queue[0]));
	return next;
}

static void
arrive(Client *client)
{
	client->arrived = now;
	if (waiting == 0 && slot_is_free())
		begin(client);
	else
	{
		client->state = QUEUED;
		queue[waiting++] = client;
	}
}

/* Those whose time is over fail. */
static void
end_queued(void)
{
	int			n = 0;

	for (int i = 0; i < waiting; i++)
		if (queue[i]->group->patience > 0 && now - queue[i]->arrived >= queue[i]->group->patience)
			go_away(queue[i]);
		else
			queue[n++] = queue[i];
	waiting = n;
}

/* Let time pass for this client, which gets so much of a CPU, if any. */
static void
pass(Client *client, double cpu)
{
	switch (client->state)
	{
		case AWAY:
			if (now >= client->due)
				arrive(client);
			return;
		case QUEUED:
			return;
		case WORKING:
			client->left -= cpu;
			if (client->left > 0)
				break;
			if (client->group->sleep == 0 || client->has_slept)
			{
				end(client, true);
				return;
			}
			client->state = SLEEPING;
			client->due = now + random_time(client->group->sleep);
			break;
		case SLEEPING:
			if (now < client->due)
				break;
			client->state = WORKING;
			client->has_slept = true;
			client->left = random_time(client->group->work) / 2;
			break;
	}
	if (client->group->patience > 0 && now - client->arrived >= client->group->patience)
		end(client, false);
}

static void
take_sample(int working, int asleep)
{
	CpuSample	sample = {.now = (int64) (now * 1000),.cpus = load->cpus,.wanting = working,
	.waits = waiting > 0,.completed = completed,.overdue = overdue,.nearly = nearly};

	cpu_control_sample(&control, &sample);
	sleeping += (asleep - sleeping) * SMOOTH;
}

/* What each group has in time per second, on the average of the seeds */
static void
run(uint32 limit, double rates[MAX_GROUPS])
{
	double		step = WAITING_TICK;
	int			seeds;

	fixed_limit = limit;
	limited = 0;
	memset(rates, 0, MAX_GROUPS * sizeof(double));
	for (const Group *group = load->groups; group < load->groups + MAX_GROUPS && group->clients > 0; group++)
		step = Max(Min(step, group->work / 8), MIN_STEP);
	seeds = limit > 0 ? 1 : SEEDS;
	for (uint64 seed = 0; seed < seeds; seed++)
	{
		double		sampled = 0;

		seed_random(seed);
		memset(&control, 0, sizeof(control));
		memset(in_time, 0, sizeof(in_time));
		memset(clients, 0, sizeof(clients));
		now = completed = overdue = nearly = nclients = waiting = counted = sleeping = 0;
		for (const Group *group = load->groups; group < load->groups + MAX_GROUPS; group++)
			for (int n = 0; n < group->clients; n++)
			{
				Client	   *client = &clients[nclients++];

				client->group = group;
				go_away(client);
				client->due += group->from * SECOND + random_number() * 100;
			}
		while (now < load->seconds * SECOND)
		{
			int			working = 0;
			int			asleep = 0;
			double		cpu;
			int			first = (int) (random_number() * nclients);

			for (int i = 0; i < nclients; i++)
			{
				working += clients[i].state == WORKING;
				asleep += clients[i].state == SLEEPING && !clients[i].group->disk;
			}
			if (now - sampled >= (waiting > 0 ? WAITING_TICK : TICK))
			{
				sampled = now;
				take_sample(working, asleep);
			}
			now += step;
			cpu = step * Min(1.0, (double) load->cpus / Max(working, 1));
			for (int i = 0; i < nclients; i++)
				pass(&clients[(first + i) % nclients], cpu);
			end_queued();
			while (waiting > 0 && slot_is_free())
				begin(dequeue());
			limited += is_limited() ? step / SECOND / load->seconds / seeds : 0;
		}
		for (int i = 0; i < MAX_GROUPS && load->groups[i].clients > 0; i++)
		{
			const Group *group = &load->groups[i];
			double		until = group->until > 0 ? group->until : load->seconds;

			rates[i] += in_time[i] / (until - group->from - WARM_UP) / seeds;
		}
	}
}

static void
try(void)
{
	static const int limits[] = {1, 2, 4, 8, 16};	/* for each CPU */
	double		open[MAX_GROUPS];
	double		best[MAX_GROUPS];
	double		controlled[MAX_GROUPS];

	run(UNLIMITED, open);
	memcpy(best, open, sizeof(best));
	for (int n = 0; n < (int) lengthof(limits); n++)
	{
		double		rates[MAX_GROUPS];

		run(limits[n] * load->cpus, rates);
		for (int i = 0; i < MAX_GROUPS; i++)
			best[i] = Max(best[i], rates[i]);
	}
	run(0, controlled);
	for (int i = 0; i < MAX_GROUPS; i++)
	{
		const Group *group = &load->groups[i];

		if (group->of_open > 0 || group->of_best > 0)
			assert_true(controlled[i] >= group->of_open * open[i] && controlled[i] >= group->of_best * best[i],
						"%s, %s: %.0f per second in time, %.2f of no limit, %.2f of the best", load->name, group->name,
						controlled[i], controlled[i] / open[i], controlled[i] / best[i]);
	}
	if (load->unlimited)
		assert_true(limited == 0, "%s: %.2f of the time with a limit", load->name, limited);
	if (load->ends_open)
		assert_true(control.limit == 0, "%s: no limit is left", load->name);
}

/* What takes hours: how often does it rise without evidence? */
static void
try_hours(void)
{
	CpuSample	sample = {.cpus = 2,.waits = true};
	int			rises = 0;

	memset(&control, 0, sizeof(control));
	for (int n = 0; n < 6 * 3600 * 10; n++)
	{
		bool		rose = control.kept > 0;

		sample.now += 100000;
		sample.wanting = control.limit > 0 ? control.limit : 400;
		sample.completed += 30;
		sample.overdue += sample.wanting > 20 ? 10 : 0;
		cpu_control_sample(&control, &sample);
		rises += n > 4 * 3600 * 10 && control.kept > 0 && !rose;
	}
	assert_true(rises >= 8 && rises <= 16, "it rises without evidence every ten minutes");
}

void
try_cpu_loads(void)
{
	for (load = loads; load < loads + lengthof(loads); load++)
		try();
	try_hours();
}
