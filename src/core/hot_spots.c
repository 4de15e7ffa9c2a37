/*-------------------------------------------------------------------------
 *
 * hot_spots.c
 *		What backends contend for, and which of them are at work at a time.
 *
 * Where backends wait for each other, a hot spot forms: a relation whose rows
 * they want, an advisory lock, a lock inside the server.  It has a queue and a
 * limit (limit_control.c) of its own for its contenders.
 *
 * A backend that a sample (src/sampler.c) finds in line for something is
 * marked: it counts as a contender of that hot spot at once, if it is at work,
 * and with each transaction that it begins.  Samples that find it at work take
 * the mark away, unless one at a time is let in: that is never in line.
 *
 * A contender at work has a place at its hot spot.  It keeps it while it waits
 * for others, whatever it lends of the server: another contender in its stead
 * would only make the line longer.  It gives it back where it does nothing, or
 * waits for a backend that does nothing.  NOTIFY takes a lock in the commit,
 * when the slot has been released: those in line for it are marked without a
 * slot, and its contenders keep their place until the transaction has ended.
 *
 * A transaction that waits for another transaction's end, or for a lock inside
 * the server, does not tell by that which rows it wants; so such a wait keeps
 * the mark that the backend has, as long as others are seen in line there.  A
 * hot spot that is only known by such waits gives way to a relation.
 *
 * Backends that are marked for one hot spot and found in line for another one,
 * MERGE_AFTER times each way within some seconds, make them one, with one
 * queue and one limit, until that ends: a transaction that waits at one blocks
 * the other.  One way only, they have moved on.
 *
 * Locking: see slots_internal.h.  Marks, and what else only samples write, are
 * written without a lock: samples may overlap if one is delayed, and each
 * corrects what the last one did.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots_internal.h"

/*
 * The time between two samples while backends wait, us: longer where there are
 * many entries to read, but not so long that one says nothing of the next.
 */
#define MIN_SAMPLE_INTERVAL		5000
#define INTERVAL_PER_BACKEND	10
#define MAX_SAMPLE_INTERVAL		200000
#define OPEN_INTERVALS			4	/* of these while none waits */
#define FEW_INTERVAL			500000	/* us at least, while few are at work: */
#define FEW_AT_WORK				4

/* A sample adds this to the mark of one in line; it takes 1 from one at work. */
#define MARK_IN_LINE			4
#define MARK_LWLOCK				2	/* everybody waits for one now and then */
#define MAX_MARK				40

#define MERGE_AFTER				5	/* crossings each way make two hot spots one */
#define CROSSINGS_AGE			INT64CONST(5000000) /* us until half count */
#define LINE_AFTER				INT64CONST(1000000) /* us, it explains others */
#define FORGET_AFTER			INT64CONST(5000000) /* us without a line */
#define FORGET_PART_AFTER		INT64CONST(60000000)	/* the same, a part */

SampleTime *slots_sample_time = NULL;

/* Are there to be hot spots now?  A hint without the lock. */
bool
slots_have_hot_spots(void)
{
	return *(volatile bool *) &Slots->hot_spots_on && *(volatile int *) &Slots->max_active != 0;
}

static uint64
sample_interval(void)
{
	return Min(Max(MIN_SAMPLE_INTERVAL, INTERVAL_PER_BACKEND * (uint64) MaxBackends),
			   MAX_SAMPLE_INTERVAL);
}

/*
 * Is it time to take a sample?  Returns true to one caller per interval.
 * even_if_few: as often while few work as while many do, without hot spots, too.
 */
bool
slots_claim_sample(bool even_if_few)
{
	bool		others_wait = *(volatile int *) &Slots->watcher != INVALID_PROC_NUMBER;
	uint32		at_work = slots_in_use() + *(volatile int *) &Slots->lent;
	bool		few = !even_if_few && !others_wait && !Slots->contended && at_work <= FEW_AT_WORK;
	uint64		interval = sample_interval() * (others_wait ? 1 : OPEN_INTERVALS);
	bool		claimed;

	if (!(even_if_few || slots_have_hot_spots()))
		return false;
	claimed = claim_turn(&Slots->sample.claimed, few ? Max(interval, FEW_INTERVAL) : interval);
	if (claimed || few)
		pg_atomic_write_u64(&Slots->sample.taken, GetCurrentTimestamp());
	return claimed;
}

