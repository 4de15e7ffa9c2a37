/*-------------------------------------------------------------------------
 *
 * simulate.c
 *		The control of a hot spot's limit on sessions that wait for each other.
 *
 * A load is some groups of sessions.  Each thinks, enters, uses the CPU, locks
 * rows, maybe thinks in between, commits and begins anew.  The CPU is shared by
 * all who want it; a row goes to the first in its line, and the longer that is,
 * the more work is each of its transactions; who waits in a circle is found out
 * after a second.  All of this wavers: see the seeds.
 *
 * Samples find out who contends for what, and mark them, by the same rules as
 * src/sampler.c and src/core/hot_spots.c, but for merging; as there, a marked
 * session needs a place, and has none any more when it commits.  The control is
 * the server's own (src/core/limit_control.c).
 *
 * Each load is run with many seeds, and what each group has done is compared
 * with no limit and with the best of some fixed limits.  Prints TAP, and with an
 * argument instead what one run of the load of that name did, second by second;
 * with a number as well, so with that fixed limit.
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

#include "core/limit_control.h"

/* The tests are no part of a server. */
#undef printf
#undef snprintf

#define SEEDS			30
#define FIXED_SEEDS		3		/* with a fixed limit */

#define MAX_SESSIONS	1000
#define MAX_GROUPS		3
#define MAX_LOCKS		4
#define SPOTS			2
#define ROWS			1000
#define MAX_SECONDS		60

/* Times of the simulation are ms. */
#define SECOND			1000.0
#define TICK			5.0		/* how often the server samples while some
								 * wait */
#define OPEN_TICKS		4		/* ticks from one sample to the next while
								 * none does */
#define WARM_UP			5		/* seconds that do not count */
#define DEADLOCK_TIMEOUT	(1 * SECOND)

/* As in the server */
#define FEW_AT_WORK		4
#define MARK_IN_LINE	4
#define MARK_LWLOCK		2
#define MAX_MARK		40
#define FORGET_AFTER	(5 * SECOND)
#define STUCK_AFTER		(1 * SECOND)
#define SLOW			100.0
#define IDLE_AFTER		100.0
#define MAX_CHAIN		16

#define NONE			(-1)

/* What is locked */
typedef enum LockKind
{
	ROW,						/* kept until the end of the transaction */
	LWLOCK,						/* kept for the work with it only */
	SHARED_LWLOCK				/* the same, in shared mode */
} LockKind;

typedef struct Group
{
	const char *name;
	int			clients;		/* 0: no more groups */
	double		of_open;		/* is to do at least this part of what it does
								 * without limit */
	double		of_best;		/* and of what it does with the best fixed one */
	double		between;		/* ms its client thinks before each
								 * transaction */
	double		before;			/* ms on the CPU before each lock */
	double		work;			/* and after it */
	double		inside;			/* ms its client thinks after that */
	double		commit;			/* ms until all is on the disk */
	int			locks;			/* how many locks a transaction takes */
	int			rows;			/* out of so many */
	double		part;			/* of its transactions that take any; 0 = all */
	LockKind	kind;
	int			spot;			/* the hot spot of these rows */
	bool		outside;		/* passes by the gate */
	double		from;			/* when it comes and goes, seconds */
	double		until;
} Group;

typedef struct Load
{
	const char *name;
	int			cores;
	int			seconds;
	double		crowding;		/* how much more work a row is for each one in
								 * its line */
	Group		groups[MAX_GROUPS];
} Load;

/* What was done per second, without the first few, and by each second */
typedef struct Outcome
{
	double		done[MAX_GROUPS];
	int			by_second[MAX_SECONDS][MAX_GROUPS];
	uint32		limits[MAX_SECONDS][SPOTS];
	double		limited;		/* part of the time with any limit */
	int			deadlocks;
} Outcome;

/* ----------------------------------------------------------------
 *		Loads
 * ----------------------------------------------------------------
 */

/* Lone updates of one row, and the same in blocks */
#define ONE_ROW(n, of, best) \
	{"row", n, of, best, .before = 0.2, .work = 0.2, .commit = 0.5, .locks = 1, .rows = 1}
#define ONE_ROW_IN_BLOCK(n, of, best, think) \
	{"block", n, of, best, .before = 0.2, .work = 0.2, .inside = think, .commit = 0.5, .locks = 1, .rows = 1}
