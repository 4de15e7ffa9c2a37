/*-------------------------------------------------------------------------
 *
 * hot_spots.c
 *		What statements contend for, and which of them are at work at a time.
 *
 * Where backends wait for each other, a hot spot forms: a relation, or an
 * advisory lock.  It has a queue and a limit (limit_control.c) of its own, for
 * the statements that want it.  Other things that backends wait for, such as
 * locks inside the server, are shown only: what a statement wants of them is
 * not known before it runs.
 *
 * What a statement wants of a relation has a key (src/wanted.c).  A backend
 * that is about to run a statement on a hot relation publishes the key in its
 * entry.  A sample (src/sampler.c) that finds it in line marks the key; one that
 * finds it at work with a place takes from the mark, and so does time.  While
 * the mark lasts, statements with that key take a place before they run, and
 * wait for one if there is none; all others run as if nothing was hot.
 *
 * Marks are kept in a table with one entry for each value of the key modulo its
 * size.  A key that is seen in line while another one has the entry takes from
 * the mark of that; so of two keys that collide, the one that is seen more often
 * has it, and the other goes as without the gate.  So do thousands of keys that
 * are seen once each: they are no crowd at one thing.
 *
 * Where transactions lock several rows in any order and deadlock, every row that
 * one of them has locked is in the way of others.  The standstill tells: for a
 * while, all keys of the relation count as marked, so that no transaction waits
 * for a place with locks that others want.
 *
 * A place is kept to the end of the transaction, as the lock is, or of the
 * subtransaction that took it if that fails.  A transaction has one place, also
 * if it wants several hot spots.  A backend that is found in line is moved to
 * a place there, whatever its statement told.  It gives the place back where it
 * does nothing, or waits for a backend that does nothing.
 *
 * A session whose last transactions all wanted a hot spot takes its place, or
 * queues, when the next one begins: then it holds nothing yet.
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

#include "storage/proc.h"

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

/* A sample adds this to the mark of a key in line; it takes 1 from one at work. */
#define MARK_IN_LINE			4
#define MAX_MARK				40
#define MARKS_AGE				INT64CONST(1000000) /* us until all lose 1 */

#define FORGET_AFTER			INT64CONST(5000000) /* us without a line */
#define CIRCLES_LAST			INT64CONST(8000000) /* us after a standstill */

SampleTime *slots_sample_time = NULL;
pg_atomic_uint32 *slots_hot_kinds = NULL;

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

/* Can statements queue for what is of this kind? */
static inline bool
has_queue(HotSpotKind kind)
{
	return kind == HOT_SPOT_RELATION || kind == HOT_SPOT_ADVISORY;
}

/* This backend has been counted in that place. */
void
slots_note_place_taken(int place)
{
	if (is_of_hot_spot(place))
		pg_atomic_fetch_add_u64(&hot_spot_at(place)->admitted, 1);
}

/*
 * Move a backend to that place of a hot spot, or to none (NO_QUEUE), if it has
 * none in its pool.  state: its, but it may have left.
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

/* ---- Hot spots ---- */

/*
 * Tell all backends for what kinds of hot spots they have to look at their
 * statements: also where it is not known yet what they wait for.  Lock held.
 */
static void
publish_kinds(void)
{
	uint32		kinds = 0;

	for (int i = 0; i < MAX_HOT_SPOTS; i++)
		kinds |= 1 << Slots->hot_spots[i].key.kind;
	kinds &= 1 << HOT_SPOT_RELATION | 1 << HOT_SPOT_ADVISORY | 1 << HOT_SPOT_TRANSACTION;
	pg_atomic_write_u32(&Slots->hot_kinds, kinds);
}

/* Forget what was marked, or learned, for that hot spot. */
static void
clear_marks_for(int hot_spot)
{
	for (int i = 0; i < WANTED_KEYS; i++)
		if (Slots->keys[i].hot_spot == hot_spot)
			Slots->keys[i].mark = 0;
	for (int procno = 0; procno < MaxBackends; procno++)
		if (entry_of(procno)->hot_spot == hot_spot + 1)
			entry_of(procno)->hot_spot = 0;
}