/* The queue of a hot spot: its own, or that of the one it is a part of. */
int
slots_hot_spot_queue(int hot_spot)
{
	return SLOTS_MAX_POOLS + *(volatile int *) &Slots->hot_spots[hot_spot].part_of;
}

/* This backend has been counted in that place. */
void
slots_note_place_taken(int place)
{
	if (is_of_hot_spot(place))
		pg_atomic_fetch_add_u64(&hot_spot_at(place)->admitted, 1);
}

/*
 * Move a holder, or one that commits, to that place of a hot spot, or to none
 * (NO_QUEUE), if it has none in its pool.  state: its, but it may have left.
 */
static void
move_to_place(int procno, int to, uint32 state)
{
	int			from = place_in(state);
	LockedSection section;

	if (from == to || (from != NO_QUEUE && !is_of_hot_spot(from)))
		return;
	slots_lock(&section);
	/* Count first: from the exchange on, the backend may release it. */
	if (to != NO_QUEUE)
		pg_atomic_fetch_add_u32(&queue_at(to)->usage, 1);
	if (pg_atomic_compare_exchange_u32(&entry_of(procno)->state, &state,
									   state_with_place(state_in(state), to)))
		(void) count_place_out(from);
	else
		(void) count_place_out(to);
	slots_unlock(&section);
}

/* Let in a waiter that another backend waits for, above the limits. */
void
slots_let_in(int procno)
{
	LockedSection section;

	slots_lock(&section);
	if (state_of(entry_of(procno)) == SLOT_WAITING)
		slots_grant_above_limit(procno, &section);
	slots_unlock(&section);
}

/* ---- Hot spots and marks ---- */

/* Let an index be free.  Its limit does not hold any more.  Lock held. */
static void
forget(int hot_spot)
{
	HotSpot    *spot = &Slots->hot_spots[hot_spot];

	spot->key.kind = HOT_SPOT_NONE;
	spot->part_of = hot_spot;
	if (Slots->hot_spot_of_commits == hot_spot)
		Slots->hot_spot_of_commits = -1;
	pg_atomic_write_u32(&queue_at(SLOTS_MAX_POOLS + hot_spot)->limit, NO_LIMIT);
	for (int i = 0; i < MAX_HOT_SPOTS; i++)
		spot->crossings[i] = Slots->hot_spots[i].crossings[hot_spot] = 0;
}

/* Clear the marks for that index, or all (-1). */
static void
clear_marks_for(int hot_spot)
{
	for (int procno = 0; procno < MaxBackends; procno++)
	{
		SlotEntry  *entry = entry_of(procno);

		if (hot_spot < 0 || entry->hot_spot == hot_spot + 1)
			entry->hot_spot = entry->mark = 0;
	}
}

/* The index of the hot spot of that key, or -1.  Lock held, or a hint. */
static int
find(const HotSpotKey *key)
{
	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		if (memcmp(&Slots->hot_spots[i].key, key, sizeof(*key)) == 0)
			return i;
	}
	return -1;
}

/* The same, or that of what it is a part of.  Forms it if there is room. */
static int
find_or_form(const HotSpotKey *key, uint64 now)
{
	int			found = find(key);
	int			formed = -1;

	if (found < 0)
	{
		LockedSection section;

		slots_lock(&section);
		found = find(key);		/* samples may overlap */
		for (int i = 0; i < MAX_HOT_SPOTS && found < 0 && slots_have_hot_spots(); i++)
		{
			HotSpot    *spot = &Slots->hot_spots[i];

			/* Its former contenders may be at work or wait. */
			if (spot->key.kind != HOT_SPOT_NONE || places_in_use(SLOTS_MAX_POOLS + i) > 0 ||
				queue_at(SLOTS_MAX_POOLS + i)->waiters.length > 0)
				continue;
			spot->key = *key;
			spot->since = section.timestamp;
			limit_control_init(&spot->control, key->kind != HOT_SPOT_LWLOCK, now);
			pg_atomic_write_u32(&spot->completed, 0);
			pg_atomic_write_u64(&spot->admitted, 0);
			pg_atomic_write_u64(&spot->wait_time, 0);
			spot->seen = now;
			found = formed = i;
			if (is_lock_of_commit(key))
				Slots->hot_spot_of_commits = i;
		}
		slots_unlock(&section);
		if (formed >= 0)
			clear_marks_for(formed);	/* of one that was there before */
	}
	if (found < 0)
		return -1;
	Slots->hot_spots[found].seen = now;
	found = Slots->hot_spots[found].part_of;
	Slots->hot_spots[found].seen = now;
	return found;
}