#define BYSTANDERS(n, of) \
	{"others", n, of, 0, .between = 20, .before = 0.2, .work = 0.2, .inside = 5, .commit = 0.5, \
	 .locks = 1, .rows = ROWS, .spot = 1}
#define READS(n) \
	{"reads", n, 0.98, 0, .between = 5, .work = 1}

static const Load loads[] = {
	{"one row", 2, 20, 0.01, {ONE_ROW(60, 1.1, 0.95)}},
	{"one row, 64 cores", 64, 20, 0.01, {ONE_ROW(60, 1.1, 0.95)}},
	{"one row, 500 clients", 2, 20, 0.01, {ONE_ROW(500, 2, 0.95)}},
	{"one row in a block", 2, 20, 0.01, {ONE_ROW_IN_BLOCK(60, 1, 0.95, 1)}},
	{"one row beside others", 2, 20, 0.01, {ONE_ROW_IN_BLOCK(100, 1.1, 0.8, 1), BYSTANDERS(100, 0.98)}},
	{"one row beside others, 64 cores", 64, 20, 0.01, {ONE_ROW_IN_BLOCK(100, 1, 0.95, 1), BYSTANDERS(100, 0.98)}},
	{
		"two rows", 2, 20, 0.01,
		{
			ONE_ROW(60, 1, 0.9),
			{
				"thinking", 60, 0.98, 0.95,.before = 0.2,.work = 0.2,.inside = 20,.commit = 0.5,.locks = 1,.rows = 1,.spot = 1
			}
		}
	},
	{
		"two rows, 64 cores", 64, 20, 0.01,
		{
			ONE_ROW(60, 1.1, 0.95),
			{
				"thinking", 60, 0.98, 0.95,.before = 0.2,.work = 0.2,.inside = 20,.commit = 0.5,.locks = 1,.rows = 1,.spot = 1
			}
		}
	},
	{
		"deadlocks", 2, 60, 0.01,
		{
			{
				"order", 60, 4, 0.5,.before = 0.1,.work = 0.1,.commit = 0.5,.locks = 4,.rows = 60
			}
		}
	},
	{
		"deadlocks beside others, 64 cores", 64, 60, 0.01,
		{
			{
				"order", 60, 4, 0.5,.before = 0.1,.work = 0.1,.inside = 0.2,.commit = 0.5,.locks = 4,.rows = 60
			},
			BYSTANDERS(40, 0.98)
		}
	},
	{
		"some deadlocks", 2, 30, 0.01,
		{
			{
				"order", 100, 1.5, 0.7,.before = 0.2,.work = 0.2,.inside = 1,.commit = 0.5,.locks = 4,.rows = ROWS
			}
		}
	},
	{
		"a kept lock", 2, 30, 0.01,
		{
			{
				"keeper", 1, 0, 0,.between = 1000,.before = 0.1,.work = 0.1,.inside = 5000,.commit = 1,.locks = 1,.rows = 1,.outside = true
			},
			{
				"two rows", 60, 0.9, 0,.between = 5,.before = 0.2,.work = 0.2,.commit = 0.5,.locks = 1,.rows = 2
			},
			READS(10)
		}
	},
	{
		"a kept lock of many", 2, 30, 0.01,
		{
			{
				"keeper", 1, 0, 0,.between = 1000,.before = 0.1,.work = 0.1,.inside = 3000,.commit = 1,.locks = 1,.rows = ROWS,.outside = true
			},
			{
				"rows", 100, 0.95, 0,.between = 50,.before = 0.2,.work = 0.2,.commit = 0.5,.locks = 1,.rows = ROWS
			}
		}
	},
	{
		"one row in a tenth", 2, 30, 0.01,
		{
			{
				"mixed", 200, 0.98, 0,.before = 0.2,.work = 0.2,.inside = 1,.commit = 0.5,.locks = 1,.rows = 1,.part = 0.1
			}
		}
	},
	{
		"one row in a tenth, 64 cores", 64, 30, 0.01,
		{
			{
				"mixed", 100, 0.9, 0,.between = 1,.before = 0.2,.work = 0.2,.inside = 4,.commit = 0.5,.locks = 1,.rows = 1,.part = 0.1
			}
		}
	},
	{
		"storms", 2, 20, 0.01,
		{
			{
				"storm", 1, 0, 0,.between = 30,.before = 0.1,.work = 0.1,.inside = 5,.locks = 1,.rows = 1,.kind = LWLOCK,.outside = true
			},
			{
				"shared", 100, 0.98, 0,.before = 0.5,.work = 0.5,.locks = 1,.rows = 1,.kind = SHARED_LWLOCK
			}
		}
	},
	{
		"heavy storms, 64 cores", 64, 20, 0.01,
		{
			{
				"storm", 1, 0, 0,.between = 10,.before = 0.1,.work = 0.1,.inside = 20,.locks = 1,.rows = 1,.kind = LWLOCK,.outside = true
			},
			{
				"shared", 100, 0.98, 0,.between = 20,.before = 2,.work = 2,.locks = 1,.rows = 1,.kind = SHARED_LWLOCK
			}
		}
	},
	{
		"a lock inside, 64 cores", 64, 20, 0.01,
		{
			{
				"lwlock", 300, 1.2, 0.85,.before = 20,.work = 0.4,.locks = 1,.rows = 1,.kind = LWLOCK
			}
		}
	},
	{
		"ten rows", 2, 20, 0.01,
		{
			{
				"tpcb", 100, 1, 0.9,.before = 0.4,.work = 0.3,.inside = 0.2,.commit = 0.5,.locks = 1,.rows = 10
			}
		}
	},
	{
		"ten rows, 64 cores", 64, 20, 0.01,
		{
			{
				"tpcb", 100, 0.9, 0.85,.between = 1,.before = 4,.work = 3,.inside = 2,.commit = 2,.locks = 1,.rows = 10
			}
		}
	},
	{
		"random rows", 2, 20, 0.01,
		{
			{
				"rows", 300, 0.98, 0,.before = 0.3,.work = 0.3,.commit = 1,.locks = 1,.rows = ROWS
			}
		}
	},
	{
		"random rows, 64 cores", 64, 20, 0.01,
		{
			{
				"rows", 300, 0.98, 0,.before = 20,.work = 20,.commit = 10,.locks = 1,.rows = ROWS
			}
		}
	},
	{"reads", 2, 20, 0, {READS(100)}},
	{"four clients of one row", 2, 20, 0.01, {ONE_ROW(4, 0.98, 0)}},
	{
		"one row, then reads", 2, 24, 0.01,
		{
			{
				"row", 100, 1, 0.95,.before = 0.2,.work = 0.2,.commit = 0.5,.locks = 1,.rows = 1,.until = 12
			},
			{
				"reads", 100, 0.98, 0,.between = 5,.work = 1,.from = 12
			}
		}
	},
	{
		"one row, then random ones", 2, 24, 0.01,
		{
			{
				"row", 100, 1, 0.95,.before = 0.2,.work = 0.2,.commit = 0.5,.locks = 1,.rows = 1,.until = 12
			},
			{
				"rows", 100, 0.98, 0,.before = 0.2,.work = 0.2,.commit = 0.5,.locks = 1,.rows = ROWS,.from = 12
			}
		}
	},
	{
		"reads, then one row", 2, 24, 0.01,
		{
			{
				"reads", 100, 0.98, 0,.between = 5,.work = 1,.until = 12
			},
			{
				"row", 100, 1, 0.95,.before = 0.2,.work = 0.2,.commit = 0.5,.locks = 1,.rows = 1,.from = 12
			}
		}
	},
};

