/*-------------------------------------------------------------------------
 *
 * watch_duty.c
 *		Which of the waiters is the watcher.
 *
 * The watcher is appointed when a backend enters or leaves a queue
 * (wait_queue.c).  If it is late, for instance because it was stopped, its
 * duty passes to the next backend that enters a queue, or to another waiter:
 * each wakes up about once a second to check.
 *
 * Locking: see shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/shared.h"
#include "core/wait_queue.h"
#include "core/watch_duty.h"

/*
 * A waiter calls this whenever it is awake.  Returns whether it is the
 * watcher; if the watcher is late, the caller becomes it.
 */
bool
slots_am_watcher(void)
{
	LockedSection section;

	if (Slots->watcher == my_slot_procno)
		return true;
	if (!slots_watcher_is_late(GetCurrentTimestamp()))
		return false;

	slots_lock(&section);
	if (slots_watcher_is_late(section.now) &&
		pg_atomic_read_u32(&MySlotEntry->state) == SLOT_WAITING)
		slots_appoint_watcher(my_slot_procno, section.now);
	slots_unlock(&section);
	return Slots->watcher == my_slot_procno;
}

/* The watcher goes to sleep, for that many ms at most. */
void
slots_watch_again_in(long ms)
{
	LockedSection section;

	slots_lock(&section);
	if (Slots->watcher == my_slot_procno)
		Slots->watch_due = TimestampTzPlusMilliseconds(section.now, ms);
	slots_unlock(&section);
}

/* Have the watcher go by a new setting. */
void
slots_wake_watcher(void)
{
	LockedSection section;

	slots_lock(&section);
	if (Slots->watcher != INVALID_PROC_NUMBER)
		slots_wake_later(&section, Slots->watcher);
	slots_unlock(&section);
}
