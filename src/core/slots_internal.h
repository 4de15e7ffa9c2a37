/*-------------------------------------------------------------------------
 *
 * slots_internal.h
 *		The shared memory of the semaphore, and what its files see of each
 *		other: for the files of src/core only.
 *
 * Every backend has an entry, known by its proc number, since pointers need
 * not mean the same in every process.  An entry is in one queue at a time.
 *
 * The semaphore is one 32-bit word: the number of slots in use, and a flag in
 * its highest bit.  While that is clear, a slot is acquired and released by
 * one compare-and-exchange; the flag is larger than any limit, so "usage <
 * limit" tests all of it.  Without a limit for all, no slot is counted, and a
 * backend writes nothing but its own entry.  A queue with a limit of its own,
 * that of a pool or of a hot spot, has a word of its own: a slot is counted
 * there first, then in the word for all; if that fails, the first step is taken
 * back.  Where a backend is counted is its place.  Its state names that of a
 * pool.  Its spot names that of a hot spot, which may be taken later, and kept
 * longer, than the slot.
 *
 * Locking: Slots->mutex, a spinlock, is "the lock" in comments.  slots_lock()
 * takes it; slots_unlock() releases it, and calls the next waiter if a slot is
 * free (wait_queue.c, with the bound on the work done under it).  It guards
 * all members of SlotShared, SlotPool and SlotQueue, and the key of a HotSpot,
 * whose comments name no other lock; functions that say so read one without it,
 * as a hint.  Members of SlotEntry whose comments name no lock are written by
 * their own backend, and those of HotSpot by the worker (src/worker.c), the one
 * process that samples; others read them without a lock.  Atomics are read
 * without a lock; the limits are written under the lock, the words and published
 * settings without it.  Slots->pools_lock, an LWLock taken before the lock,
 * guards the set of pools and their names.  Times are in us by monotonic_us(),
 * but for those of type TimestampTz.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SLOTS_INTERNAL_H
#define ADMISSION_GATE_SLOTS_INTERNAL_H

#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/slots.h"

#define USAGE_WAITERS	0x80000000	/* see SlotShared.usage, SlotQueue.usage */
#define USAGE_COUNT		0x7FFFFFFF	/* slots in use, lent ones left out */
#define NO_LIMIT		USAGE_COUNT /* smaller than the flag */
#define NO_PRIORITY		PG_INT32_MIN	/* next_priority: any may barge */

/*
 * Queues are known by index: those of the pools, that of long statements, and
 * those of hot spots.
 */
#define LONG_QUEUE		SLOTS_MAX_POOLS
#define SLOTS_QUEUES	(LONG_QUEUE + 1 + MAX_HOT_SPOTS)
#define NO_QUEUE		(-1)
#define DEFAULT_POOL	0

/* State and place are one word: to change one is to know what to count. */
#define STATE_MASK		0x0F
#define STATE_COUNTED	0x80	/* in SlotShared.usage */
#define PLACE_SHIFT		8

