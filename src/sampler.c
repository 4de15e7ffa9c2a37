/*-------------------------------------------------------------------------
 *
 * sampler.c
 *		Samples what backends do: who contends for what, and who is at work.
 *
 * Hot spots (core/hot_spots.c): the waiters for a lock form a group, whose
 * owner is looked up once.  If the owner waits, its own group decides, and so
 * on; a circle is contention, which the deadlock detector ends.  If the last
 * owner of the chain is idle, or works but nobody has left its group for
 * STUCK_AFTER, the waiters are stuck and contend for nothing: a long
 * transaction is no hot spot.
 *
 * At work (core/at_work.c) is a holder unless its wait event says that it waits
 * for its client, a lock, a pin, a timer or another process.  Not every wait has an
 * event, for example that for the output of a program: without one, a holder
 * that has used next to no CPU time for idle_after, and sleeps, is not at work.
 * A process that gets no CPU uses no CPU time either, but the kernel says that
 * it does not sleep.  A parallel query is at work if any of its processes is.
 *
 * A sample serves backends that wait at the gate with a lock that others or
 * replay want (core/at_work.c).
 *
 * Locking: everything here is local to the worker.  It reads other backends'
 * PGPROC without a lock, like pg_stat_activity; a stale value costs one
 * sample.  A partition lock of the lock manager guards the members of a lock
 * group and the owners of a lock.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"

#include "gate.h"

#define WAIT_CLASS_MASK	0xFF000000	/* of a wait event */

#define STUCK_AFTER		INT64CONST(2000000) /* us; see above */
#define MIN_IDLE		100		/* ms; no backend contends sooner than it is
								 * idle */

/*
 * A process that uses less than this part of a CPU, 5 %, is idle.  One that
 * receives rows or short statements one by one from its client uses less.
 */
#define IDLE_PART		20

/*
 * us.  A commit wakes all that wait for its row, and all but one wait again,
 * when each has had a CPU.  So one that has waited for a lock is not at work
 * for so long, or up to its next statement.
 */
#define WAKES_FOR		100000

#define GROUPS			512		/* locks that a sample tells apart */
#define MAX_PROBES		8		/* entries tried for a lock */
#define MAX_OWNERS		256		/* owners of a lock that are read */
#define MAX_ROWS_ASKED	16		/* backends whose row is looked up */

/* The time between two samples, ms */
#define WAITING_INTERVAL	5	/* while backends wait */
#define WORKING_INTERVAL	20	/* while some contend, or more than these work */
#define FEW_AT_WORK			4
#define IDLE_INTERVAL		500
#define BACKENDS_PER_MS		100 /* longer with so many backends to read, */
#define MOST_FOR_BACKENDS	200 /* up to this: samples build on each other */
#define FIND_BACKENDS_AFTER	INT64CONST(1000000) /* us */

/* Do the waiters of a lock contend? */
typedef enum Verdict
{
	VERDICT_UNKNOWN,
	VERDICT_CONTEND,
	VERDICT_STUCK
} Verdict;

/* What one sample of a backend leaves to the next; times by monotonic_us() */
typedef struct BackendSample
{
	LOCK	   *volatile lock;	/* the heavyweight lock it waits for, or NULL */
	HotSpotKey	key;			/* what that is for, if known */
	Verdict		verdict;		/* does it contend for that lock? */
	TimestampTz since;			/* start of that wait; 0 = unknown */
	SlotLook	slot;			/* what the gate knows of it */
	uint64		moved;			/* when its group last moved */
	uint64		blocked;		/* when it was last seen waiting for a lock */
	uint16		blocked_progress;	/* its progress then */
	uint64		away_since;		/* not at work; kept while it has a long place */
	uint64		idle_since;		/* start of an idle wait; 0 = it is in none */
	bool		sleeps;			/* without a wait event */
	uint16		clock_progress; /* its progress at clock_since */
	uint64		clock_since;	/* when its CPU clock was last found running */
	uint64		cpu;			/* CPU time (us) then */
	bool		is_awaited;		/* waits at the gate, and others for its locks */
	int			pid;			/* whose sample this is */
} BackendSample;

