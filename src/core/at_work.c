/*-------------------------------------------------------------------------
 *
 * at_work.c
 *		How many slots there are for max_active backends at work; and the last
 *		resort.
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
 * next sample lets one more in.  What is left for the last resort are holders
 * that wait but seem to work, for example in a loop that polls, and hot spots,
 * whose limit is an estimate.  If no waiter has entered from the queue of a hot
 * spot for a second, the next one enters above its limit, then others after 2,
 * 4 ... 60 s; the delay starts over once the queue moves.  Other limits are
 * intended: one waiter enters above them if none has entered for 60 s.
 *
 * A waiter that others wait for goes first in its queue.  If that queue stands
 * still, it enters above the limits, and others like it after a delay that
 * doubles while these are exceeded, up to a second.  They do not enter at once:
 * a strong lock on a table waits for all lone statements in the queue that read
 * it.
 *
 * Locking: see slots_internal.h.  The counts of idle holders are local to the
 * worker.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots_internal.h"

#define SMOOTH_FOR	20000		/* us: a count this old weighs half */

#define MIN_STALL	1000		/* ms that a queue may stand still */
#define MAX_STALL	60000
/* ms, if others wait for one in it */
#define MIN_AWAITED_STALL	10
#define MAX_AWAITED_STALL	1000

/* Holders that are not at work, in one sample and smoothed */
typedef struct IdleCount
{
	int			now;
	double		smooth;
} IdleCount;

static IdleCount idle;			/* of those that count for the limit of all */
static IdleCount idle_in[SLOTS_MAX_POOLS];	/* with a place in that pool */

/* ms until a backend that uses no CPU counts as idle; -1 = never */
int
slots_idle_after(void)
{
	return Slots->settings.idle_after;
}

/* A sample found this holder at work, or not. */
void
slots_note_holder(int procno, bool at_work)
{
	SlotEntry  *entry = entry_of(procno);
	uint32		state = pg_atomic_read_u32(&entry->state);

	if (entry->is_idle == at_work)
		entry->is_idle = !at_work;
	if (at_work || state_in(state) != SLOT_RUNNING)
		return;
	if ((state & STATE_COUNTED) != 0)
		idle.now++;
	if (place_in(state) != NO_QUEUE && place_in(state) < SLOTS_MAX_POOLS)
		idle_in[place_in(state)].now++;
}

/*
 * A sample was taken passed us after the last one: set a limit to max_active and
 * the smoothed count of those that are not at work.  Returns whether it rose.
 */
static bool
adapt_limit(pg_atomic_uint32 *limit, const int *max_active, IdleCount *count, uint64 passed)
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
	rose = adapt_limit(&Slots->limit, &Slots->max_active, &idle, passed);
	for (int i = 0; i < Slots->npools; i++)
		rose |= adapt_limit(&queue_at(i)->limit, &Slots->pools[i].definition.max_active,
							&idle_in[i], passed);
	/* What is given back meanwhile, handoff_after decides about. */
	if (rose)
		slots_grant_free();
}

/* ---- The last resort ---- */

/*
 * A waiter last entered at moved: if the next one may enter above the
 * limits by now, let it in.  first: the initial delay, ms; *stall_after: the
 * present one, if longer.  Lock held.
 */
static bool
enter_late(SlotEntry *entry, uint64 moved, int first, int *stall_after)
{
	int			stall = Max(*stall_after, first);

	/*
	 * Start over after a time without waiters.  Do not start over for each
	 * new waiter, or all would enter at once.
	 */
	if (passed_since(moved, stall, entry->queued))
		stall = first;
	if (!passed_since(Max(moved, entry->queued), stall, locked.now))
		return false;
	slots_grant_above_limit(entry);
	*stall_after = Min(2 * stall, MAX_STALL);
	return true;
}