/* One backend.  The hot path writes one cache line: up to TOTAL_FAILED. */
typedef struct SlotEntry
{
	/* SlotState, STATE_COUNTED, and place in a pool: see acquire.c */
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint32 state;
	pg_atomic_uint32 spot;		/* where it has a place: a hot spot, plus 1 */
	uint16		admission;		/* another one whenever it is admitted */
	uint16		statement;		/* another one whenever it meets the gate */
	pg_atomic_uint64 since;		/* TimestampTz of the state; written with it */
	uint8		pool;			/* changed in state NONE, or under the lock */
	uint8		queue;			/* that it is in, or was in last: lock */
	uint8		hot_spot;		/* whose contender it is, plus 1; or 0;
								 * written by the worker and by itself */
	uint8		wanted_of;		/* the hot spot, plus 1, of wanted_key */
	uint8		history;		/* which of its last transactions have wanted
								 * a hot spot: a bit each */
	bool		has_wanted;		/* has the present one?  As hot_spot */
	bool		admitted_before;	/* waits in the middle of its transaction */
	bool		wakeup_pending; /* called, has not answered yet: lock */
	bool		handoff_pending;	/* granted, not awake yet: lock to set */
	bool		reserved;		/* counted in SlotShared.reserved; the lock
								 * for other processes */
	bool		keeps_slot;		/* not long, whatever it or its workers use */
	bool		is_long;		/* its statement is: lock to change */
	uint32		wanted_key;		/* what its statement wants: WantedKey.key */
	Oid			wanted_relation;	/* or what it is about to lock rows of */
	pg_atomic_uint64 own_totals[OWN_TOTALS];	/* in its pool; see
												 * drop_pool() */

	int			prev;			/* links in one of the lists: lock */
	int			next;			/* likewise */
	uint16		admission_seen; /* admission at quiet_since: lock */
	pg_atomic_uint64 last_wait; /* us */
	uint64		cpu_seen;		/* us of CPU used at quiet_since: lock */
	uint64		quiet_since;	/* it has done next to nothing since: lock */
	uint64		queued;			/* when it entered the queue: lock; a hint
								 * without */

	/* Of a long statement: see long_turns.c */
	pg_atomic_uint32 ticks;		/* of CPU time; written by signal handlers,
								 * also of its workers */
	uint64		turn_began;		/* lock */
	uint32		turn_ticks;		/* ticks at that time: lock */
	uint32		had;			/* ticks, for the order in the queue: lock */
	uint32		workers;		/* parallel ones that work for it: lock */
	ConditionVariable turn;		/* what they wait for */
} SlotEntry;

/* A list of entries, linked by proc numbers; INVALID_PROC_NUMBER if empty */
typedef struct EntryList
{
	int			head;
	int			tail;
	int			length;
} EntryList;

/* The queue of a pool or of a hot spot */
typedef struct SlotQueue
{
	/*
	 * Backends that have their place here, and USAGE_WAITERS if the queue is
	 * not empty: a cache line of its own.  The queue of a pool counts those
	 * that came while it had a limit, that of a hot spot all contenders. That
	 * of long statements counts the processes of those that have a slot, and
	 * has no flag.
	 */
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint32 usage;
	pg_atomic_uint32 limit;		/* places, or NO_LIMIT; the lock to change */
	char		padding[PG_CACHE_LINE_SIZE - 2 * sizeof(pg_atomic_uint32)];

	EntryList	waiters;
	int			last_before;	/* of those at its head that were admitted
								 * before, or INVALID_PROC_NUMBER */
	uint64		moved;			/* when a waiter last entered; or a turn of a
								 * long statement was over */
	int			stall_after;	/* as SlotShared.stall_after; of a hot spot: */
	uint32		completed;		/* HotSpot.completed at completed_seen */
	uint64		completed_seen;
	uint64		passed_over_since;	/* by higher priorities; 0 = not */
} SlotQueue;

/* A part of the backends, with the queue of the same index. */
typedef struct SlotPool
{
	bool		defined;		/* not removed; pools_lock and lock to change */
	PoolDefinition definition;	/* pools_lock and lock to change */
	int			lent;			/* entries in state LENT */
	uint64		totals[POOL_TOTALS];	/* since the reset */
	pg_atomic_uint64 max_wait;	/* us; likewise */
	pg_atomic_uint64 wait_counts[SLOTS_WAIT_BUCKETS];	/* likewise */
	pg_atomic_uint64 past_totals[OWN_TOTALS];	/* of backends that left it */
	uint64		own_baseline[OWN_TOTALS];	/* all own totals at the reset */
} SlotPool;

/* What backends contend for; its queue has the index SLOTS_MAX_POOLS and up. */
typedef struct HotSpot
{
	HotSpotKey	key;			/* HOT_SPOT_NONE = free */
	TimestampTz since;
	uint64		seen;			/* when a backend was last seen in line */
	LimitControl control;
	int			most_in_line;	/* waiting, in the queue and blocked */
	WantedRow	row;			/* as PastHotSpot.row */
	uint64		stood_still;	/* when it last did; 0 = never */
	bool		in_circles;		/* it did of late */
	pg_atomic_uint32 completed; /* transactions of contenders */
	pg_atomic_uint64 admitted;	/* how many had a place */
	pg_atomic_uint64 wait_time; /* us, in the queue */
} HotSpot;

