/*-------------------------------------------------------------------------
 *
 * at_work.c
 *		How many slots there are for max_active backends at work; the last
 *		resort; and what the worker does not do while it dozes or is gone.
 *
 * A limit bounds the backends at work.  A holder that waits for its client, a
 * lock or a timer is not at work, so others may have slots beside it: the limit
 * of slots is max_active plus the holders that are not at work.  Each sample
 * (src/sampler.c) counts these, and the smoothed count raises the limit.
 * Holders do not notice: none changes its state, gives its slot up, or has to
 * get it back.  If many begin to work at once, more than max_active are at
 * work until enough of them have ended; meanwhile, none enters from the queue.
 * The limit of a pool works in the same way.
 *
 * So a holder that waits for a backend in the queue does not keep it out: the
 * next sample lets one more in.  The last resort is for what a sample does not
 * see: holders that wait but seem to work, for example in a loop that polls.  If
 * no waiter has entered from a queue for a time, one enters above the limits;
 * then others, each after twice the time of the last, while the limits are
 * exceeded.  A limit is intended, so the time is long.  That of a hot spot is an
 * estimate, so there it is shorter; and shortest for a waiter that others wait
 * for.  Even that does not enter at once: a strong lock on a table waits for all
 * lone statements in the queue that read it.
 *
 * Locking: see slots_internal.h.  The counts of holders that are not at
 * work are local to the worker.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "storage/ipc.h"

#include "core/slots_internal.h"

#define SMOOTH_FOR	20000		/* us: a count this old weighs half */

/*
 * ms; else the worker is missing or stopped.  Where CPUs are short, it can be a
 * second or two late.
 */
#define SAMPLED_WITHIN	5000

/* ms: see slots_look_after() */
#define LOOK_AFTER		100		/* at most, times the length of the queue, */
#define MAX_LOOK		60000	/* or this, beyond that of stall_unsampled */

/* Holders that are not at work, in one sample and smoothed */
typedef struct AwayCount
{
	int			now;
	double		smooth;
} AwayCount;

static AwayCount away;			/* of those that count for the limit of all */
static AwayCount away_in[SLOTS_MAX_POOLS];	/* with a place in that pool */

/*
 * A sample found this holder at work, or not.  If it has had its slot since
 * before long_ago, it is told when it asks: see expected.c.
 */
void
slots_note_holder(int procno, bool at_work, TimestampTz long_ago)
{
	SlotEntry  *entry = entry_of(procno);
	uint32		state = pg_atomic_read_u32(&entry->state);

	if (entry->is_away == at_work)
		entry->is_away = !at_work;
	if (at_work && (TimestampTz) pg_atomic_read_u64(&entry->since) < long_ago && !entry->seems_long)
		entry->seems_long = true;
	if (at_work || state_in(state) != SLOT_RUNNING)
		return;
	if ((state & STATE_COUNTED) != 0)
		away.now++;
	if (pool_in(state) != NO_QUEUE)
		away_in[pool_in(state)].now++;
}

/*
 * A sample was taken passed us after the last one: set a limit to max_active and
 * the smoothed count of those that are not at work.  Returns whether it rose.
 */
static bool
adapt_limit(pg_atomic_uint32 *limit, const int *max_active, AwayCount *count, uint64 passed)
{
	uint32		old = pg_atomic_read_u32(limit);
	uint32		new = old;
	int			more;

	/* It may have been closed meanwhile: then what was counted is forgotten. */
	if (old == *max_active && count->smooth >= 0.5)
		count->smooth = 0;
	count->smooth += (count->now - count->smooth) * passed / (passed + SMOOTH_FOR);
	count->now = 0;
	more = count->smooth + 0.5;
	if (*max_active <= 0 || old == *max_active + more)
		return false;
	slots_lock();
	if (*max_active > 0)
		new = *max_active + more;
	if (new != old)
		pg_atomic_write_u32(limit, new);
	slots_unlock();
	return new > old;
}

/* A sample is complete: let as many have slots as keeps max_active at work. */
void
slots_adapt_to_work(uint64 now)
{
	static uint64 adapted = 0;
	uint64		passed = Max((int64) (now - adapted), 0);
	bool		rose;

	adapted = now;
	rose = adapt_limit(&Slots->limit, &Slots->max_active, &away, passed);
	for (int i = 0; i < Slots->npools; i++)
		rose |= adapt_limit(&queue_at(i)->limit, &Slots->pools[i].definition.max_active,
							&away_in[i], passed);
	/* What is given back meanwhile, slots_hand_off() decides about. */
	if (rose)
		slots_grant_free();
}

/* ---- The worker ---- */

/* Nobody samples for a while: as many slots as may be at work.  Lock held. */
static void
close_limits(void)
{
	if (Slots->max_active > 0)
		pg_atomic_write_u32(&Slots->limit, Slots->max_active);
	for (int i = 0; i < Slots->npools; i++)
		if (Slots->pools[i].definition.max_active > 0)
			pg_atomic_write_u32(&queue_at(i)->limit, Slots->pools[i].definition.max_active);
}

/* Are so many slots in use that who is at work decides?  Lock held. */
static bool
any_limit_is_reached(void)
{
	bool		reached = Slots->max_active > 0 && slots_in_use() >= Slots->max_active;

	for (int i = 0; i < Slots->npools && !reached; i++)
		reached = Slots->pools[i].definition.max_active > 0 &&
			places_in_use(i) >= Slots->pools[i].definition.max_active;
	return reached;
}

/* on_shmem_exit callback of the worker */
static void
end_sampling(int code, Datum arg)
{
	slots_lock();
	Slots->worker = INVALID_PROC_NUMBER;
	Slots->worker_dozes = false;
	close_limits();
	slots_unlock();
}

