/*-------------------------------------------------------------------------
 *
 * long_control.c
 *		How many statements that are expected to take long work at a time.
 *
 * Each decade of expected time has its own places, the last one all that is
 * longer: so nobody waits for what takes ten times as long, but there
 * (size-interval assignment: Harchol-Balter, Crovella and Murta, 1999).
 *
 *	 - With and without a limit, each decade has as many places as CPUs, of
 *	   those above a second half as many.
 *	 - It gets one more every STEP while fewer processes than CPUs want one and
 *	   somebody waits there.
 *	 - It gets one less, down to that, while more than twice as many do, or it
 *	   is not used.
 *	 - Under a limit each decade has at most a quarter of the slots, or as many
 *	   as CPUs, if that is not more than half of the slots; and all together
 *	   leave as many free for others, as a long statement can keep a slot for
 *	   minutes.
 *
 * This file knows nothing of shared memory, locks, processes or clocks.
 * test/simulator tries it on loads; each constant has one there that fails if
 * it is clearly wrong.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots.h"

#define STEP			100000	/* us */
#define HALF_FROM		2		/* classes from a second on: half as many */
#define PART_OF_LIMIT	4		/* a decade has one slot of so many at most */
#define SMOOTHED		25000	/* us: time constant of a mean */

/* The shortest expected time of each class, us */
static const uint64 bounds[LONG_CLASSES] = {0, 100000, 1000000, 10000000, 100000000};

/* The class of a statement that is expected to use so much CPU time, us */
int
long_control_class(uint64 expected)
{
	int			class = LONG_CLASSES - 1;

	while (expected < bounds[class])
		class--;
	return class;
}

/* The shortest expected time of its statements, us; 0 if there is no such class */
uint64
long_control_shortest(int class)
{
	return class > 0 ? bounds[class] : 0;
}

/* A step: how many places should the class have, and least? wanting: processes. */
static void
step_class(LongClass *class, int least, double wanting, int cpus)
{
	if (wanting > 2 * cpus || (class->queued == 0 && class->wanted > class->in_use))
		class->wanted--;
	else if (wanting < cpus && class->queued != 0 && class->wanted <= class->in_use)
		class->wanted++;
	class->wanted = Max(class->wanted, Max(least, 1));
}

/* Does one of these get a place before the other?  By turns, then by its wait. */
static bool
is_served_first(const LongClass *class, const LongClass *other)
{
	int			more = (class->places - class->in_use) - (other->places - other->in_use);

	return more < 0 || (more == 0 && class->queued < other->queued);
}

/*
 * Give the classes places under a limit, 0 if there is none.  If all that they
 * want are too many, they get those in use; those with waiters get the rest.
 */
static void
share(LongClass *classes, int limit, int cpus)
{
	int			part = Max(Max(limit / PART_OF_LIMIT, Min(limit / 2, cpus)), 1);
	int			rest = Max(limit - part, 1);
	int			sum = 0;

	for (LongClass *class = classes; class < classes + LONG_CLASSES; class++)
	{
		class->places = limit > 0 ? Min(class->wanted, part) : class->wanted;
		sum += class->places;
	}
	if (limit == 0 || sum <= rest)
		return;
	for (LongClass *class = classes; class < classes + LONG_CLASSES; class++)
	{
		class->places = Min(class->wanted, class->in_use);
		rest -= class->in_use;
	}
	for (; rest > 0; rest--)
	{
		LongClass  *first = NULL;

		for (LongClass *class = classes; class < classes + LONG_CLASSES; class++)
			if (class->queued != 0 && class->places < Min(class->wanted, part) &&
				(first == NULL || is_served_first(class, first)))
				first = class;
		if (first == NULL)
			return;
		first->places++;
	}
}

/*
 * Set the places of all classes; what is in use there, and who waits, must be
 * known.  wanting: processes that want a CPU, by a sample; limit: of all
 * backends, or 0; now: us.
 */
void
long_control_sample(LongControl *control, int wanting, int limit, int cpus, uint64 now)
{
	double		elapsed = Max((int64) (now - control->sampled), 0);

	control->wanting += (wanting - control->wanting) * elapsed / (elapsed + SMOOTHED);
	control->sampled = now;
	if ((int64) (now - control->stepped) >= STEP)
	{
		control->stepped = now;
		for (int k = 0; k < LONG_CLASSES; k++)
			step_class(&control->classes[k], k < HALF_FROM ? cpus : cpus / 2, control->wanting, cpus);
	}
	share(control->classes, limit, cpus);
}
