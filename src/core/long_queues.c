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
	if (is_of_long(place_of(MySlotEntry)))
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
	{
		SlotEntry  *first = first_waiter(long_queue(k));

		control.classes[k].in_use = places_in_use(long_queue(k));
		control.classes[k].queued = first != NULL ? Max(first->queued, 1) : 0;
	}
	long_control_sample(&control, wanting, Max(Slots->max_active, 0), Slots->cpus, now);
	for (int k = 0; k < LONG_CLASSES; k++)
		raised |= control.classes[k].places >
			pg_atomic_exchange_u32(&queue_at(long_queue(k))->limit, control.classes[k].places);
	slots_unlock();
	if (raised)
		slots_grant_free();
}
