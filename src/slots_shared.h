/*-------------------------------------------------------------------------
 *
 * slots_shared.h
 *		What the files of the semaphore share, and nobody else sees: the
 *		layout of its shared memory, and small steps on it.
 *
 * slots.c has the semaphore, slots_queue.c its queues, slots_turns.c the slots
 * retained between two transactions, slots_lending.c those that are lent,
 * slots_long.c those that long statements give up, slots_contention.c lowers the limit
 * while holders wait for each other, slots_stall.c
 * is the last resort of queues that stand still, slots_pools.c sets limits and
 * pools, slots_stats.c counts.  The protocol, and who changes which
 * state of an entry, is told at the top of slots.c.
 *
 * Locking: Slots->mutex, a spinlock held for a few instructions, guards the
 * queues, the retained list, long statements, the time of the last inheritance, the watcher,
 * the lenders' numbers, the stall clocks, the limits as set (of that for all, a hint without it),
 * whether they are only observed, the law of the limit and its changes, and the totals
 * kept in the pools.  The words
 * and the effective limits are atomics, read by all; the effective limits are
 * written under it.  So are the histograms of waits and the times per place,
 * written at the end of a wait only.  Slots->pools_lock, an LWLock taken
 * before the mutex, guards which pools there are and their names.  Everything
 * else in an entry is written by its owner alone unless the member says
 * otherwise; others may read it at any time.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SLOTS_SHARED_H
#define ADMISSION_GATE_SLOTS_SHARED_H

#include "postgres.h"

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/spin.h"

#include "limit_law.h"
#include "pools.h"
#include "slots.h"

#define WORD_WAITERS	0x80000000	/* somebody waits: see SlotShared,
									 * SlotPool */
#define WORD_LENDERS	0x40000000	/* somebody has lent a slot */
#define WORD_COUNT		0x3FFFFFFF	/* slots in use, lent ones left out */

/* The effective limit when there is none; smaller than any flag. */
#define NO_LIMIT		WORD_COUNT

#define NOBODY			(-1)

/* The priority to barge with when nobody waits who could have a slot. */
#define NO_PRIORITY		PG_INT32_MIN

#define POOL_PLACES		SLOTS_MAX_POOLS

/* The place of the pool "default" */
#define DEFAULT_POOL	0

/* Totals kept by each backend for itself, without any lock. */
typedef enum OwnTotal
{
	TOTAL_ADMITTED,
	TOTAL_COMPLETED,
	TOTAL_FAILED,
	TOTAL_BARGED,
	TOTAL_FORCED,
	TOTAL_WAIT_TIME,			/* us */
	OWN_TOTALS
} OwnTotal;

/* Totals kept in the pool, under the mutex. */
typedef enum PoolTotal
{
	TOTAL_QUEUED,
	TOTAL_WOULD_QUEUE,
	TOTAL_LENDS,
	TOTAL_STALLS,
	TOTAL_TIMEOUTS,
	TOTAL_REJECTIONS,
	TOTAL_CANCELS,
	TOTAL_DEMOTIONS,
	POOL_TOTALS
} PoolTotal;

/* What a long statement does: see slots_long.c */
typedef enum LongState
{
	LONG_NOT,					/* the statement is not long */
	LONG_GOES_ON,
	LONG_PAUSES,
	LONG_UNSEEN					/* goes on, or waits for something else */
} LongState;

/*
 * One backend.  The hot path writes the first half, up to TOTAL_FORCED, which is
 * a cache line of its own on most machines; the second half is what waiting and
 * lending need.
 */