/* What statements want of a hot spot: see hot_spots.c; written by the worker */
#define WANTED_KEYS		1024
typedef struct WantedKey
{
	uint32		key;			/* a hash: see src/wanted.c */
	uint8		hot_spot;		/* index */
	uint8		mark;			/* how hot it is; 0 = cold */
	uint16		offset;			/* of a row that it was seen in line for; 0 =
								 * unknown */
	uint32		block;			/* likewise */
} WantedKey;

typedef struct SlotShared
{
	/* Read by every statement, but seldom written: a line of their own. */
	pg_atomic_uint32 limit;		/* slots, or NO_LIMIT; the lock to change */
	pg_atomic_uint32 generation;	/* of the pools: goes up with every change */
	pg_atomic_uint32 hot_kinds; /* bits by HotSpotKind: the lock to change */
	pg_atomic_uint32 handoff_after; /* ms; 0 = strictly first come */
	pg_atomic_uint32 lend_after;	/* ms as int; -1 = never */
	pg_atomic_uint32 long_after;	/* ms of CPU time as int; -1 = never */
	int			max_active;		/* see SETTING_MAX_ACTIVE; a hint without lock */
	bool		observing;		/* likewise */
	bool		hot_spots_on;	/* likewise */

	/*
	 * Slots in use, and USAGE_WAITERS if a backend waits whose queue has a
	 * place free.  Written by every statement while there is a limit.
	 */
				pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint32 usage;

				pg_attribute_aligned(PG_CACHE_LINE_SIZE) slock_t mutex;
	uint64		waiting[(SLOTS_QUEUES + 63) / 64];	/* the queues with waiters */
	pg_atomic_uint32 handoffs_in_flight;	/* backends with handoff_pending */
	uint64		last_handoff;	/* when a slot given back was granted last */
	int			lent;			/* entries in state LENT; a hint without lock */
	uint64		moved;			/* when a waiter last entered: see lending.c */
	int			stall_after;	/* ms until one enters; 0 = as at first */
	uint64		short_waited;	/* when a statement that is not long last
								 * waited for a slot */
	uint32		long_had;		/* SlotEntry.had of the last long one granted */
	int			cpus;			/* usable ones; 0 = unknown */
	bool		long_needed;	/* others may wait for what long ones hold */
	pg_atomic_uint32 next_priority; /* int32; lower ones do not barge */
	pg_atomic_uint32 unknown_logged;	/* generation, of the last log line */
	int			worker;			/* proc number, or INVALID_PROC_NUMBER */
	bool		worker_dozes;	/* it is to be called when a backend queues */
	pg_atomic_uint32 reserved;	/* slots of the reserve in use */
	pg_atomic_uint32 attached;	/* goes up when a backend comes to the gate
								 * for the first time */
	WorkerStats worker_stats;	/* a hint without the lock */
	uint64		sampled;		/* when it last did: likewise */
	uint64		keys_aged;		/* when marks were last lowered: the worker */
	WantedKey	keys[WANTED_KEYS];

	LWLock	   *pools_lock;
	TimestampTz stats_reset;	/* pools_lock */
	int			npools;			/* indexes below this have been used */
	SlotPool	pools[SLOTS_MAX_POOLS];
	HotSpot		hot_spots[MAX_HOT_SPOTS];
	uint64		past_first;		/* number of the first one since the reset */
	uint64		past_next;		/* number of the next one to end */
	PastHotSpot past_hot_spots[MAX_PAST_HOT_SPOTS]; /* by number, modulo that */
	SlotQueue	queues[SLOTS_QUEUES];
	SlotEntry	entries[FLEXIBLE_ARRAY_MEMBER];
} SlotShared;

extern GATE_HIDDEN SlotShared *Slots;

/* This backend's entry, once it has come to the gate */
extern GATE_HIDDEN SlotEntry *MySlotEntry;

/* What this backend knows of its pool, as of that generation */
typedef struct MyPool
{
	uint32		generation;
	bool		has_limit;
	int			priority;
} MyPool;

extern GATE_HIDDEN MyPool my_pool;

