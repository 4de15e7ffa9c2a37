/*-------------------------------------------------------------------------
 *
 * long_queues.c
 *		The queues of statements that are expected to take long.
 *
 * Such a statement takes a place before it starts, or waits for one, in the
 * way of a hot spot: first come, first served.  Each decade of expected time
 * has its own queue and places: so nobody waits for what takes ten times as
 * long (size-interval assignment: Harchol-Balter, Crovella and Murta, 1999).
 * A place ends with its statement.  A sample takes it away if that waits for
 * its client, for example, or for a backend that does nothing.
 *
 * The worker sets how many places there are, by one law with and without a
 * limit: in each decade as many as CPUs, of those above a second half as many;
 * one more every STEP while fewer processes than CPUs want one and somebody
 * waits there; one less, down to that, while more than twice as many do, or it
 * is not used.  Under
 * a limit each decade has at most a quarter of the slots, and all together
 * leave some free for others, as a long statement can keep a slot for minutes.
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
#define PART_OF_LIMIT	4		/* a decade has one slot of so many at most */
#define SMOOTHED		25000	/* us: time constant of a mean */

/* The shortest expected time of each class but the first, us */
static const uint64 bounds[LONG_CLASSES - 1] = {100000, 1000000, 10000000, 100000000};

/* ---- The law: pure ---- */

/* How many places a decade should have after a step */
static int
stepped(int places, bool is_short, double wanting, bool any_waits, int in_use, int cpus)
{
	int			least = Max(is_short ? cpus : cpus / 2, 1);

	if (wanting > 2 * cpus || (!any_waits && places > in_use))
		places--;
	else if (wanting < cpus && any_waits)
		places++;
	return Max(places, least);
}

/* How many places all have together under a limit */
static int
most_together(int limit)
{
	return Max(limit - Max(limit / PART_OF_LIMIT, 1), 1);
}

/*
 * The places of each class, where they must not have more than most together:
 * those in use, and a free one for the longest waiter, and so on.
 */
static void
share(const int *wanted, const int *in_use, const uint64 *queued, int most, int *places)
{
	for (int k = 0; k < LONG_CLASSES; k++)
	{
		places[k] = Min(wanted[k], in_use[k]);
		most -= in_use[k];
	}
	for (; most > 0; most--)
	{
		int			first = -1;

		for (int k = 0; k < LONG_CLASSES; k++)
			if (queued[k] != 0 && places[k] < wanted[k] &&
				(first < 0 || places[k] - in_use[k] < places[first] - in_use[first] ||
				 (places[k] - in_use[k] == places[first] - in_use[first] && queued[k] < queued[first])))
				first = k;
		if (first < 0)
			return;
		places[first]++;
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
 * should take a place, as a hot spot, or -1 if it has one anywhere.
 */
int
slots_expect_long(uint64 expected)
{
	int			class = 0;

	while (class < LONG_CLASSES - 1 && expected >= bounds[class])
		class++;
	MySlotEntry->expected = Max(expected, 1);
	return slots_has_place() ? -1 : MAX_HOT_SPOTS + class;
}

/* Is this backend, or was it last, in a queue of long statements? */
bool
slots_waited_as_long(void)
{
	return is_of_long(MySlotEntry->queue);
}

/* It has ended: release its place.  Returns whether it could have had one. */
bool
slots_end_long(void)
{
	bool		was_long = MySlotEntry->expected > 0;

	MySlotEntry->expected = 0;
	if (slots_has_long_place(my_slot_procno))
		slots_release_place();
	return was_long;
}

/* A hint, unless it is this backend. */
bool
slots_has_long_place(int procno)
{
	return is_of_long(place_of(pg_atomic_read_u32(&entry_of(procno)->spot)));
}

/* A sample finds that it does nothing with its place: take that. */
void
slots_take_long_place(int procno)
{
	SlotEntry  *entry = entry_of(procno);
	uint32		spot = pg_atomic_read_u32(&entry->spot);

	if (!is_of_long(place_of(spot)) ||
		!pg_atomic_compare_exchange_u32(&entry->spot, &spot, spot_of(NO_QUEUE)))
		return;
	entry->hot_spot = 0;
	slots_return_place(place_of(spot));
}

/* ---- The worker ---- */

/* When the first waiter of a queue came, or 0.  Lock held. */
static uint64
first_queued(int queue)
{
	return queue_at(queue)->nwaiters > 0 ? Max(first_waiter(queue)->queued, 1) : 0;
}

/*
 * Set how many long statements may work.  wanting: processes that want a CPU,
 * by a sample.
 */
void
slots_adapt_long(int wanting, uint64 now)
{
	static double average = 0;
	static uint64 sampled = 0;
	static uint64 stepped_at = 0;
	static int	wanted[LONG_CLASSES];
	int			limit = Slots->settings.max_active;
	int			sum = 0;
	int			in_use[LONG_CLASSES];
	int			places[LONG_CLASSES];
	uint64		queued[LONG_CLASSES];
	bool		step = passed_since(stepped_at, STEP, now);
	double		elapsed = Max((int64) (now - sampled), 0);
	bool		raised = false;

	average += (wanting - average) * elapsed / (elapsed + SMOOTHED);
	sampled = now;
	if (step)
		stepped_at = now;
	slots_lock();
	for (int k = 0; k < LONG_CLASSES; k++)
	{
		queued[k] = first_queued(long_queue(k));
		in_use[k] = places_in_use(long_queue(k));
		if (step || wanted[k] == 0)
			wanted[k] = stepped(wanted[k], k < 2, average, queued[k] != 0, in_use[k], Slots->cpus);
		places[k] = wanted[k];
		if (limit > 0)
			places[k] = Min(places[k], Max(limit / PART_OF_LIMIT, 1));
		sum += places[k];
	}
	if (limit > 0 && sum > most_together(limit))
	{
		int			most[LONG_CLASSES];

		memcpy(most, places, sizeof(most));
		share(most, in_use, queued, most_together(limit), places);
	}
	for (int k = 0; k < LONG_CLASSES; k++)
	{
		pg_atomic_uint32 *present = &queue_at(long_queue(k))->limit;

		raised |= queued[k] != 0 && (uint32) places[k] > pg_atomic_read_u32(present);
		if ((uint32) places[k] != pg_atomic_read_u32(present))
			pg_atomic_write_u32(present, places[k]);
	}
	slots_unlock();
	if (raised)
		slots_grant_free();
}

/* Describe the queue of a class.  Returns false if none waits or works there. */
bool
slots_get_long_queue(int number, HotSpotView *view)
{
	int			queue = long_queue(number);
	HotSpot    *spot = hot_spot_at(queue);

	memset(view, 0, sizeof(HotSpotView));
	view->key = spot->key;
	view->shortest = number == 0 ? 0 : bounds[number - 1];
	slots_lock();
	view->limit = pg_atomic_read_u32(&queue_at(queue)->limit);
	view->running = places_in_use(queue);
	view->waiting = queue_at(queue)->nwaiters;
	view->waiter = view->waiting > 0 ? procno_of(first_waiter(queue)) : INVALID_PROC_NUMBER;
	slots_unlock();
	view->contenders = view->running + view->waiting;
	view->admitted = pg_atomic_read_u64(&spot->admitted);
	view->wait_time = pg_atomic_read_u64(&spot->wait_time);
	return view->contenders > 0;
}