/* Do its waits not tell what the backends want? */
static inline bool
is_vague(HotSpotKind kind)
{
	return kind == HOT_SPOT_LWLOCK || kind == HOT_SPOT_TRANSACTION;
}

static inline bool
has_own_queue(int hot_spot)
{
	return Slots->hot_spots[hot_spot].key.kind != HOT_SPOT_NONE &&
		Slots->hot_spots[hot_spot].part_of == hot_spot;
}

/* Move the waiters of one hot spot behind those of another one. */
static void
move_waiters(int from, int to)
{
	LockedSection section;
	int			waiter;

	do
	{
		slots_lock(&section);
		waiter = queue_at(SLOTS_MAX_POOLS + from)->waiters.head;
		if (waiter != INVALID_PROC_NUMBER)
			slots_queue_move(waiter, SLOTS_MAX_POOLS + to);
		slots_unlock(&section);
	} while (waiter != INVALID_PROC_NUMBER);
}

/* Make one hot spot a part of another one, if both have their own queue. */
static void
merge(int part, int whole)
{
	LockedSection section;
	bool		done;

	slots_lock(&section);
	/* Another sample may have been faster. */
	done = has_own_queue(part) && has_own_queue(whole);
	if (done)
	{
		for (int i = 0; i < MAX_HOT_SPOTS; i++)
		{
			if (Slots->hot_spots[i].part_of == part)
				Slots->hot_spots[i].part_of = whole;
			Slots->hot_spots[part].crossings[i] = Slots->hot_spots[i].crossings[part] = 0;
		}
		pg_atomic_write_u32(&queue_at(SLOTS_MAX_POOLS + part)->limit, NO_LIMIT);
	}
	slots_unlock(&section);
	if (done)
		move_waiters(part, whole);
}

/* Did the last sample that read this backend find it stuck?  A hint. */
bool
slots_is_stuck(int procno)
{
	return entry_of(procno)->hot_spot == STUCK;
}

/* The index of its hot spot, one that has a queue, or -1. */
static int
hot_spot_of(const SlotEntry *entry)
{
	int			hot_spot = *(volatile const uint8 *) &entry->hot_spot;

	if (hot_spot == 0 || hot_spot == STUCK ||
		Slots->hot_spots[hot_spot - 1].key.kind == HOT_SPOT_NONE)
		return -1;
	return slots_hot_spot_queue(hot_spot - 1) - SLOTS_MAX_POOLS;
}

/* What this backend contends for: *key is as before if unknown.  A hint. */
void
slots_get_hot_spot_key(int procno, HotSpotKey *key)
{
	int			hot_spot = hot_spot_of(entry_of(procno));

	if (hot_spot >= 0 && !is_vague(Slots->hot_spots[hot_spot].key.kind))
		*key = Slots->hot_spots[hot_spot].key;
}

/*
 * Does a contender of this hot spot that waits for such a thing go on to
 * contend for it?  If for a lock inside the server, only while others are in
 * line for what the hot spot itself is about.
 */
static bool
keeps_mark(HotSpot *spot, HotSpotKind waits_for, uint64 now)
{
	if (!is_vague(waits_for))
		return false;
	if (waits_for == HOT_SPOT_LWLOCK && spot->key.kind != HOT_SPOT_LWLOCK)
		return (int64) (now - spot->seen) < LINE_AFTER;
	spot->seen = now;
	return true;
}