typedef struct SlotEntry
{
	pg_atomic_uint32 state;		/* SlotState; see slots.c */
	pg_atomic_uint32 progress;	/* goes up when the backend is seen to work */
	pg_atomic_uint64 since;		/* TimestampTz of the state; granter, too */
	uint16		pool;			/* which: owner in state NONE; of a waiter,
								 * anybody, by the mutex */
	bool		counted;		/* its pool counts its slot: owner; and by the
								 * mutex, who grants it a slot, lends it, or
								 * ends its turn */
	bool		called;			/* to claim a slot, and on its way: mutex */
	bool		inheriting;		/* granted a slot and not awake yet: set under
								 * the mutex, cleared by the owner without */
	bool		reserved;		/* entered by the reserve: owner, who sets it
								 * under pools_lock */
	uint8		long_state;		/* LongState: mutex */
	bool		at_work;		/* of a holder: the last look found that it
								 * had worked since the one before: mutex */
	pg_atomic_uint64 totals[OWN_TOTALS];	/* in this pool; never reset: see
											 * own_baseline */

	int			prev;			/* links in one of the lists: */
	int			next;			/* mutex */
	uint32		progress_seen;	/* progress at quiet_since: mutex */
	uint32		max_wait_epoch; /* the reset that max_wait counts from */
	pg_atomic_uint64 last_wait; /* us */
	pg_atomic_uint64 max_wait;	/* us, since the reset of max_wait_epoch */

	uint64		cpu_seen;		/* us of CPU used at quiet_since: mutex */
	TimestampTz quiet_since;	/* of a holder: since when it has done next to
								 * nothing, by the looks at it: mutex */
} SlotEntry;

/* One cache line, or more where 64-bit atomics have to be emulated. */
typedef union PaddedSlotEntry
{
	SlotEntry	entry;
	char		padding[TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(SlotEntry))];
} PaddedSlotEntry;

/* A list of entries, linked by proc numbers. */
typedef struct EntryList
{
	int			head;			/* or NOBODY */
	int			tail;			/* or NOBODY */
	int			length;
} EntryList;

/* For how long no waiter has been let in: see slots_stall.c */
typedef struct StallClock
{
	TimestampTz moved;			/* when one was last */
	int			patience;		/* ms, until one is let in above the limit */
} StallClock;

/* A part of the backends, with a queue of its own. */
typedef struct SlotPool
{
	/*
	 * Slots in use by backends that came while the pool had a limit of its
	 * own, and WORD_WAITERS if its queue is not empty: a cache line of its
	 * own.
	 */
	pg_attribute_aligned(PG_CACHE_LINE_SIZE) pg_atomic_uint32 word;
	pg_atomic_uint32 effective_limit;	/* NO_LIMIT if it has none */
	char		padding[PG_CACHE_LINE_SIZE - 2 * sizeof(pg_atomic_uint32)];

	bool		defined;		/* pools_lock and mutex; else it is removed or
								 * was never there */
	PoolDefinition definition;	/* pools_lock and mutex to change */
	EntryList	queue;
	int			lent;			/* entries in state LENT: mutex */
	StallClock	stall;			/* while all of its slots are in use: mutex */
	TimestampTz passed_over_since;	/* when a higher priority first had a slot
									 * that its queue could have had; 0 = has
									 * not since its last turn: mutex */

	uint64		totals[POOL_TOTALS];
	pg_atomic_uint64 past_totals[OWN_TOTALS];	/* of who left the pool */
	pg_atomic_uint64 past_max_wait; /* us; likewise, since the reset */
	uint32		reset_epoch;	/* another one after every reset */
	pg_atomic_uint64 place_time;	/* us; see slots_record_pace */
	pg_atomic_uint64 wait_counts[SLOTS_WAIT_BUCKETS];	/* since the reset */

	/* What the totals were at the last reset: what is shown counts from it. */
	uint64		own_baseline[OWN_TOTALS];
	uint64		pool_baseline[POOL_TOTALS];
} SlotPool;

