/*-------------------------------------------------------------------------
 *
 * sampler.c
 *		Samples what the backends do: for hot spots, for lending, and for long
 *		statements.
 *
 * A sample reads each backend once: its state at the gate, what it waits for,
 * and if it is time to find holders that do nothing, its CPU time.  It is
 * taken every few milliseconds, with many connections less often: by a backend
 * that is about to queue; by the watcher, one of the waiters
 * (core/wait_queue.c); by a backend that begins a statement, as there may be
 * no queue; by a process of a long statement.  There is no background process
 * for this.
 *
 * Hot spots (core/hot_spots.c): a backend that waits for a lock contends for
 * it if the backend that holds it works, or waits itself.  So the waiters of
 * one lock form a group, and the owner of the lock is looked up once for each.
 * If that waits, its own group tells, and so on; a circle is contention as
 * well, which the deadlock detector ends.  The waiters are stuck, and contend
 * for nothing, if the last one of that chain does nothing: its client has been
 * idle for lend_after; or if it works but no one has left its group for
 * SLOW_AFTER: so a long transaction is no hot spot.  A wait for a lock inside
 * the server is contention.  A wait for WAL to be written counts as work: it
 * is for the disk, where many at a time are better.
 *
 * Lending (core/lending.c): the deadlock detector of PostgreSQL does not see
 * the queues for slots.  So that a holder can neither wait for a waiter for
 * long, nor keep a slot while its client does nothing, a holder that has done
 * nothing for lend_after lends its slot; at once, if it is stuck.  And a
 * waiter that is the owner of a lock for which an admitted backend waits
 * enters at once.
 *
 * Long statements (core/long_share.c): a sample counts the short statements
 * and the processes of long ones at work, and resumes those that may go on:
 * out of turn what keeps a lock that others wait for, and all while VACUUM or
 * replay waits for a pin or a snapshot.
 *
 * Idleness is measured, not concluded from the wait event.  A holder does
 * nothing if it uses next to no CPU time, and is not found waiting for a CPU,
 * a disk, or a process that works (LWLock).  So it does not matter whether it
 * waits for its client, a lock, a timer, or a statement that it has sent to
 * its own server, through postgres_fdw, a program or an untrusted language;
 * nor how many statements it begins.  A backend that streams from or to its
 * client works if that takes a part of a CPU, however often it waits for a
 * moment.
 *
 * A process that spends its time on the disk uses little CPU time, but nearly
 * every sample finds it waiting there.  One that gets no CPU, since too many
 * processes want one, uses none at all, but the kernel says that it does not
 * sleep; only the leader of a parallel query is asked for that.  Otherwise a
 * parallel query works if its leader or any of its workers does.
 *
 * Where the kernel does not tell these things, the wait event has to do: a
 * holder works unless it waits for a client, a lock, a timer or an extension,
 * and sleeps if it waits for anything.
 *
 * Locking: reads other backends' PGPROC without a lock, as pg_stat_activity
 * does; a stale value costs one sample.  A partition lock of the lock manager
 * guards the members of a lock group, and the owners of a lock; where it is
 * not free at once, the owners are left unknown, as the lock is moving then.
 * Two samples may overlap if one is delayed; what they remember is a hint.
 * core/hot_spots.c and core/lending.c lock what they change.
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
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "gate.h"

/* How long a wait is slow, us */
#define SLOW_WAIT		INT64CONST(100000)

/*
 * How long a lock may be held by a backend at work before its waiters are
 * stuck, us
 */
#define SLOW_AFTER		INT64CONST(2000000)

/* How many locks waited for a sample can tell apart */
#define GROUPS			512

/* How many of them may be tried for a lock, if others have taken its place */
#define MAX_PROBES		8

/* A backend that waits for its client for less than this is not idle, ms */
#define MIN_IDLE		100

/* How many of those at a lock are read, and how many owners in a chain */
#define MAX_OWNERS		256
#define MAX_CHAIN		16

/* How many backends a sample asks for the row that they want */
#define MAX_ROWS_ASKED	16

