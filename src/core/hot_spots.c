/*-------------------------------------------------------------------------
 *
 * hot_spots.c
 *		What statements contend for, and how many of them work at a time.
 *
 * Where backends wait for each other, a hot spot forms: a relation or an
 * advisory lock.  It has its own queue and limit (limit_control.c), for
 * statements that want it.  If backends wait for transactions, and it is unknown
 * for which rows, that is only shown.  Other things, like LWLocks, form none.
 *
 * Before a backend runs a statement on a hot relation, it publishes a key for
 * what the statement wants there (src/wanted.c).  A sample (src/sampler.c) that
 * finds it in line raises the mark of the key.  A sample that finds it working
 * lowers the mark, and so does time.  While the mark lasts, statements with
 * that key take a place before they run, or wait for one.  All others run as if
 * nothing were hot.
 *
 * A key of a hot spot has one entry for its mark.  If two collide, the one that
 * is seen in line more often gets the entry, and the other runs without the
 * gate.  So do thousands of keys that are seen once each: they are no crowd.
 *
 * A key does not tell all: others that name it may find no row that they would
 * lock.  So backends count how many transactions that named a marked key have
 * waited for a lock; or, as those that come through the queue may wait for
 * nothing else, how many of these have written anything.  While few have, the
 * key is not hot.
 *
 * If transactions lock several rows in different orders, they come to a
 * standstill.  For a while, all keys of the relation then count as marked, for
 * statements of the shapes that were in line: such transactions queue before
 * they lock the first row.  Those that have rows already can only leave as
 * victims of the deadlock detector: each looks for deadlocks soon (my_slot.c),
 * while more are at work than have places.
 *
 * A transaction has one place, even if it wants several hot spots.  It keeps
 * the place to its end, like its locks, or until the subtransaction that took
 * it fails.  The worker takes the place from one that is idle, or waits for an
 * idle one.  If a session's last transactions all wanted a hot spot, the next
 * block takes its place, or queues, at BEGIN: then it holds nothing yet.
 *
 * Locking: see slots_internal.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/proc.h"
#include "utils/timeout.h"

#include "core/slots_internal.h"

/* A sample adds this to the mark of a key in line; work takes 1 from it. */
#define MARK_IN_LINE			4
#define MAX_MARK				40
#define HOT_MARK				13	/* one short wait does not make a key hot */
#define MARKS_AGE				INT64CONST(1000000) /* us until all lose 1 */
#define FEW_CONFIRM				3	/* fewer than one of so many: see above */
#define MIN_ENDED				16	/* transactions that tell it */

#define OF_ALL					0xFF	/* for SlotEntry.wanted_of */

#define FORGET_AFTER			INT64CONST(5000000) /* us without a line */
#define COLD_AFTER				200 /* ms: another one may have its place */
#define CIRCLES_LAST			INT64CONST(8000000) /* us after a standstill */

pg_atomic_uint32 *slots_hot_kinds = NULL;

/* Are hot spots enabled?  A hint. */
bool
slots_have_hot_spots(void)
{
	return Slots->settings.hot_spots && Slots->settings.max_active != 0;
}

/* Take this place from a backend, if it still has it: only the worker. */
void
slots_withdraw_place(SlotEntry *entry, int place)
{
	uint32		had = place;

	if (place != NO_QUEUE && pg_atomic_compare_exchange_u32(&entry->place, &had, NO_QUEUE))
		slots_return_place(place);
}

/* ---- Hot spots ---- */

/* Publish for which kinds backends examine their statements.  Lock held. */
static void
publish_kinds(void)
{
	uint32		kinds = 0;

	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		HotSpotKind kind = Slots->hot_spots[i].key.kind;

		/* Where the row is unknown, they tell its relation. */
		if (has_queue(kind) || kind == HOT_SPOT_TRANSACTION)
			kinds |= 1 << kind;
	}
	pg_atomic_write_u32(&Slots->hot_kinds, kinds);
}

