/*-------------------------------------------------------------------------
 *
 * contention.c
 *		How many of the backends at work wait for each other.
 *
 * Where many transactions want the same rows, admitting more of them does not
 * get more done: they queue in the lock manager instead, where each is woken
 * and put to sleep again for nearly every transaction before it; or they queue
 * for locks inside the server.  A look counts the holders that wait so, and
 * those that work.  The law of the limit (core/limit_law.c) derives the limit
 * from that.
 *
 * Waits for a lock that one backend keeps do not count: fewer backends would
 * not shorten them.  The waiters of one lock form a group; the group has moved
 * if one of them has left it since the last look, other than by an error.  A
 * backend in a group that has not moved for BRIEFLY_US counts neither as
 * working nor as blocked; nor does one that waits for its client, a timer or
 * an extension.  A wait for WAL to be written counts as work: it is for the
 * disk, where many at a time are better.
 *
 * A look is due every few milliseconds, with many connections less often
 * (core/load_control.c).  A backend that is about to queue takes it, or the
 * watcher (watcher.c).  If the limit finds itself,
 * there may be no queue; then a backend that begins a statement takes it, less
 * often.
 *
 * Locking: reads other backends' PGPROC without a lock, as watcher.c does.
 * Two looks may overlap if one is delayed; what they remember is a hint.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "contention.h"
#include "core/entries.h"
#include "core/load_control.h"
#include "process.h"

/* How long a group that has not moved still counts, us */
#define BRIEFLY_US		100000

/* How many groups a look can tell apart */
#define GROUPS			256

/* How many of them may be tried for a lock, if others have taken its place */
#define MAX_PROBES		8

/* What the last look saw of a backend */
typedef struct SeenWait
{
	uint64		lock;			/* what it waited for; 0 = nothing that counts */
	TimestampTz since;			/* when that wait began; 0 = unknown */
	TimestampTz moved;			/* when its group moved last */
	uint64		failures;		/* its failed transactions until then */
} SeenWait;

/* The backends that wait for one lock */
typedef struct WaitGroup
{
	uint64		lock;			/* 0 if free */
	TimestampTz moved;			/* when one left it; 0 = unknown */
} WaitGroup;

/* By proc number; the process that looks writes it without a lock */
static SeenWait *seen_waits = NULL;

static Size
shmem_size(void)
{
	return mul_size(MaxBackends, sizeof(SeenWait));
}

/* Request the shared memory.  Call from a shmem_request_hook. */
void
contention_shmem_request(void)
{
	RequestAddinShmemSpace(shmem_size());
}

/* Create or attach to it.  The caller holds AddinShmemInitLock. */
void
contention_shmem_init(void)
{
	bool		found;

	seen_waits = ShmemInitStruct("admission_gate waits", shmem_size(), &found);
	if (!found)
		memset(seen_waits, 0, shmem_size());
}

/*
 * Is this a wait inside the server that fewer backends at work would shorten?
 */
static inline bool
is_for_lwlock(uint32 event)
{
	return ((event & WAIT_CLASS_MASK) == PG_WAIT_LWLOCK &&
			event != (PG_WAIT_LWLOCK | WALWriteLock->tranche)) ||
		GATE_IS_BUFFER_CONTENT_WAIT(event);
}

/*
 * What does this process wait for?  wait->lock receives 0 if for no other
 * backend, else the address of a heavyweight lock, or the wait event, which is
 * lower than any address.
 */
static void
see_wait(PGPROC *proc, uint32 event, SeenWait *wait)
{
	/*
	 * The wait event does not tell: the process may be about to check for a
	 * deadlock, with another one or none.
	 */
	wait->lock = (uint64) (uintptr_t) *(LOCK *volatile *) &proc->waitLock;
	wait->since = 0;
	if (wait->lock != 0)
		wait->since = pg_atomic_read_u64(&proc->waitStart);
	else if (is_for_lwlock(event))
		wait->lock = event;
}