/* The backends that wait for one lock */
typedef struct WaitGroup
{
	LOCK	   *lock;			/* NULL if free */
	int			waiter;			/* one of them; -1 = none */
	uint64		moved;			/* when one left it; 0 = unknown */
	HotSpotKey	key;			/* what they contend for */
	int			owner;			/* an owner that is not idle; -1 = unknown */
	Verdict		verdict;
} WaitGroup;

/* The sample that is being taken */
static struct
{
	uint64		now;			/* by monotonic_us() */
	int			rows_asked;
	int			wanting;		/* processes that use a CPU or wait for one */
	WaitGroup	groups[GROUPS];
}			sample;

static BackendSample *samples = NULL;	/* by proc number */
static int *backends;			/* proc numbers: see find_backends() */
static int	nbackends = 0;

/* Find the backends to read, new ones at once. */
static void
find_backends(void)
{
	static uint32 attached_seen = 0;
	static uint64 found = 0;
	uint32		attached = slots_attached();

	if (attached == attached_seen && (int64) (sample.now - found) < FIND_BACKENDS_AFTER)
		return;
	attached_seen = attached;
	found = sample.now;
	nbackends = 0;
	for (int procno = 0; procno < MaxBackends; procno++)
	{
		int			pid = GetPGProcByNumber(procno)->pid;

		if (samples[procno].pid != pid)
			memset(&samples[procno], 0, sizeof(BackendSample));
		samples[procno].pid = pid;
		if (pid != 0)
			backends[nbackends++] = procno;
	}
}

/* The wait event of a backend, or 0.  A hint. */
static inline uint32
wait_event_of(const PGPROC *proc)
{
	return *(const volatile uint32 *) &proc->wait_event_info;
}

/* Is this a wait for a client, a timer or an extension? */
static inline bool
is_idle_wait(uint32 event)
{
	uint32		wait_class = event & WAIT_CLASS_MASK;

	return wait_class == PG_WAIT_CLIENT || wait_class == PG_WAIT_TIMEOUT ||
		wait_class == PG_WAIT_EXTENSION;
}

/* Is this a wait for a lock inside the server? */
static inline bool
is_for_lwlock(uint32 event)
{
	return (event & WAIT_CLASS_MASK) == PG_WAIT_LWLOCK || GATE_IS_BUFFER_CONTENT_WAIT(event);
}

/* The group of this lock, added if necessary; NULL if there is no lock or room */
static WaitGroup *
group_of(LOCK *lock)
{
	uint64		address = (uint64) (uintptr_t) lock;
	uint32		at = murmurhash32((uint32) address ^ (uint32) (address >> 32));

	for (int i = 0; lock != NULL && i < MAX_PROBES; i++)
	{
		WaitGroup  *group = &sample.groups[(at + i) % GROUPS];

		if (group->lock == NULL)
		{
			group->lock = lock;
			group->waiter = group->owner = -1;
		}
		if (group->lock == lock)
			return group;
	}
	return NULL;
}

