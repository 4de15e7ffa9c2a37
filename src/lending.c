/*-------------------------------------------------------------------------
 *
 * lending.c
 *		Which holder of a slot waits for what, and since when.
 *
 * The deadlock detector of PostgreSQL does not see the queue of slots.  So
 * that a holder can never wait for somebody in the queue for long, nor keep a
 * slot while its client does nothing, a holder that has been seen in the same
 * wait for lend_after, of a class named in lend_on, lends its slot.  There is
 * no background process for this: one of the waiters looks (see slots.c), and
 * without waiters there is nobody to lend to.
 *
 * What a backend waits for is what it publishes for pg_stat_activity.  Two
 * looks have seen the same wait if the wait event is the same, the backend
 * has not come by the gate in between (its progress), and, in the lock
 * manager, the wait began at the same time.  A wait that is shorter than
 * lend_after lends nothing: otherwise a hot row would draw the whole queue
 * into the lock manager.
 *
 * The leader of a parallel query publishes that it waits for its workers; it
 * waits in the sense above if all of them do.
 *
 * Locking: reads other backends' PGPROC without a lock, as pg_stat_activity
 * does; a value that is old or torn costs one look.  slots.c locks what it
 * changes.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "compat.h"
#include "lending.h"
#include "slots.h"

/* Looks per lend_after: a wait is noticed at most half of it too late. */
#define LOOKS_PER_LENDING	2

/* As many holders a watcher remembers from one look to the next. */
#define MAX_KNOWN_HOLDERS	128

/* The shortest time between two looks, ms. */
#define MIN_LENDING_INTERVAL	5

/*
 * The time between two looks in ms, -1 if there is nothing to look for.
 */
long
lending_interval(void)
{
	int			lend_after = slots_lend_after();

	if (lend_after < 0 || slots_lend_classes() == 0)
		return -1;
	return Max(lend_after / LOOKS_PER_LENDING, MIN_LENDING_INTERVAL);
}

/*
 * Is this a wait for what another session holds, as a lock is, although it is
 * not of that class?
 */
static inline bool
event_is_lock_like(uint32 event)
{
	return event == GATE_WAIT_BUFFER_PIN ||
		event == WAIT_EVENT_SAFE_SNAPSHOT;
}

/* Is this a wait that lends? */
static inline bool
event_lends(uint32 event)
{
	if (event_is_lock_like(event))
		event = PG_WAIT_LOCK;
	return (slots_lend_classes() & WAIT_CLASS_BIT(event)) != 0;
}

/* Add what tells this wait from others of the same process. */
static inline uint64
mix_wait_id(uint64 wait_id, PGPROC *proc, uint32 event)
{
	wait_id = wait_id * 31 + event;
	if ((event & WAIT_CLASS_MASK) == PG_WAIT_LOCK)
		wait_id += pg_atomic_read_u64(&proc->waitStart);
	return wait_id;
}

/*
 * Do all parallel workers of that leader wait: at least one of them in a wait
 * that lends, the others perhaps for each other?
 */
static bool
workers_wait(PGPROC *leader, uint64 *wait_id)
{
	bool		found = false;

	for (int i = 0; i < (int) ProcGlobal->allProcCount; i++)
	{
		PGPROC	   *proc = GetPGProcByNumber(i);
		uint32		event;

		if (proc == leader || proc->pid == 0 ||
			*(PGPROC *const volatile *) &proc->lockGroupLeader != leader)
			continue;

		event = wait_event_of(proc);
		if (event_lends(event))
			found = true;
		else if ((event & WAIT_CLASS_MASK) != PG_WAIT_IPC)
			return false;
		*wait_id = mix_wait_id(*wait_id, proc, event);
	}
	return found;
}

/*
 * Is the backend in a wait that lends?  If so, *wait_id, never 0, tells this
 * wait from others of the same backend.
 */
static bool
backend_waits(int procno, uint64 *wait_id)
{
	PGPROC	   *proc = GetPGProcByNumber(procno);
	uint32		event = wait_event_of(proc);

	*wait_id = mix_wait_id((uint64) slots_progress(procno) << 32, proc, event);

	if (event_lends(event) ||
		((event & WAIT_CLASS_MASK) == PG_WAIT_IPC && workers_wait(proc, wait_id)))
	{
		if (*wait_id == 0)
			*wait_id = 1;
		return true;
	}
	return false;
}

/*
 * Look at one backend, if it is a holder.
 */
static void
look_at(int procno, TimestampTz now)
{
	SlotState	state = slots_state(procno);
	uint64		wait_id;

	if (state != SLOT_RUNNING && state != SLOT_LENT)
		return;
	if (backend_waits(procno, &wait_id))
		slots_holder_waits(procno, wait_id, now);
	else
		slots_holder_works(procno);
}

/*
 * The watcher's look at all holders: those that wait for long enough lend
 * their slots, those that work again have them back.
 *
 * Where nothing moves, the holders are those of the last look: then there is no
 * need to look for them among thousands of others.
 */
void
lending_look(void)
{
	static int	known[MAX_KNOWN_HOLDERS];
	static int	nknown = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (lending_interval() < 0)
		return;

	if (nknown <= MAX_KNOWN_HOLDERS && slots_are_all_holders(known, nknown))
	{
		for (int i = 0; i < nknown; i++)
			look_at(known[i], now);
		return;
	}

	nknown = 0;
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		SlotState	state = slots_state(procno);

		if (state == SLOT_NONE || state == SLOT_WAITING)
			continue;
		if (nknown < MAX_KNOWN_HOLDERS)
			known[nknown] = procno;
		nknown++;
		look_at(procno, now);
	}
}

/*
 * An arriving backend's look at the lenders: those that work again have their
 * slots back before the backend takes one.
 */
void
lending_recall(void)
{
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		uint64		wait_id;

		if (slots_state(procno) == SLOT_LENT && !backend_waits(procno, &wait_id))
			slots_holder_works(procno);
	}
}
