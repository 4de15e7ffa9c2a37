/*-------------------------------------------------------------------------
 *
 * cpus.c
 *		The controls of the CPUs, on clients that give each statement some time.
 *
 * A load is some groups of clients.  Those of a closed group send a statement
 * as soon as they have the answer to the last one; to an open group, statements
 * come at random.  A statement uses a CPU, which it shares with others, and may
 * sleep in the middle with its slot.  If it has not ended in its time, it fails,
 * wherever it is.
 *
 * The queue is that of the server: a waiter that has used half of its time
 * exchanges its place with the one that came last.  Holders that sleep do not
 * count.  Where long statements have places, each decade has a queue of its own.
 * The controls are the server's own (src/core/cpu_control.c, long_control.c).
 *
 * Each load runs with a few seeds, and also without limit and with fixed ones,
 * then without places.
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
#define LONG_AFTER		100.0
#define SHORT			LONG_CLASSES	/* the class of other statements */

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
	int			most;			/* so many at most have begun, and not ended,
								 * in the last second; 0 = not checked */
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
	bool		has_places;		/* long statements need places */
	int			limit;			/* that is set; 0 = the control finds it */
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
	{"reports use the CPUs", 8, 60, {{"10 s", 20, 10000, 0, 0.95, 0,.most = 10}},.has_places = true},
	{"reports for a disk, then for CPUs", 8, 85, {{"2 s, and 6 s for a disk", 64, 2000, 0, 0.9, 0,.sleep = 6000,.disk = true,.until = 50}, {"5 s", 40, 5000, 0, 0, 0,.from = 75,.most = 12}},.has_places = true},
	{"reports, then others", 8, 90, {{"2 s, and 6 s for a disk", 64, 2000, 0, 0, 0,.sleep = 6000,.disk = true,.most = 5}, {"10 ms", 40, 10, 0, 1.5, 0,.from = 30}, {"500 ms", 20, 500, 0, 0.75, 0,.from = 30}},.has_places = true,.warm_up = 20},
	{"a second beside minutes", 2, 600, {{"1 min", 10, 60000, 0, 0.8}, {"1 s", 1, 1000, 0, 2.5}},.has_places = true},
	{"inside a limit", 8, 60, {{"2 s", 20, 2000, 0, 0, 0,.most = 1}, {"200 ms", 20, 200, 0, 0, 0,.most = 1}, {"10 ms in 300 ms", 20, 10, 300, 0.99, 0,.rate = 50}},.has_places = true,.limit = 4},
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
	int			class;
	bool		counted;		/* against the limit */
	bool		has_slept;
	double		arrived;
	double		due;			/* when it sends again, or has slept */
	double		left;			/* work until it sleeps, or ends */
} Client;

/* The clients that wait for a slot, and a place of that class */
typedef struct Queue
{
	Client	   *waiters[MAX_CLIENTS];	/* by ticket */
	int			n;
	int			in_use;			/* places, or slots of short ones */
} Queue;

static const Load *load;
static Client clients[MAX_CLIENTS];
static int	nclients;
static Queue queues[LONG_CLASSES + 1];	/* by class */
static int	waiting;			/* in all of them */
static int	counted;			/* holders */
static double sleeping;			/* of these, smoothed */
static CpuControl control;
static LongControl long_control;
static uint32 fixed_limit;		/* without places; 0 = that of the load */
static double now;
static int64 completed;
static int64 overdue;
static int64 nearly;
static double in_time[MAX_GROUPS];
static int	most[MAX_GROUPS];	/* that had begun in the last second of a run */
static double limited;			/* part of the time with a limit */

static uint32
get_limit(void)
{
	return fixed_limit > 0 ? fixed_limit : load->limit > 0 ? load->limit : control.limit;
}

static bool
is_limited(void)
{
	return get_limit() != UNLIMITED && get_limit() > 0;
}

static bool
slot_is_free(void)
{
	return !is_limited() || counted < get_limit() + (int) (sleeping + 0.5);
}

static bool
place_is_free(int class)
{
	return class == SHORT || queues[class].in_use < long_control.classes[class].places;
}

/* Of those with a free place, the queue whose first waiter has waited longest */
static Queue *
next_queue(void)
{
	Queue	   *next = NULL;

	for (int class = 0; class <= SHORT; class++)
		if (queues[class].n > 0 && place_is_free(class) &&
			(!next || queues[class].waiters[0]->arrived < next->waiters[0]->arrived))
			next = &queues[class];
	return next;
}

static void
begin(Client *client)
{
	client->state = WORKING;
	client->counted = is_limited();
	counted += client->counted;
	queues[client->class].in_use++;
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
	queues[client->class].in_use--;
	go_away(client);
}

static bool
is_late(const Client *client)
{
	return now - client->arrived > client->group->patience / 2;
}

/* The next in the queue is out of it. */
static Client *
dequeue(Queue *queue)
{
	Client	  **waiters = queue->waiters;
	Client	   *next = waiters[0];

	if (next->group->patience > 0 && is_late(next))
	{
		int			last = 0;	/* that arrived */

		for (int i = 1; i < queue->n; i++)
			if (waiters[i]->group->patience > 0 && waiters[i]->arrived > waiters[last]->arrived)
				last = i;
		if (!is_late(waiters[last]))
		{
			next = waiters[last];
			waiters[last] = waiters[0];
		}
	}
	waiting--;
	memmove(&waiters[0], &waiters[1], --queue->n * sizeof(waiters[0]));
	return next;
}

static void
arrive(Client *client)
{
	Queue	   *queue = &queues[client->class];

	client->arrived = now;
	if (queue->n == 0 && place_is_free(client->class) && slot_is_free())
		begin(client);
	else
	{
		client->state = QUEUED;
		queue->waiters[queue->n++] = client;
		waiting++;
	}
}

