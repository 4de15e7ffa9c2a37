/*-------------------------------------------------------------------------
 *
 * slots_internal.h
 *		The shared memory of the core, and what its files see of each other.
 *		Only files of src/core include it.
 *
 * Each backend has an entry, indexed by proc number, in at most one queue.
 *
 * The semaphore is one 32-bit word: the number of slots in use, and the
 * waiters' flag in the highest bit.  While the flag is clear, one
 * compare-and-exchange acquires or releases a slot.  The flag exceeds any
 * limit, so "usage < limit" tests both.  Without a limit for all, slots are
 * not counted.  A queue with a limit of its own, of a pool or a hot spot, has
 * its own word: a backend is counted there first, then in the word for all.
 * What is counted there is its place.  The entry's state names a place in a
 * pool; its "place", one at a hot spot, which it may take later than the slot.
 *
 * Locking: "the lock" in comments is Slots->mutex, a spinlock, taken by
 * slots_lock().  Slots->pools_lock, an LWLock, is taken before it.
 *
 *	what								guarded by			written by
 *	----------------------------------	------------------	------------------
 *	usage words, and other atomics		nothing				any process
 *	 where nothing else is said
 *	limits, settings, generation,		the lock, to write	any; the worker
 *	 hot_kinds, next_priority
 *	the set of pools, their names		pools_lock			the worker
 *	other definitions of pools			both, to write		the worker
 *	SlotShared, SlotQueue, SlotPool,	the lock			any process
 *	 where nothing else is said
 *	SlotEntry: state, since				see acquire.c		see acquire.c
 *	 place								nothing				see acquire.c
 *	 what says "lock"					the lock			any process
 *	 hot_spot, has_wanted, seems_long	nothing				its backend, worker
 *	 is_away							nothing				the worker
 *	 the others, but workers_time		nothing				its backend
 *	HotSpot: key, but for its row		the lock			the worker
 *	 atomics							nothing				any process
 *	 the others							nothing				the worker
 *	WantedKey, but for its counts		nothing				the worker
 *	KnownStatements						its mutex			any process
 *
 * What nothing guards, and what is read without its lock, is a hint to other
 * processes than its writer.  Times are in us by monotonic_us(), except
 * TimestampTz.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SLOTS_INTERNAL_H
#define ADMISSION_GATE_SLOTS_INTERNAL_H

#include "postgres.h"

#include "lib/ilist.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/slots.h"

/* A usage word: of SlotShared for slots, of SlotQueue for places */
#define USAGE_WAITERS	0x80000000	/* backends wait; exceeds NO_LIMIT */
#define USAGE_COUNT		0x7FFFFFFF	/* in use */
#define NO_PRIORITY		PG_INT32_MIN	/* next_priority: any may barge */

/* Queues by index: those of pools, of hot spots, of long statements */
#define SLOTS_QUEUES	(SLOTS_MAX_POOLS + MAX_HOT_SPOTS + LONG_CLASSES)
#define NO_QUEUE		(-1)
#define DEFAULT_POOL	0

#define FIRST_US_PER_COST	5.0F	/* see expected.c */

/* SlotEntry.state: one exchange tells what to count out. */
#define STATE_MASK		0x0F	/* SlotState */
#define STATE_COUNTED	0x80	/* in SlotShared.usage */
#define POOL_SHIFT		8		/* place in a pool, plus 1 */