static inline SlotEntry *
entry_of(int procno)
{
	Assert(procno >= 0 && procno < MaxBackends);
	return &Slots->entries[procno];
}

static inline SlotPool *
pool_of(const SlotEntry *entry)
{
	Assert(entry->pool < SLOTS_MAX_POOLS);
	return &Slots->pools[entry->pool];
}

static inline SlotQueue *
queue_at(int queue)
{
	Assert(queue >= 0 && queue < SLOTS_QUEUES);
	return &Slots->queues[queue];
}

static inline bool
is_of_hot_spot(int queue)
{
	return queue > LONG_QUEUE;
}

static inline int
slots_hot_spot_queue(int hot_spot)
{
	return LONG_QUEUE + 1 + hot_spot;
}

static inline HotSpot *
hot_spot_at(int queue)
{
	Assert(is_of_hot_spot(queue));
	return &Slots->hot_spots[queue - LONG_QUEUE - 1];
}

static inline SlotState
state_in(uint32 word)
{
	return (SlotState) (word & STATE_MASK);
}

/* The state of an entry.  A hint, unless it is this backend's own. */
static inline SlotState
state_of(SlotEntry *entry)
{
	return state_in(pg_atomic_read_u32(&entry->state));
}

static inline int
place_in(uint32 word)
{
	return (int) (word >> PLACE_SHIFT) - 1;
}

/* What a backend is counted for */
typedef struct Hold
{
	bool		counted;		/* in SlotShared.usage */
	int			place;			/* the queue where it is, or NO_QUEUE */
} Hold;

/* The state of a backend that has that */
static inline uint32
state_with(SlotState state, const Hold *hold)
{
	int			pool = is_of_hot_spot(hold->place) ? NO_QUEUE : hold->place;

	return (uint32) state | (hold->counted ? STATE_COUNTED : 0) |
		(uint32) (pool + 1) << PLACE_SHIFT;
}

/* Add to a total of this backend.  There is no other writer. */
static inline void
add_to_own(OwnTotal total, uint64 n)
{
	pg_atomic_uint64 *counter = &MySlotEntry->own_totals[total];

	pg_atomic_write_u64(counter, pg_atomic_read_u64(counter) + n);
}

static inline uint32
slots_in_use(void)
{
	return pg_atomic_read_u32(&Slots->usage) & USAGE_COUNT;
}

/* Does a backend wait that could have a free slot? */
static inline bool
waiters_flag_is_set(void)
{
	return (pg_atomic_read_u32(&Slots->usage) & USAGE_WAITERS) != 0;
}

/* Is there a limit for all pools together? */
static inline bool
slots_are_limited(void)
{
	return pg_atomic_read_u32(&Slots->limit) != NO_LIMIT;
}

static inline bool
slot_is_free(void)
{
	return slots_in_use() < pg_atomic_read_u32(&Slots->limit);
}

static inline bool
queue_has_limit(int queue)
{
	return pg_atomic_read_u32(&queue_at(queue)->limit) != NO_LIMIT;
}

static inline uint32
places_in_use(int queue)
{
	return pg_atomic_read_u32(&queue_at(queue)->usage) & USAGE_COUNT;
}

static inline bool
queue_has_place_free(int queue)
{
	return places_in_use(queue) < pg_atomic_read_u32(&queue_at(queue)->limit);
}

/* Have interval ms passed since then?  now may have been read before then. */
static inline bool
passed_since(uint64 then, int interval, uint64 now)
{
	return (int64) (now - then) >= interval * INT64CONST(1000);
}

/* Raise a count if it is below the limit; with barge, whatever the flags say. */
static inline bool
count_up_if_free(pg_atomic_uint32 *usage, pg_atomic_uint32 *limit, bool barge)
{
	uint32		old = pg_atomic_read_u32(usage);

	while ((barge ? old & USAGE_COUNT : old) < pg_atomic_read_u32(limit))
		if (pg_atomic_compare_exchange_u32(usage, &old, old + 1))
			return true;
	return false;
}

/* Does it count its backends?  Only that of a pool without a limit does not. */
static inline bool
queue_counts(int queue)
{
	return queue >= LONG_QUEUE || queue_has_limit(queue);
}