/* Mark a backend that was found in line for that. */
static void
mark(SlotEntry *entry, const HotSpotKey *key, uint64 now)
{
	HotSpot    *spots = Slots->hot_spots;
	int			marked = hot_spot_of(entry);
	int			found = -1;

	if (key->kind != HOT_SPOT_NONE &&
		!(marked >= 0 && keeps_mark(&spots[marked], key->kind, now)))
		found = find_or_form(key, now);
	if (found < 0)
		found = marked;
	else if (marked >= 0 && marked != found &&
			 !is_vague(key->kind) && !is_vague(spots[marked].key.kind) &&
			 ++spots[marked].crossings[found] >= MERGE_AFTER &&
			 spots[found].crossings[marked] >= MERGE_AFTER)
	{
		bool		is_older = spots[marked].since <= spots[found].since;

		merge(is_older ? found : marked, is_older ? marked : found);
		found = spots[found].part_of;
	}
	if (found < 0)
		return;
	entry->hot_spot = found + 1;
	entry->mark = Min(entry->mark + (key->kind == HOT_SPOT_LWLOCK ? MARK_LWLOCK : MARK_IN_LINE),
					  MAX_MARK);
}

/*
 * Note what a sample found a backend doing, and add it to *counts.  key: what
 * it contends for, if it does.  Those of pools that have a limit of their own
 * are left to the administrator.
 */
void
slots_note_activity(int procno, Activity activity, const HotSpotKey *key,
					uint64 now, HotSpotCounts *counts)
{
	SlotEntry  *entry = entry_of(procno);
	uint32		state = pg_atomic_read_u32(&entry->state);
	bool		is_holder = state_in(state) == SLOT_RUNNING || state_in(state) == SLOT_LENT ||
	place_in(state) != NO_QUEUE;
	bool		is_active = activity != ACTIVITY_STUCK && activity != ACTIVITY_IDLE;
	LoadSample *load;
	int			found;

	if (!is_holder && entry->hot_spot == 0 && activity != ACTIVITY_CONTENDS)
		return;
	if (queue_has_limit(entry->pool))
		entry->hot_spot = entry->mark = 0;
	else if (activity == ACTIVITY_CONTENDS)
		mark(entry, key, now);
	else if (is_holder && activity == ACTIVITY_STUCK)
	{
		entry->mark = 0;
		entry->hot_spot = state_in(state) == SLOT_NONE ? 0 : STUCK;
	}
	else if (hot_spot_of(entry) < 0 && (is_holder || entry->hot_spot != STUCK))
		entry->hot_spot = entry->mark = 0;
	found = hot_spot_of(entry);

	if (is_holder && is_active)
		counts->working++;
	if (is_holder && (found < 0 || !is_active))
		move_to_place(procno, NO_QUEUE, state);
	if (found < 0)
		return;

	load = &counts->of[found];
	load->contenders += is_holder || state_in(state) == SLOT_WAITING;
	if (!is_holder || !is_active)
		return;
	load->working++;
	if (activity == ACTIVITY_CONTENDS)
	{
		load->blocked++;
		move_to_place(procno, SLOTS_MAX_POOLS + found, state);
	}
	else if (activity == ACTIVITY_WORKS &&
			 Slots->hot_spots[found].control.limit != 1 &&
			 (entry->mark == 0 || --entry->mark == 0))
		entry->hot_spot = 0;
}

/* ---- Limits, setting and showing ---- */

/* Forget a hot spot not seen for long enough, with its parts.  Lock held. */
static void
forget_if_over(int hot_spot, uint64 now)
{
	HotSpot    *spot = &Slots->hot_spots[hot_spot];
	bool		is_part = spot->part_of != hot_spot;

	if ((int64) (now - spot->seen) < (is_part ? FORGET_PART_AFTER : FORGET_AFTER) ||
		(!is_part && spot->control.limit != LIMIT_OPEN))
		return;
	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		/* Nothing is part of a part. */
		if (Slots->hot_spots[i].part_of == hot_spot || i == hot_spot)
			forget(i);
	}
}

/*
 * Adapt the limit of one hot spot to what a sample found.  Returns whether
 * more places are free than before.  The limit control works on a copy, not
 * under the lock; if it has changed meanwhile, this sample does not count.
 */