/* Let an index be free.  Its limit does not hold any more.  Lock held. */
static void
forget(int hot_spot)
{
	Slots->hot_spots[hot_spot].key.kind = HOT_SPOT_NONE;
	pg_atomic_write_u32(&queue_at(slots_hot_spot_queue(hot_spot))->limit, NO_LIMIT);
	publish_kinds();
}

/* The index of the hot spot of that key, or -1.  Lock held, or a hint. */
int
slots_find_hot_spot(const HotSpotKey *key)
{
	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		if (memcmp(&Slots->hot_spots[i].key, key, sizeof(*key)) == 0)
			return i;
	}
	return -1;
}

/* May this index be that of a new hot spot?  Lock held. */
static bool
is_free(int hot_spot)
{
	int			queue = slots_hot_spot_queue(hot_spot);

	/* Those that wanted the former one may be at work or wait. */
	return Slots->hot_spots[hot_spot].key.kind == HOT_SPOT_NONE &&
		places_in_use(queue) == 0 && queue_at(queue)->waiters.length == 0;
}

/* The same as slots_find_hot_spot(); forms it if there is room. */
static int
find_or_form(const HotSpotKey *key, uint64 now)
{
	int			found = slots_find_hot_spot(key);
	LockedSection section;

	if (found < 0)
	{
		int			formed = -1;

		slots_lock(&section);
		found = slots_find_hot_spot(key);	/* samples may overlap */
		for (int i = 0; i < MAX_HOT_SPOTS && found < 0 && slots_have_hot_spots(); i++)
		{
			HotSpot    *spot = &Slots->hot_spots[i];

			if (!is_free(i))
				continue;
			spot->key = *key;
			spot->since = section.timestamp;
			limit_control_init(&spot->control, now);
			spot->stood_still = 0;
			spot->in_circles = false;
			pg_atomic_write_u32(&spot->completed, 0);
			pg_atomic_write_u64(&spot->admitted, 0);
			pg_atomic_write_u64(&spot->wait_time, 0);
			found = formed = i;
			publish_kinds();
		}
		slots_unlock(&section);
		if (formed >= 0)
			clear_marks_for(formed);	/* of one that was there before */
	}
	if (found >= 0)
		Slots->hot_spots[found].seen = now;
	return found;
}

/* Did the last sample that read this backend find it stuck?  A hint. */
bool
slots_is_stuck(int procno)
{
	return entry_of(procno)->hot_spot == STUCK;
}

/* The index of the hot spot that this backend contends for, or -1. */
static int
hot_spot_of(const SlotEntry *entry)
{
	int			hot_spot = *(volatile const uint8 *) &entry->hot_spot;

	return hot_spot == 0 || hot_spot == STUCK ||
		Slots->hot_spots[hot_spot - 1].key.kind == HOT_SPOT_NONE ? -1 : hot_spot - 1;
}

/* ---- Keys ---- */

/*
 * The statement that this backend is about to run will lock rows of that
 * relation, if it is one.  Nothing is known of its key yet; what an earlier
 * statement wanted stays, if there is a place for that.
 */
void
slots_want_relation(Oid relation, bool has_place)
{
	if (!has_place)
		MySlotEntry->wanted_of = 0;
	MySlotEntry->wanted_relation = relation;
}

/*
 * A backend waits for another transaction, which does not tell what it wants;
 * but its statement may have told.  If so, *key is that.
 */
static void
see_what_is_wanted(int procno, HotSpotKey *key)
{
	Oid			relation = *(volatile Oid *) &entry_of(procno)->wanted_relation;

	if (key->kind == HOT_SPOT_TRANSACTION && OidIsValid(relation))
	{
		key->kind = HOT_SPOT_RELATION;
		key->database = GetPGProcByNumber(procno)->databaseId;
		key->fields[0] = relation;
	}
}

/*
 * This backend is about to run a statement that wants that of a hot spot: is it
 * hot?  key: as WantedKey.key, or WANTS_ALL.
 */
bool
slots_want(int hot_spot, uint32 key)
{
	const volatile WantedKey *wanted = &Slots->keys[key % WANTED_KEYS];

	MySlotEntry->wanted_of = hot_spot + 1;
	MySlotEntry->wanted_key = key;
	if (key != WANTS_ALL && !*(volatile bool *) &Slots->hot_spots[hot_spot].in_circles &&
		(wanted->mark == 0 || wanted->key != key || wanted->hot_spot != hot_spot))
		return false;
	MySlotEntry->has_wanted = true;
	return true;
}

