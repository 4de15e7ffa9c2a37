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
 * if it wants several hot spots.  The worker gives a backend that it finds in
 * line a place there, whatever its statement told, and takes the place from one
 * that does nothing, or waits for a backend that does nothing.
 *
 * A session whose last transactions all wanted a hot spot takes its place, or
 * queues, when the next one begins: then it holds nothing yet.
 *
 * Locking: see slots_internal.h.  Only the worker writes marks, and what is in a
 * HotSpot but for its key: without a lock.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/proc.h"

#include "core/slots_internal.h"

/* A sample adds this to the mark of a key in line; it takes 1 from one at work. */
#define MARK_IN_LINE			4
#define MAX_MARK				40
#define MARKS_AGE				INT64CONST(1000000) /* us until all lose 1 */

#define FORGET_AFTER			INT64CONST(5000000) /* us without a line */
#define CIRCLES_LAST			INT64CONST(8000000) /* us after a standstill */

pg_atomic_uint32 *slots_hot_kinds = NULL;

/* Are there to be hot spots now?  A hint without the lock. */
bool
slots_have_hot_spots(void)
{
	return *(volatile bool *) &Slots->hot_spots_on && *(volatile int *) &Slots->max_active != 0;
}

/* Can statements queue for what is of this kind? */
static inline bool
has_queue(HotSpotKind kind)
{
	return kind == HOT_SPOT_RELATION || kind == HOT_SPOT_ADVISORY;
}

/* Has that backend a slot, at work or lent, or a place?  A hint, no lock. */
bool
slots_is_holder(int procno)
{
	SlotState	state = state_of(entry_of(procno));

	return state == SLOT_RUNNING || state == SLOT_LENT || has_spot(entry_of(procno));
}

/*
 * Give a backend a place at that hot spot, above the limit if need be, instead
 * of one that it may have at another.  Only the worker does.
 */
static void
give_place(SlotEntry *entry, int hot_spot)
{
	int			place = slots_hot_spot_queue(hot_spot);
	uint32		spot = pg_atomic_read_u32(&entry->spot);

	if (spot == spot_of(place) || place_in(pg_atomic_read_u32(&entry->state)) != NO_QUEUE)
		return;
	/* Count first: from the exchange on, the backend may release it. */
	pg_atomic_fetch_add_u32(&queue_at(place)->usage, 1);
	if (!pg_atomic_compare_exchange_u32(&entry->spot, &spot, spot_of(place)))
		slots_return_place(place);
	else if (spot != 0)
		slots_return_place(place_of(spot));
}

/* Take the place that its spot named from a backend, if it has that still. */
static void
take_place(SlotEntry *entry, uint32 spot)
{
	int			place = place_of(spot);

	if (spot != 0 && pg_atomic_compare_exchange_u32(&entry->spot, &spot, 0))
		slots_return_place(place);
}

/* Has give_place() given it a place too late?  Lock held, or a hint. */
static bool
has_place_left(int procno)
{
	SlotEntry  *entry = entry_of(procno);

	if (!has_spot(entry))
		return false;
	pg_read_barrier();			/* it took its place in this transaction */
	/* One that waits would wait for itself. */
	return (state_of(entry) == SLOT_WAITING || !GATE_IN_TRANSACTION(GetPGProcByNumber(procno)));
}