/* Log a hot spot that has ended, if log_min_wait includes its waits. */
static void
log_end(const PastHotSpot *past)
{
	int			log_min_wait = Slots->settings.log_min_wait;
	char	   *what;

	if (log_min_wait < 0 || past->wait_time < (uint64) log_min_wait * 1000)
		return;
	what = slots_describe_hot_spot(&past->key);
	ereport(LOG,
			(errmsg("hot spot ended after %.1f s: %s, at most %d waiting, %llu admitted, %.1f s waited in all",
					(past->ended - past->since) / 1e6, what, past->most_in_line,
					(unsigned long long) past->admitted, past->wait_time / 1e6)));
	pfree(what);
}

/* End a hot spot: its index is free, and its limit is void. */
static void
end_hot_spot(int hot_spot)
{
	HotSpot    *spot = &Slots->hot_spots[hot_spot];
	PastHotSpot past = {.key = spot->key,.since = spot->since,.most_in_line = spot->most_in_line};

	past.admitted = pg_atomic_read_u64(&spot->admitted);
	past.wait_time = pg_atomic_read_u64(&spot->wait_time);
	slots_lock();
	past.ended = Slots->timestamp;
	if (has_queue(past.key.kind))
		Slots->past_hot_spots[Slots->npast++ % MAX_PAST_HOT_SPOTS] = past;
	spot->key.kind = HOT_SPOT_NONE;
	pg_atomic_write_u32(&queue_at(slots_hot_spot_queue(hot_spot))->limit, NO_LIMIT);
	publish_kinds();
	slots_unlock();
	if (has_queue(past.key.kind))
		log_end(&past);
}

/* The index of the hot spot with that key, or -1.  Lock held, or a hint. */
int
slots_find_hot_spot(const HotSpotKey *key)
{
	for (int i = 0; i < MAX_HOT_SPOTS; i++)
		if (memcmp(&Slots->hot_spots[i].key, key, offsetof(HotSpotKey, offset)) == 0)
			return i;
	return -1;
}

/*
 * A free index, or else that of the hot spot that was seen the longest time ago,
 * which ends; -1 if samples have seen all lately, or they have limits or places in
 * use.  Contenders of the former hot spot may be left there.
 */
static int
make_room(uint64 now)
{
	int			oldest = -1;

	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		HotSpot    *spot = &Slots->hot_spots[i];
		int			queue = slots_hot_spot_queue(i);

		if (places_in_use(queue) > 0 || queue_at(queue)->nwaiters > 0)
			continue;
		if (spot->key.kind == HOT_SPOT_NONE)
			return i;
		if (passed_since(spot->seen, COLD_AFTER, now) && spot->control.limit == NO_LIMIT &&
			(oldest < 0 || spot->seen < Slots->hot_spots[oldest].seen))
			oldest = i;
	}
	if (oldest >= 0)
		end_hot_spot(oldest);
	return oldest;
}

/* Form a hot spot.  Returns its index, or -1 if there is no room. */
static int
form(const HotSpotKey *key, uint64 now)
{
	int			hot_spot = make_room(now);
	HotSpot    *spot;

	if (hot_spot < 0)
		return -1;
	/* Forget the marks and contenders of the former one. */
	for (int i = 0; i < WANTED_KEYS; i++)
		if (Slots->keys[i].hot_spot == hot_spot)
			Slots->keys[i].mark = 0;
	for (int procno = 0; procno < MaxBackends; procno++)
		if (entry_of(procno)->hot_spot == hot_spot + 1)
			entry_of(procno)->hot_spot = 0;

	spot = &Slots->hot_spots[hot_spot];
	slots_lock();
	memset(spot, 0, offsetof(HotSpot, completed));
	spot->key = *key;
	spot->since = Slots->timestamp;
	limit_control_init(&spot->control, now);
	pg_atomic_write_u32(&spot->completed, 0);
	pg_atomic_write_u32(&spot->passed, 0);
	pg_atomic_write_u64(&spot->admitted, 0);
	pg_atomic_write_u64(&spot->wait_time, 0);
	publish_kinds();
	slots_unlock();
	return hot_spot;
}

/* ---- Keys ---- */

/* The entry for a key of a hot spot.  Others may have the same key. */
static volatile WantedKey *
entry_for(uint32 key, int hot_spot)
{
	return &Slots->keys[(key + hot_spot) % WANTED_KEYS];
}

static bool
is_entry_of(const volatile WantedKey *wanted, uint32 key, int hot_spot)
{
	return wanted->key == key && wanted->hot_spot == hot_spot;
}