typedef struct SlotShared
{
	/* Written by every statement: a cache line of their own. */
	pg_atomic_uint32 word;		/* WORD_WAITERS: one could have a free slot */
	pg_atomic_uint32 effective_limit;	/* the limit, or less (see
										 * slots_contention.c); NO_LIMIT if
										 * there is none; mutex to change */
	pg_atomic_uint32 generation;	/* of the pools: goes up with every change */
	SlotLook	look;			/* for contention */
	char		padding[PG_CACHE_LINE_SIZE - 4 * sizeof(pg_atomic_uint32) - sizeof(SlotLook)];

	slock_t		mutex;
	int			limit;			/* as set: 0 = none, -1 = finds itself */
	bool		observing;		/* nobody queues; see slots_set_observing */
	EntryList	retained;
	pg_atomic_uint32 heirs_coming;	/* granted a slot given back, and not
									 * awake yet: raised under the mutex,
									 * lowered without */
	TimestampTz last_inheritance;	/* when a slot given back was granted
									 * last: mutex */
	int			watcher;		/* proc number, or NOBODY */
	bool		watcher_dozes;	/* it will not look at retained slots in time */
	TimestampTz watch_due;		/* when the watcher is to look again: mutex */
	int			lent;			/* entries in state LENT */
	StallClock	stall;			/* of all pools with a slot free: mutex */
	int			nlong;			/* entries in state LONG: mutex */
	EntryList	long_going_on;	/* those of long_state LONG_GOES_ON, the one
								 * first that was seen least lately: mutex */
	EntryList	long_paused;	/* mutex */
	pg_atomic_uint32 long_after;	/* ms of CPU time as int; -1 = never */
	int			cpus;			/* usable ones, by the latest look: mutex */
	double		short_working;	/* short statements at work, on average: mutex */
	TimestampTz long_looked;	/* when that was last seen to: mutex */
	pg_atomic_uint32 next_priority; /* int32, of the next in all queues, or
									 * NO_PRIORITY */
	pg_atomic_uint32 lend_after;	/* ms as int; -1 = never */
	pg_atomic_uint32 load_control;	/* bool: may the limit be lowered? */
	pg_atomic_uint64 lenders_seen;	/* when an arrival last looked at them */
	pg_atomic_uint64 holders_seen;	/* when a watcher last looked at them */
	pg_atomic_uint32 unknown_logged;	/* generation of the pools for which
										 * the log was told of an unknown one */
	LimitLaw	law;			/* mutex */
	uint32		limit_shown;	/* by the latest of the changes, 0 = all:
								 * mutex */
	uint64		nchanges;		/* there have been: mutex */
	SlotLimitChange changes[SLOTS_LIMIT_CHANGES];	/* mutex */
	uint32		epochs;			/* reset epochs there have been: mutex */
	TimestampTz stats_reset;	/* mutex */

	LWLock	   *pools_lock;
	int			npools;			/* places that were ever used: mutex */
	int			highest_priority;	/* of all pools: mutex */
	SlotPool	pools[POOL_PLACES];

	int			nentries;
	PaddedSlotEntry entries[FLEXIBLE_ARRAY_MEMBER]
				pg_attribute_aligned(PG_CACHE_LINE_SIZE);
} SlotShared;

/* Latches to set once the mutex is released. */
typedef struct WakeList
{
	int			n;
	int			procno[3];		/* an heir, the next in all queues, the
								 * watcher */
} WakeList;

extern SlotShared *Slots;

/* This backend's entry, once it has come to the gate. */
extern SlotEntry *MySlotEntry;
extern int	my_slot_procno;

/* slots.c */
extern bool slots_count_in_if_free(SlotEntry *entry);
extern bool slots_count_in_pool_if_free(SlotEntry *entry, bool barge);
extern void slots_count_in(SlotEntry *entry);
extern bool slots_count_out_of_pool(SlotEntry *entry);

extern bool slots_others_wait(void);

/* slots_queue.c */
extern void slots_list_append(EntryList *list, int procno);
extern void slots_list_remove(EntryList *list, int procno);
extern void slots_queue_append(int procno, TimestampTz now);
extern void slots_queue_remove(int procno, TimestampTz now, WakeList *wakes);
extern void slots_note_passed_over(int priority, TimestampTz since);
extern int	slots_next_waiter(TimestampTz now);
extern int	slots_priority_of(int next, TimestampTz now);
extern void slots_grant(int heir, TimestampTz now, WakeList *wakes);
extern void slots_pass_on(TimestampTz now, bool to_next, WakeList *wakes);
extern void slots_settle(TimestampTz now, WakeList *wakes);
extern void slots_wake_all(const WakeList *wakes);

/* slots_turns.c */
extern bool slots_retained_mine;
extern TimestampTz slots_away_since;
extern void slots_begin_turn(void);
extern bool slots_resume_turn(TimestampTz since);
extern bool slots_retain(void);
extern void slots_end_turn(int procno, TimestampTz now, WakeList *wakes);
extern void slots_end_my_turn(void);

