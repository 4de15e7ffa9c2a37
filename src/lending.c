/*-------------------------------------------------------------------------
 *
 * lending.c
 *		Which holder of a slot does nothing, and since when.
 *
 * The deadlock detector of PostgreSQL does not see the queue of slots.  So that a
 * holder can never wait for a backend in the queue for long, nor keep a slot while
 * its client does nothing, a holder that has done nothing for lend_after lends its
 * slot.  There is no background process for this: one of the waiters looks (see
 * slots.c), and without waiters there is nobody to lend to.
 *
 * Idleness is measured, not guessed from what a backend says that it waits for: a
 * holder does nothing if its process uses next to no CPU time, has not come by the
 * gate (its progress), and does not wait for a CPU, for a disk, or for a process that
 * works (LWLock), when it is looked at.  So it does not matter whether it waits for its
 * client, a lock, a clock, or a statement that it sends to its own server, by
 * postgres_fdw, a program or an untrusted language; and what streams from or to a
 * client works, however often it waits for a moment.
 *
 * A process that spends its time on the disk uses little CPU time, but then nearly
 * every look finds it waiting there.  One that gets no CPU, as there are too many that
 * want one, uses none at all: the kernel says that it does not sleep.  A parallel query
 * works if its leader or any of its workers does.
 *
 * One that stands in line for a lock that moves (contention.c) does nothing, but keeps
 * its slot: the next would only stand behind it.
 *
 * Where the kernel does not tell these things, the wait event has to do: a holder
 * works unless it waits for one of the things above, and is at rest if it waits for
 * anything.
 *
 * Locking: reads other backends' PGPROC without a lock, as pg_stat_activity
 * does; a value that is old costs one look.  The members of a lock group are
 * guarded by a partition lock of the lock manager.  slots_lending.c locks what it
 * changes.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/lock.h"
#include "storage/lwlock.h"

#include "compat.h"
#include "contention.h"
#include "lending.h"
#include "process.h"
#include "slots.h"

/* Looks per lend_after: idleness is noticed at most half of it too late. */
#define LOOKS_PER_LENDING	2

/* The shortest and the longest time between two looks, ms. */
#define MIN_INTERVAL	5
#define MAX_INTERVAL	500

/* What a look at a holder finds. */
typedef struct Sight
{
	uint64		cpu;			/* us of CPU time used so far */
	bool		busy;			/* works for certain */
} Sight;

/*
 * The time between two looks, ms.  Without lending, they still tell which holders
 * are at work.
 */
long
lending_interval(void)
{
	int			lend_after = slots_lend_after();

	if (lend_after < 0)
		return MAX_INTERVAL;
	return Min(Max(lend_after / LOOKS_PER_LENDING, MIN_INTERVAL), MAX_INTERVAL);
}

/*
 * Does a process in that wait do nothing, as far as one can tell without its CPU time?
 */
static bool
is_idle_wait(uint32 wait_class)
{
	return wait_class == PG_WAIT_CLIENT || wait_class == PG_WAIT_LOCK ||
		wait_class == PG_WAIT_TIMEOUT || wait_class == PG_WAIT_EXTENSION;
}

/* Look at one process. */
static void
look_at_process(const PGPROC *proc, Sight *sight)
{
	uint32		event = wait_event_of(proc);
	uint32		wait_class = event & WAIT_CLASS_MASK;
	uint64		cpu;

	if (wait_class == PG_WAIT_IO || wait_class == PG_WAIT_LWLOCK ||
		GATE_IS_BUFFER_CONTENT_WAIT(event))
		sight->busy = true;
	if (process_cpu_time(proc->pid, &cpu))
		sight->cpu += cpu;
	else if (!is_idle_wait(wait_class))
		sight->busy = true;
}

/* Look at the workers that a leader has now, if any. */
static void
look_at_workers(const PGPROC *leader, Sight *sight)
{
	LWLock	   *lock = LockHashPartitionLockByProc(leader);
	dlist_iter	iter;

	LWLockAcquire(lock, LW_SHARED);
	if (leader->lockGroupLeader == leader)
	{
		dlist_foreach(iter, (dlist_head *) &leader->lockGroupMembers)
		{
			PGPROC	   *proc = dlist_container(PGPROC, lockGroupLink, iter.cur);

			if (proc != leader)
				look_at_process(proc, sight);
		}
	}
	LWLockRelease(lock);
}

/* Does that process sleep, as far as the kernel or the backend itself tells? */
static bool
is_at_rest(const PGPROC *proc)
{
	ProcessRest rest = process_rest(proc->pid);

	return rest == PROCESS_REST_UNKNOWN ? wait_event_of(proc) != 0 : rest == PROCESS_RESTS;
}

/* Look at one backend, which is a holder. */
static void
look_at(int procno)
{
	const PGPROC *proc = GetPGProcByNumber(procno);
	Sight		sight = {0};

	look_at_process(proc, &sight);
	if (!sight.busy && *(PGPROC *const volatile *) &proc->lockGroupLeader == proc)
		look_at_workers(proc, &sight);
	/* That costs some microseconds, so only if it matters. */
	if (!sight.busy && slots_may_lend(procno, sight.cpu) &&
		(!is_at_rest(proc) || contention_is_in_line(procno)))
		sight.busy = true;
	slots_note_holder(procno, sight.cpu, sight.busy);
}

/*
 * The watcher's look at all holders, if it is due: those that have done nothing for
 * long enough lend their slots, those that work again have them back.
 */
void
lending_watch(void)
{
	if (!slots_holders_unseen(lending_interval()))
		return;
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		SlotState	state = slots_state(procno);

		if (state == SLOT_RUNNING || state == SLOT_LENT)
			look_at(procno);
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
		if (slots_state(procno) == SLOT_LENT)
			look_at(procno);
	}
}