/* Is it marked, and do not too few of those that name it want it? */
static bool
is_hot(volatile WantedKey *wanted)
{
	uint32		ended = pg_atomic_read_u32(&wanted->ended);

	return wanted->mark >= HOT_MARK &&
		(ended < MIN_ENDED || pg_atomic_read_u32(&wanted->confirmed) >= ended / FEW_CONFIRM);
}

/*
 * This backend is about to lock rows of that relation, with a key that is not
 * known yet.  is_first: of the statement's relations; the one whose key is
 * published stays.  has_place: so does the key for which it has that.
 */
void
slots_want_relation(Oid relation, bool is_first, bool has_place)
{
	if (is_first && !has_place)
		MySlotEntry->wanted_of = 0;
	if (is_first || MySlotEntry->wanted_of == 0)
		MySlotEntry->wanted_relation = relation;
}

/*
 * This backend is about to run a statement of this shape, one bit or NO_SHAPE,
 * that wants this key, or WANTS_ALL, of a hot spot.  Returns whether the key is
 * hot.  Publish it, or else the first one of the statement.
 */
bool
slots_want(int hot_spot, uint32 key, uint32 shape)
{
	SlotEntry  *me = MySlotEntry;
	volatile WantedKey *wanted = entry_for(key, hot_spot);
	bool		queues = key == WANTS_ALL || (is_entry_of(wanted, key, hot_spot) && is_hot(wanted)) ||
	(*(volatile uint32 *) &Slots->hot_spots[hot_spot].circles & shape) != 0;

	if (queues || me->wanted_of == 0)
	{
		me->wanted_of = hot_spot + 1;
		me->wanted_key = key;
		me->wanted_shape = shape;
	}
	else if (me->wanted_key == key)
		me->wanted_of = OF_ALL;
	if (queues)
		me->has_wanted = true;	/* the worker may set it, too */
	return queues;
}

/*
 * Do statements of this shape wait in circles at that hot spot, more than have
 * places?  A hint.
 */
bool
slots_is_jammed(int hot_spot, uint32 shape)
{
	return (*(volatile uint32 *) &Slots->hot_spots[hot_spot].jammed & shape) != 0;
}

/*
 * What this backend's statements want of that hot spot does not show before
 * they run.
 */
void
slots_want_hidden(int hot_spot)
{
	SlotEntry  *me = MySlotEntry;

	/* One is enough: that for which it contends, or the first. */
	if (me->hidden_of == 0 || me->hot_spot == hot_spot + 1)
		me->hidden_of = hot_spot + 1;
}

/*
 * The transaction has ended: count it for its key, if that is marked, or as one
 * that hid what it wanted and did not queue.  It has waited for a lock if
 * PostgreSQL has set the timer for deadlocks.
 */
void
slots_count_wanted(void)
{
	const SlotEntry *me = MySlotEntry;
	int			hot_spot = me->wanted_of - 1;
	bool		blocked = get_timeout_start_time(DEADLOCK_TIMEOUT) >= GetCurrentTransactionStartTimestamp();
	volatile WantedKey *wanted;

	if (blocked && me->hidden_of != 0 && !me->has_habit)
		pg_atomic_fetch_add_u32(&Slots->hot_spots[me->hidden_of - 1].passed, 1);
	if (hot_spot < 0 || hot_spot >= MAX_HOT_SPOTS)
		return;
	wanted = entry_for(me->wanted_key, hot_spot);
	if (!is_entry_of(wanted, me->wanted_key, hot_spot))
		return;
	pg_atomic_fetch_add_u32(&wanted->ended, 1);
	if (blocked || (me->has_wanted && queue_has_limit(slots_hot_spot_queue(hot_spot)) &&
					TransactionIdIsValid(GetTopTransactionIdIfAny())))
		pg_atomic_fetch_add_u32(&wanted->confirmed, 1);
}