/* Let the next waiter in if it is time.  Lock held. */
static bool
relieve_next(void)
{
	SlotEntry  *next = slots_next_waiter();

	if (next == NULL ||
		!enter_late(next, Slots->moved, MAX_STALL, &Slots->stall_after))
		return false;
	Slots->moved = locked.now;
	return true;
}

/* The same for the first waiter of a queue without a free place. */
static void
relieve_full_queue(void)
{
	/* handoff_after delays waiters on purpose. */
	int			first = Min(MIN_STALL + (int64) Slots->settings.handoff_after, MAX_STALL);

	for (int index = NO_QUEUE; (index = slots_next_queue(index)) != NO_QUEUE;)
	{
		SlotQueue  *queue = queue_at(index);
		SlotEntry  *head = first_waiter(index);
		uint32		completed;

		if (queue_has_place_free(index))
			continue;
		/* Those that have the places of long statements work for long. */
		if (is_of_hot_spot(index) && !is_of_long(index))
		{
			/*
			 * While its contenders complete transactions, too many may have
			 * places, and leave one by one.
			 */
			completed = pg_atomic_read_u32(&hot_spot_at(index)->completed);
			if (queue->completed != completed)
				queue->completed_seen = locked.now;
			queue->completed = completed;
			if (enter_late(head, Max(queue->moved, queue->completed_seen), first,
						   &queue->stall_after))
				return;
		}
		if (enter_late(head, queue->moved, MAX_STALL, &queue->stall_after))
			return;
	}
}

/* If a queue stands still, let one waiter in. */
void
slots_relieve_stall(void)
{
	slots_lock();
	if (!relieve_next())
		relieve_full_queue();
	slots_unlock();
}

/* ---- Waiters that others wait for ---- */

/* For qsort(): longer waits first.  They may change meanwhile. */
static int
compare_waits(const void *a, const void *b)
{
	uint64		queued = entry_of(*(const int *) a)->queued;
	uint64		other = entry_of(*(const int *) b)->queued;

	return queued < other ? -1 : queued > other;
}

/*
 * How long must this queue stand still before one for which others wait enters
 * above the limits, ms?  Longer if more than these are in already.  Lock held,
 * or a hint.
 */
static int
awaited_stall(int queue)
{
	bool		exceeded = slots_in_use() > pg_atomic_read_u32(&Slots->limit) ||
	places_in_use(queue) > pg_atomic_read_u32(&queue_at(queue)->limit);

	if (!exceeded)
		return MIN_AWAITED_STALL;
	return Min(Max(queue_at(queue)->stall_after, MIN_AWAITED_STALL), MAX_AWAITED_STALL);
}

/* Has it?  Lock held, or a hint. */
static bool
may_exceed(const SlotEntry *entry, uint64 now)
{
	return passed_since(Max(queue_at(entry->queue)->moved, entry->queued),
						awaited_stall(entry->queue), now);
}

/* Others wait for what this waiter holds.  Lock held. */
static void
serve_awaited(SlotEntry *entry)
{
	SlotQueue  *queue = queue_at(entry->queue);
	int			stall = awaited_stall(entry->queue);

	slots_queue_first(entry);
	if (!may_exceed(entry, locked.now))
		return;
	slots_grant_above_limit(entry);
	queue->stall_after = Min(2 * stall, MAX_STALL);
}

/*
 * A sample finds that others wait for what these n waiters hold: see above.  The
 * array is sorted.
 */
void
slots_serve_awaited(int *procnos, int n)
{
	uint64		now = monotonic_us();

	qsort(procnos, n, sizeof(int), compare_waits);
	for (int i = 0; i < n; i++)
	{
		SlotEntry  *entry = entry_of(procnos[i]);

		/* Most have been found before. */
		if (entry->is_awaited && !may_exceed(entry, now))
			continue;
		slots_lock();
		if (state_of(entry) == SLOT_WAITING)
			serve_awaited(entry);
		slots_unlock();
	}
}
