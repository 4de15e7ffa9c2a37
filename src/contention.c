/*-------------------------------------------------------------------------
 *
 * contention.c
 *		How many of those at work block each other.
 *
 * Where many want the same rows, more at work do not get more done: who is let
 * in queues in the lock manager instead, and is woken and sent to sleep again
 * there for nearly every transaction before it.  So, while more than half of
 * the holders are blocked, fewer are let in, and more again after
 * (slots_contention.c).  Who is about to queue, where others wait
 * already, looks, at most every few milliseconds; and the watcher (see
 * slots.c) as long as the limit is lowered, since nobody else may come any
 * more.
 *
 * Only those count that have been blocked for a short time.  A wait for a row
 * begins anew with each version of it; so who is blocked for longer is so by
 * one who keeps a lock, most likely, and would be if fewer ran, too; its slot
 * is lent after a while (lending.c).  Where such are the most, as behind an
 * ALTER TABLE, the others have but just come there, and do not count either.
 *
 * Locking: reads other backends' PGPROC without a lock, as lending.c does.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "compat.h"
#include "contention.h"
#include "lending.h"
#include "slots.h"

/* For how long a backend is blocked for a short time, us. */
#define BRIEFLY_US		50000

static inline bool
is_blocked(PGPROC *proc)
{
	return (wait_event_of(proc) & WAIT_CLASS_MASK) == PG_WAIT_LOCK;
}

/*
 * Has a blocked backend been so for a short time?  Of one that has just been given
 * the lock, PostgreSQL may not tell since when it waited: it goes on.
 */
static inline bool
is_so_briefly(PGPROC *proc, TimestampTz now)
{
	TimestampTz since = pg_atomic_read_u64(&proc->waitStart);

	return since == 0 || now - since < BRIEFLY_US;
}

/* Is there anything to look for, or to take back? */
static bool
is_wanted(void)
{
	return slots_lowers_limit() || slots_limit_is_lowered();
}

/*
 * Unless somebody has just done so: see how many holders are blocked, and have
 * fewer or more let in accordingly.
 */
void
contention_look(void)
{
	TimestampTz now;
	int			running = 0;
	int			briefly = 0;
	int			for_long = 0;

	if (!is_wanted() || !slots_contention_unseen())
		return;

	now = GetCurrentTimestamp();
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		SlotState	state = slots_state(procno);
		PGPROC	   *proc = GetPGProcByNumber(procno);

		if (state != SLOT_RUNNING && state != SLOT_LENT)
			continue;
		if (state == SLOT_RUNNING)
			running++;
		if (is_blocked(proc))
		{
			if (state == SLOT_RUNNING && is_so_briefly(proc, now))
				briefly++;
			else
				for_long++;
		}
	}
	slots_adapt_limit(running, briefly > for_long ? briefly : 0);
}

/*
 * The watcher's duty: look if the limit is lowered.
 */
void
contention_watch(void)
{
	if (slots_limit_is_lowered())
		contention_look();
}
