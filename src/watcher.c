/*-------------------------------------------------------------------------
 *
 * watcher.c
 *		The watcher's look: has holders that do nothing lend their slots.
 *
 * One of the waiters is the watcher (core/watch_duty.c) and looks every 5 to
 * 50 ms, depending on lend_after and on whether the limit only has to grow.
 * There is no background process for this: without waiters there is nothing to
 * find.  The watcher looks at the holders, at contention (contention.c), and at
 * queues that stand still (core/lending.c).
 *
 * The deadlock detector of PostgreSQL does not see the queues for slots.  So
 * that a holder can neither wait for a waiter for long, nor keep a slot while
 * its client does nothing, a holder that has done nothing for lend_after lends
 * its slot.
 *
 * Idleness is measured, not concluded from the wait event.  A holder does
 * nothing if it uses next to no CPU time, has not met the gate (its progress),
 * and is not found waiting for a CPU, a disk, or a process that works
 * (LWLock).  So it does not matter whether it waits for its client, a lock, a
 * timer, or a statement that it has sent to its own server, through
 * postgres_fdw, a program or an untrusted language; and a backend that streams
 * from or to its client works, however often it waits for a moment.
 *
 * A process that spends its time on the disk uses little CPU time, but nearly
 * every look finds it waiting there.  One that gets no CPU, since too many
 * processes want one, uses none at all, but the kernel says that it does not
 * sleep; only the leader of a parallel query is asked for that.  Otherwise a
 * parallel query works if its leader or any of its workers does.
 *
 * A holder in line for a lock that moves (contention.c) does nothing, but
 * keeps its slot: the next backend would only queue behind it.
 *
 * Where the kernel does not tell these things, the wait event has to do: a
 * holder works unless it waits for a client, a lock, a timer or an extension,
 * and sleeps if it waits for anything.
 *
 * Locking: reads other backends' PGPROC without a lock, as pg_stat_activity
 * does; a stale value costs one look.  A partition lock of the lock manager
 * guards the members of a lock group.  core/lending.c locks what it changes.
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
#include "core/entries.h"
#include "core/lending.h"
#include "core/load_control.h"
#include "core/watch_duty.h"
#include "process.h"
#include "watcher.h"

/* Looks per lend_after: idleness is noticed at most half of lend_after late */
#define LOOKS_PER_LENDING	2

/* Bounds of the time between two looks, ms */
#define MIN_INTERVAL	5
#define MAX_INTERVAL	500

/* How long the watcher sleeps at most, ms */
#define WATCH_INTERVAL	50

/* What a look at a holder finds */
typedef struct Sight
{
	uint64		cpu;			/* CPU time used so far, us */
	bool		busy;			/* works for certain */
} Sight;

/*
 * The time between two looks at the holders, ms.  Without lending, the looks
 * give lent slots back to holders that work again.
 */
static long
holders_interval(void)
{
	int			lend_after = slots_lend_after();

	if (lend_after < 0)
		return MAX_INTERVAL;
	return Min(Max(lend_after / LOOKS_PER_LENDING, MIN_INTERVAL), MAX_INTERVAL);
}

/* Add what is seen of one process to *sight. */
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
	else if (!is_idle_or_lock_wait(event))
		sight->busy = true;
}

/* Add the workers that a leader has now. */
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

/*
 * Does this process sleep?  If the kernel does not tell, the wait event does.
 */
static bool
is_at_rest(const PGPROC *proc)
{
	ProcessRest rest = process_rest(proc->pid);

	return rest == PROCESS_REST_UNKNOWN ? wait_event_of(proc) != 0 : rest == PROCESS_RESTS;
}

/* Look at a holder. */
static void
look_at(int procno)
{
	const PGPROC *proc = GetPGProcByNumber(procno);
	Sight		sight = {0};

	look_at_process(proc, &sight);
	if (!sight.busy && *(PGPROC *const volatile *) &proc->lockGroupLeader == proc)
		look_at_workers(proc, &sight);
	/* This takes some microseconds, so only if it matters. */
	if (!sight.busy && slots_seems_idle(procno, sight.cpu) &&
		(!is_at_rest(proc) || contention_is_in_line(procno)))
		sight.busy = true;
	slots_note_holder(procno, sight.cpu, sight.busy);
}

/*
 * Look at all holders if that is due: those that have done nothing for long
 * enough lend their slots, and lenders that work again get theirs back.
 */
void
watcher_look_at_holders(void)
{
	if (!slots_holders_unseen(holders_interval()))
		return;
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		SlotState	state = slots_state(procno);

		if (state == SLOT_RUNNING || state == SLOT_LENT)
			look_at(procno);
	}
}

/*
 * The watcher's look.  Returns how long the watcher may sleep: ms.
 */
long
watcher_look(void)
{
	long		interval = Min(holders_interval(), WATCH_INTERVAL);

	if (slots_limit_has_to_grow())
		interval = MIN_INTERVAL;
	watcher_look_at_holders();
	contention_look();
	slots_relieve_stall();
	slots_watch_again_in(interval);
	return interval;
}

/*
 * The look of an arriving backend at the lenders, unless another one has
 * looked lately: those that work again get their slots back before the backend
 * acquires one.
 */
void
watcher_recall_lenders(void)
{
	if (!slots_lenders_unseen())
		return;
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		if (slots_state(procno) == SLOT_LENT)
			look_at(procno);
	}
}
