/*-------------------------------------------------------------------------
 *
 * long_queues.c
 *		The queues of statements that are expected to take long.
 *
 * Such a statement takes a place before it starts, or waits for one, in the
 * way of a hot spot: first come, first served.  Each decade of expected time
 * has its own queue and places, the last one all that is longer: so nobody
 * waits for what takes ten times as long, but there (size-interval assignment:
 * Harchol-Balter, Crovella and Murta, 1999).
 * A place ends with its statement.  A sample withdraws it if that is not at
 * work for idle_after: it waits for its client or a lock, for example.
 *
 * The worker sets how many places there are, by one law with and without a
 * limit: in each decade as many as CPUs, of those above a second half as many;
 * one more every STEP while fewer processes than CPUs want one and somebody
 * waits there; one less, down to that, while more than twice as many do, or it
 * is not used.  Under a limit each decade has at most a quarter of the slots,
 * or as many as CPUs, if that is not more than half of the slots; and all
 * together leave as many free for others, as a long statement can keep a slot
 * for minutes.
 *
 * Locking: see slots_internal.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots_internal.h"

#define STEP			100		/* ms */
#define HALF_FROM		2		/* classes from a second on: half as many */
#define PART_OF_LIMIT	4		/* a decade has one slot of so many at most */
#define SMOOTHED		25000	/* us: time constant of a mean */

/* The shortest expected time of each class but the first, us */
static const uint64 bounds[LONG_CLASSES - 1] = {100000, 1000000, 10000000, 100000000};

/* ---- The law: pure ---- */

/* One class, as a sample finds it, and what follows */
typedef struct LongClass
{
	int			in_use;
	uint64		queued;			/* when its first waiter came; 0 = none waits */
	int			wanted;			/* places that it should have */
	int			places;			/* that it gets */
} LongClass;

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

/* ---- Queues ---- */

static inline int
long_queue(int class)
{
	return slots_hot_spot_queue(MAX_HOT_SPOTS + class);
}

/*
 * The statement of this backend is expected to take long.  Returns where it
 * should take a place, as a hot spot.
 */
int
slots_expect_long(uint64 expected)
{
	int			class = 0;

	while (class < LONG_CLASSES - 1 && expected >= bounds[class])
		class++;
	MySlotEntry->expected = Max(expected, 1);
	return MAX_HOT_SPOTS + class;
}

/* It has ended: release its place.  Returns whether this leaves none. */
bool
slots_end_long(void)
{
	bool		was_long = MySlotEntry->expected > 0;

	MySlotEntry->expected = 0;
	if (slots_look_at(my_slot_procno).has_long_place)
		slots_release_place();
	return was_long && !slots_has_place();
}

/* A sample finds that it does nothing with its place: take that. */
void
slots_withdraw_long_place(int procno)
{
	SlotEntry  *entry = entry_of(procno);
	int			place = place_of(entry);

	if (!is_of_long(place))
		return;
	entry->hot_spot = 0;
	slots_withdraw_place(entry, place);
}

/* ---- The worker ---- */

/* Read the class of a queue.  Lock held. */
static void
read_class(LongClass *class, int queue)
{
	class->in_use = places_in_use(queue);
	class->queued = queue_at(queue)->nwaiters > 0 ? Max(first_waiter(queue)->queued, 1) : 0;
}

/* Set its places.  Returns whether they have become more.  Lock held. */
static bool
set_places(const LongClass *class, int queue)
{
	uint32		old = pg_atomic_read_u32(&queue_at(queue)->limit);

	if (class->places != old)
		pg_atomic_write_u32(&queue_at(queue)->limit, class->places);
	return class->places > old;
}

/*
 * Set how many long statements may work.  wanting: processes that want a CPU,
 * by a sample.
 */
void
slots_adapt_long(int wanting, uint64 now)
{
	static LongClass classes[LONG_CLASSES];
	static double average = 0;
	static uint64 sampled = 0;
	static uint64 stepped = 0;
	double		elapsed = Max((int64) (now - sampled), 0);
	bool		step = passed_since(stepped, STEP, now);
	bool		raised = false;

	average += (wanting - average) * elapsed / (elapsed + SMOOTHED);
	sampled = now;
	if (step)
		stepped = now;
	slots_lock();
	for (int k = 0; k < LONG_CLASSES; k++)
	{
		read_class(&classes[k], long_queue(k));
		if (step)
			step_class(&classes[k], k < HALF_FROM ? Slots->cpus : Slots->cpus / 2, average, Slots->cpus);
	}
	share(classes, Max(Slots->max_active, 0), Slots->cpus);
	for (int k = 0; k < LONG_CLASSES; k++)
		raised |= set_places(&classes[k], long_queue(k));
	slots_unlock();
	if (raised)
		slots_grant_free();
}

/* The shortest expected time of a queue's statements, us.  hot_spot: its index */
uint64
slots_shortest_of(int hot_spot)
{
	return hot_spot <= MAX_HOT_SPOTS ? 0 : bounds[hot_spot - MAX_HOT_SPOTS - 1];
}