/* Read one backend, and remember what it waits for. */
static void
read_backend(int procno)
{
	PGPROC	   *proc = GetPGProcByNumber(procno);
	uint32		event = proc->pid != 0 ? wait_event_of(proc) : 0;
	BackendSample *seen = &samples[procno];
	BackendSample last = *seen;
	WaitGroup  *group;

	/* Before 17, a process that has exited keeps its pid. */
	sample.wanting += event == 0 && GATE_IN_TRANSACTION(proc) && !seen->sleeps;

	seen->slot = slots_look_at(procno);
	seen->is_awaited = false;
	if (!seen->slot.has_long_place)
		seen->away_since = 0;
	/* One that waits at the gate shows that event until it is awake. */
	if (!is_idle_wait(event) || seen->slot.state == SLOT_WAITING || !seen->slot.is_awake)
		seen->idle_since = 0;
	else if (seen->idle_since == 0 || seen->slot.progress != last.slot.progress)
		seen->idle_since = sample.now;

	/* The wait event may be another one before a check for deadlocks. */
	seen->lock = *(LOCK *volatile *) &proc->waitLock;
	seen->since = 0;
	if (seen->lock != NULL)
	{
		seen->since = pg_atomic_read_u64(&proc->waitStart);
		seen->blocked = sample.now;
		seen->blocked_progress = seen->slot.progress;
	}

	/* Another wait?  The start of one is not always known. */
	if (last.lock == NULL || last.lock != seen->lock ||
		(last.since != seen->since && last.since != 0 && seen->since != 0))
	{
		memset(&seen->key, 0, sizeof(HotSpotKey));
		seen->verdict = VERDICT_UNKNOWN;
		seen->moved = 0;
		group = seen->slot.failures == last.slot.failures ? group_of(last.lock) : NULL;
		if (group != NULL)
			group->moved = sample.now;
	}

	group = group_of(seen->lock);
	if (group != NULL)
	{
		group->waiter = procno;
		group->moved = Max(group->moved, seen->moved);
		if (seen->key.kind != HOT_SPOT_NONE)
			group->key = seen->key;
		if (seen->verdict != VERDICT_UNKNOWN)
			group->verdict = seen->verdict;
	}
}

/* ---- What they contend for ---- */

/* What is a lock with this tag for?  HOT_SPOT_TRANSACTION if that is unclear. */
static HotSpotKey
key_of_tag(const LOCKTAG *tag)
{
	HotSpotKey	key = {HOT_SPOT_TRANSACTION};

	switch ((LockTagType) tag->locktag_type)
	{
		case LOCKTAG_RELATION:
		case LOCKTAG_RELATION_EXTEND:
		case LOCKTAG_PAGE:
		case LOCKTAG_TUPLE:
			key.kind = HOT_SPOT_RELATION;
			break;
		case LOCKTAG_OBJECT:
			key.kind = HOT_SPOT_NONE;	/* none can queue for it */
			return key;
		case LOCKTAG_ADVISORY:
			key.kind = HOT_SPOT_ADVISORY;
			key.fields[1] = tag->locktag_field3;
			key.fields[2] = tag->locktag_field4;
			break;
		default:
			return key;
	}
	key.database = tag->locktag_field1;
	key.fields[0] = tag->locktag_field2;
	if (tag->locktag_type == LOCKTAG_TUPLE)
	{
		key.block = tag->locktag_field3;
		key.offset = tag->locktag_field4;
	}
	return key;
}

/*
 * Which row does a backend want that waits for another transaction?  If it
 * holds the row's tuple lock, set *key, and *is_shared by the lock's mode.
 */
static void
find_row_wanted(PGPROC *proc, HotSpotKey *key, bool *is_shared)
{
	for (int i = 0; i < NUM_LOCK_PARTITIONS && key->kind == HOT_SPOT_TRANSACTION; i++)
	{
		LWLock	   *lock = LockHashPartitionLockByIndex(i);

		if (!LWLockConditionalAcquire(lock, LW_SHARED))
			continue;
		for (PROCLOCK *held = gate_proclock_in(&proc->myProcLocks[i], procLink); held != NULL;
			 held = gate_proclock_after(&proc->myProcLocks[i], procLink, held))
		{
			const LOCKTAG *tag = &held->tag.myLock->tag;

			if (tag->locktag_type != LOCKTAG_TUPLE)
				continue;
			*key = key_of_tag(tag);
			*is_shared = (held->holdMask & ~(LOCKBIT_ON(AccessShareLock) | LOCKBIT_ON(RowShareLock))) == 0;
		}
		LWLockRelease(lock);
	}
}

/* Is this idle_after ago, and at least MIN_IDLE?  0 is not. */
static bool
is_long_ago(uint64 time)
{
	return time != 0 &&
		(int64) (sample.now - time) >= Max(gate_idle_after, MIN_IDLE) * INT64CONST(1000);
}