/* Count a place, if that queue counts.  Returns false if none is free. */
static inline bool
count_place_if_free(int queue, bool barge, int *place)
{
	*place = NO_QUEUE;
	if (!queue_counts(queue))
		return true;
	if (!count_up_if_free(&queue_at(queue)->usage, &queue_at(queue)->limit, barge))
		return false;
	*place = queue;
	return true;
}

/* The same, above the limit if need be: returns the place. */
static inline int
count_place(int queue)
{
	if (!queue_counts(queue))
		return NO_QUEUE;
	pg_atomic_fetch_add_u32(&queue_at(queue)->usage, 1);
	return queue;
}

/*
 * Release a place, if there is one.  Returns true if that queue has waiters: a
 * caller without the lock must then take and release it, to call one.
 */
static inline bool
count_place_out(int place)
{
	uint32		usage;

	if (likely(place == NO_QUEUE))
		return false;
	usage = pg_atomic_fetch_sub_u32(&queue_at(place)->usage, 1);
	Assert((usage & USAGE_COUNT) > 0);
	return (usage & USAGE_WAITERS) != 0;
}

/* A backend has been counted in that place. */
static inline void
note_place_taken(int place)
{
	if (is_of_hot_spot(place))
		pg_atomic_fetch_add_u64(&hot_spot_at(place)->admitted, 1);
}

/* Count a slot, if slots are limited.  Returns false if none is free. */
static inline bool
count_slot_if_free(bool barge, bool *counted)
{
	*counted = slots_are_limited();
	return likely(!*counted) || count_up_if_free(&Slots->usage, &Slots->limit, barge);
}

/* The same, above the limit if need be: returns whether it was counted. */
static inline bool
count_slot(void)
{
	bool		counted = slots_are_limited();

	if (counted)
		pg_atomic_fetch_add_u32(&Slots->usage, 1);
	return counted;
}

/* Count a slot in that queue and in all, if both have one free.  Lock held. */
static inline bool
count_in_if_free(int queue, Hold *hold)
{
	if (!count_place_if_free(queue, true, &hold->place))
		return false;
	if (count_slot_if_free(true, &hold->counted))
		return true;
	(void) count_place_out(hold->place);
	return false;
}

/* The same, above the limits if need be; without the lock, too. */
static inline Hold
count_in(int queue)
{
	Hold		hold;

	hold.place = count_place(queue);
	hold.counted = count_slot();
	return hold;
}

/* Lock held. */
static inline void
count_out(const Hold *hold)
{
	(void) count_place_out(hold->place);
	if (hold->counted)
		pg_atomic_fetch_sub_u32(&Slots->usage, 1);
}

/* What an entry has by its state: no place at a hot spot */
static inline Hold
hold_in(uint32 word)
{
	Hold		hold;

	hold.counted = (word & STATE_COUNTED) != 0;
	hold.place = place_in(word);
	return hold;
}

/* What SlotEntry.spot is with that place of a hot spot, or NO_QUEUE; and back */
static inline uint32
spot_of(int place)
{
	return place == NO_QUEUE ? 0 : (uint32) (place - LONG_QUEUE);
}

static inline int
place_of(uint32 spot)
{
	return spot == 0 ? NO_QUEUE : slots_hot_spot_queue((int) spot - 1);
}

/* Put a place at a hot spot, or NO_QUEUE, into an entry.  Returns the former one. */
static inline int
exchange_spot(SlotEntry *entry, int place)
{
	return place_of(pg_atomic_exchange_u32(&entry->spot, spot_of(place)));
}

static inline int
take_spot(SlotEntry *entry)
{
	return exchange_spot(entry, NO_QUEUE);
}

/* Has it one?  A hint, unless it is this backend's own. */
static inline bool
has_spot(SlotEntry *entry)
{
	return pg_atomic_read_u32(&entry->spot) != 0;
}

/* An entry that had a slot of the reserve has it no more. */
static inline void
leave_reserve(SlotEntry *entry)
{
	if (likely(!entry->reserved))
		return;
	entry->reserved = false;
	pg_atomic_fetch_sub_u32(&Slots->reserved, 1);
}

/* ---- Long statements ---- */