/* Looks per lend_after: idleness is noticed at most half of lend_after late */
#define LOOKS_PER_LENDING	2

/* Bounds of the time between two samples of the holders, ms */
#define MIN_INTERVAL	5
#define MAX_INTERVAL	500

/* How long the watcher sleeps at most, ms */
#define WATCH_INTERVAL	50

/*
 * What is known of a backend from one sample to the next; times by
 * monotonic_us() unless said otherwise
 */
typedef struct BackendSample
{
	LOCK	   *lock;			/* the heavyweight lock it waits for, or NULL */
	uint32		lwlock;			/* else the wait event of a lock inside the
								 * server; 0 = none that counts */
	HotSpotKey	key;			/* what the heavyweight lock is for, if known */
	TimestampTz since;			/* when that wait began, to tell it from
								 * another one; 0 = unknown */
	uint64		moved;			/* when its group moved last, or since it is
								 * known */
	uint64		began;			/* when it was first seen */
	uint64		blocked;		/* when the backend was last seen waiting for
								 * a heavyweight lock */
	uint64		failures;		/* its failed transactions until then */
	uint64		idle_since;		/* when it was first seen waiting for its
								 * client, a timer or an extension; 0 = it is
								 * not */
	uint32		progress;		/* what it had done by then */
} BackendSample;

/* Do the waiters of a lock contend for it? */
typedef enum Verdict
{
	VERDICT_UNKNOWN,
	VERDICT_ASKED,				/* in the chain that is followed just now */
	VERDICT_CONTEND,
	VERDICT_STUCK
} Verdict;

/* The backends that wait for one lock */
typedef struct WaitGroup
{
	LOCK	   *lock;			/* NULL if free */
	int			waiter;			/* one of them; -1 = none any more */
	uint64		moved;			/* when one left it; 0 = unknown */
	HotSpotKey	key;			/* what they contend for */
	int			owner;			/* one that holds the lock; -1 = unknown */
	bool		owner_is_idle;
	Verdict		verdict;
} WaitGroup;

/* A sample that is being taken */
typedef struct Sample
{
	uint64		now;			/* by monotonic_us() */
	int			rows_asked;
	bool		needs_long;		/* VACUUM or replay waits for what a long
								 * statement may hold */
	HotSpotCounts counts;
	WaitGroup	groups[GROUPS];
} Sample;

/* By proc number; the process that samples writes it without a lock */
static BackendSample *samples = NULL;

static Size
shmem_size(void)
{
	return mul_size(MaxBackends, sizeof(BackendSample));
}

/* Request the shared memory.  Call from a shmem_request_hook. */
void
sampler_shmem_request(void)
{
	RequestAddinShmemSpace(shmem_size());
}

/* Create or attach to it.  The caller holds AddinShmemInitLock. */
void
sampler_shmem_init(void)
{
	bool		found;

	samples = ShmemInitStruct("admission_gate samples", shmem_size(), &found);
	if (!found)
		memset(samples, 0, shmem_size());
}

/* ----------------------------------------------------------------
 *		What backends wait for
 * ----------------------------------------------------------------
 */

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

/* Find what this process waits for: fills in lock and since, or lwlock. */
static void
see_wait(PGPROC *proc, uint32 event, BackendSample *wait)
{
	/*
	 * The wait event does not tell: the process may be about to check for a
	 * deadlock, with another one or none.
	 */
	wait->lock = *(LOCK *volatile *) &proc->waitLock;
	if (wait->lock != NULL)
		wait->since = pg_atomic_read_u64(&proc->waitStart);
	else if (is_for_lwlock(event))
		wait->lwlock = event;
}