/*
 * Find out what a group's lock is for, and an owner: preferably one that waits
 * itself.  Note those that wait at the gate.  If the lock manager is busy, the
 * last verdict stands.
 */
static void
find_owner(WaitGroup *group)
{
	LOCK	   *lock = group->lock;
	PGPROC	   *waiter = GetPGProcByNumber(group->waiter);
	LOCKTAG		tag = lock->tag;	/* it may have changed */
	LWLock	   *partition = LockHashPartitionLock(LockTagHashCode(&tag));
	LOCKMASK	conflicts = 0;	/* modes that block a waiter */
	PROCLOCK   *held = NULL;

	if (!LWLockConditionalAcquire(partition, LW_SHARED))
		return;
	if (waiter->waitLock == lock && memcmp(&lock->tag, &tag, sizeof(tag)) == 0)
	{
		group->verdict = VERDICT_UNKNOWN;
		group->key = key_of_tag(&tag);
		for (LOCKMODE mode = 1; mode < MAX_LOCKMODES; mode++)
			if ((lock->waitMask & LOCKBIT_ON(mode)) != 0)
				conflicts |= GetLocksMethodTable(lock)->conflictTab[mode];
		held = gate_proclock_in(&lock->procLocks, lockLink);
	}
	for (int read = 0; held != NULL && read < MAX_OWNERS;
		 held = gate_proclock_after(&lock->procLocks, lockLink, held), read++)
	{
		PGPROC	   *proc = held->tag.myProc;
		int			owner = GATE_PROC_NUMBER(proc);
		int			leader = GATE_PROC_NUMBER(held->groupLeader);

		if ((held->holdMask & conflicts) == 0 || (owner >= MaxBackends && proc->pid != 0) ||
			held->groupLeader == (waiter->lockGroupLeader != NULL ? waiter->lockGroupLeader : waiter))
			continue;
		/* A prepared transaction does nothing. */
		if (owner >= MaxBackends)
			group->verdict = VERDICT_STUCK;
		else if (slots_look_at(leader).state == SLOT_WAITING)
			samples[leader].is_awaited = true;
		else if (is_long_ago(samples[owner].idle_since))
			group->verdict = VERDICT_STUCK;
		else if (group->owner < 0 || samples[owner].lock != NULL)
			group->owner = owner;
	}
	LWLockRelease(partition);
}

/* Do they contend?  All in a chain of owners share the verdict on its end. */
static Verdict
judge(WaitGroup *group)
{
	WaitGroup  *next = group->owner >= 0 ? group_of(samples[group->owner].lock) : NULL;

	if (group->verdict != VERDICT_UNKNOWN)
		return group->verdict;
	group->verdict = VERDICT_CONTEND;	/* also if the chain is a circle */
	if (next != NULL)
		group->verdict = judge(next);
	/* It moves if a waiter got the lock, or the owner waited, lately. */
	else if ((int64) (sample.now - group->moved) >= STUCK_AFTER &&
			 (group->owner < 0 ||
			  (int64) (sample.now - samples[group->owner].blocked) >= STUCK_AFTER))
		group->verdict = VERDICT_STUCK;
	return group->verdict;
}

/*
 * What does this backend do?  *key receives what it contends for, if known.  It
 * does not contend for a lock that others may share: it would not queue.
 */
static Activity
activity_of(int procno, HotSpotKey *key)
{
	PGPROC	   *proc = GetPGProcByNumber(procno);
	BackendSample *seen = &samples[procno];
	WaitGroup  *group = group_of(seen->lock);
	LOCKMODE	mode = proc->waitLockMode;
	uint32		event = wait_event_of(proc);
	bool		is_shared = false;

	*key = seen->key;
	/* A disk does better if many wait for a WAL write at a time. */
	if (seen->lock == NULL && (!is_for_lwlock(event) || event == (PG_WAIT_LWLOCK | WALWriteLock->tranche)))
		return is_long_ago(seen->idle_since) ? ACTIVITY_IDLE :
			is_idle_wait(event) ? ACTIVITY_RESTS : ACTIVITY_WORKS;
	if (group == NULL)
		return ACTIVITY_CONTENDS;
	seen->verdict = judge(group);
	if (group->verdict == VERDICT_STUCK)
		return ACTIVITY_IDLE;
	*key = seen->key = group->key;
	if (key->kind != HOT_SPOT_TRANSACTION)
		is_shared = mode != NoLock && !DoLockModesConflict(mode, mode);
	else if (sample.rows_asked++ < MAX_ROWS_ASKED)
		find_row_wanted(proc, key, &is_shared);
	else
		key->kind = HOT_SPOT_NONE;	/* another time */
	return is_shared ? ACTIVITY_RESTS : ACTIVITY_CONTENDS;
}