#define LONG_SLOTS		4		/* their share: one in so many slots, and */
#define LONG_CPUS		2		/* one in so many CPUs, if that is less */
#define LONGEST_TURN	1000	/* ms, for one that mostly waits for disks */
#define SPARE_AFTER		100		/* ms */

/* How many processes of long statements may work while others wait? */
static inline int
long_share(void)
{
	int			limit = pg_atomic_read_u32(&Slots->limit);

	return limit == 1 ? 0 : Max(Min(limit / LONG_SLOTS, Slots->cpus / LONG_CPUS), 1);
}

/* As how many processes does a long statement count? */
static inline int
long_weight(const SlotEntry *entry)
{
	return 1 + (int) entry->workers;
}

/* Can this holder have a long statement that waits?  Lock held, or a hint. */
static inline bool
long_may_wait(SlotEntry *entry)
{
	/* The leader of a worker may be a background worker, which has no slot. */
	return state_of(entry) != SLOT_NONE && (int) pg_atomic_read_u32(&Slots->long_after) >= 0 &&
		slots_are_limited() && !Slots->observing &&
		!entry->keeps_slot && !entry->admitted_before &&
		entry->pool == DEFAULT_POOL && !queue_has_limit(DEFAULT_POOL);
}

/* A long statement begins, or ends, to work with a slot.  Lock held. */
static inline void
count_turn(const SlotEntry *entry)
{
	pg_atomic_fetch_add_u32(&queue_at(LONG_QUEUE)->usage, long_weight(entry));
}

static inline void
count_turn_out(const SlotEntry *entry)
{
	pg_atomic_fetch_sub_u32(&queue_at(LONG_QUEUE)->usage, long_weight(entry));
}

/* Does its long statement wait?  Lock held, or a hint. */
static inline bool
is_paused(SlotEntry *entry)
{
	return state_of(entry) == SLOT_WAITING && *(volatile uint8 *) &entry->queue == LONG_QUEUE;
}

/*
 * A waiter that is granted a slot, the next, the worker, and up to MAX_AT_ONCE of
 * those admitted before and of long statements
 */
#define MAX_AT_ONCE	4
#define MAX_WAKEUPS	(3 + 2 * MAX_AT_ONCE)

/* One critical section */
typedef struct LockedSection
{
	uint64		now;			/* just before it began */
	TimestampTz timestamp;		/* the same, for the views */
	int			nwakeups;
	int			wakeups[MAX_WAKEUPS];	/* whose latches to set after it */
} LockedSection;

/* wait_queue.c */
extern void slots_lock(LockedSection *section);
extern void slots_unlock(LockedSection *section);
extern void slots_wake_later(LockedSection *section, int procno);
extern void slots_call_worker(LockedSection *section);
extern void slots_list_append(EntryList *list, int procno);
extern void slots_list_remove(EntryList *list, int procno);
extern int	slots_next_queue(int queue);
extern int	slots_next_waiter(uint64 now);
extern int	slots_priority_of(int next, uint64 now);
extern bool slots_is_its_turn(int procno, uint64 now);
extern void slots_queue_append(int procno, LockedSection *section);
extern void slots_queue_remove(int procno);
extern void slots_queue_move(int procno, int to);
extern void slots_begin_turn(SlotEntry *entry, uint64 now);
extern void slots_end_pause(SlotEntry *entry, uint64 now);
extern void slots_make_holder(int procno, const Hold *hold, LockedSection *section);
extern void slots_grant_above_limit(int procno, LockedSection *section);
extern void slots_grant_free(void);
extern void slots_hand_off(SlotEntry *holder, const Hold *had, LockedSection *section);

/* stats.c, pools.c, lending.c, hot_spots.c */
extern void slots_keep_totals(SlotEntry *entry);
extern void slots_start_totals(int first, int last);
extern void slots_join_pool(void);
extern void slots_note_lender(SlotPool *pool);
extern void slots_forget_lending(void);
extern void slots_end_hot_spots(void);
extern void slots_forget_past_hot_spots(void);
extern void slots_return_place(int place);

#endif							/* ADMISSION_GATE_SLOTS_INTERNAL_H */