/* The group of this lock, added if need be; NULL if there is no room. */
static WaitGroup *
group_of(Sample *sample, LOCK *lock)
{
	uint64		address = (uint64) (uintptr_t) lock;
	uint32		at = murmurhash32((uint32) address ^ (uint32) (address >> 32));

	for (int i = 0; i < MAX_PROBES; i++)
	{
		WaitGroup  *group = &sample->groups[(at + i) % GROUPS];

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

/* Note that a group has moved at that time, unless it has moved since. */
static void
note_move(Sample *sample, LOCK *lock, uint64 moved)
{
	WaitGroup  *group = group_of(sample, lock);

	if (group != NULL)
		group->moved = Max(group->moved, moved);
}

/* Are these the same wait?  When one began is not always known. */
static inline bool
is_same_wait(const BackendSample *a, const BackendSample *b)
{
	return a->lock == b->lock &&
		(a->since == b->since || a->since == 0 || b->since == 0);
}

/*
 * Read one backend, and remember what it waits for.
 */
static void
read_backend(int procno, Sample *sample)
{
	PGPROC	   *proc = GetPGProcByNumber(procno);
	uint32		event = proc->pid != 0 ? wait_event_of(proc) : 0;
	BackendSample *last = &samples[procno];
	BackendSample seen = {0};
	WaitGroup  *group;

	if (proc->pid != 0)
		see_wait(proc, event, &seen);
	sample->needs_long |= GATE_IS_CLEANUP_WAIT(event);
	if (is_idle_wait(event))
	{
		seen.progress = slots_progress(procno);
		seen.idle_since = last->idle_since != 0 && seen.progress == last->progress ?
			last->idle_since : sample->now;
	}
	if (seen.lock == NULL && last->lock == NULL)
	{
		last->lwlock = seen.lwlock;
		last->idle_since = seen.idle_since;
		last->progress = seen.progress;
		return;
	}

	seen.failures = slots_failures(procno);
	seen.began = sample->now;
	seen.blocked = seen.lock != NULL ? sample->now : last->blocked;
	if (last->lock != NULL && is_same_wait(last, &seen))
	{
		seen.key = last->key;
		seen.moved = last->moved;
		if (seen.since == last->since)
			seen.began = last->began;
		note_move(sample, last->lock, seen.moved);
	}
	else if (last->lock != NULL && seen.failures == last->failures)
		note_move(sample, last->lock, sample->now);
	*last = seen;

	group = seen.lock != NULL ? group_of(sample, seen.lock) : NULL;
	if (group != NULL)
	{
		group->waiter = procno;
		if (seen.key.kind != HOT_SPOT_NONE)
			group->key = seen.key;
	}
}

/* ----------------------------------------------------------------
 *		What they contend for
 * ----------------------------------------------------------------
 */

/*
 * What a lock with this tag is for.  The kind of vague ones:
 * HOT_SPOT_TRANSACTION.
 */
static HotSpotKey
key_of_lock(const LOCKTAG *tag)
{
	HotSpotKey	key = {.kind = HOT_SPOT_TRANSACTION};

	switch ((LockTagType) tag->locktag_type)
	{
		case LOCKTAG_RELATION:
		case LOCKTAG_RELATION_EXTEND:
		case LOCKTAG_PAGE:
		case LOCKTAG_TUPLE:
			key.kind = HOT_SPOT_RELATION;
			key.database = tag->locktag_field1;
			key.fields[0] = tag->locktag_field2;
			break;
		case LOCKTAG_OBJECT:
		case LOCKTAG_ADVISORY:
		case LOCKTAG_USERLOCK:
			key.kind = tag->locktag_type == LOCKTAG_OBJECT ? HOT_SPOT_OBJECT : HOT_SPOT_ADVISORY;
			key.database = tag->locktag_field1;
			key.fields[0] = tag->locktag_field2;
			key.fields[1] = tag->locktag_field3;
			key.fields[2] = tag->locktag_field4;
			break;
		default:
			break;
	}
	return key;
}

/*
 * A backend waits for another transaction: which row does it want?  While it
 * waits for the one that has changed it, it holds the row's own lock.  Leaves
 * *key as it is if that is not so.
 */
static void
find_row_wanted(PGPROC *proc, HotSpotKey *key)
{
	for (int i = 0; i < NUM_LOCK_PARTITIONS && key->kind == HOT_SPOT_TRANSACTION; i++)
	{
		LWLock	   *lock = LockHashPartitionLockByIndex(i);

		if (!LWLockConditionalAcquire(lock, LW_SHARED))
			continue;
		for (PROCLOCK *held = gate_first_lock_of(proc, i); held != NULL;
			 held = gate_next_lock_of(proc, i, held))
		{
			if (held->tag.myLock->tag.locktag_type == LOCKTAG_TUPLE)
				*key = key_of_lock(&held->tag.myLock->tag);
		}
		LWLockRelease(lock);
	}
}

/*
 * Is this the lock of a process itself, or of another one of its lock group?
 */
static inline bool
is_of_group(const PROCLOCK *held, PGPROC *proc)
{
	return held->groupLeader == (proc->lockGroupLeader != NULL ? proc->lockGroupLeader : proc);
}

/* Does a process with that lock keep others from it? */
static bool
is_in_the_way(const LOCK *lock, const PROCLOCK *held)
{
	const LockMethodData *method = GetLocksMethodTable(lock);

	for (LOCKMODE mode = 1; mode <= method->numLockModes; mode++)
	{
		if ((lock->waitMask & LOCKBIT_ON(mode)) != 0 &&
			(method->conflictTab[mode] & held->holdMask) != 0)
			return true;
	}
	return false;
}

/* Has this backend done nothing for so long that it lends, if any does? */
static bool
is_idle(int procno, const Sample *sample)
{
	int64		idle_after = Max(slots_lend_after(), MIN_IDLE) * INT64CONST(1000);

	return samples[procno].idle_since != 0 &&
		(int64) (sample->now - samples[procno].idle_since) >= idle_after;
}

/*
 * Does a backend that holds a lock do nothing?  A prepared transaction does.
 */
static bool
is_idle_owner(int procno, const Sample *sample)
{
	return procno < slots_backend_count() ? is_idle(procno, sample) :
		GetPGProcByNumber(procno)->pid == 0;
}

/* May this backend have parallel workers that pause? */
static inline bool
may_have_paused_workers(int procno)
{
	return slots_any_paused() &&
		GetPGProcByNumber(procno)->lockGroupLeader == GetPGProcByNumber(procno);
}

/*
 * Other backends wait for a lock of this one: let it in if it waits at the
 * gate, and resume it and its parallel workers if they pause.
 */
static void
let_go_on(int procno)
{
	if (slots_state(procno) == SLOT_WAITING)
		slots_let_in(procno);
	for (int other = 0; slots_any_paused() && other < slots_backend_count(); other++)
	{
		if (slots_is_paused(other) &&
			(other == procno ||
			 GetPGProcByNumber(other)->lockGroupLeader == GetPGProcByNumber(procno)))
			slots_long_resume(other);
	}
}

/*
 * Find out what the lock of a group is for, and which backend has it: one that
 * is idle, if any is, else one that waits itself, else any.  One that waits at
 * the gate, or pauses, goes on.
 */
static void
find_owner(WaitGroup *group, const Sample *sample)
{
	LOCK	   *lock = group->lock;
	PGPROC	   *waiter = GetPGProcByNumber(group->waiter);
	LOCKTAG		tag = lock->tag;	/* it may be another one's by now */
	LWLock	   *partition = LockHashPartitionLock(LockTagHashCode(&tag));
	int			held_up[4];
	int			nheld_up = 0;
	int			read = 0;

	if (!LWLockConditionalAcquire(partition, LW_SHARED))
		return;
	if (waiter->waitLock != lock || memcmp(&lock->tag, &tag, sizeof(tag)) != 0)
	{
		LWLockRelease(partition);
		return;
	}
	group->key = key_of_lock(&tag);
	for (PROCLOCK *held = gate_first_owner(lock); held != NULL && read < MAX_OWNERS;
		 held = gate_next_owner(lock, held), read++)
	{
		int			owner = GATE_PROC_NUMBER(held->tag.myProc);

		if (held->holdMask == 0 || is_of_group(held, waiter) || !is_in_the_way(lock, held))
			continue;
		if (owner < slots_backend_count())
		{
			bool		is_held_up = slots_state(owner) == SLOT_WAITING || slots_is_paused(owner);

			if ((is_held_up || may_have_paused_workers(owner)) && nheld_up < lengthof(held_up))
				held_up[nheld_up++] = owner;
			/* It goes on now. */
			if (is_held_up || slots_long_works(owner, false, sample->now))
				continue;
		}
		if (is_idle_owner(owner, sample))
		{
			group->owner = owner;
			group->owner_is_idle = true;
		}
		else if (owner < slots_backend_count() && !group->owner_is_idle &&
				 (group->owner < 0 || samples[owner].lock != NULL))
			group->owner = owner;
	}
	LWLockRelease(partition);
	while (nheld_up > 0)
		let_go_on(held_up[--nheld_up]);
}

/*
 * The group of the lock that the owner of this group's lock waits for, or
 * NULL.
 */
static WaitGroup *
next_in_chain(const WaitGroup *group, Sample *sample)
{
	LOCK	   *lock;

	if (group->owner < 0 || group->owner_is_idle || group->owner >= slots_backend_count())
		return NULL;
	lock = *(LOCK *volatile *) &samples[group->owner].lock;
	return lock != NULL ? group_of(sample, lock) : NULL;
}

/*
 * Does this group, whose owner does not wait, move on?  It does if one of it
 * had the lock lately, or if the owner has waited itself until lately.
 */
static bool
moves(const WaitGroup *group, const Sample *sample)
{
	if (group->moved == 0 || (int64) (sample->now - group->moved) < SLOW_AFTER)
		return true;
	return group->owner >= 0 && group->owner < slots_backend_count() &&
		(int64) (sample->now - samples[group->owner].blocked) < SLOW_AFTER;
}

/*
 * Do the waiters of this group contend, or are they stuck?  Follow the chain
 * of owners to the last one; all in it share the verdict.
 */
static Verdict
judge(WaitGroup *first, Sample *sample)
{
	WaitGroup  *group = first;
	Verdict		verdict = VERDICT_UNKNOWN;

	for (int i = 0; verdict == VERDICT_UNKNOWN && i < MAX_CHAIN; i++)
	{
		WaitGroup  *next = next_in_chain(group, sample);

		group->verdict = VERDICT_ASKED;
		if (group->owner_is_idle)
			verdict = VERDICT_STUCK;
		else if (next == NULL)
			verdict = moves(group, sample) ? VERDICT_CONTEND : VERDICT_STUCK;
		else if (next->verdict == VERDICT_ASKED)
			verdict = VERDICT_CONTEND;	/* a circle */
		else
		{
			verdict = next->verdict;
			group = next;
		}
	}
	if (verdict == VERDICT_UNKNOWN)
		verdict = VERDICT_CONTEND;

	for (group = first; group != NULL && group->verdict == VERDICT_ASKED;
		 group = next_in_chain(group, sample))
		group->verdict = verdict;
	return first->verdict;
}

/* When did the group of this waiter last move?  Remembers it. */
static void
date_move(int procno, WaitGroup *group, const Sample *sample)
{
	BackendSample *seen = &samples[procno];

	if (group->moved == 0)
		group->moved = seen->moved != 0 ? seen->moved : sample->now;
	seen->moved = Max(seen->moved, group->moved);
}

/* Has this backend waited for a heavyweight lock for long? */
static bool
is_slow(int procno, const Sample *sample)
{
	return samples[procno].lock != NULL &&
		(int64) (sample->now - samples[procno].began) >= SLOW_WAIT;
}

/*
 * What does this holder, which the sample has read, do?  *key receives what it
 * contends for, if it does.
 */
static Activity
activity_of(int procno, Sample *sample, HotSpotKey *key)
{
	PGPROC	   *proc = GetPGProcByNumber(procno);
	LOCK	   *lock = *(LOCK *volatile *) &samples[procno].lock;
	uint32		lwlock = samples[procno].lwlock;
	WaitGroup  *group;

	if (lock == NULL && lwlock != 0)
	{
		key->kind = HOT_SPOT_LWLOCK;
		key->fields[0] = lwlock;
		return ACTIVITY_CONTENDS;
	}
	if (lock == NULL && is_idle(procno, sample))
		return ACTIVITY_IDLE;
	if (lock == NULL)
		return is_idle_wait(wait_event_of(proc)) ? ACTIVITY_RESTS : ACTIVITY_WORKS;

	group = group_of(sample, lock);
	if (group == NULL)
		return ACTIVITY_CONTENDS;
	if ((group->verdict == VERDICT_UNKNOWN ? judge(group, sample) : group->verdict) == VERDICT_STUCK)
		return ACTIVITY_STUCK;
	*key = samples[procno].key = group->key;
	if (key->kind == HOT_SPOT_TRANSACTION && !slots_is_marked(procno, true))
	{
		if (group->owner >= 0 && group->owner < slots_backend_count())
			slots_get_hot_spot_key(group->owner, key);
		/* Those that are not asked now are not marked yet. */
		if (key->kind == HOT_SPOT_TRANSACTION && sample->rows_asked++ < MAX_ROWS_ASKED)
			find_row_wanted(proc, key);
		else if (key->kind == HOT_SPOT_TRANSACTION)
			key->kind = HOT_SPOT_NONE;
	}
	return ACTIVITY_CONTENDS;
}

/* ----------------------------------------------------------------
 *		What holders have done
 * ----------------------------------------------------------------
 */

/* What a sample finds of a holder */
typedef struct HolderSample
{
	uint64		cpu;			/* CPU time used so far, us */
	bool		busy;			/* works for certain */
} HolderSample;

/*
 * The time between two samples of the holders, ms.
 */
static long
holders_interval(void)
{
	int			lend_after = slots_lend_after();

	if (lend_after < 0)
		return MAX_INTERVAL;
	return Min(Max(lend_after / LOOKS_PER_LENDING, MIN_INTERVAL), MAX_INTERVAL);
}

/* Add what is seen of one process to *holder. */
static void
read_process(const PGPROC *proc, HolderSample *holder)
{
	uint32		event = wait_event_of(proc);
	uint32		wait_class = event & WAIT_CLASS_MASK;
	uint64		cpu;

	if (wait_class == PG_WAIT_IO || wait_class == PG_WAIT_LWLOCK ||
		GATE_IS_BUFFER_CONTENT_WAIT(event))
		holder->busy = true;
	if (process_cpu_time(proc->pid, &cpu))
		holder->cpu += cpu;
	else if (!is_idle_wait(event) && wait_class != PG_WAIT_LOCK)
		holder->busy = true;
}

/* Add the workers that a leader has now. */
static void
read_workers(const PGPROC *leader, HolderSample *holder)
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
				read_process(proc, holder);
		}
	}
	LWLockRelease(lock);
}