/* One backend.  The hot path writes one cache line: up to TOTAL_FAILED. */
typedef struct SlotEntry
{
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint32 state;
	pg_atomic_uint32 place;		/* at a hot spot: see place_of() */
	bool		is_away;		/* a holder, not at work at the last sample;
								 * written by the worker */
	uint16		statement;		/* changes with every statement */
	pg_atomic_uint64 since;		/* TimestampTz of the state; written with it */
	uint8		pool;			/* changed in state NONE, under the lock */
	uint8		queue;			/* its present or last one: lock */
	uint8		hot_spot;		/* that it contends for, plus 1; or 0 */
	uint8		wanted_of;		/* the hot spot, plus 1, of wanted_key, or all */
	uint8		hidden_of;		/* one, plus 1, of which its transaction hides
								 * what it wants */
	uint8		history;		/* did its last transactions want one? */
	bool		has_wanted;		/* did the present one? */
	bool		has_habit;		/* its next transaction queues at BEGIN */
	bool		needs_only_place;	/* waits in the middle of its transaction */
	bool		wakeup_pending; /* called, not answered yet: lock */
	bool		handoff_pending;	/* granted, not awake yet: lock to set */
	bool		grant_pending;	/* the same, without a hand-off, too: likewise */
	bool		reserved;		/* of the reserve; lock for others */
	bool		seems_long;		/* a sample has seen it at work for long: the
								 * worker sets it, its backend clears it */
	uint32		wanted_key;		/* what its statement wants: WantedKey.key */
	uint32		wanted_shape;	/* how that statement names it: one bit */
	Oid			wanted_relation;	/* whose rows it is about to lock */
	pg_atomic_uint64 totals[SLOT_TOTALS];	/* in its pool: see pools.c */

	dlist_node	link;			/* in a queue: lock */
	pg_atomic_uint64 last_wait; /* us */
	uint64		queued;			/* its ticket: when it, or who had the ticket
								 * first, entered the queue: lock */
	uint64		arrived;		/* when it entered the queue: lock */
	uint64		patience;		/* us after which a time-out of its own ends
								 * the wait; 0 = none does: lock */
	uint64		client_patience;	/* us after which its client may give up,
									 * as others did; 0 = unknown: lock */
	bool		holds_locks;	/* or may, in the middle of its transaction:
								 * lock */
	bool		is_awaited;		/* others wait for what it holds: lock */
	dlist_node	impatient_link; /* in SlotQueue.impatient: lock */
	volatile uint64 expected;	/* CPU time of its statement if that is long,
								 * us */
	pg_atomic_uint64 workers_time;	/* used by its parallel workers, us */
} SlotEntry;

/* The queue of a pool or of a hot spot */
typedef struct SlotQueue
{
	/*
	 * Places in use, on a cache line of their own.  A pool's queue counts
	 * only while the pool has a limit.
	 */
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint32 usage;
	pg_atomic_uint32 limit;		/* places, or NO_LIMIT; the lock to change */
	char		padding[PG_CACHE_LINE_SIZE - 2 * sizeof(pg_atomic_uint32)];

	dlist_head	waiters;
	dlist_head	impatient;		/* of these, those with patience, as they came */
	int			nwaiters;
	bool		is_odd_turn;	/* changes whenever one enters */
	dlist_node *last_awaited;	/* the last with is_awaited, or the head */
	dlist_node *last_before;	/* none with holds_locks is behind this one;
								 * or the head */
	uint64		given_up_after; /* by clients, lately, us: see
								 * slots_note_client() */
	uint64		given_up;		/* when one last did */
	int			clients;		/* that have, since none had for a while */
	uint64		moved;			/* when a waiter last entered, or the like */
	int			stall;			/* ms: see at_work.c; 0 = a short one */
	uint64		passed_over_since;	/* by higher priorities; 0 = not */
} SlotQueue;

/* The queue of a pool has the same index. */
typedef struct SlotPool
{
	bool		defined;		/* not removed; pools_lock and lock to change */
	PoolDefinition definition;	/* pools_lock and lock to change */
	uint64		totals[SLOT_TOTALS];	/* of backends that left, and stalls */
	uint64		baseline[SLOT_TOTALS];	/* all totals at the reset: pools_lock */
	pg_atomic_uint64 max_wait;	/* us, since the reset */
	pg_atomic_uint64 wait_counts[SLOTS_WAIT_BUCKETS];	/* likewise */
} SlotPool;

/*
 * Its queue: see slots_hot_spot_queue().  Long statements have one for each
 * LONG_CLASSES, with a control of their own: see long_queues.c.
 */
typedef struct HotSpot
{
	HotSpotKey	key;			/* HOT_SPOT_NONE = free; its row: a hint */
	TimestampTz since;
	uint64		seen;			/* when a backend was last seen in line */
	LoadSample	sample;			/* that is being taken */
	LimitControl control;
	int			most_in_line;	/* queued and blocked ones */
	uint32		shapes;			/* of statements in line */
	uint32		circles;		/* these are all hot after a standstill, */
	uint64		circles_until;	/* until then: see hot_spots.c */
	uint32		jammed;			/* circles, if more work than have places */
	uint32		completed_seen; /* of these: see at_work.c */
	pg_atomic_uint32 completed; /* transactions of contenders */
	pg_atomic_uint32 passed;	/* that waited for a lock, but did not queue */
	pg_atomic_uint64 admitted;	/* places taken */
	pg_atomic_uint64 wait_time; /* us, in the queue */
} HotSpot;