/* The group of this lock, added if need be; NULL if there is no room. */
static WaitGroup *
group_of(WaitGroup *groups, uint64 lock)
{
	uint32		at = murmurhash32((uint32) lock ^ (uint32) (lock >> 32));

	for (int i = 0; i < MAX_PROBES; i++)
	{
		WaitGroup  *group = &groups[(at + i) % GROUPS];

		if (group->lock == 0)
			group->lock = lock;
		if (group->lock == lock)
			return group;
	}
	return NULL;
}

/* Note that a group has moved at that time, unless it has moved since. */
static void
note_move(WaitGroup *groups, uint64 lock, TimestampTz moved)
{
	WaitGroup  *group = group_of(groups, lock);

	if (group != NULL)
		group->moved = Max(group->moved, moved);
}

/* Are these the same wait?  When one began is not always known. */
static inline bool
is_same_wait(const SeenWait *a, const SeenWait *b)
{
	return a->lock == b->lock &&
		(a->since == b->since || a->since == 0 || b->since == 0);
}

/*
 * Look at one backend, and remember what it waits for.  Returns whether it
 * works.
 */
static bool
look_at(int procno, WaitGroup *groups, TimestampTz now)
{
	SlotState	state = slots_state(procno);
	SeenWait   *seen = &seen_waits[procno];
	SeenWait	wait = {0};
	bool		works = false;

	if (state == SLOT_RUNNING || state == SLOT_LENT)
	{
		PGPROC	   *proc = GetPGProcByNumber(procno);
		uint32		event = wait_event_of(proc);

		see_wait(proc, event, &wait);
		works = wait.lock == 0 && !is_idle_wait(event);
	}
	if (wait.lock == 0 && seen->lock == 0)
		return works;

	wait.failures = slots_failures(procno);
	if (seen->lock != 0 && is_same_wait(seen, &wait))
	{
		wait.moved = Min(seen->moved, now); /* the clock may have been set
											 * back */
		note_move(groups, seen->lock, wait.moved);
	}
	else if (seen->lock != 0 && wait.failures == seen->failures)
		note_move(groups, seen->lock, now);
	*seen = wait;
	return works;
}

/*
 * Is this backend, which waits for a lock, in a group that has moved lately?
 * Call it after look_at() of all backends.
 */
static bool
is_blocked_briefly(int procno, WaitGroup *groups, TimestampTz now)
{
	SeenWait   *seen = &seen_waits[procno];
	WaitGroup  *group = group_of(groups, seen->lock);

	if (group != NULL && group->moved != 0)
		seen->moved = group->moved;
	else if (seen->moved == 0)
		seen->moved = seen->since != 0 ? Min(seen->since, now) : now;
	return now - seen->moved < BRIEFLY_US;
}

/*
 * Did the last look find this holder in line for a lock that moves?  Then a
 * backend admitted in its place would only queue behind it.  A hint, no lock.
 */
bool
contention_is_in_line(int procno)
{
	const SeenWait *seen = &seen_waits[procno];
	int64		passed = GetCurrentTimestamp() - seen->moved;

	return seen->lock != 0 && passed >= 0 && passed < BRIEFLY_US;
}

/*
 * Count the holders that work, those that wait for each other and those that
 * wait for a lock that does not move, and adapt the limit.
 */
static pg_noinline void
look_at_all(void)
{
	WaitGroup	groups[GROUPS] = {0};
	TimestampTz now = GetCurrentTimestamp();
	uint32		working = 0;
	uint32		blocked = 0;
	uint32		stuck = 0;

	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		if (look_at(procno, groups, now))
			working++;
	}
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		if (seen_waits[procno].lock == 0)
			continue;
		if (is_blocked_briefly(procno, groups, now))
			blocked++;
		else if (slots_state(procno) == SLOT_RUNNING)
			stuck++;
	}
	slots_adapt_limit(working + blocked, blocked, stuck);
}

/* Take a look if one is due. */
void
contention_look(void)
{
	if (slots_contention_unseen())
		look_at_all();
}