static bool
adapt(int hot_spot, const HotSpotCounts *counts, uint64 now)
{
	HotSpot    *spot = &Slots->hot_spots[hot_spot];
	SlotQueue  *queue = queue_at(SLOTS_MAX_POOLS + hot_spot);
	LoadSample	sample = counts->of[hot_spot];
	uint32		old_limit = NO_LIMIT;
	uint32		limit;
	LimitControl control;
	int64		copied;
	bool		is_due;
	LockedSection section;

	slots_lock(&section);
	forget_if_over(hot_spot, now);
	is_due = slots_have_hot_spots() && has_own_queue(hot_spot);
	control = spot->control;
	copied = control.last.now;
	sample.now = now;
	sample.completed = pg_atomic_read_u32(&spot->completed);
	sample.in_use = places_in_use(SLOTS_MAX_POOLS + hot_spot);
	sample.waiting = queue->waiters.length;
	/* A lock inside the server concerns everybody. */
	if (spot->key.kind == HOT_SPOT_LWLOCK)
		sample.working = counts->working;
	slots_unlock(&section);
	if (!is_due)
		return false;

	limit_control_sample(&control, &sample);
	limit = Min(control.limit, NO_LIMIT);

	slots_lock(&section);
	if (slots_have_hot_spots() && has_own_queue(hot_spot) && spot->control.last.now == copied)
	{
		old_limit = pg_atomic_read_u32(&queue->limit);
		spot->control = control;
		pg_atomic_write_u32(&queue->limit, limit);
	}
	slots_unlock(&section);
	return limit > old_limit;
}

/* A sample is complete: adapt the limits of all hot spots. */
void
slots_adapt_hot_spots(const HotSpotCounts *counts)
{
	uint64		now = monotonic_us();
	bool		raised = false;
	bool		contended = false;

	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		if (Slots->hot_spots[i].key.kind != HOT_SPOT_NONE)
			raised |= adapt(i, counts, now);
		contended |= counts->of[i].contenders > 0;
	}
	Slots->contended = contended;
	/* Crossings of long ago count less. */
	if ((int64) (now - Slots->crossings_aged) >= CROSSINGS_AGE)
	{
		Slots->crossings_aged = now;
		for (int i = 0; i < MAX_HOT_SPOTS; i++)
			for (int j = 0; j < MAX_HOT_SPOTS; j++)
				Slots->hot_spots[i].crossings[j] /= 2;
	}
	if (raised)
		slots_grant_free();
}

/* A setting has changed: samples are taken, or there are no hot spots. */
void
slots_schedule_samples(void)
{
	LockedSection section;

	slots_lock(&section);
	pg_atomic_write_u64(&Slots->sample.interval, !slots_have_hot_spots() ? PG_UINT64_MAX :
						OPEN_INTERVALS * sample_interval() + SAMPLE_SLACK);
	slots_unlock(&section);
	if (slots_have_hot_spots())
		return;
	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		slots_lock(&section);
		forget(i);
		slots_unlock(&section);
	}
	clear_marks_for(-1);
	slots_grant_free();
}

/* Describe the hot spots with contenders of late.  Returns how many. */
int
slots_get_hot_spots(HotSpotView views[MAX_HOT_SPOTS])
{
	uint64		now = monotonic_us();
	int			n = 0;

	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		HotSpot    *spot = &Slots->hot_spots[i];
		HotSpotView *view = &views[n];
		LockedSection section;

		slots_lock(&section);
		view->index = i;
		view->part_of = spot->part_of;
		view->key = spot->key;
		view->since = spot->since;
		view->limit = spot->control.limit == LIMIT_OPEN ? 0 : spot->control.limit;
		view->contenders = spot->control.last.contenders;
		view->running = places_in_use(SLOTS_MAX_POOLS + i);
		view->blocked = spot->control.last.blocked;
		view->waiting = queue_at(SLOTS_MAX_POOLS + i)->waiters.length;
		view->admitted = pg_atomic_read_u64(&spot->admitted);
		view->wait_time = pg_atomic_read_u64(&spot->wait_time);
		if (spot->key.kind != HOT_SPOT_NONE && (view->part_of != i || view->contenders > 0) &&
			(view->running > 0 || view->waiting > 0 || (int64) (now - spot->seen) < FORGET_AFTER))
			n++;
		slots_unlock(&section);
	}
	return n;
}