/* A hot spot that has ended */
typedef struct PastHotSpot
{
	HotSpotKey	key;
	TimestampTz since;
	TimestampTz ended;
	int			most_in_line;
	uint64		admitted;
	uint64		wait_time;
} PastHotSpot;

/*
 * What statements want of a hot spot: see hot_spots.c; written by the worker,
 * except the counts
 */
#define WANTED_KEYS		1024
typedef struct WantedKey
{
	uint32		key;			/* a hash: see src/wanted.c */
	uint8		hot_spot;		/* index */
	uint8		mark;			/* how often it was seen in line, lately */
	pg_atomic_uint32 ended;		/* transactions that named it, lately */
	pg_atomic_uint32 confirmed; /* of these, the ones that waited for a lock,
								 * or wrote behind the queue */
} WantedKey;

/* How much CPU time statements have used: see expected.c */
#define KNOWN_STATEMENTS	4096
typedef struct KnownStatement
{
	uint64		key;			/* 0 = free */
	float		used;			/* log2 of us, a moving mean */
	uint32		seen;			/* KnownStatements.seen when last looked at */
} KnownStatement;

typedef struct KnownStatements
{
	slock_t		mutex;			/* guards the others */
	uint32		seen;
	float		per_cost;		/* log2 of us_per_cost / FIRST_US_PER_COST */
	KnownStatement statements[KNOWN_STATEMENTS];
} KnownStatements;

/* What the worker has done since it started */
typedef struct WorkerStats
{
	TimestampTz started;
	TimestampTz sampled;		/* when it took the last sample */
	uint64		samples;
	uint64		sample_time;	/* us */
} WorkerStats;

typedef struct SlotShared
{
	/* Read by every statement, seldom written: a cache line of their own */
	pg_atomic_uint32 limit;		/* slots, or NO_LIMIT; the lock to change */
	pg_atomic_uint32 generation;	/* of the pools: goes up with every change */
	pg_atomic_uint32 hot_kinds; /* bits by HotSpotKind: the lock to change */
	SlotSettings settings;		/* a hint without lock */
	float		us_per_cost;	/* CPU time: see expected.c; no lock */

	/* While there is a limit, every statement writes it. */
				pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint32 usage;

				pg_attribute_aligned(PG_CACHE_LINE_SIZE) slock_t mutex;
	uint64		now;			/* when it was last taken, or just before */
	TimestampTz timestamp;		/* likewise */
	uint64		waiting[(SLOTS_QUEUES + 63) / 64];	/* queues with waiters */
	pg_atomic_uint32 handoffs_in_flight;	/* backends with handoff_pending */
	uint64		last_handoff;
	int			max_active;		/* as in the settings; with -1, cpu_limit
								 * while there is one */
	uint32		cpu_limit;		/* see cpu_limit.c; 0 = none */
	TimestampTz cpu_limit_since;
	int			cpus;			/* usable ones; 0 = unknown */
	pg_atomic_uint32 next_priority; /* int32; lower ones do not barge */
	pg_atomic_uint32 unknown_logged;	/* generation at the last warning */
	int			worker;			/* proc number, or INVALID_PROC_NUMBER */
	bool		worker_dozes;	/* call it when a backend queues */
	pg_atomic_uint32 reserved;	/* slots of the reserve in use */
	pg_atomic_uint32 overdue;	/* see CpuSample */
	pg_atomic_uint32 nearly_overdue;	/* likewise */
	pg_atomic_uint32 attached;	/* backends that have met the gate so far */
	WorkerStats worker_stats;
	uint64		sampled;		/* last sample; a hint without lock */
	WantedKey	keys[WANTED_KEYS];
	pg_atomic_uint32 surprises[SURPRISES / 32]; /* bits: see expected.c */
	KnownStatements known;

	LWLock	   *pools_lock;
	TimestampTz stats_reset;	/* pools_lock */
	int			npools;			/* indexes below this have been used */
	SlotPool	pools[SLOTS_MAX_POOLS];
	HotSpot		hot_spots[MAX_HOT_SPOTS + LONG_CLASSES];
	int			npast;			/* hot spots that have ended since the reset */
	PastHotSpot past_hot_spots[MAX_PAST_HOT_SPOTS]; /* a ring */
	SlotQueue	queues[SLOTS_QUEUES];
	SlotEntry	entries[FLEXIBLE_ARRAY_MEMBER];
} SlotShared;