/* Sample a holder: lend its slot, or take a lent one back. */
static void
sample_holder(int procno, bool is_stuck)
{
	const PGPROC *proc = GetPGProcByNumber(procno);
	HolderSample holder = {0};

	read_process(proc, &holder);
	if (!holder.busy && *(PGPROC *const volatile *) &proc->lockGroupLeader == proc)
		read_workers(proc, &holder);
	/* This takes some microseconds, so only if it matters. */
	if (!holder.busy && !is_stuck && slots_seems_idle(procno, holder.cpu) &&
		!process_rests(proc->pid, wait_event_of(proc) != 0))
		holder.busy = true;
	slots_note_holder(procno, holder.cpu, holder.busy, is_stuck);
}

/* ----------------------------------------------------------------
 *		Samples
 * ----------------------------------------------------------------
 */

/*
 * Does replay wait for a pin, or for the end of a snapshot?
 */
static bool
replay_waits(void)
{
	for (int i = 0; i < NUM_AUXILIARY_PROCS && RecoveryInProgress(); i++)
	{
		uint32		event = wait_event_of(GetPGProcByNumber(MaxBackends + i));

		if (GATE_IS_CLEANUP_WAIT(event) || event == WAIT_EVENT_RECOVERY_CONFLICT_SNAPSHOT)
			return true;
	}
	return false;
}