/* ----------------------------------------------------------------
 *		Sessions
 * ----------------------------------------------------------------
 */

typedef enum State
{
	THINKING,					/* outside any transaction */
	QUEUED,						/* waits for a place */
	WORKING,					/* wants the CPU */
	BLOCKED,					/* waits for a row */
	RESTING,					/* its client thinks */
	COMMITTING					/* waits for the disk, without a place */
} State;

typedef struct Session
{
	const Group *group;
	State		state;
	double		since;
	double		due;			/* when that ends, if it does so by itself */
	int			next;			/* in the same line */

	bool		locks_any;		/* this transaction takes locks */
	bool		is_done_before; /* it works with the lock that it took last */
	int			wanted;			/* the row that it waits for */
	int			held[MAX_LOCKS];
	int			nheld;
	int			ntaken;
	bool		is_checked;		/* for a deadlock */

	int			spot;			/* that it is marked for, or NONE */
	int			mark;
	int			place;			/* the hot spot where it has one, or NONE */
} Session;

typedef struct Line
{
	int			first;
	int			last;
	int			length;
} Line;

typedef struct Row
{
	int			owner;			/* or NONE */
	Line		line;
	double		moved;			/* when one left the line */
} Row;

typedef struct Spot
{
	bool		exists;
	bool		is_lwlock;
	double		seen;			/* when one was last in line for it */
	LimitControl control;
	uint32		limit;
	uint32		in_use;
	uint32		completed;
	Line		queue;
} Spot;