/* Raise the mark of the key of a backend in line, or lower that of one at work. */
static void
mark_key(const SlotEntry *entry, int hot_spot, bool in_line)
{
	uint32		key = *(const volatile uint32 *) &entry->wanted_key;
	uint8		of = *(const volatile uint8 *) &entry->wanted_of;
	volatile WantedKey *wanted = entry_for(key, hot_spot);
	bool		is_its_own = is_entry_of(wanted, key, hot_spot);

	if ((of != hot_spot + 1 && of != OF_ALL) || key == WANTS_ALL)
		return;
	if (in_line)
		Slots->hot_spots[hot_spot].shapes |= *(const volatile uint32 *) &entry->wanted_shape;
	/* In line, it lowers the mark of a key that collides with its own. */
	if (in_line != is_its_own && wanted->mark > 0)
		wanted->mark--;
	else if (in_line)
	{
		if (!is_its_own)
		{
			wanted->key = key;
			wanted->hot_spot = hot_spot;
			pg_atomic_write_u32(&wanted->ended, 0);
			pg_atomic_write_u32(&wanted->confirmed, 0);
		}
		wanted->mark = Min(wanted->mark + MARK_IN_LINE, MAX_MARK);
	}
}

/* A second has passed: marks fall, and what was counted before weighs half, or nothing. */
static void
age_marks(void)
{
	for (int i = 0; i < WANTED_KEYS; i++)
	{
		WantedKey  *wanted = &Slots->keys[i];
		uint32		ended = pg_atomic_read_u32(&wanted->ended);

		wanted->mark -= wanted->mark > 0;
		if (ended > 0 && wanted->mark == 0)
		{
			pg_atomic_write_u32(&wanted->ended, 0);
			pg_atomic_write_u32(&wanted->confirmed, 0);
		}
		else if (ended >= 2 * MIN_ENDED)
		{
			pg_atomic_write_u32(&wanted->ended, ended / 2);
			pg_atomic_write_u32(&wanted->confirmed, pg_atomic_read_u32(&wanted->confirmed) / 2);
		}
	}
}

/*
 * A sample found this backend contending for that.  Returns the index of the
 * hot spot, formed if necessary, or -1 if the backend cannot queue there.
 */
static int
find_or_form(int procno, HotSpotKey key, uint64 now)
{
	const SlotEntry *entry = entry_of(procno);
	Oid			relation = *(const volatile Oid *) &entry->wanted_relation;
	HotSpot    *spot;
	int			found;

	/* A wait for another transaction does not tell for what. */
	if (key.kind == HOT_SPOT_TRANSACTION && OidIsValid(relation))
	{
		key.kind = HOT_SPOT_RELATION;
		key.database = GetPGProcByNumber(procno)->databaseId;
		key.fields[0] = relation;
	}
	if (key.kind == HOT_SPOT_NONE || (has_queue(key.kind) && queue_has_limit(entry->pool)))
		return -1;
	found = slots_find_hot_spot(&key);
	if (found < 0)
		found = form(&key, now);
	if (found < 0)
		return -1;
	spot = &Slots->hot_spots[found];
	spot->seen = now;
	/* The view shows the last one: where many want one row, mostly that. */
	if (key.offset != 0)
	{
		spot->key.block = key.block;
		spot->key.offset = key.offset;
	}
	if (has_queue(key.kind))
		return found;
	/* Only shown.  It may have a place for what it has locked. */
	spot->sample.contenders++;
	spot->sample.blocked++;
	return -1;
}

/*
 * Record what a sample found a backend doing, and count it at its hot spot,
 * unless it waits at the gate.  key: what it contends for, if it does.  A
 * backend of a pool with a limit does not queue at hot spots.
 */
void
slots_note_activity(int procno, Activity activity, HotSpotKey key, uint64 now)
{
	SlotEntry  *entry = entry_of(procno);
	int			had = place_of(entry);
	bool		contends = activity == ACTIVITY_CONTENDS;
	HotSpot    *spot;
	int			found = contends ? find_or_form(procno, key, now) : -1;
	uint8		before = *(volatile uint8 *) &entry->hot_spot;

	if (state_of(entry) != SLOT_RUNNING)
		return;

	if (found >= 0)
	{
		entry->hot_spot = found + 1;
		entry->has_wanted = true;
		mark_key(entry, found, true);
	}
	else if (!queue_has_limit(entry->pool))
		found = before - 1;
	if (found < 0 || Slots->hot_spots[found].key.kind == HOT_SPOT_NONE)
	{
		/* It may take a place at this moment. */
		if (before != 0)
			entry->hot_spot = 0;
		slots_withdraw_place(entry, had);
		return;
	}

	spot = &Slots->hot_spots[found];
	spot->sample.contenders++;
	if (activity == ACTIVITY_IDLE)
	{
		slots_withdraw_place(entry, had);
		return;
	}
	spot->sample.working++;
	spot->sample.blocked += contends;
	if (activity == ACTIVITY_WORKS && spot->control.limit != 1)
		mark_key(entry, found, false);	/* one alone is never in line */
}