/* Is a process with that lock, or NULL, to wait for at work? */
static inline bool
is_at_work(const LOCK *lock, uint32 event)
{
	return lock == NULL && (event == 0 || (event & WAIT_CLASS_MASK) == PG_WAIT_IO ||
							event == WAIT_EVENT_BUFFER_IO || is_for_lwlock(event));
}

/* Take a sample of all backends. */
static pg_noinline void
sample_all(bool with_holders)
{
	Sample		sample = {.now = monotonic_us()};
	bool		hot_spots = slots_have_hot_spots();
	int			short_ones = 0;
	int			long_ones = 0;

	for (int procno = 0; procno < slots_backend_count(); procno++)
		read_backend(procno, &sample);
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		LOCK	   *lock = *(LOCK *volatile *) &samples[procno].lock;
		WaitGroup  *group = lock != NULL ? group_of(&sample, lock) : NULL;

		if (group != NULL)
			date_move(procno, group, &sample);
		if (group != NULL && group->waiter == procno)
			find_owner(group, &sample);
	}
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		SlotState	state = slots_state(procno);
		bool		is_holder = state == SLOT_RUNNING || state == SLOT_LENT;
		Activity	activity = ACTIVITY_RESTS;
		HotSpotKey	key = {.kind = HOT_SPOT_NONE};

		if (is_holder)
			activity = activity_of(procno, &sample, &key);
		if (state == SLOT_RUNNING &&
			(activity == ACTIVITY_WORKS ||
			 (activity == ACTIVITY_CONTENDS && key.kind == HOT_SPOT_LWLOCK)))
			short_ones++;
		if (slots_long_works(procno, is_at_work(samples[procno].lock,
												wait_event_of(GetPGProcByNumber(procno))),
							 sample.now))
			long_ones++;
		if (hot_spots && (is_holder || slots_is_marked(procno, false)))
			slots_note_activity(procno, activity, &key, is_slow(procno, &sample),
								sample.now, &sample.counts);
		if (is_holder && (with_holders ||
						  (activity == ACTIVITY_STUCK && state == SLOT_RUNNING &&
						   slots_lend_after() >= 0)))
			sample_holder(procno, activity == ACTIVITY_STUCK);
	}
	if (slots_any_paused())
		sample.needs_long |= replay_waits();
	slots_share_cpus(short_ones, long_ones, sample.needs_long, usable_cpus());
	if (hot_spots)
		slots_adapt_hot_spots(&sample.counts);
}