/* What this backend published is seen in line, for that row if it is known. */
static void
mark_key(const SlotEntry *entry, int hot_spot, const WantedRow *row)
{
	uint32		key = *(const volatile uint32 *) &entry->wanted_key;
	volatile WantedKey *wanted = &Slots->keys[key % WANTED_KEYS];

	if (*(const volatile uint8 *) &entry->wanted_of != hot_spot + 1 || key == WANTS_ALL)
		return;
	if (wanted->key != key || wanted->hot_spot != hot_spot)
	{
		if (wanted->mark > 0)
		{
			wanted->mark--;		/* a collision: see above */
			return;
		}
		wanted->key = key;
		wanted->hot_spot = hot_spot;
		wanted->offset = 0;
	}
	wanted->mark = Min(wanted->mark + MARK_IN_LINE, MAX_MARK);
	if (row->offset != 0)
	{
		wanted->block = row->block;
		wanted->offset = row->offset;
	}
}

/* It is seen at work, with a place. */
static void
unmark_key(const SlotEntry *entry, int hot_spot)
{
	uint32		key = *(const volatile uint32 *) &entry->wanted_key;
	volatile WantedKey *wanted = &Slots->keys[key % WANTED_KEYS];

	if (*(const volatile uint8 *) &entry->wanted_of == hot_spot + 1 &&
		wanted->key == key && wanted->hot_spot == hot_spot && wanted->mark > 0)
		wanted->mark--;
}

static void
age_marks(uint64 now)
{
	if ((int64) (now - Slots->keys_aged) < MARKS_AGE)
		return;
	Slots->keys_aged = now;
	for (int i = 0; i < WANTED_KEYS; i++)
		if (Slots->keys[i].mark > 0)
			Slots->keys[i].mark--;
}

/*
 * Note what a sample found a backend doing, and add it to *counts.  key: what
 * it contends for, if it does, and row: which row of that.  Those of pools that
 * have a limit of their own are left to the administrator.
 */
void
slots_note_activity(int procno, Activity activity, HotSpotKey *key, const WantedRow *row,
					uint64 now, HotSpotCounts *counts)
{
	SlotEntry  *entry = entry_of(procno);
	uint32		state = pg_atomic_read_u32(&entry->state);
	bool		is_holder = state_in(state) == SLOT_RUNNING || state_in(state) == SLOT_LENT ||
	place_in(state) != NO_QUEUE;
	bool		is_active = activity != ACTIVITY_STUCK && activity != ACTIVITY_IDLE;
	int			queue = *(volatile uint8 *) &entry->queue;
	bool		has_limit = queue_has_limit(entry->pool);
	int			in_line_for = -1;
	int			found;

	see_what_is_wanted(procno, key);
	if (activity == ACTIVITY_CONTENDS && key->kind != HOT_SPOT_NONE &&
		!(has_limit && has_queue(key->kind)))
	{
		found = find_or_form(key, now);
		if (has_queue(key->kind))
			in_line_for = found;
		else if (found >= 0)
		{
			/*
			 * Only shown; besides, it may have a place for what it has
			 * locked.
			 */
			counts->of[found].contenders++;
			counts->of[found].blocked++;
		}
	}
	if (!is_holder)
	{
		if (state_in(state) == SLOT_WAITING && is_of_hot_spot(queue))
			counts->of[queue - SLOTS_MAX_POOLS].contenders++;
		return;
	}
	if (has_limit)
		entry->hot_spot = 0;
	else if (in_line_for >= 0)
	{
		entry->hot_spot = in_line_for + 1;
		entry->has_wanted = true;
		mark_key(entry, in_line_for, row);
	}
	else if (activity == ACTIVITY_STUCK)
		entry->hot_spot = STUCK;
	found = hot_spot_of(entry);
	if (found < 0 && entry->hot_spot != STUCK)
		entry->hot_spot = 0;

	if (found < 0 || !is_active)
		move_to_place(procno, NO_QUEUE, state);
	if (found < 0)
		return;

	counts->of[found].contenders++;
	if (!is_active)
		return;
	counts->of[found].working++;
	if (activity == ACTIVITY_CONTENDS)
	{
		counts->of[found].blocked++;
		move_to_place(procno, slots_hot_spot_queue(found), state);
	}
	else if (activity == ACTIVITY_WORKS && Slots->hot_spots[found].control.limit != 1)
		unmark_key(entry, found);	/* one at a time is never in line */
}