/* ---- Limits, setting and showing ---- */

/* Adapt the limit of a hot spot to its sample. */
static void
adapt(int hot_spot, uint64 now)
{
	HotSpot    *spot = &Slots->hot_spots[hot_spot];
	int			index = slots_hot_spot_queue(hot_spot);
	SlotQueue  *queue = queue_at(index);
	LimitControl *control = &spot->control;
	LoadSample	sample = spot->sample;
	uint32		old_limit = pg_atomic_read_u32(&queue->limit);

	if ((int64) (now - spot->seen) >= FORGET_AFTER && control->limit == NO_LIMIT)
	{
		end_hot_spot(hot_spot);
		return;
	}
	sample.now = now;
	sample.completed = pg_atomic_read_u32(&spot->completed);
	sample.admitted = (uint32) pg_atomic_read_u64(&spot->admitted);
	sample.passed = pg_atomic_read_u32(&spot->passed);
	sample.in_use = places_in_use(index);
	sample.waiting = *(volatile int *) &queue->nwaiters;
	sample.contenders += sample.waiting;
	spot->most_in_line = Max(spot->most_in_line, (int) (sample.waiting + sample.blocked));

	/*
	 * In a dry run nobody queues, so the effect of a limit is not known.  It
	 * stays while more than it are at work.
	 */
	if (!has_queue(spot->key.kind) ||
		(Slots->settings.observing && sample.working > control->limit))
		control->last = sample; /* for the view */
	else
		limit_control_sample(control, &sample);
	if (limit_control_stood_still(control))
	{
		spot->circles |= spot->shapes;
		spot->circles_until = now + CIRCLES_LAST;
	}
	else if (now >= spot->circles_until)
		spot->circles = 0;
	spot->jammed = sample.working > control->limit && !Slots->settings.observing ? spot->circles : 0;
	spot->shapes = 0;
	if (control->limit != old_limit)
	{
		slots_lock();
		pg_atomic_write_u32(&queue->limit, control->limit);
		slots_unlock();
	}
	if (control->limit > old_limit)
		slots_grant_free();
}

/* A sample is complete: adapt all limits.  Do any contend, at work? */
bool
slots_adapt_hot_spots(void)
{
	static uint64 marks_aged = 0;
	uint64		now = monotonic_us();
	bool		contended = false;

	for (int i = 0; i < MAX_HOT_SPOTS; i++)
	{
		HotSpot    *spot = &Slots->hot_spots[i];

		contended |= spot->sample.contenders > 0;
		if (spot->key.kind != HOT_SPOT_NONE)
			adapt(i, now);
		memset(&spot->sample, 0, sizeof(LoadSample));
	}
	if ((int64) (now - marks_aged) >= MARKS_AGE)
	{
		marks_aged = now;
		age_marks();
	}
	return contended;
}

void
slots_end_hot_spots(void)
{
	for (int i = 0; i < MAX_HOT_SPOTS; i++)
		if (Slots->hot_spots[i].key.kind != HOT_SPOT_NONE)
			end_hot_spot(i);
}

/* How many of its keys are hot */
int
slots_count_hot_keys(int hot_spot)
{
	int			n = 0;

	for (int i = 0; i < WANTED_KEYS; i++)
		n += Slots->keys[i].hot_spot == hot_spot && is_hot(&Slots->keys[i]);
	return n;
}

/* Describe what backends queue for. */
char *
slots_describe_hot_spot(const HotSpotKey *key)
{
	const uint32 *fields = key->fields;

	if (key->kind == HOT_SPOT_RELATION)
		return psprintf("relation %u of database %u", fields[0], key->database);
	if (key->kind == HOT_SPOT_ADVISORY)
		return psprintf("advisory lock (%u, %u, %u)", fields[0], fields[1], fields[2]);
	return pstrdup(key->kind == HOT_SPOT_LONG ? "statements that take about as long" : "a hot spot that has ended");
}
