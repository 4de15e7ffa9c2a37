/*-------------------------------------------------------------------------
 *
 * contention.c
 *		How many of those at work wait for each other.
 *
 * Where many want the same rows, more at work do not get more done: who is let
 * in queues in the lock manager instead, and is woken and sent to sleep again
 * there for nearly every transaction before it; or they queue for the locks inside
 * the server.  A look counts the holders that do, and those that work; the law of the
 * limit (limit_law.c) tells what comes of it.
 *
 * Locks that move are told from locks that somebody keeps, behind which fewer at work
 * would wait for as long: those who wait for the same lock are a group, and it moves
 * when one of them has come out of it since the last look, other than by an error.
 * Who waits in a group that has not moved of late neither works nor is blocked; nor
 * does who waits for its client or a clock.  Waits for the WAL to be written are
 * waits for the disk, and many at a time are better.
 *
 * Who looks: at most every few milliseconds, whoever is about to queue, and the
 * watcher (see slots.c) as long as the limit is lowered.  If the limit finds itself,
 * there may be no queue; then whoever comes by looks, less often.
 *
 * Locking: reads other backends' PGPROC without a lock, as lending.c does.  Two looks
 * may overlap if one is delayed; what they remember is a hint.
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
#include "process.h"
#include "slots.h"

/* For how long a group that has not moved still counts, us */
#define BRIEFLY_US		100000

/* How many groups a look can tell apart, at most */
#define GROUPS			256

/* What the last look saw of a backend */
typedef struct SeenWait
{
	uint64		lock;			/* what it waited for, 0 if for nothing that
								 * counts */
	TimestampTz since;			/* when it began to, 0 if not known */
	TimestampTz moved;			/* when its group last did */
	uint64		failures;		/* of its transactions until then */
} SeenWait;

/* Those who wait for the same lock */
typedef struct WaitGroup
{
	uint64		lock;			/* 0 if free */
	TimestampTz moved;			/* when one came out of it, 0 if not known */
} WaitGroup;

/* By proc number; written by whoever looks, without a lock */
static SeenWait *seen_waits = NULL;

static Size
shmem_size(void)
{
	return mul_size(MaxBackends, sizeof(SeenWait));
}

/* Ask for the shared memory.  From a shmem_request_hook. */
void
contention_shmem_request(void)
{
	RequestAddinShmemSpace(shmem_size());
}

/* Create it, or find it if it exists.  The caller holds AddinShmemInitLock. */
void
contention_shmem_init(void)
{
	bool		found;

	seen_waits = ShmemInitStruct("admission_gate waits", shmem_size(), &found);
	if (!found)
		memset(seen_waits, 0, shmem_size());
}

/* Is a wait of that kind one for another backend, on which fewer at work would help? */
static inline bool
is_for_lwlock(uint32 event)
{
	return ((event & WAIT_CLASS_MASK) == PG_WAIT_LWLOCK &&
			event != (PG_WAIT_LWLOCK | WALWriteLock->tranche)) ||
		GATE_IS_BUFFER_CONTENT_WAIT(event);
}

/* Does a process in a wait of that kind do nothing that others could be in the way of? */
static inline bool
is_idle(uint32 event)
{
	uint32		wait_class = event & WAIT_CLASS_MASK;

	return wait_class == PG_WAIT_CLIENT || wait_class == PG_WAIT_TIMEOUT ||
		wait_class == PG_WAIT_EXTENSION;
}

/*
 * What does that process wait for?  lock is 0 if for no other backend; else the
 * address of a heavyweight lock, or the wait event, which no address is as low as.
 */
static void
see_wait(PGPROC *proc, uint32 event, SeenWait *wait)
{
	/*
	 * It may be about to look for a deadlock, with another wait event or
	 * none.
	 */
	wait->lock = (uint64) (uintptr_t) *(LOCK *volatile *) &proc->waitLock;
	wait->since = 0;
	if (wait->lock != 0)
		wait->since = pg_atomic_read_u64(&proc->waitStart);
	else if (is_for_lwlock(event))
		wait->lock = event;
}

/* The group of that lock, made if need be; NULL if there are too many. */
static WaitGroup *
group_of(WaitGroup *groups, uint64 lock)
{
	uint32		at = murmurhash32((uint32) lock ^ (uint32) (lock >> 32));

	for (int i = 0; i < 8; i++)
	{
		WaitGroup  *group = &groups[(at + i) % GROUPS];

		if (group->lock == 0)
			group->lock = lock;
		if (group->lock == lock)
			return group;
	}
	return NULL;
}

/* One has come out of the group, or may have moved with it, at that time. */
static void
note_move(WaitGroup *groups, uint64 lock, TimestampTz moved)
{
	WaitGroup  *group = group_of(groups, lock);

	if (group != NULL)
		group->moved = Max(group->moved, moved);
}

/* Is that the same wait?  When it began is not always known. */
static inline bool
is_same_wait(const SeenWait *a, const SeenWait *b)
{
	return a->lock == b->lock &&
		(a->since == b->since || a->since == 0 || b->since == 0);
}

/*
 * Look at one backend, and remember what it waits for.  Returns whether it works.
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
		works = wait.lock == 0 && !is_idle(event);
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

/* Is that backend in a group that has moved of late? */
static bool
is_blocked_briefly(int procno, WaitGroup *groups, TimestampTz now)
{
	SeenWait   *seen = &seen_waits[procno];
	WaitGroup  *group;

	if (seen->lock == 0)
		return false;
	group = group_of(groups, seen->lock);
	if (group != NULL && group->moved != 0)
		seen->moved = group->moved;
	else if (seen->moved == 0)
		seen->moved = seen->since != 0 ? Min(seen->since, now) : now;
	return now - seen->moved < BRIEFLY_US;
}

/*
 * Does that holder stand in line for a lock that moves, by the latest look?  Then more
 * that are let in would only stand behind it.  A hint, no lock.
 */
bool
contention_is_in_line(int procno)
{
	const SeenWait *seen = &seen_waits[procno];
	int64		passed = GetCurrentTimestamp() - seen->moved;

	return seen->lock != 0 && passed >= 0 && passed < BRIEFLY_US;
}

/* See how many holders wait for each other, and have fewer or more let in by that. */
static pg_noinline void
look_at_all(void)
{
	WaitGroup	groups[GROUPS] = {0};
	TimestampTz now = GetCurrentTimestamp();
	uint32		working = 0;
	uint32		blocked = 0;

	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		if (look_at(procno, groups, now))
			working++;
	}
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		if (is_blocked_briefly(procno, groups, now))
			blocked++;
	}
	slots_adapt_limit(working + blocked, blocked);
}

/* If it is time, look. */
void
contention_look(void)
{
	if (slots_contention_unseen())
		look_at_all();
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