/* ---- Limits, setting and showing ---- */

/*
 * Adapt the limit of one hot spot to what a sample found.  Returns whether
 * more places are free than before.  The limit control works on a copy, not
 * under the lock; if it has changed meanwhile, this sample does not count.
 */
static bool
adapt(int hot_spot, const HotSpotCounts *counts, uint64 now)
{
	HotSpot    *spot = &Slots->hot_spots[hot_spot];
	SlotQueue  *queue = queue_at(slots_hot_spot_queue(hot_spot));
	LoadSample	sample = counts->of[hot_spot];
	uint32		old_limit = NO_LIMIT;
	uint32		limit;
	LimitControl control;
	int64		copied;
	bool		is_due;
	LockedSection section;

	slots_lock(&section);
	if ((int64) (now - spot->seen) >= FORGET_AFTER && spot->control.limit == LIMIT_OPEN)
		forget(hot_spot);
	is_due = slots_have_hot_spots() && spot->key.kind != HOT_SPOT_NONE;
	control = spot->control;
	copied = control.last.now;
	sample.now = now;
	sample.completed = pg_atomic_read_u32(&spot->completed);
	sample.in_use = places_in_use(slots_hot_spot_queue(hot_spot));
	sample.waiting = queue->waiters.length;
	slots_unlock(&section);
	if (!is_due)
		return false;

	if (has_queue(spot->key.kind))
		limit_control_sample(&control, &sample);
	else
		control.last = sample;	/* for the view */
	limit = Min(control.limit, NO_LIMIT);

	slots_lock(&section);
	if (slots_have_hot_spots() && spot->key.kind != HOT_SPOT_NONE &&
		spot->control.last.now == copied)
	{
		old_limit = pg_atomic_read_u32(&queue->limit);
		spot->control = control;
		if (limit_control_stands_still(&control, now))
			spot->stood_still = now;
		spot->in_circles = spot->stood_still != 0 &&
			(int64) (now - spot->stood_still) < CIRCLES_LAST;
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
	age_marks(now);
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
		clear_marks_for(i);
	}
	slots_grant_free();
}

/* Describe what is known of the keys of that hot spot. */
static void
describe_keys(int hot_spot, HotSpotView *view)
{
	int			most = 0;

	view->hot_keys = 0;
	view->row.offset = 0;
	for (int i = 0; i < WANTED_KEYS; i++)
	{
		const volatile WantedKey *key = &Slots->keys[i];

		if (key->hot_spot != hot_spot || key->mark == 0)
			continue;
		view->hot_keys++;
		if (key->mark > most && key->offset != 0)
		{
			most = key->mark;
			view->row.block = key->block;
			view->row.offset = key->offset;
		}
	}
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
		EntryList  *waiters = &queue_at(slots_hot_spot_queue(i))->waiters;
		LockedSection section;

		slots_lock(&section);
		view->index = i;
		view->key = spot->key;
		view->since = spot->since;
		view->limit = spot->control.limit == LIMIT_OPEN ? 0 : spot->control.limit;
		view->contenders = spot->control.last.contenders;
		view->running = places_in_use(slots_hot_spot_queue(i));
		view->blocked = spot->control.last.blocked;
		view->waiting = waiters->length;
		view->waiter = waiters->head;
		view->admitted = pg_atomic_read_u64(&spot->admitted);
		view->wait_time = pg_atomic_read_u64(&spot->wait_time);
		if (spot->key.kind != HOT_SPOT_NONE &&
			(view->running > 0 || view->waiting > 0 ||
			 ((view->contenders > 0 || has_queue(spot->key.kind)) &&
			  (int64) (now - spot->seen) < FORGET_AFTER)))
			n++;
		slots_unlock(&section);
		describe_keys(i, view);
	}
	return n;
}