/* slots_pools.c: what this backend knows of its pool, as of that generation */
extern uint32 my_pool_generation;
extern bool my_pool_has_limit;
extern int	my_pool_priority;
extern void slots_init_pools(const PoolDefinitions *definitions);
extern void slots_join_pool(void);

/* slots_lending.c */
extern void slots_wake_watcher(void);
extern void slots_forget_lending(void);

/* slots_long.c */
extern int	slots_long_share(void);
extern void slots_forget_long(void);

/* slots_contention.c */
extern void slots_reset_law(TimestampTz now);
extern void slots_restore_limit(TimestampTz now);

/* slots_stall.c */
extern void slots_init_stall_clock(StallClock *clock);
extern void slots_note_entry(SlotEntry *entry, TimestampTz now);
extern void slots_note_first_waiter(StallClock *clock, TimestampTz now);

/* slots_stats.c */
extern void slots_keep_totals(SlotPool *pool, SlotEntry *entry);
extern void slots_start_totals(int place);
extern uint32 slots_total_completed(void);

/* ----------------------------------------------------------------
 *		Small steps
 * ----------------------------------------------------------------
 */

static inline SlotEntry *
entry_of(int procno)
{
	Assert(procno >= 0 && procno < Slots->nentries);
	return &Slots->entries[procno].entry;
}

static inline SlotPool *
pool_of(const SlotEntry *entry)
{
	Assert(entry->pool < POOL_PLACES);
	return &Slots->pools[entry->pool];
}

/* Add to a total of this backend.  There is no other writer. */
static inline void
add_to_own(OwnTotal total, uint64 n)
{
	pg_atomic_uint64 *counter = &MySlotEntry->totals[total];

	pg_atomic_write_u64(counter, pg_atomic_read_u64(counter) + n);
}

static inline uint32
slots_in_use(void)
{
	return pg_atomic_read_u32(&Slots->word) & WORD_COUNT;
}

/*
 * The limit for all as set, in slots; if it finds itself, there is a slot for every
 * backend.  Mutex held, or a hint.
 */
static inline uint32
slots_whole_limit(void)
{
	int			limit = *(const volatile int *) &Slots->limit;

	if (limit < 0)
		return Slots->nentries;
	return limit > 0 ? limit : NO_LIMIT;
}

static inline bool
slot_is_free(void)
{
	return slots_in_use() < pg_atomic_read_u32(&Slots->effective_limit);
}

static inline bool
pool_has_limit(SlotPool *pool)
{
	return pg_atomic_read_u32(&pool->effective_limit) != NO_LIMIT;
}

static inline bool
pool_has_slot_free(SlotPool *pool)
{
	return (pg_atomic_read_u32(&pool->word) & WORD_COUNT) <
		pg_atomic_read_u32(&pool->effective_limit);
}

/* Does this backend know the pools as they are? */
static inline bool
my_pool_is_current(void)
{
	return my_pool_generation == pg_atomic_read_u32(&Slots->generation);
}

/* Has it been that long (ms) since then? */
static inline bool
passed_since(TimestampTz then, int interval, TimestampTz now)
{
	return now >= TimestampTzPlusMilliseconds(then, interval);
}

/*
 * Has it been that long (us) since the time in *last?  If so, it becomes now,
 * and only one of those who ask is told so.
 */
static inline bool
is_due(pg_atomic_uint64 *last, uint64 interval, TimestampTz now)
{
	uint64		seen = pg_atomic_read_u64(last);

	/* Another one may have read the clock later, or it was set back. */
	int64		passed = now - (int64) seen;

	return (passed >= (int64) interval || passed < -(int64) interval) &&
		pg_atomic_compare_exchange_u64(last, &seen, now);
}

static inline void
wake_later(WakeList *wakes, int procno)
{
	Assert(wakes->n < (int) lengthof(wakes->procno));
	wakes->procno[wakes->n++] = procno;
}

#endif							/* ADMISSION_GATE_SLOTS_SHARED_H */
