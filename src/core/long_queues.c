/*-------------------------------------------------------------------------
 *
 * long_queues.c
 *		The queues of statements that are expected to take long.
 *
 * Such a statement takes a place before it starts, or waits for one, in the
 * way of a hot spot: first come, first served.  Each decade of expected time
 * has its own queue and places; the worker sets how many (long_control.c).
 * A place ends with its statement.  A sample withdraws it if that is not at
 * work for idle_after: it waits for its client or a lock, for example.
 *
 * Locking: see slots_internal.h.  The control is local to the worker.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots_internal.h"

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
	MySlotEntry->expected = Max(expected, 1);
	return MAX_HOT_SPOTS + long_control_class(expected);
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
	static LongControl control;
	bool		raised = false;

	slots_lock();
	for (int k = 0; k < LONG_CLASSES; k++)
		read_class(&control.classes[k], long_queue(k));
	long_control_sample(&control, wanting, Max(Slots->max_active, 0), Slots->cpus, now);
	for (int k = 0; k < LONG_CLASSES; k++)
		raised |= set_places(&control.classes[k], long_queue(k));
	slots_unlock();
	if (raised)
		slots_grant_free();
}