/* Does this wait event say that its process works?  0, none, is unclear. */
static bool
is_working_wait(uint32 event)
{
	uint32		wait_class = event & WAIT_CLASS_MASK;

	/* BUFFER_IO: another process reads or writes the page. */
	return wait_class == PG_WAIT_IO || event == WAIT_EVENT_BUFFER_IO || is_for_lwlock(event);
}

/*
 * Watch the CPU clock of this backend, which has no wait event.  Returns
 * whether it uses a CPU or waits for one.  The clock is read only where it
 * matters: it must have stood still for idle_after.
 */
static bool
watch_clock(int procno)
{
	BackendSample *seen = &samples[procno];
	uint16		progress = seen->slot.progress;
	int64		passed = sample.now - seen->clock_since;
	uint64		cpu;

	if (gate_idle_after < 0)
		return true;
	if (progress == seen->clock_progress && passed < gate_idle_after * INT64CONST(1000) / 2)
		return !seen->sleeps;
	cpu = process_cpu_time(GetPGProcByNumber(procno)->pid);
	/* A lower time: parallel workers take theirs with them when they exit. */
	if (progress != seen->clock_progress || cpu < seen->cpu || cpu == 0 ||
		(cpu - seen->cpu) * IDLE_PART > passed)
		seen->sleeps = false;
	else if (passed < gate_idle_after * INT64CONST(1000))
		return !seen->sleeps;
	else
		seen->sleeps = process_rests(GetPGProcByNumber(procno)->pid);
	seen->clock_progress = progress;
	seen->clock_since = sample.now;
	seen->cpu = cpu;
	return !seen->sleeps;
}

/* Is any of its parallel workers at work? */
static bool
workers_work(PGPROC *leader)
{
	LWLock	   *lock = LockHashPartitionLockByProc(leader);
	bool		any = false;
	dlist_iter	iter;

	if (leader->lockGroupLeader != leader)
		return false;
	LWLockAcquire(lock, LW_SHARED);
	dlist_foreach(iter, &leader->lockGroupMembers)
	{
		PGPROC	   *proc = dlist_container(PGPROC, lockGroupLink, iter.cur);
		uint32		event = wait_event_of(proc);

		any |= proc != leader && (event == 0 || is_working_wait(event));
	}
	LWLockRelease(lock);
	return any;
}

/* Is this holder at work? */
static bool
is_at_work(int procno)
{
	PGPROC	   *proc = GetPGProcByNumber(procno);
	uint32		event = wait_event_of(proc);

	/* What was granted a slot wants a CPU, to notice that. */
	if (gate_idle_after < 0 || !samples[procno].slot.is_awake)
		return true;
	if (sample.now - samples[procno].blocked < WAKES_FOR &&
		samples[procno].slot.progress == samples[procno].blocked_progress)
		return false;
	if (event == 0)
		return watch_clock(procno);
	return is_working_wait(event) || workers_work(proc);
}

/* ---- Samples ---- */

/*
 * Note whether this holder is at work.  If it has not been for some time, others
 * may have its place among long statements.
 */