extern GATE_HIDDEN SlotShared *Slots;

/* This backend's entry; NULL until it meets the gate */
extern GATE_HIDDEN SlotEntry *MySlotEntry;

/* What this backend knows of its pool, as of that generation */
typedef struct MyPool
{
	uint32		generation;
	bool		has_limit;
} MyPool;

extern GATE_HIDDEN MyPool my_pool;

/* Is the gate off, or does it only observe? */
static inline bool
none_may_queue(void)
{
	return Slots->settings.max_active == 0 || Slots->settings.observing;
}

static inline SlotEntry *
entry_of(int procno)
{
	Assert(procno >= 0 && procno < MaxBackends);
	return &Slots->entries[procno];
}

static inline int
procno_of(const SlotEntry *entry)
{
	return entry - Slots->entries;
}

static inline SlotPool *
pool_of(const SlotEntry *entry)
{
	return &Slots->pools[entry->pool];
}

static inline SlotQueue *
queue_at(int queue)
{
	Assert(queue >= 0 && queue < SLOTS_QUEUES);
	return &Slots->queues[queue];
}

/* The first waiter, or NULL.  Lock held. */
static inline SlotEntry *
first_waiter(int queue)
{
	return queue_at(queue)->nwaiters == 0 ? NULL :
		dlist_head_element(SlotEntry, link, &queue_at(queue)->waiters);
}

static inline bool
is_of_hot_spot(int queue)
{
	return queue >= SLOTS_MAX_POOLS;
}

static inline int
slots_hot_spot_queue(int hot_spot)
{
	return SLOTS_MAX_POOLS + hot_spot;
}

static inline bool
is_of_long(int queue)
{
	return queue >= SLOTS_MAX_POOLS + MAX_HOT_SPOTS;
}

static inline HotSpot *
hot_spot_at(int queue)
{
	Assert(is_of_hot_spot(queue));
	return &Slots->hot_spots[queue - SLOTS_MAX_POOLS];
}

static inline SlotState
state_in(uint32 word)
{
	return (SlotState) (word & STATE_MASK);
}

/* A hint, unless the entry is this backend's own. */
static inline SlotState
state_of(SlotEntry *entry)
{
	return state_in(pg_atomic_read_u32(&entry->state));
}

static inline int
pool_in(uint32 word)
{
	return (int) (word >> POOL_SHIFT) - 1;
}

/* What a backend is counted for */
typedef struct Hold
{
	bool		counted;		/* in SlotShared.usage */
	int			place;			/* a queue, or NO_QUEUE */
} Hold;

/* The state word of a backend with this hold */
static inline uint32
state_with(SlotState state, const Hold *hold)
{
	int			pool = is_of_hot_spot(hold->place) ? NO_QUEUE : hold->place;

	return (uint32) state | (hold->counted ? STATE_COUNTED : 0) |
		(uint32) (pool + 1) << POOL_SHIFT;
}

/* Add to a total of this backend, which is the only writer. */
static inline void
add_to_own(SlotTotal total, uint64 n)
{
	pg_atomic_uint64 *counter = &MySlotEntry->totals[total];

	pg_atomic_write_u64(counter, pg_atomic_read_u64(counter) + n);
}

static inline uint32
slots_in_use(void)
{
	return pg_atomic_read_u32(&Slots->usage) & USAGE_COUNT;
}

static inline bool
waiters_flag_is_set(void)
{
	return (pg_atomic_read_u32(&Slots->usage) & USAGE_WAITERS) != 0;
}

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

/* Have interval ms passed since then? now may be earlier than then. */
static inline bool
passed_since(uint64 then, int interval, uint64 now)
{
	return (int64) (now - then) >= interval * INT64CONST(1000);
}

/* When to count a backend */
typedef enum CountWhen
{
	COUNT_IF_NONE_WAITS,		/* and one is free */
	COUNT_IF_FREE,
	COUNT_ALWAYS				/* above the limit if necessary */
} CountWhen;