/* Those whose time is over fail. */
static void
end_queued(Queue *queue)
{
	int			n = 0;

	for (int i = 0; i < queue->n; i++)
		if (queue->waiters[i]->group->patience > 0 && now - queue->waiters[i]->arrived >= queue->waiters[i]->group->patience)
			go_away(queue->waiters[i]);
		else
			queue->waiters[n++] = queue->waiters[i];
	waiting -= queue->n - n;
	queue->n = n;
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
	.waits = next_queue() != NULL,.completed = completed,.overdue = overdue,.nearly = nearly};

	cpu_control_sample(&control, &sample);
	sleeping += (asleep - sleeping) * SMOOTH;
	for (int class = 0; class < LONG_CLASSES; class++)
	{
		long_control.classes[class].in_use = queues[class].in_use;
		long_control.classes[class].queued = queues[class].n > 0 ? queues[class].waiters[0]->arrived * 1000 + 1 : 0;
	}
	long_control_sample(&long_control, working, is_limited() ? get_limit() : 0, load->cpus, sample.now);
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
	memset(most, 0, sizeof(most));
	for (const Group *group = load->groups; group < load->groups + MAX_GROUPS && group->clients > 0; group++)
		step = Max(Min(step, group->work / 8), MIN_STEP);
	seeds = limit > 0 ? 1 : SEEDS;
	for (uint64 seed = 0; seed < seeds; seed++)
	{
		double		sampled = 0;

		seed_random(seed);
		memset(&control, 0, sizeof(control));
		memset(&long_control, 0, sizeof(long_control));
		memset(queues, 0, sizeof(queues));
		memset(in_time, 0, sizeof(in_time));
		memset(clients, 0, sizeof(clients));
		now = completed = overdue = nearly = nclients = waiting = counted = sleeping = 0;
		for (const Group *group = load->groups; group < load->groups + MAX_GROUPS; group++)
			for (int n = 0; n < group->clients; n++)
			{
				Client	   *client = &clients[nclients++];

				client->group = group;
				client->class = limit > 0 || !load->has_places || group->work < LONG_AFTER ? SHORT :
					long_control_class((uint64) group->work * 1000);
				go_away(client);
				client->due += group->from * SECOND + random_number() * 100;
			}
		while (now < load->seconds * SECOND)
		{
			int			working = 0;
			int			asleep = 0;
			int			begun[MAX_GROUPS] = {0};
			double		cpu;
			Queue	   *queue;
			int			first = (int) (random_number() * nclients);

			for (int i = 0; i < nclients; i++)
			{
				working += clients[i].state == WORKING;
				asleep += clients[i].state == SLEEPING && !clients[i].group->disk;
				begun[clients[i].group - load->groups] += clients[i].state >= WORKING;
			}
			for (int i = 0; i < MAX_GROUPS && now >= (load->seconds - 1) * SECOND; i++)
				most[i] = Max(most[i], begun[i]);
			if (now - sampled >= (waiting > 0 ? WAITING_TICK : TICK))
			{
				sampled = now;
				take_sample(working, asleep);
			}
			now += step;
			cpu = step * Min(1.0, (double) load->cpus / Max(working, 1));
			for (int i = 0; i < nclients; i++)
				pass(&clients[(first + i) % nclients], cpu);
			for (int class = 0; class <= SHORT; class++)
				end_queued(&queues[class]);
			while (slot_is_free() && (queue = next_queue()) != NULL)
				begin(dequeue(queue));
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
						"%s, %s: %.3g per second in time, %.2f of no limit, %.2f of the best", load->name, group->name,
						controlled[i], controlled[i] / open[i], controlled[i] / best[i]);
	}
	for (int i = 0; i < MAX_GROUPS; i++)
		if (load->groups[i].most > 0)
			assert_true(most[i] <= load->groups[i].most, "%s, %s: %d at a time", load->name, load->groups[i].name, most[i]);
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
	for (int n = 0; n < 1000; n++)
	{
		sample.now += 100000;
		sample.overdue += 10;
		cpu_control_sample(&control, &sample);
	}
	assert_true(control.limit == sample.cpus, "it falls to the number of CPUs, and not below");
}

/* Of a limit with idle CPUs, so many decades whose queues do not end have that. */
static void
try_long_limits(void)
{
	static const struct
	{
		int			limit;
		int			cpus;
		int			decades;
		int			places;
	}			cases[] = {{1, 2, 5, 1}, {2, 2, 5, 1}, {3, 2, 5, 2}, {8, 2, 1, 2}, {8, 2, 5, 6}, {64, 2, 1, 16}, {64, 2, 5, 48}, {4, 8, 5, 2}, {64, 64, 1, 32}};

	for (int i = 0; i < (int) lengthof(cases); i++)
	{
		int			places;

		memset(&long_control, 0, sizeof(long_control));
		for (int n = 1; n <= 100; n++)
		{
			long_control_sample(&long_control, 0, cases[i].limit, cases[i].cpus, n * 100000);
			places = 0;
			for (LongClass *class = long_control.classes; class < long_control.classes + cases[i].decades; class++)
			{
				class->in_use = class->places;
				class->queued = 1;
				places += class->places;
			}
		}
		assert_true(places == cases[i].places, "%d decades have %d places of a limit of %d with %d CPUs",
					cases[i].decades, places, cases[i].limit, cases[i].cpus);
	}
}

void
try_cpu_loads(void)
{
	for (load = loads; load < loads + lengthof(loads); load++)
		try();
	try_hours();
	try_long_limits();
}