/* This process is the worker from now on.  cpus: how many are usable. */
void
slots_begin_sampling(int cpus)
{
	slots_lock();
	Slots->worker = MY_PROC_NUMBER;
	Slots->cpus = cpus;
	memset(&Slots->worker_stats, 0, sizeof(WorkerStats));
	Slots->worker_stats.started = Slots->timestamp;
	slots_unlock();
	on_shmem_exit(end_sampling, (Datum) 0);
}

/* The worker has taken a sample.  took: us. */
void
slots_note_sample(uint64 took)
{
	slots_lock();
	Slots->worker_stats.sampled = Slots->timestamp;
	Slots->worker_stats.samples++;
	Slots->worker_stats.sample_time += took;
	Slots->sampled = Slots->now;
	slots_unlock();
}

/*
 * Let the worker doze, if it may.  Then the next backend that queues, or first
 * meets the gate, calls it.  Not just after a call: others may follow, and each
 * call costs a sample.  Nor while a limit is reached.
 */
bool
slots_try_to_doze(void)
{
	static bool dozed = false;

	slots_lock();
	dozed = (!dozed || Slots->worker_dozes) && !slots_any_waits() && !any_limit_is_reached();
	Slots->worker_dozes = dozed;
	if (dozed)
		close_limits();
	slots_unlock();
	return dozed;
}

/* ---- The last resort ---- */

/*
 * For how long may a queue stand still before one of its waiters enters above
 * the limits, ms?  After first; then, while these are exceeded, after twice as
 * long each time, up to most.
 */
typedef struct Stall
{
	int			first;
	int			most;
} Stall;

static const Stall stall_awaited = {10, 1000};	/* others wait for the waiter */
static const Stall stall_estimate = {1000, 60000};	/* a hot spot is full */
static const Stall stall_limit = {60000, 60000};
static const Stall stall_unsampled = {1000, 1000};	/* nobody samples */

/* How long is that now for this queue?  Lock held, or a hint. */
static int
present_stall(int queue, const Stall *stall)
{
	bool		exceeded = slots_in_use() > pg_atomic_read_u32(&Slots->limit) ||
	places_in_use(queue) > pg_atomic_read_u32(&queue_at(queue)->limit);

	return exceeded ? Min(Max(queue_at(queue)->stall, stall->first), stall->most) : stall->first;
}

/* May this waiter enter above the limits?  Lock held, or a hint. */
static bool
may_exceed(const SlotEntry *entry, const Stall *stall, uint64 now)
{
	return passed_since(Max(queue_at(entry->queue)->moved, entry->queued),
						present_stall(entry->queue, stall), now);
}

/* If so, let it in.  Lock held. */
static bool
relieve(SlotEntry *entry, const Stall *stall)
{
	int			next = 2 * present_stall(entry->queue, stall);

	if (!may_exceed(entry, stall, Slots->now))
		return false;
	slots_grant_above_limit(entry);
	queue_at(entry->queue)->stall = next;
	return true;
}

/*
 * For how long may this queue stand still?  Long statements work for long: the
 * estimate of their limit is as good as intended.  While contenders of a hot
 * spot complete transactions, too many may have places, and leave one by one:
 * that counts as if the queue moved.  Lock held.
 */
static const Stall *
stall_of(int index)
{
	HotSpot    *spot;
	uint32		completed;

	if (!is_of_hot_spot(index) || is_of_long(index) || queue_has_place_free(index))
		return &stall_limit;
	spot = hot_spot_at(index);
	completed = pg_atomic_read_u32(&spot->completed);
	if (completed != spot->completed_seen)
		queue_at(index)->moved = Slots->now;
	spot->completed_seen = completed;
	return &stall_estimate;
}

/* If a queue stands still, let one waiter in. */
void
slots_relieve_stall(void)
{
	slots_lock();
	for (int index = NO_QUEUE; (index = slots_next_queue(index)) != NO_QUEUE;)
		if (relieve(first_waiter(index), stall_of(index)))
			break;
	slots_unlock();
}

/* Others wait for what this waiter holds, as a sample finds. */
void
slots_serve_awaited(int procno, uint64 now)
{
	SlotEntry  *entry = entry_of(procno);

	/* Most have been found before. */
	if (entry->is_awaited && !may_exceed(entry, &stall_awaited, now))
		return;
	slots_lock();
	if (state_of(entry) == SLOT_WAITING)
	{
		slots_queue_first(entry);
		(void) relieve(entry, &stall_awaited);
	}
	slots_unlock();
}

/* ---- Without the worker ---- */

/*
 * After how many ms should this waiter call slots_move_queue_of() again?  The
 * more wait, the more seldom each calls it.
 */
long
slots_look_after(int procno)
{
	int			queue = *(volatile uint8 *) &entry_of(procno)->queue;
	int			nwaiters = *(volatile int *) &queue_at(queue)->nwaiters;

	return stall_unsampled.first +
		(long) pg_prng_uint64_range(&pg_global_prng_state, 0, Min(nwaiters * LOOK_AFTER, MAX_LOOK));
}

/*
 * The entry waits.  If the worker has taken no sample lately, see to the first
 * waiter of its queue.
 */
void
slots_move_queue_of(int procno)
{
	SlotEntry  *entry = entry_of(procno);

	if (!passed_since(*(volatile uint64 *) &Slots->sampled, SAMPLED_WITHIN, monotonic_us()))
		return;
	slots_lock();
	close_limits();
	if (state_of(entry) == SLOT_WAITING)
		(void) relieve(first_waiter(entry->queue), &stall_unsampled);
	slots_unlock();
}