/* Raise a count.  Returns false if it may not be raised now. */
static inline bool
count_up(pg_atomic_uint32 *usage, uint32 limit, CountWhen when)
{
	uint32		old = pg_atomic_read_u32(usage);

	while (when == COUNT_ALWAYS ||
		   (when == COUNT_IF_FREE ? old & USAGE_COUNT : old) < limit)
		if (pg_atomic_compare_exchange_u32(usage, &old, old + 1))
			return true;
	return false;
}

/* Count a place, unless a pool has no limit.  Returns false if none is free. */
static inline bool
count_place(int queue, CountWhen when, int *place)
{
	*place = NO_QUEUE;
	if (!is_of_hot_spot(queue) && !queue_has_limit(queue))
		return true;
	if (!count_up(&queue_at(queue)->usage, pg_atomic_read_u32(&queue_at(queue)->limit), when))
		return false;
	*place = queue;
	return true;
}

/*
 * Count a place out, if it is one.  Returns true if the queue has waiters: a
 * caller without the lock must take and release it then.
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

/* Count a slot, if slots are limited.  Returns false if none is free. */
static inline bool
count_slot(CountWhen when, bool *counted)
{
	*counted = slots_are_limited();
	return likely(!*counted) ||
		count_up(&Slots->usage, pg_atomic_read_u32(&Slots->limit), when);
}

/* Count both, or none.  Lock held. */
static inline bool
count_in(int queue, CountWhen when, Hold *hold)
{
	if (!count_place(queue, when, &hold->place))
		return false;
	if (count_slot(when, &hold->counted))
		return true;
	(void) count_place_out(hold->place);
	return false;
}

/* Its place at a hot spot, or NO_QUEUE.  A hint, unless it is our own. */
static inline int
place_of(SlotEntry *entry)
{
	return (int) pg_atomic_read_u32(&entry->place);
}

static inline bool
is_at_hot_spot(SlotEntry *entry)
{
	return place_of(entry) != NO_QUEUE;
}

/* Take it from the entry, to count it out. */
static inline int
take_place(SlotEntry *entry)
{
	return (int) pg_atomic_exchange_u32(&entry->place, NO_QUEUE);
}

/* Record the place for which an entry was counted, if that is at a hot spot. */
static inline void
slots_occupy(SlotEntry *entry, int place)
{
	if (likely(!is_of_hot_spot(place)))
		return;
	Assert(!is_at_hot_spot(entry));
	pg_atomic_fetch_add_u64(&hot_spot_at(place)->admitted, 1);
	pg_atomic_write_u32(&entry->place, place);
}

/* Return the entry's slot of the reserve, if it has one. */
static inline void
leave_reserve(SlotEntry *entry)
{
	if (unlikely(entry->reserved))
		pg_atomic_fetch_sub_u32(&Slots->reserved, 1);
	entry->reserved = false;
}

/* Can statements queue for this kind? */
static inline bool
has_queue(HotSpotKind kind)
{
	return kind == HOT_SPOT_RELATION || kind == HOT_SPOT_ADVISORY;
}

/* wait_queue.c */
extern void slots_lock(void);
extern void slots_unlock(void);
extern void slots_call_worker(void);
extern int	slots_next_queue(int queue);
extern SlotEntry *slots_next_waiter(void);
extern int	slots_priority_of(const SlotEntry *next);
extern void slots_set_max_active(void);
extern bool slots_is_its_turn(SlotEntry *entry);
extern void slots_note_client(const SlotEntry *entry, uint64 after);
extern void slots_queue_append(SlotEntry *entry);
extern void slots_queue_first(SlotEntry *entry);
extern void slots_queue_remove(SlotEntry *entry);
extern void slots_make_holder(SlotEntry *entry, const Hold *hold);
extern void slots_grant_above_limit(SlotEntry *entry);
extern void slots_grant_free(void);
extern void slots_hand_off(const Hold *had);

/* pools.c, hot_spots.c */
extern void slots_sum_totals(int pool, uint64 sums[SLOT_TOTALS]);
extern uint64 slots_sum_total(SlotTotal total);
extern void slots_start_totals(int index);
extern bool slots_pool_is_in_use(int index);
extern void slots_join_pool(void);
extern void slots_withdraw_place(SlotEntry *entry, int place);
extern void slots_end_hot_spots(void);
extern int	slots_count_hot_keys(int hot_spot);
extern void slots_count_wanted(void);
extern void slots_return_place(int place);

#endif							/* ADMISSION_GATE_SLOTS_INTERNAL_H */