/* Take a sample if one is due. */
void
sampler_sample(void)
{
	if (slots_claim_sample(false))
		sample_all(false);
}

/*
 * Take a sample of the holders as well if that is due: those that have done
 * nothing for long enough lend their slots, and lenders that work again get
 * theirs back.
 */
void
sampler_sample_holders(void)
{
	if (slots_claim_holder_scan(holders_interval()))
		sample_all(true);
}

/*
 * What the watcher does.  Returns how long it may sleep: ms.
 */
long
sampler_watch(void)
{
	long		interval = Min(holders_interval(), WATCH_INTERVAL);

	sampler_sample_holders();
	sampler_sample();
	slots_relieve_stall();
	slots_watch_again_in(interval);
	return interval;
}

/*
 * An arriving backend samples the lenders, unless another one has lately:
 * those that work again get their slots back before the backend acquires one.
 */
void
sampler_recall_lenders(void)
{
	if (!slots_claim_lender_scan())
		return;
	for (int procno = 0; procno < slots_backend_count(); procno++)
	{
		if (slots_state(procno) == SLOT_LENT && !slots_is_stuck(procno))
			sample_holder(procno, false);
	}
}

/*
 * Take a sample for a process of a long statement if one is due, however few
 * backends are at work.
 */
void
sampler_sample_long(void)
{
	if (slots_claim_sample(true))
		sample_all(false);
}