/* Take that place: under the lock, as it may be granted one instead. */
static void
take_place_left(int procno)
{
	LockedSection section;

	slots_lock(&section);
	if (has_place_left(procno))
		(void) count_place_out(take_spot(entry_of(procno)));
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

/* Remember a hot spot that ends.  Lock held. */
static void
remember(HotSpot *spot, TimestampTz now)
{
	PastHotSpot *past = &Slots->past_hot_spots[Slots->past_next++ % MAX_PAST_HOT_SPOTS];

	past->key = spot->key;
	past->since = spot->since;
	past->ended = now;
	past->row = spot->row;
	past->most_in_line = spot->most_in_line;
	past->admitted = pg_atomic_read_u64(&spot->admitted);
	past->wait_time = pg_atomic_read_u64(&spot->wait_time);
}

/* A hot spot ends: its index is free, and its limit does not hold any more. */
static void
end_hot_spot(int hot_spot)
{
	HotSpot    *spot = &Slots->hot_spots[hot_spot];
	LockedSection section;

	slots_lock(&section);
	if (has_queue(spot->key.kind))
		remember(spot, section.timestamp);
	spot->key.kind = HOT_SPOT_NONE;
	pg_atomic_write_u32(&queue_at(slots_hot_spot_queue(hot_spot))->limit, NO_LIMIT);
	publish_kinds();
	slots_unlock(&section);
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

/* May this index be that of a new hot spot?  A hint without the lock. */
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

	for (int i = 0; i < MAX_HOT_SPOTS && found < 0; i++)
	{
		HotSpot    *spot = &Slots->hot_spots[i];

		if (!is_free(i))
			continue;
		clear_marks_for(i);		/* of one that was there before */
		limit_control_init(&spot->control, now);
		spot->since = GetCurrentTimestamp();
		spot->most_in_line = 0;
		spot->row.offset = 0;
		spot->stood_still = 0;
		spot->in_circles = false;
		pg_atomic_write_u32(&spot->completed, 0);
		pg_atomic_write_u64(&spot->admitted, 0);
		pg_atomic_write_u64(&spot->wait_time, 0);
		slots_lock(&section);
		spot->key = *key;
		publish_kinds();
		slots_unlock(&section);
		found = i;
	}
	if (found >= 0)
		Slots->hot_spots[found].seen = now;
	return found;
}

/* The index of the hot spot that this backend contends for, or -1. */
static int
hot_spot_of(const SlotEntry *entry)
{
	int			hot_spot = *(volatile const uint8 *) &entry->hot_spot;

	return hot_spot == 0 ||
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
	SlotState	state = state_of(entry);
	uint32		spot = pg_atomic_read_u32(&entry->spot);
	bool		is_active = activity != ACTIVITY_STUCK && activity != ACTIVITY_IDLE;
	int			queue = *(volatile uint8 *) &entry->queue;
	bool		has_limit = queue_has_limit(entry->pool);
	int			in_line_for = -1;
	int			found;

	if (has_place_left(procno))
		take_place_left(procno);
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
	if (!slots_is_holder(procno))
	{
		if (state == SLOT_WAITING && is_of_hot_spot(queue))
			counts->of[queue - slots_hot_spot_queue(0)].contenders++;
		return;
	}
	if (has_limit)
		entry->hot_spot = 0;
	else if (in_line_for >= 0)
	{
		entry->hot_spot = in_line_for + 1;
		entry->has_wanted = true;
		if (row->offset != 0)
			Slots->hot_spots[in_line_for].row = *row;
		mark_key(entry, in_line_for, row);
	}
	found = hot_spot_of(entry);
	if (found < 0)
		entry->hot_spot = 0;

	if (found < 0 || !is_active)
		take_place(entry, spot);
	if (found < 0)
		return;

	counts->of[found].contenders++;
	if (!is_active)
		return;
	counts->of[found].working++;
	if (activity == ACTIVITY_CONTENDS)
	{
		counts->of[found].blocked++;
		give_place(entry, found);
	}
	else if (activity == ACTIVITY_WORKS && Slots->hot_spots[found].control.limit != 1)
		unmark_key(entry, found);	/* one at a time is never in line */
}

/* ---- Limits, setting and showing ---- */

/*
 * Adapt the limit of one hot spot to what a sample found.  Returns whether
 * more places are free than before.
 */
static bool
adapt(int hot_spot, LoadSample sample, uint64 now)
{
	HotSpot    *spot = &Slots->hot_spots[hot_spot];
	int			index = slots_hot_spot_queue(hot_spot);
	SlotQueue  *queue = queue_at(index);
	LimitControl *control = &spot->control;
	uint32		old_limit = pg_atomic_read_u32(&queue->limit);
	uint32		limit;
	LockedSection section;

	if ((int64) (now - spot->seen) >= FORGET_AFTER && control->limit == LIMIT_OPEN)
	{
		end_hot_spot(hot_spot);
		return false;
	}
	sample.now = now;
	sample.completed = pg_atomic_read_u32(&spot->completed);
	sample.in_use = places_in_use(index);
	sample.waiting = *(volatile int *) &queue->waiters.length;
	spot->most_in_line = Max(spot->most_in_line, (int) (sample.waiting + sample.blocked));
	if (!has_queue(spot->key.kind))
	{
		control->last = sample; /* for the view */
		return false;
	}

	limit_control_sample(control, &sample);
	if (limit_control_stands_still(control, now))
		spot->stood_still = now;
	spot->in_circles = spot->stood_still != 0 &&
		(int64) (now - spot->stood_still) < CIRCLES_LAST;
	limit = Min(control->limit, NO_LIMIT);
	if (limit != old_limit)
	{
		slots_lock(&section);
		pg_atomic_write_u32(&queue->limit, limit);
		slots_unlock(&section);
	}
	return limit > old_limit;
}

/*
 * A sample is complete: adapt the limits of all hot spots.  Returns whether it
 * found contenders.
 */
bool
slots_adapt_hot_spots(const HotSpotCounts *counts)
{
	uint64		now = monotonic_us();
	bool		raised = false;
	bool		contended = false;

	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		if (Slots->hot_spots[i].key.kind != HOT_SPOT_NONE)
			raised |= adapt(i, counts->of[i], now);
		contended |= counts->of[i].contenders > 0;
	}
	age_marks(now);
	if (raised)
		slots_grant_free();
	return contended;
}

/* A setting has changed: there are no hot spots any more. */
void
slots_end_hot_spots(void)
{
	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		if (Slots->hot_spots[i].key.kind == HOT_SPOT_NONE)
			continue;
		end_hot_spot(i);
		clear_marks_for(i);
	}
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

/* The number of the first hot spot that has ended and is remembered */
uint64
slots_first_past_hot_spot(void)
{
	LockedSection section;
	uint64		first;

	slots_lock(&section);
	first = Slots->past_first;
	if (Slots->past_next > MAX_PAST_HOT_SPOTS)
		first = Max(first, Slots->past_next - MAX_PAST_HOT_SPOTS);
	slots_unlock(&section);
	return first;
}

/* Forget those that have ended. */
void
slots_forget_past_hot_spots(void)
{
	LockedSection section;

	slots_lock(&section);
	Slots->past_first = Slots->past_next;
	slots_unlock(&section);
}

/* What is known of that one.  Returns false if none of that number has ended. */
bool
slots_get_past_hot_spot(uint64 number, PastHotSpot *past)
{
	LockedSection section;
	bool		found;

	slots_lock(&section);
	found = number < Slots->past_next;
	if (found)
		*past = Slots->past_hot_spots[number % MAX_PAST_HOT_SPOTS];
	slots_unlock(&section);
	return found;
}

/* What that is, in a palloc'd string */
char *
slots_describe_hot_spot(const HotSpotKey *key)
{
	const uint32 *fields = key->fields;

	switch (key->kind)
	{
		case HOT_SPOT_RELATION:
			return psprintf("relation %u of database %u", fields[0], key->database);
		case HOT_SPOT_ADVISORY:
			return psprintf("advisory lock (%u, %u, %u)", fields[0], fields[1], fields[2]);
		default:				/* nobody queues for others */
			return pstrdup("other transactions");
	}
}