static void
note_holder(int procno, TimestampTz long_ago)
{
	BackendSample *seen = &samples[procno];
	bool		at_work = is_at_work(procno);

	slots_note_holder(procno, at_work, long_ago);
	if (at_work)
		seen->away_since = 0;
	else if (seen->away_since == 0)
		seen->away_since = sample.now;
	if (seen->slot.has_long_place && is_long_ago(seen->away_since))
	{
		seen->away_since = 0;	/* it may take another one before the next
								 * sample */
		slots_withdraw_long_place(procno);
	}
}

/* If replay waits for a lock, let in owners of it that wait at the gate. */
static void
help_replay(void)
{
	for (int i = 0; i < NUM_AUXILIARY_PROCS && RecoveryInProgress(); i++)
	{
		PGPROC	   *proc = GetPGProcByNumber(MaxBackends + i);
		WaitGroup  *group = group_of(*(LOCK *volatile *) &proc->waitLock);

		/* If backends wait for it, too, that has been done. */
		if (group != NULL && group->waiter < 0)
		{
			group->waiter = MaxBackends + i;
			find_owner(group);
		}
	}
}

/* Find out who waits for whom. */
static void
find_groups(void)
{
	for (int i = 0; i < nbackends; i++)
		read_backend(backends[i]);
	for (int i = 0; i < nbackends; i++)
	{
		BackendSample *seen = &samples[backends[i]];
		WaitGroup  *group = group_of(seen->lock);

		if (group == NULL)
			continue;
		if (group->moved == 0)
			group->moved = sample.now;
		seen->moved = group->moved;
		if (group->waiter == backends[i])
			find_owner(group);
	}
}

/* Time to the next sample, ms.  at_work: those that may contend. */
static long
next_interval(int at_work, bool contended)
{
	long		interval = WORKING_INTERVAL;

	if (slots_any_waits())
		interval = WAITING_INTERVAL;
	else if (!contended && at_work <= FEW_AT_WORK && slots_try_to_doze())
		interval = IDLE_INTERVAL;
	return Max(interval, Min(nbackends / BACKENDS_PER_MS, MOST_FOR_BACKENDS));
}

/*
 * Take a sample of all backends, and act on it.  Returns the time to the next
 * one, ms, or -1 while the gate is off.
 */
long
sampler_sample(void)
{
	bool		hot_spots = slots_have_hot_spots();
	bool		contended = false;
	int			at_work = 0;
	TimestampTz long_ago;

	if (gate_max_active_backends == 0)
		return -1;
	if (samples == NULL)
	{
		samples = palloc0(MaxBackends * sizeof(BackendSample));
		backends = palloc(MaxBackends * sizeof(int));
	}
	memset(&sample, 0, sizeof(sample));
	sample.now = monotonic_us();
	long_ago = GetCurrentTimestamp() - gate_long_after * INT64CONST(1000);
	find_backends();
	find_groups();
	for (int i = 0; i < nbackends; i++)
	{
		int			procno = backends[i];
		SlotState	state = samples[procno].slot.state;
		HotSpotKey	key = {HOT_SPOT_NONE};
		Activity	activity = ACTIVITY_RESTS;

		if (state == SLOT_RUNNING || (state == SLOT_NONE && samples[procno].lock != NULL))
			activity = activity_of(procno, &key);
		at_work += activity == ACTIVITY_WORKS || activity == ACTIVITY_CONTENDS;
		if (hot_spots && !samples[procno].slot.has_long_place)
			slots_note_activity(procno, activity, key, sample.now);
		if (state == SLOT_RUNNING)
			note_holder(procno, long_ago);
	}
	help_replay();
	slots_adapt_cpu_limit(sample.wanting, sample.now);
	/* They go first to the slots that come. */
	for (int i = 0; i < nbackends; i++)
		if (samples[backends[i]].is_awaited)
			slots_serve_awaited(backends[i], sample.now);
	slots_adapt_to_work(sample.now);
	if (hot_spots)
		contended = slots_adapt_hot_spots();
	slots_adapt_long(sample.wanting, sample.now);
	if (slots_any_waits())
		slots_relieve_stall();
	slots_note_sample(monotonic_us() - sample.now);
	return next_interval(at_work, contended);
}