/* A heap of sessions, by when they are due */
typedef struct Heap
{
	int			members[MAX_SESSIONS];
	int			size;
} Heap;

static const Load *load;
static uint32 fixed_limit;		/* 0 = the control finds it */
static Session sessions[MAX_SESSIONS];
static int	nsessions;
static Row	rows[SPOTS * ROWS];
static Spot spots[SPOTS];
static Heap timers;				/* due at a time */
static Heap workers;			/* due at a time of the CPU, which goes the
								 * slower the more want it */
static double now;
static double cpu_now;
static Outcome outcome;

static uint64 random_state;

/* A number from 0 to 1 */
static double
random_number(void)
{
	random_state = random_state * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (double) (random_state >> 11) / (UINT64CONST(1) << 53);
}

/* A time of that mean: half of it is certain */
static double
random_time(double mean)
{
	return mean * (0.5 - 0.5 * log(1 - random_number()));
}

static void
heap_add(Heap *heap, int session)
{
	int			at = heap->size++;

	while (at > 0 && sessions[heap->members[(at - 1) / 2]].due > sessions[session].due)
	{
		heap->members[at] = heap->members[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap->members[at] = session;
}

static int
heap_take(Heap *heap)
{
	int			first = heap->members[0];
	int			last = heap->members[--heap->size];
	int			at = 0;

	for (int child = 1; child < heap->size; child = 2 * at + 1)
	{
		if (child + 1 < heap->size &&
			sessions[heap->members[child + 1]].due < sessions[heap->members[child]].due)
			child++;
		if (sessions[last].due <= sessions[heap->members[child]].due)
			break;
		heap->members[at] = heap->members[child];
		at = child;
	}
	heap->members[at] = last;
	return first;
}

static void
line_add(Line *line, int session)
{
	sessions[session].next = NONE;
	if (line->length++ == 0)
		line->first = session;
	else
		sessions[line->last].next = session;
	line->last = session;
}

static int
line_take(Line *line)
{
	int			session = line->first;

	line->first = sessions[session].next;
	line->length--;
	return session;
}

static void
set_state(int session, State state)
{
	sessions[session].state = state;
	sessions[session].since = now;
}

/* Let a session do that for so long. */
static void
wait_for(int session, State state, double time)
{
	set_state(session, state);
	sessions[session].due = now + time;
	heap_add(&timers, session);
}

static void
work_for(int session, double time)
{
	set_state(session, WORKING);
	sessions[session].due = cpu_now + time;
	heap_add(&workers, session);
}

/* ----------------------------------------------------------------
 *		Places
 * ----------------------------------------------------------------
 */

static void begin_work(int session);

static void
grant_places(int spot)
{
	Spot	   *s = &spots[spot];

	while (s->queue.length > 0 && s->in_use < s->limit)
	{
		int			session = line_take(&s->queue);

		sessions[session].place = spot;
		s->in_use++;
		begin_work(session);
	}
}

static void
take_place(int session, int spot)
{
	sessions[session].place = spot;
	spots[spot].in_use++;
}

static void
leave_place(int session)
{
	int			spot = sessions[session].place;

	if (spot == NONE)
		return;
	sessions[session].place = NONE;
	spots[spot].in_use--;
	grant_places(spot);
}

/* A session comes back from its client: it enters, or waits for a place. */
static void
begin_transaction(int session)
{
	Session    *s = &sessions[session];
	int			spot = s->spot;

	if (s->group->until > 0 && now >= s->group->until * SECOND)
		return;
	if (spot != NONE && !spots[spot].exists)
		spot = s->spot = NONE;
	if (spot != NONE)
	{
		if (spots[spot].in_use >= spots[spot].limit)
		{
			set_state(session, QUEUED);
			line_add(&spots[spot].queue, session);
			return;
		}
		take_place(session, spot);
	}
	begin_work(session);
}

/* ----------------------------------------------------------------
 *		Transactions
 * ----------------------------------------------------------------
 */

/* A session is at work. */
static void
begin_work(int session)
{
	Session    *s = &sessions[session];

	s->locks_any = s->group->locks > 0 && (s->group->part == 0 || random_number() < s->group->part);
	s->nheld = s->ntaken = 0;
	s->is_done_before = false;
	work_for(session, random_time(s->group->before));
}

/* It has got the lock that it wanted. */
static void
own(int session, int row)
{
	Session    *s = &sessions[session];
	double		crowd = 1;

	s->wanted = NONE;
	if (row != NONE && s->group->kind != SHARED_LWLOCK)
	{
		rows[row].owner = session;
		s->held[s->nheld++] = row;
		crowd += load->crowding * rows[row].line.length;
	}
	s->ntaken++;
	s->is_done_before = true;
	work_for(session, random_time(s->group->work) * crowd);
}

static void
release(int row)
{
	rows[row].owner = NONE;
	while (rows[row].line.length > 0 && rows[row].owner == NONE)
	{
		int			session = line_take(&rows[row].line);

		rows[row].moved = now;
		own(session, row);
	}
}

static void
release_all(Session *s)
{
	while (s->nheld > 0)
		release(s->held[--s->nheld]);
}

static void
take_lock(int session)
{
	Session    *s = &sessions[session];
	int			row;

	do
		row = s->group->spot * ROWS + (int) (random_number() * s->group->rows);
	while (rows[row].owner == session);
	if (rows[row].owner == NONE)
	{
		own(session, row);
		return;
	}
	set_state(session, BLOCKED);
	s->wanted = row;
	s->is_checked = false;
	if (rows[row].line.length == 0)
		rows[row].moved = now;
	line_add(&rows[row].line, session);
}

static void
finish(int session)
{
	Session    *s = &sessions[session];

	release_all(s);
	wait_for(session, THINKING, random_time(s->group->between));
}

/* The seconds of a group that do not count: it takes long to get out of circles. */
static int
warm_up(const Group *group)
{
	return group->locks > 1 ? load->seconds / 2 : WARM_UP;
}

/* Its last statement is done. */
static void
commit(int session)
{
	Session    *s = &sessions[session];
	int			group = (int) (s->group - load->groups);

	outcome.by_second[(int) (now / SECOND)][group]++;
	if (now >= (s->group->from + warm_up(s->group)) * SECOND)
		outcome.done[group]++;
	if (s->place != NONE)
		spots[s->place].completed++;
	leave_place(session);
	wait_for(session, COMMITTING, random_time(s->group->commit));
}

static void
begin_next_step(int session)
{
	Session    *s = &sessions[session];

	if (!s->locks_any || s->ntaken >= s->group->locks)
		commit(session);
	else
	{
		s->is_done_before = false;
		work_for(session, random_time(s->group->before));
	}
}

/* What it worked on is done. */
static void
end_work(int session)
{
	Session    *s = &sessions[session];

	if (!s->is_done_before)
	{
		if (s->locks_any)
			take_lock(session);
		else
			own(session, NONE);
		return;
	}
	/* One outside that has a lock inside the server has lost the CPU. */
	if (s->group->kind == LWLOCK && !s->group->outside)
		release_all(s);
	if (s->group->inside > 0)
		wait_for(session, RESTING, random_time(s->group->inside));
	else
		begin_next_step(session);
}

static void
end_wait(int session)
{
	switch (sessions[session].state)
	{
		case THINKING:
			begin_transaction(session);
			break;
		case RESTING:
			begin_next_step(session);
			break;
		case COMMITTING:
			finish(session);
			break;
		default:
			abort();
	}
}

/* Who keeps this session waiting, or NONE? */
static int
blocker_of(int session)
{
	return sessions[session].state == BLOCKED ? rows[sessions[session].wanted].owner : NONE;
}

/* A session waits in a circle: it fails, and begins anew. */
static void
fail(int session)
{
	Session    *s = &sessions[session];
	Line	   *line = &rows[s->wanted].line;

	for (int n = line->length; n > 0; n--)
	{
		int			other = line_take(line);

		if (other != session)
			line_add(line, other);
	}
	outcome.deadlocks++;
	s->wanted = NONE;
	leave_place(session);
	finish(session);
}

static void
check_for_deadlocks(void)
{
	for (int i = 0; i < nsessions; i++)
	{
		Session    *s = &sessions[i];
		int			other = i;
		int			n = 0;

		if (s->state != BLOCKED || s->is_checked || now - s->since < DEADLOCK_TIMEOUT)
			continue;
		s->is_checked = true;
		do
			other = blocker_of(other);
		while (other != NONE && other != i && n++ < nsessions);
		if (other == i)
			fail(i);
	}
}

/* ----------------------------------------------------------------
 *		Samples: see src/sampler.c and src/core/hot_spots.c
 * ----------------------------------------------------------------
 */

/* Does this one, which others wait for, do nothing? */
static bool
is_idle(const Session *s)
{
	return s->state == RESTING && s->group->kind == ROW &&
		(s->group->outside || now - s->since >= IDLE_AFTER);
}

/* Does this session, which is in line, wait for one that does nothing? */
static bool
is_stuck(int session)
{
	int			row = NONE;

	for (int n = 0; n < MAX_CHAIN && blocker_of(session) != NONE; n++)
	{
		row = sessions[session].wanted;
		session = blocker_of(session);
	}
	return is_idle(&sessions[session]) ||
		(sessions[session].state != BLOCKED && now - rows[row].moved >= STUCK_AFTER);
}

static void
mark(Session *s, int spot)
{
	if (s->spot == NONE || !spots[s->spot].exists || !spots[spot].is_lwlock)
		s->spot = spot;
	if (!spots[s->spot].exists)
	{
		spots[s->spot].exists = true;
		spots[s->spot].limit = fixed_limit > 0 ? fixed_limit : LIMIT_OPEN;
		limit_control_init(&spots[s->spot].control, !spots[s->spot].is_lwlock, now * 1000);
	}
	spots[s->spot].seen = now;
	s->mark = Min(s->mark + (spots[spot].is_lwlock ? MARK_LWLOCK : MARK_IN_LINE), MAX_MARK);
}

/* Note what one session does, and add it to the sample of its hot spot. */
static void
note_activity(int session, LoadSample samples[SPOTS], uint32 *working)
{
	Session    *s = &sessions[session];
	bool		is_holder = s->state == WORKING || s->state == BLOCKED || s->state == RESTING;
	bool		contends = s->state == BLOCKED && (s->group->kind != ROW || !is_stuck(session));

	if (s->group->outside)
		return;
	if (s->spot != NONE && !spots[s->spot].exists)
	{
		s->spot = NONE;
		s->mark = 0;
	}
	if (contends)
		mark(s, s->group->spot);
	if (is_holder && (contends || s->state != BLOCKED) && !is_idle(s))
		(*working)++;
	if (s->spot == NONE)
		return;

	samples[s->spot].contenders++;
	if (contends)
	{
		samples[s->spot].blocked++;
		samples[s->spot].slow += now - s->since >= SLOW;
		samples[s->spot].working++;
		if (s->place != s->spot)
		{
			leave_place(session);
			take_place(session, s->spot);
		}
	}
	else if (s->state == BLOCKED || is_idle(s))
		leave_place(session);
	else if (s->state == RESTING)
		samples[s->spot].working++;
	else if (s->state == WORKING)
	{
		samples[s->spot].working++;
		if (--s->mark <= 0)
		{
			s->spot = NONE;
			s->mark = 0;
			leave_place(session);
		}
	}
}

static void
adapt(int spot, LoadSample *sample, uint32 working)
{
	Spot	   *s = &spots[spot];

	if (s->control.limit == LIMIT_OPEN && fixed_limit == 0 && now - s->seen >= FORGET_AFTER)
	{
		s->exists = false;
		s->limit = LIMIT_OPEN;
	}
	else if (fixed_limit == 0)
	{
		sample->now = (int64) (now * 1000);
		sample->in_use = s->in_use;
		if (s->is_lwlock)
			sample->working = working;
		sample->waiting = s->queue.length;
		sample->completed = s->completed;
		limit_control_sample(&s->control, sample);
		s->limit = s->control.limit;
	}
	grant_places(spot);
}

static void
take_sample(int tick)
{
	LoadSample	samples[SPOTS] = {0};
	uint32		working = 0;
	uint32		at_work = 0;
	bool		some_wait = false;

	for (int i = 0; i < SPOTS; i++)
		some_wait |= spots[i].queue.length > 0;
	if (!some_wait)
	{
		for (int i = 0; i < nsessions; i++)
			at_work += sessions[i].state != THINKING && sessions[i].state != COMMITTING;
		if (tick % OPEN_TICKS != 0 || at_work <= FEW_AT_WORK)
			return;
	}

	for (int i = 0; i < nsessions; i++)
		note_activity(i, samples, &working);
	for (int i = 0; i < SPOTS; i++)
	{
		if (spots[i].exists)
			adapt(i, &samples[i], working);
	}
}

/* ----------------------------------------------------------------
 *		Runs
 * ----------------------------------------------------------------
 */

static void
begin_run(uint64 seed)
{
	random_state = seed * UINT64CONST(0x9E3779B97F4A7C15) + 1;
	memset(&outcome, 0, sizeof(outcome));
	memset(spots, 0, sizeof(spots));
	memset(rows, 0, sizeof(rows));
	now = cpu_now = 0;
	timers.size = workers.size = nsessions = 0;
	for (int i = 0; i < SPOTS; i++)
		spots[i].limit = spots[i].control.limit = LIMIT_OPEN;
	for (int i = 0; i < SPOTS * ROWS; i++)
		rows[i].owner = NONE;
	for (int i = 0; i < MAX_GROUPS; i++)
	{
		const Group *group = &load->groups[i];

		for (int n = 0; n < group->clients; n++)
		{
			sessions[nsessions] = (Session)
			{
				.group = group,.wanted = NONE,.spot = NONE,.place = NONE
			};
			wait_for(nsessions++, THINKING, group->from * SECOND + random_number() * 100);
			spots[group->spot].is_lwlock = group->kind != ROW;
		}
	}
}

/* Go on to that time, or to when the next one is due: who is that? */
static int
resume_statement(double until, bool *at_work)
{
	double		speed = Min(1.0, (double) load->cores / Max(workers.size, 1));
	double		timer = timers.size > 0 ? sessions[timers.members[0]].due : until;
	double		work = workers.size > 0 ?
	now + (sessions[workers.members[0]].due - cpu_now) / speed : until;
	double		next = Min(Min(timer, work), until);

	cpu_now += (next - now) * speed;
	now = next;
	if (next == until)
		return NONE;
	*at_work = work < timer;
	return heap_take(*at_work ? &workers : &timers);
}

/* Run a load with that seed, and under the control unless limit is a fixed one. */
static const Outcome *
run(const Load *which, uint64 seed, uint32 limit)
{
	int			ticks = (int) (which->seconds * SECOND / TICK);

	load = which;
	fixed_limit = limit;
	begin_run(seed);
	for (int tick = 1; tick <= ticks; tick++)
	{
		int			second = (int) ((tick - 1) * TICK / SECOND);
		bool		at_work;
		int			session;

		while ((session = resume_statement(tick * TICK, &at_work)) != NONE)
		{
			if (at_work)
				end_work(session);
			else
				end_wait(session);
		}
		if (tick == ticks)
			break;
		check_for_deadlocks();
		take_sample(tick);
		for (int i = 0; i < SPOTS; i++)
			outcome.limits[second][i] = spots[i].limit;
		if (spots[0].limit != LIMIT_OPEN || spots[1].limit != LIMIT_OPEN)
			outcome.limited += 1.0 / ticks;
	}
	for (int i = 0; i < MAX_GROUPS && load->groups[i].clients > 0; i++)
	{
		const Group *group = &load->groups[i];

		outcome.done[i] /= (group->until > 0 ? group->until : load->seconds) - group->from - warm_up(group);
	}
	return &outcome;
}

/* Add up what some runs do, on the average. */
static void
run_all(const Load *which, int seeds, uint32 limit, Outcome *sum)
{
	memset(sum, 0, sizeof(*sum));
	for (int seed = 0; seed < seeds; seed++)
	{
		const Outcome *one = run(which, seed, limit);

		for (int i = 0; i < MAX_GROUPS; i++)
			sum->done[i] += one->done[i] / seeds;
		sum->limited += one->limited / seeds;
	}
}

/* Is any group to be compared with the best fixed limit? */
static bool
asks_for_best(const Load *which)
{
	bool		asks = false;

	for (int i = 0; i < MAX_GROUPS; i++)
		asks |= which->groups[i].of_best > 0;
	return asks;
}

/* Compare a load under the control, without limit and with fixed ones. */
static bool
try(const Load *which, int *number)
{
	static const uint32 limits[] = {1, 2, 4, 8, 16, 64};
	Outcome		open;
	Outcome		controlled;
	Outcome		best;
	uint32		best_limit[MAX_GROUPS] = {0};
	bool		all_ok = true;

	run_all(which, FIXED_SEEDS, LIMIT_OPEN, &open);
	run_all(which, SEEDS, 0, &controlled);
	best = open;
	for (int i = 0; i < (int) lengthof(limits) && asks_for_best(which); i++)
	{
		Outcome		with_limit;

		run_all(which, FIXED_SEEDS, limits[i], &with_limit);
		for (int j = 0; j < MAX_GROUPS; j++)
		{
			if (with_limit.done[j] > best.done[j])
			{
				best.done[j] = with_limit.done[j];
				best_limit[j] = limits[i];
			}
		}
	}

	for (int i = 0; i < MAX_GROUPS; i++)
	{
		const Group *group = &which->groups[i];
		bool		ok = controlled.done[i] >= group->of_open * open.done[i] &&
		controlled.done[i] >= group->of_best * best.done[i];

		if (group->clients == 0 || group->of_open == 0)
			continue;
		printf("%sok %d - %s, %s: %.0f per second, %.2f of no limit",
			   ok ? "" : "not ", ++*number, which->name, group->name, controlled.done[i],
			   controlled.done[i] / open.done[i]);
		if (group->of_best > 0)
			printf(", %.2f of the best (%u)", controlled.done[i] / best.done[i], best_limit[i]);
		printf("; limited %.0f %% of the time\n", controlled.limited * 100);
		all_ok &= ok;
	}
	fflush(stdout);
	return all_ok;
}

static void
show(const Load *which, uint32 limit)
{
	const Outcome *one = run(which, 1, limit);

	for (int second = 0; second < which->seconds; second++)
	{
		printf("%3d s:", second);
		for (int i = 0; i < MAX_GROUPS && which->groups[i].clients > 0; i++)
			printf(" %s %6d,", which->groups[i].name, one->by_second[second][i]);
		for (int i = 0; i < SPOTS; i++)
			printf(one->limits[second][i] == LIMIT_OPEN ? " no limit" : " limit %u", one->limits[second][i]);
		printf("\n");
	}
	printf("%d deadlocks\n", one->deadlocks);
}

/* ----------------------------------------------------------------
 *		Single samples
 * ----------------------------------------------------------------
 */

/* A sample so many us later, with so many completed since */
static void
sample_later(LimitControl *control, LoadSample *sample, int64 later, uint32 completed)
{
	sample->now += later;
	sample->completed += completed;
	limit_control_sample(control, sample);
}

/* What was seen before a pause says nothing. */
static bool
try_pause(int *number)
{
	LoadSample	sample = {
		.now = INT64CONST(86400000000),
		.contenders = 50,.in_use = 50,.working = 50,.blocked = 40
	};
	LimitControl control;
	bool		ok;

	limit_control_init(&control, true, sample.now);
	for (int n = 0; n < 45; n++)
		sample_later(&control, &sample, 20000, 10);
	sample_later(&control, &sample, INT64CONST(3600000000), 10);
	ok = control.limit == LIMIT_OPEN;
	for (int n = 0; n < 30; n++)
		sample_later(&control, &sample, 20000, 10);
	ok &= control.limit == LIMIT_OPEN;
	for (int n = 0; n < 100 && control.limit == LIMIT_OPEN; n++)
		sample_later(&control, &sample, 20000, 10);
	ok &= control.limit != LIMIT_OPEN && fabs(control.open_rate - 500) < 50;

	/* While a limit is judged, which is done all the same */
	sample.in_use = sample.working = sample.blocked = 2;
	sample.waiting = 48;
	for (int n = 0; n < 100 && !control.has_settled; n++)
		sample_later(&control, &sample, 5000, 3);
	sample_later(&control, &sample, INT64CONST(3600000000), 10);
	ok &= control.has_settled && control.limited_rate == 0;
	for (int n = 0; n < 500; n++)
		sample_later(&control, &sample, 5000, 4);
	ok &= fabs(control.limited_rate - 800) < 50;
	printf("%sok %d - a pause is no evidence, and judges no limit\n", ok ? "" : "not ", ++*number);
	return ok;
}

int
main(int argc, char **argv)
{
	int			number = 0;
	bool		ok = true;

	for (int i = 0; i < (int) lengthof(loads); i++)
	{
		if (argc <= 1)
			ok &= try(&loads[i], &number);
		else if (strcmp(argv[1], loads[i].name) == 0)
			show(&loads[i], argc > 2 ? (uint32) strtoul(argv[2], NULL, 10) : 0);
	}
	if (argc <= 1)
	{
		ok &= try_pause(&number);
		printf("1..%d\n", number);
	}
	return ok ? 0 : 1;
}
