/*-------------------------------------------------------------------------
 *
 * slots.c
 *		The shared semaphore and its queue: take, wait, give back, hand over,
 *		overtake, lend.  Knows nothing of SQL, time-outs or wait events.
 *
 * The semaphore is one 32-bit word: the number of slots in use, and two flags
 * in its highest bits, "somebody waits" and "somebody has lent a slot".  While
 * no flag is set, a slot is taken and given back by one compare-and-exchange;
 * as the flags are larger than any limit, "word < limit" tests all of it.
 *
 * Every backend has an entry in an array indexed by its proc number.  Waiting
 * entries form a first-come queue, linked by proc numbers, since pointers
 * need not mean the same in every process.  A waiter sleeps on its own latch
 * and is woken in one of two ways:
 *
 * granted	The slot changes hands: the count stays, the waiter is taken out of
 *			the queue and made a holder before its latch is set.  So a grant is
 *			never lost: whatever the waiter does next, it holds a slot and will
 *			give it back.
 * called	Only the first in the queue: its latch is set and it has to claim a
 *			free slot itself, in competition with backends that are on a CPU
 *			already (overtaking).  It may find that it came too late and sleeps
 *			on.  Once it has waited for longer than max_overtake, the next slot
 *			given back is granted to it.
 *
 * A granted slot is idle until its heir has been given a CPU, and that may take
 * longer than many statements: if every slot were on such a way, everybody would
 * have to queue because everybody does.  So, unless max_overtake is 0, a slot is
 * granted only when the last heir has arrived, or has been granted its slot
 * max_overtake ago; until then, the next in the queue are called.
 *
 * No wake-up is lost, because:
 *	 - a slot is given back without the mutex only if the same atomic
 *	   instruction sees the waiters' flag clear, and an arriving waiter sets
 *	   the flag before it looks for a free slot for the last time;
 *	 - every section under the mutex that may free a slot or change the head of
 *	   the queue ends with call_head_if_free(), so that when the mutex is free,
 *	   "a slot is free and somebody waits" implies that the first in the queue
 *	   has been called and has not answered yet; or it is one of a row that
 *	   grants slots until none is free or nobody waits.
 * test/model mirrors this protocol in a model checker's language.
 *
 * Lending: one of the waiters is the watcher.  It looks at the holders from
 * time to time (lending.c) and reports what it saw; here, a holder that has
 * been waiting for long enough becomes a lender: it keeps its slot on paper
 * while the slot counts as free.  The last in the queue at the time of the
 * appointment is made watcher, as it will be here longest: the duty, and with
 * it one wake-up, changes hands about once per length of the queue.
 *
 * Turns: while others wait, a backend may keep its slot from one transaction
 * to the next until its turn is over (turn_length), so that processes with
 * warm caches do more of the work.  In between it is in the list of retained
 * entries, oldest first.  The watcher takes the slots of those whose client
 * lets more than RETAIN_US pass.  It looks that often as long as it finds that
 * slots are retained; when it sleeps for longer, the next to retain a slot
 * wakes it.
 *
 * Observing: nobody enters the queue any more; who would have is counted and
 * enters above the limit.  Setting it empties the queue and ends all turns.
 *
 * States of an entry, and who changes them:
 *	 NONE -> RUNNING	owner, after it raised the count
 *	 NONE -> WAITING	owner, under the mutex
 *	 WAITING -> RUNNING	anybody, under the mutex
 *	 WAITING -> NONE	owner, under the mutex
 *	 RUNNING -> LENT	anybody, under the mutex, by compare-and-exchange
 *	 LENT -> RUNNING	anybody, under the mutex, by compare-and-exchange
 *	 RUNNING -> RETAINED	owner, under the mutex, by compare-and-exchange
 *	 RETAINED -> RUNNING	owner, under the mutex
 *	 RETAINED -> NONE	anybody, under the mutex
 *	 RUNNING -> NONE	owner, by exchange
 *	 LENT -> NONE		owner, by exchange
 * The exchanges decide who wins when an owner leaves while others lend its
 * slot: the owner gives back what the state it found says.
 *
 * Locking: Slots->mutex, a spinlock held for a few instructions, guards the
 * queue, the retained list, the last heir, the watcher, the lenders' number, the
 * limit as set and whether it is only observed, and the totals kept in the pool.
 * The word and the effective limit are atomics, read by all.  So are the histogram of
 * waits and the time per place, written at the end of a wait only.  Everything
 * else in an entry is written by its owner alone unless the member says
 * otherwise; others may read it at any time.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "slots.h"

#define WORD_WAITERS	0x80000000	/* the queue is not empty */
#define WORD_LENDERS	0x40000000	/* somebody has lent a slot */
#define WORD_COUNT		0x3FFFFFFF	/* slots in use, lent ones left out */

/* The effective limit when there is none; smaller than any flag. */
#define NO_LIMIT		WORD_COUNT

#define NOBODY			(-1)

/* How long a retained slot waits for its client, us. */
#define RETAIN_US		1000

/* Of a new measurement, this part goes into the average time per place. */
#define PLACE_TIME_WEIGHT	4

/* How often an arriving backend looks for returned lenders, at most: us. */
#define LENDERS_UNSEEN_AFTER	10000

/* Totals kept by each backend for itself, without any lock. */
typedef enum OwnTotal
{
	TOTAL_ADMITTED,
	TOTAL_COMPLETED,
	TOTAL_FAILED,
	TOTAL_OVERTAKES,
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
	TOTAL_TIMEOUTS,
	TOTAL_REJECTIONS,
	TOTAL_CANCELS,
	POOL_TOTALS
} PoolTotal;

/*
 * One backend.  The first half is what the hot path writes and a cache line
 * of its own, the second half what waiting and lending need.
 */
typedef struct SlotEntry
{
	pg_atomic_uint32 state;		/* SlotState; see above */
	pg_atomic_uint32 progress;	/* goes up when the backend is seen to work */
	pg_atomic_uint64 since;		/* TimestampTz of the state; granter, too */
	pg_atomic_uint64 totals[OWN_TOTALS];	/* never reset: see baseline */

	int			prev;			/* links in the queue or in the retained list: */
	int			next;			/* mutex */
	bool		called;			/* first in the queue and on its way: mutex */
	bool		inheriting;		/* granted a slot and not awake yet: set under
								 * the mutex, cleared by the owner without */
	uint32		max_wait_epoch; /* the reset that max_wait counts from */
	pg_atomic_uint64 wait_start;	/* TimestampTz */
	pg_atomic_uint64 last_wait; /* us */
	pg_atomic_uint64 max_wait;	/* us, since the reset of max_wait_epoch */
	uint64		wait_id;		/* what the holder waits for, 0 if it works:
								 * mutex */
	TimestampTz wait_seen;		/* when that was first seen: mutex */
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

typedef struct SlotPool
{
	/* Written by every statement: a cache line of their own. */
	pg_atomic_uint32 word;
	pg_atomic_uint32 effective_limit;	/* NO_LIMIT if there is none */
	char		padding[PG_CACHE_LINE_SIZE - 2 * sizeof(pg_atomic_uint32)];

	slock_t		mutex;
	int			limit;			/* as set */
	bool		observing;		/* nobody queues; see slots_set_observing */
	EntryList	queue;
	EntryList	retained;
	int			heir;			/* the last to be granted a slot, or NOBODY */
	int			watcher;		/* proc number, or NOBODY */
	bool		watcher_dozes;	/* it will not look at retained slots in time */
	int			lent;			/* entries in state LENT */
	pg_atomic_uint32 lend_after;	/* ms as int; -1 = never */
	pg_atomic_uint32 lend_classes;	/* bits of wait classes */
	pg_atomic_uint64 lenders_seen;	/* when an arrival last looked at them */
	pg_atomic_uint64 holders_seen;	/* when a watcher last looked at them */
	uint64		totals[POOL_TOTALS];

	pg_atomic_uint64 place_time;	/* us; see slots_record_pace */
	pg_atomic_uint64 wait_counts[SLOTS_WAIT_BUCKETS];	/* since the reset */

	/* What the totals were at the last reset: what is shown counts from it. */
	uint64		own_baseline[OWN_TOTALS];
	uint64		pool_baseline[POOL_TOTALS];
	uint32		reset_epoch;
	TimestampTz stats_reset;

	int			nentries;
	PaddedSlotEntry entries[FLEXIBLE_ARRAY_MEMBER]
				pg_attribute_aligned(PG_CACHE_LINE_SIZE);
} SlotPool;

/* Latches to set once the mutex is released. */
typedef struct WakeList
{
	int			n;
	int			procno[3];		/* an heir, the next head, the watcher */
} WakeList;

static SlotPool *Slots = NULL;
static SlotEntry *MyEntry = NULL;
static int	my_procno = NOBODY;

/* When this backend's turn ends; only kept while there are turns. */
static TimestampTz turn_end = 0;

/* Has this backend retained its slot, unless it was taken meanwhile? */
static bool retained_mine = false;

static void slots_at_exit(int code, Datum arg);

/* ----------------------------------------------------------------
 *		Shared memory
 * ----------------------------------------------------------------
 */

/*
 * How many bytes slots_shmem_init will take.  MaxBackends must be known.
 */
Size
slots_shmem_size(void)
{
	return add_size(PG_CACHE_LINE_SIZE + offsetof(SlotPool, entries),
					mul_size(MaxBackends, sizeof(PaddedSlotEntry)));
}

/*
 * Create the pool, with that limit (slots, 0 = none), enforced or only observed,
 * and those conditions for lending (see slots_set_lend_after and
 * slots_set_lend_classes), or find it if it exists.  The caller holds
 * AddinShmemInitLock.
 */
void
slots_shmem_init(int limit, bool observing, int lend_after, uint32 lend_classes)
{
	bool		found;
	void	   *area;

	area = ShmemInitStruct("admission_gate slots", slots_shmem_size(), &found);
	Slots = (SlotPool *) TYPEALIGN(PG_CACHE_LINE_SIZE, area);
	if (found)
		return;

	memset(Slots, 0, offsetof(SlotPool, entries));
	pg_atomic_init_u32(&Slots->word, 0);
	pg_atomic_init_u32(&Slots->effective_limit, limit > 0 ? limit : NO_LIMIT);
	pg_atomic_init_u32(&Slots->lend_after, (uint32) lend_after);
	pg_atomic_init_u32(&Slots->lend_classes, lend_classes);
	pg_atomic_init_u64(&Slots->lenders_seen, 0);
	pg_atomic_init_u64(&Slots->holders_seen, 0);
	pg_atomic_init_u64(&Slots->place_time, 0);
	for (int i = 0; i < SLOTS_WAIT_BUCKETS; i++)
		pg_atomic_init_u64(&Slots->wait_counts[i], 0);
	SpinLockInit(&Slots->mutex);
	Slots->limit = limit;
	Slots->observing = observing;
	Slots->queue.head = Slots->queue.tail = NOBODY;
	Slots->retained.head = Slots->retained.tail = NOBODY;
	Slots->heir = NOBODY;
	Slots->watcher = NOBODY;
	Slots->nentries = MaxBackends;

	for (int i = 0; i < Slots->nentries; i++)
	{
		SlotEntry  *entry = &Slots->entries[i].entry;

		memset(entry, 0, sizeof(SlotEntry));
		pg_atomic_init_u32(&entry->state, SLOT_NONE);
		pg_atomic_init_u32(&entry->progress, 0);
		pg_atomic_init_u64(&entry->since, 0);
		pg_atomic_init_u64(&entry->wait_start, 0);
		pg_atomic_init_u64(&entry->last_wait, 0);
		pg_atomic_init_u64(&entry->max_wait, 0);
		for (int t = 0; t < OWN_TOTALS; t++)
			pg_atomic_init_u64(&entry->totals[t], 0);
	}
}

/*
 * Is there a pool, that is, was the library preloaded?
 */
bool
slots_available(void)
{
	return Slots != NULL;
}

/*
 * Take possession of this backend's entry, and have it left in order at exit.
 * By now MyProc exists and is ours until after on_shmem_exit callbacks ran.
 */
static pg_noinline void
attach_entry(void)
{
	my_procno = MY_PROC_NUMBER;
	Assert(my_procno >= 0 && my_procno < Slots->nentries);
	MyEntry = &Slots->entries[my_procno].entry;
	Assert(pg_atomic_read_u32(&MyEntry->state) == SLOT_NONE);
	on_shmem_exit(slots_at_exit, (Datum) 0);
}

/* ----------------------------------------------------------------
 *		Helpers
 * ----------------------------------------------------------------
 */

static inline SlotEntry *
entry_of(int procno)
{
	Assert(procno >= 0 && procno < Slots->nentries);
	return &Slots->entries[procno].entry;
}

/* Add to a total of this backend.  There is no other writer. */
static inline void
add_to_own(OwnTotal total, uint64 n)
{
	pg_atomic_uint64 *counter = &MyEntry->totals[total];

	pg_atomic_write_u64(counter, pg_atomic_read_u64(counter) + n);
}

/* Let whoever watches see that this is not the same wait as before. */
static inline void
show_progress(void)
{
	pg_atomic_write_u32(&MyEntry->progress,
						pg_atomic_read_u32(&MyEntry->progress) + 1);
}

static inline uint32
slots_in_use(void)
{
	return pg_atomic_read_u32(&Slots->word) & WORD_COUNT;
}

static inline bool
slot_is_free(void)
{
	return slots_in_use() < pg_atomic_read_u32(&Slots->effective_limit);
}

/*
 * Raise the count if a slot is free, whatever the flags say.  Competes with
 * backends that do not hold the mutex.
 */
static bool
count_up_if_free(void)
{
	uint32		word = pg_atomic_read_u32(&Slots->word);

	while ((word & WORD_COUNT) < pg_atomic_read_u32(&Slots->effective_limit))
	{
		if (pg_atomic_compare_exchange_u32(&Slots->word, &word, word + 1))
			return true;
	}
	return false;
}

/* What every admission begins with, whichever way it came about. */
static inline void
count_admission(void)
{
	show_progress();
	add_to_own(TOTAL_ADMITTED, 1);
}

/* This backend's turn begins. */
static inline void
begin_turn(void)
{
	if (unlikely(gate_turn_length > 0))
		turn_end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											   gate_turn_length);
}

/* This backend, which has raised the count, is a holder from now on. */
static inline void
become_holder(TimestampTz since)
{
	Assert(pg_atomic_read_u32(&MyEntry->state) == SLOT_NONE);
	pg_atomic_write_u64(&MyEntry->since, since);
	pg_atomic_write_u32(&MyEntry->state, SLOT_RUNNING);
	count_admission();
	begin_turn();
}

static inline void
wake_later(WakeList *wakes, int procno)
{
	Assert(wakes->n < (int) lengthof(wakes->procno));
	wakes->procno[wakes->n++] = procno;
}

/* Set the latches collected under the mutex.  The mutex is released. */
static inline void
wake_all(const WakeList *wakes)
{
	for (int i = 0; i < wakes->n; i++)
		SetLatch(&GetPGProcByNumber(wakes->procno[i])->procLatch);
}

/* Put an entry at the end of a list.  Mutex held. */
static void
list_append(EntryList *list, int procno)
{
	SlotEntry  *entry = entry_of(procno);

	entry->prev = list->tail;
	entry->next = NOBODY;
	if (list->tail == NOBODY)
		list->head = procno;
	else
		entry_of(list->tail)->next = procno;
	list->tail = procno;
	list->length++;
}

/* Take an entry out of its list.  Mutex held. */
static void
list_remove(EntryList *list, int procno)
{
	SlotEntry  *entry = entry_of(procno);

	if (entry->prev == NOBODY)
		list->head = entry->next;
	else
		entry_of(entry->prev)->next = entry->next;
	if (entry->next == NOBODY)
		list->tail = entry->prev;
	else
		entry_of(entry->next)->prev = entry->prev;
	list->length--;
	Assert((list->length == 0) == (list->head == NOBODY));
}

/* Put an entry at the end of the queue.  Mutex held, waiters' flag set. */
static void
queue_append(int procno)
{
	entry_of(procno)->called = false;
	list_append(&Slots->queue, procno);
	if (Slots->watcher == NOBODY)
	{
		Slots->watcher = procno;
		Slots->watcher_dozes = true;
	}
}

/*
 * Take an entry out of the queue; pass its duty as watcher on.  Mutex held.
 */
static void
queue_remove(int procno, WakeList *wakes)
{
	list_remove(&Slots->queue, procno);

	if (Slots->queue.head == NOBODY)
		pg_atomic_fetch_and_u32(&Slots->word, ~WORD_WAITERS);

	if (Slots->watcher == procno)
	{
		Slots->watcher = Slots->queue.tail;
		Slots->watcher_dozes = true;
		if (Slots->watcher != NOBODY)
			wake_later(wakes, Slots->watcher);
	}
}

/*
 * Make the first in the queue a holder of a slot that is counted already.
 * Mutex held, queue not empty.
 */
static void
grant_to_head(TimestampTz now, WakeList *wakes)
{
	int			heir = Slots->queue.head;
	SlotEntry  *entry = entry_of(heir);

	Assert(pg_atomic_read_u32(&entry->state) == SLOT_WAITING);
	queue_remove(heir, wakes);
	pg_atomic_write_u64(&entry->since, now);
	pg_atomic_write_u32(&entry->state, SLOT_RUNNING);
	wake_later(wakes, heir);
}

/*
 * The last step under the mutex: if a slot is free and somebody waits, see to
 * it that the first in the queue knows.
 */
static inline void
call_head_if_free(WakeList *wakes)
{
	if (Slots->queue.head != NOBODY && slot_is_free() &&
		!entry_of(Slots->queue.head)->called)
	{
		entry_of(Slots->queue.head)->called = true;
		wake_later(wakes, Slots->queue.head);
	}
}

/* Did that happen longer than max_overtake ago? */
static inline bool
overtaken_since(pg_atomic_uint64 *time, TimestampTz now)
{
	return now >= TimestampTzPlusMilliseconds(pg_atomic_read_u64(time),
											  gate_max_overtake);
}

/*
 * Is the last heir still asleep, and not given up?  Mutex held.
 */
static inline bool
heir_is_coming(TimestampTz now)
{
	SlotEntry  *heir;

	if (Slots->heir == NOBODY)
		return false;
	heir = entry_of(Slots->heir);
	return heir->inheriting && !overtaken_since(&heir->since, now);
}

/*
 * Has the first in the queue been overtaken for long enough, so that a slot
 * given back is not for everybody any more?  Mutex held, queue not empty.
 */
static inline bool
head_may_inherit(TimestampTz now)
{
	return gate_max_overtake == 0 ||
		(overtaken_since(&entry_of(Slots->queue.head)->wait_start, now) &&
		 !heir_is_coming(now));
}

/* One lender less.  Mutex held. */
static void
forget_lender(void)
{
	Assert(Slots->lent > 0);
	if (--Slots->lent == 0)
		pg_atomic_fetch_and_u32(&Slots->word, ~WORD_LENDERS);
}

/* ----------------------------------------------------------------
 *		The backend's own slot
 * ----------------------------------------------------------------
 */

/*
 * Go on with the slot that this backend retained, if it still has it.
 */
static bool
resume_turn(TimestampTz since)
{
	bool		still_mine;

	SpinLockAcquire(&Slots->mutex);
	still_mine = pg_atomic_read_u32(&MyEntry->state) == SLOT_RETAINED;
	if (still_mine)
	{
		list_remove(&Slots->retained, my_procno);
		pg_atomic_write_u64(&MyEntry->since, since);
		pg_atomic_write_u32(&MyEntry->state, SLOT_RUNNING);
	}
	SpinLockRelease(&Slots->mutex);

	retained_mine = false;
	if (still_mine)
		count_admission();
	return still_mine;
}

/*
 * Keep this backend's slot for its next transaction, if others wait (else it
 * can as well be free) and the turn is not over.
 */
static bool
retain_slot(void)
{
	WakeList	wakes = {0};
	TimestampTz now;
	uint32		running = SLOT_RUNNING;

	if ((pg_atomic_read_u32(&Slots->word) & WORD_WAITERS) == 0)
		return false;
	now = GetCurrentTimestamp();
	if (now >= turn_end)
		return false;

	SpinLockAcquire(&Slots->mutex);
	if (Slots->queue.head != NOBODY &&
		slots_in_use() <= pg_atomic_read_u32(&Slots->effective_limit) &&
		pg_atomic_compare_exchange_u32(&MyEntry->state, &running,
									   SLOT_RETAINED))
	{
		retained_mine = true;
		pg_atomic_write_u64(&MyEntry->since, now);
		list_append(&Slots->retained, my_procno);
		if (Slots->watcher_dozes)
		{
			Slots->watcher_dozes = false;
			wake_later(&wakes, Slots->watcher);
		}
	}
	SpinLockRelease(&Slots->mutex);
	wake_all(&wakes);
	return retained_mine;
}

/*
 * Take a slot if one is free and nobody waits.  This is the hot path.
 * since: when this backend's work began, for the views.
 */
bool
slots_try_take(TimestampTz since)
{
	uint32		word;

	if (unlikely(MyEntry == NULL))
		attach_entry();
	if (unlikely(retained_mine) && resume_turn(since))
		return true;

	word = pg_atomic_read_u32(&Slots->word);
	while (word < pg_atomic_read_u32(&Slots->effective_limit))
	{
		if (pg_atomic_compare_exchange_u32(&Slots->word, &word, word + 1))
		{
			become_holder(since);
			return true;
		}
	}
	return false;
}

/*
 * Take a slot if one is free, even if others wait, as far as overtaking is
 * allowed.
 */
bool
slots_try_overtake(TimestampTz since)
{
	bool		others_wait;

	others_wait = (pg_atomic_read_u32(&Slots->word) & WORD_WAITERS) != 0;
	if ((others_wait && gate_max_overtake == 0) || !count_up_if_free())
		return false;

	become_holder(since);
	if (others_wait)
		add_to_own(TOTAL_OVERTAKES, 1);
	return true;
}

/*
 * Take a slot at once, above the limit if need be: for a backend that may not
 * wait, because others may wait for it.
 */
void
slots_force(TimestampTz since)
{
	bool		forced;

	if (slots_try_take(since))
		return;

	forced = !count_up_if_free();
	if (forced)
		pg_atomic_fetch_add_u32(&Slots->word, 1);
	become_holder(since);
	if (forced)
		add_to_own(TOTAL_FORCED, 1);
}

/*
 * Enter the queue, unless a slot is free after all, the limit is only observed,
 * or max_queue_length (-1: any) backends wait already.  now: the present time.
 * *queue_length receives how many wait already.
 */
SlotEnqueued
slots_enqueue(int max_queue_length, TimestampTz now, int *queue_length)
{
	SlotEnqueued result;

	Assert(pg_atomic_read_u32(&MyEntry->state) == SLOT_NONE);

	SpinLockAcquire(&Slots->mutex);

	/*
	 * First the flag, then a last look for a free slot: a slot given back
	 * before is seen here, one given back later comes to the queue.
	 */
	if (!Slots->observing)
		pg_atomic_fetch_or_u32(&Slots->word, WORD_WAITERS);

	*queue_length = Slots->queue.length;
	if (Slots->queue.head == NOBODY && count_up_if_free())
		result = SLOT_ENQUEUE_TAKEN;
	else if (Slots->observing)
	{
		result = SLOT_ENQUEUE_OBSERVED;
		Slots->totals[TOTAL_WOULD_QUEUE]++;
		pg_atomic_fetch_add_u32(&Slots->word, 1);
	}
	else if (max_queue_length >= 0 && Slots->queue.length >= max_queue_length)
	{
		result = SLOT_ENQUEUE_FULL;
		Slots->totals[TOTAL_REJECTIONS]++;
	}
	else
	{
		result = SLOT_ENQUEUED;
		Slots->totals[TOTAL_QUEUED]++;
		pg_atomic_write_u64(&MyEntry->wait_start, now);
		pg_atomic_write_u64(&MyEntry->since, now);
		pg_atomic_write_u32(&MyEntry->state, SLOT_WAITING);
		queue_append(my_procno);
	}

	if (Slots->queue.head == NOBODY)
		pg_atomic_fetch_and_u32(&Slots->word, ~WORD_WAITERS);

	SpinLockRelease(&Slots->mutex);

	if (result == SLOT_ENQUEUE_TAKEN || result == SLOT_ENQUEUE_OBSERVED)
		become_holder(now);
	return result;
}

/*
 * To be asked by a waiter whenever its latch was set: does it hold a slot?
 * Either it was granted one, or it is first in the queue and finds one free.
 */
bool
slots_claim(void)
{
	WakeList	wakes = {0};
	bool		mine = false;

	if (pg_atomic_read_u32(&MyEntry->state) != SLOT_WAITING)
		mine = true;
	else if (Slots->queue.head == my_procno)
	{
		TimestampTz now = GetCurrentTimestamp();

		SpinLockAcquire(&Slots->mutex);
		if (pg_atomic_read_u32(&MyEntry->state) != SLOT_WAITING)
			mine = true;
		else
		{
			Assert(Slots->queue.head == my_procno);
			MyEntry->called = false;
			if (count_up_if_free())
			{
				grant_to_head(now, &wakes);
				wakes.n--;		/* we are awake */
				mine = true;
			}
		}
		call_head_if_free(&wakes);
		SpinLockRelease(&Slots->mutex);
		wake_all(&wakes);
	}

	if (mine)
	{
		MyEntry->inheriting = false;
		count_admission();
		begin_turn();
		if (pg_atomic_read_u32(&MyEntry->state) == SLOT_LENT)
			slots_holder_works(my_procno);	/* we were slow to wake up */
	}
	return mine;
}

/*
 * Leave the queue without a slot.  Returns false if it is too late for that,
 * because a slot has been granted meanwhile: the caller then either uses it,
 * by slots_claim, or refuses it, by slots_refuse_grant.
 */
bool
slots_leave_queue(SlotLeaveReason reason)
{
	WakeList	wakes = {0};
	bool		left = false;

	SpinLockAcquire(&Slots->mutex);
	if (pg_atomic_read_u32(&MyEntry->state) == SLOT_WAITING)
	{
		queue_remove(my_procno, &wakes);
		pg_atomic_write_u32(&MyEntry->state, SLOT_NONE);
		Slots->totals[reason == SLOT_LEAVE_TIMEOUT ?
					  TOTAL_TIMEOUTS : TOTAL_CANCELS]++;
		left = true;
	}
	call_head_if_free(&wakes);
	SpinLockRelease(&Slots->mutex);
	wake_all(&wakes);
	return left;
}

/*
 * A slot that is counted has no holder any more: it goes to the first in the
 * queue, always or if that has been overtaken for long enough, else to whoever
 * takes it.  Mutex held.
 */
static void
pass_slot_on(TimestampTz now, bool to_head, WakeList *wakes)
{
	if (Slots->queue.head != NOBODY &&
		slots_in_use() <= pg_atomic_read_u32(&Slots->effective_limit) &&
		(to_head || head_may_inherit(now)))
	{
		Slots->heir = Slots->queue.head;
		entry_of(Slots->heir)->inheriting = true;
		grant_to_head(now, wakes);
	}
	else
		pg_atomic_fetch_sub_u32(&Slots->word, 1);
	call_head_if_free(wakes);
}

/*
 * Give a slot back that the caller no longer counts as its own.
 */
static void
free_slot(void)
{
	uint32		word = pg_atomic_read_u32(&Slots->word);
	WakeList	wakes = {0};
	TimestampTz now;

	Assert((word & WORD_COUNT) > 0);
	while ((word & WORD_WAITERS) == 0)
	{
		if (pg_atomic_compare_exchange_u32(&Slots->word, &word, word - 1))
			return;
	}

	now = GetCurrentTimestamp();
	SpinLockAcquire(&Slots->mutex);
	pass_slot_on(now, false, &wakes);
	SpinLockRelease(&Slots->mutex);
	wake_all(&wakes);
}

/*
 * End this backend's hold on its slot, lent or not.
 */
static void
drop_slot(void)
{
	SlotState	state = pg_atomic_exchange_u32(&MyEntry->state, SLOT_NONE);

	if (likely(state == SLOT_RUNNING))
		free_slot();
	else
	{
		Assert(state == SLOT_LENT);
		SpinLockAcquire(&Slots->mutex);
		forget_lender();
		SpinLockRelease(&Slots->mutex);
	}
}

/*
 * Pass a slot on that was granted too late to be of use.
 */
void
slots_refuse_grant(void)
{
	MyEntry->inheriting = false;
	drop_slot();
	SpinLockAcquire(&Slots->mutex);
	Slots->totals[TOTAL_CANCELS]++;
	SpinLockRelease(&Slots->mutex);
}

/* In which bucket of the histogram is a wait of so many us? */
static int
wait_bucket(uint64 waited)
{
	uint64		ms = waited / 1000;

	if (ms == 0)
		return 0;
	return Min(pg_leftmost_one_pos64(ms) + 1, SLOTS_WAIT_BUCKETS - 1);
}

/*
 * Note that this backend has waited for so many us.
 */
void
slots_record_wait(uint64 waited)
{
	uint64		max_wait = pg_atomic_read_u64(&MyEntry->max_wait);

	if (MyEntry->max_wait_epoch != Slots->reset_epoch)
	{
		MyEntry->max_wait_epoch = Slots->reset_epoch;
		max_wait = 0;
	}
	pg_atomic_write_u64(&MyEntry->max_wait, Max(max_wait, waited));
	pg_atomic_write_u64(&MyEntry->last_wait, waited);
	add_to_own(TOTAL_WAIT_TIME, waited);
	pg_atomic_fetch_add_u64(&Slots->wait_counts[wait_bucket(waited)], 1);
}

/*
 * Learn at what pace the queue moves from a wait of so many us that brought a
 * slot, behind so many others.  A moving average; when two write it at the
 * same time, one measurement is lost.
 */
void
slots_record_pace(uint64 waited, int queue_length)
{
	uint64		measured = waited / (queue_length + 1);
	uint64		average = pg_atomic_read_u64(&Slots->place_time);

	if (average == 0)
		average = measured;
	else
		average += ((int64) measured - (int64) average) / PLACE_TIME_WEIGHT;
	pg_atomic_write_u64(&Slots->place_time, average);
}

/*
 * How long (us) a backend would wait that came now, if the queue moved on at the
 * pace of late.  0, that is unknown, if it would be the first: so there is
 * always somebody to learn from.  No lock, as all of this is an estimate.
 */
uint64
slots_expected_wait(void)
{
	int			queue_length = *(volatile int *) &Slots->queue.length;

	if (queue_length == 0)
		return 0;
	return (queue_length + 1) * pg_atomic_read_u64(&Slots->place_time);
}

/* A statement was refused although the queue was not full. */
void
slots_count_rejection(void)
{
	SpinLockAcquire(&Slots->mutex);
	Slots->totals[TOTAL_REJECTIONS]++;
	SpinLockRelease(&Slots->mutex);
}

/*
 * The backend, which holds a slot, goes on working: tell the watcher, and take
 * the slot back if it was lent, above the limit if need be.
 */
void
slots_resume(void)
{
	show_progress();
	if (unlikely(pg_atomic_read_u32(&MyEntry->state) == SLOT_LENT))
		slots_holder_works(my_procno);
}

/*
 * The backend's work is done, well or not: give its slot back, or keep it for
 * the rest of its turn.
 */
void
slots_give_back(bool failed)
{
	add_to_own(failed ? TOTAL_FAILED : TOTAL_COMPLETED, 1);
	if (unlikely(gate_turn_length > 0) && !failed && retain_slot())
		return;
	drop_slot();
}

/*
 * Take a retained slot away from its backend and pass it on.  Mutex held.
 */
static void
end_turn(int procno, TimestampTz now, WakeList *wakes)
{
	list_remove(&Slots->retained, procno);
	pg_atomic_write_u32(&entry_of(procno)->state, SLOT_NONE);
	pass_slot_on(now, true, wakes);
}

/*
 * The watcher's duty while there are turns: pass on the slots of those whose
 * clients are late.  Returns in how many ms to look again, -1 if it need not
 * be soon.
 */
long
slots_end_idle_turns(void)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		again = true;
	bool		found = false;

	while (again)
	{
		WakeList	wakes = {0};
		int			oldest;

		again = false;
		SpinLockAcquire(&Slots->mutex);
		oldest = Slots->retained.head;
		if (oldest != NOBODY)
		{
			found = true;
			if (now - (TimestampTz) pg_atomic_read_u64(&entry_of(oldest)->since) >= RETAIN_US)
			{
				end_turn(oldest, now, &wakes);
				again = true;
			}
		}
		if (!again && Slots->watcher == my_procno)
			Slots->watcher_dozes = !found;
		SpinLockRelease(&Slots->mutex);
		wake_all(&wakes);
	}
	return found ? 1 : -1;
}

/*
 * on_shmem_exit callback: whatever this backend was about, leave no trace.
 * By before_shmem_exit callbacks, it has left the queue, unless it had no room
 * for one, and its transaction has been aborted already.
 */
static void
slots_at_exit(int code, Datum arg)
{
	if (pg_atomic_read_u32(&MyEntry->state) == SLOT_WAITING &&
		!slots_leave_queue(SLOT_LEAVE_CANCEL))
		slots_refuse_grant();

	if (retained_mine)
	{
		WakeList	wakes = {0};
		TimestampTz now = GetCurrentTimestamp();

		SpinLockAcquire(&Slots->mutex);
		if (pg_atomic_read_u32(&MyEntry->state) == SLOT_RETAINED)
			end_turn(my_procno, now, &wakes);
		SpinLockRelease(&Slots->mutex);
		wake_all(&wakes);
	}
	else if (pg_atomic_read_u32(&MyEntry->state) != SLOT_NONE)
		slots_give_back(true);

	Assert(pg_atomic_read_u32(&MyEntry->state) == SLOT_NONE);
	MyEntry = NULL;
}

/* ----------------------------------------------------------------
 *		The pool
 * ----------------------------------------------------------------
 */

/*
 * Make the first in the queue a holder if a slot is free.
 */
static bool
grant_one(void)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();
	bool		granted = false;

	SpinLockAcquire(&Slots->mutex);
	if (Slots->queue.head != NOBODY && count_up_if_free())
	{
		grant_to_head(now, &wakes);
		granted = true;
	}
	SpinLockRelease(&Slots->mutex);
	wake_all(&wakes);
	return granted;
}

/*
 * Set the limit (slots, 0 = none).  If it was raised, waiters enter; if it
 * was lowered, holders finish and new ones wait.
 */
void
slots_set_limit(int limit)
{
	SpinLockAcquire(&Slots->mutex);
	Slots->limit = limit;
	pg_atomic_write_u32(&Slots->effective_limit, limit > 0 ? limit : NO_LIMIT);
	SpinLockRelease(&Slots->mutex);

	while (grant_one())
		 /* the mutex is free in between */ ;
}

/*
 * One step towards an empty queue, of a pool whose limit is only observed: end a
 * turn, as there will be no watcher to do it, or else let a waiter in, above the
 * limit if need be.  Returns false if there was nothing to do.
 */
static bool
release_one(void)
{
	WakeList	wakes = {0};
	TimestampTz now = GetCurrentTimestamp();
	bool		found = true;

	SpinLockAcquire(&Slots->mutex);
	if (Slots->retained.head != NOBODY)
		end_turn(Slots->retained.head, now, &wakes);
	else if (Slots->queue.head != NOBODY)
	{
		pg_atomic_fetch_add_u32(&Slots->word, 1);
		grant_to_head(now, &wakes);
	}
	else
		found = false;
	SpinLockRelease(&Slots->mutex);
	wake_all(&wakes);
	return found;
}

/*
 * Set whether the limit is only observed: then nobody queues, and who waits is
 * let in.  When it is enforced again, new ones wait until those at work are
 * fewer than the limit, as if it had been lowered.
 */
void
slots_set_observing(bool observing)
{
	SpinLockAcquire(&Slots->mutex);
	Slots->observing = observing;
	SpinLockRelease(&Slots->mutex);

	if (observing)
	{
		while (release_one())
			 /* the mutex is free in between */ ;
	}
}

/* Have the watcher go by a new setting. */
static void
wake_watcher(void)
{
	WakeList	wakes = {0};

	SpinLockAcquire(&Slots->mutex);
	if (Slots->watcher != NOBODY)
		wake_later(&wakes, Slots->watcher);
	SpinLockRelease(&Slots->mutex);
	wake_all(&wakes);
}

/* Set how long a holder must have been seen waiting to lend: ms, -1 = never. */
void
slots_set_lend_after(int lend_after)
{
	pg_atomic_write_u32(&Slots->lend_after, (uint32) lend_after);
	wake_watcher();
}

/* Set in waits of which classes a holder lends: see lending.h for the bits. */
void
slots_set_lend_classes(uint32 lend_classes)
{
	pg_atomic_write_u32(&Slots->lend_classes, lend_classes);
	wake_watcher();
}

int
slots_lend_after(void)
{
	return (int) pg_atomic_read_u32(&Slots->lend_after);
}

uint32
slots_lend_classes(void)
{
	return pg_atomic_read_u32(&Slots->lend_classes);
}

/* How many backends there can be: proc numbers are below this. */
int
slots_backend_count(void)
{
	return Slots->nentries;
}

/*
 * What is known of one backend; false if it neither holds nor wants a slot.
 * It may be gone or changed by the time the caller looks at the result.
 */
bool
slots_get_backend(int procno, SlotBackend *backend)
{
	SlotEntry  *entry = entry_of(procno);
	PGPROC	   *proc = GetPGProcByNumber(procno);

	backend->state = pg_atomic_read_u32(&entry->state);
	backend->since = pg_atomic_read_u64(&entry->since);
	backend->pid = proc->pid;
	backend->roleid = proc->roleId;
	if (backend->state == SLOT_NONE || backend->pid == 0)
		return false;

	if (backend->state == SLOT_WAITING)
		backend->wait_time = Max(GetCurrentTimestamp() - backend->since, 0);
	else
		backend->wait_time = pg_atomic_read_u64(&entry->last_wait);
	return true;
}

/*
 * Fill in the limit and how many backends are in which state.
 */
void
slots_get_gauges(SlotStats *stats)
{
	stats->running = stats->lent = stats->retained = stats->waiting = 0;
	for (int i = 0; i < Slots->nentries; i++)
	{
		switch (slots_state(i))
		{
			case SLOT_NONE:
				break;
			case SLOT_WAITING:
				stats->waiting++;
				break;
			case SLOT_RUNNING:
				stats->running++;
				break;
			case SLOT_LENT:
				stats->lent++;
				break;
			case SLOT_RETAINED:
				stats->retained++;
				break;
		}
	}

	SpinLockAcquire(&Slots->mutex);
	stats->limit = Slots->limit;
	stats->observing = Slots->observing;
	SpinLockRelease(&Slots->mutex);
}

/* Add up what the backends, present and past, keep each for itself. */
static void
sum_own_totals(uint64 *sums)
{
	memset(sums, 0, sizeof(uint64) * OWN_TOTALS);
	for (int i = 0; i < Slots->nentries; i++)
	{
		for (int t = 0; t < OWN_TOTALS; t++)
			sums[t] += pg_atomic_read_u64(&entry_of(i)->totals[t]);
	}
}

/*
 * Fill in everything.
 */
void
slots_get_stats(SlotStats *stats)
{
	uint64		baseline[OWN_TOTALS];
	uint64		own[OWN_TOTALS];
	uint64		pool[POOL_TOTALS];
	uint32		epoch;

	slots_get_gauges(stats);

	/* The baseline first: sums taken later cannot be below it. */
	SpinLockAcquire(&Slots->mutex);
	memcpy(baseline, Slots->own_baseline, sizeof(baseline));
	for (int t = 0; t < POOL_TOTALS; t++)
		pool[t] = Slots->totals[t] - Slots->pool_baseline[t];
	epoch = Slots->reset_epoch;
	stats->stats_reset = Slots->stats_reset;
	SpinLockRelease(&Slots->mutex);

	sum_own_totals(own);
	for (int t = 0; t < OWN_TOTALS; t++)
		own[t] -= baseline[t];

	stats->admitted = own[TOTAL_ADMITTED];
	stats->completed = own[TOTAL_COMPLETED];
	stats->failed = own[TOTAL_FAILED];
	stats->overtakes = own[TOTAL_OVERTAKES];
	stats->forced = own[TOTAL_FORCED];
	stats->wait_time = own[TOTAL_WAIT_TIME];
	stats->queued = pool[TOTAL_QUEUED];
	stats->would_queue = pool[TOTAL_WOULD_QUEUE];
	stats->lends = pool[TOTAL_LENDS];
	stats->timeouts = pool[TOTAL_TIMEOUTS];
	stats->rejections = pool[TOTAL_REJECTIONS];
	stats->cancels = pool[TOTAL_CANCELS];

	stats->max_wait_time = 0;
	for (int i = 0; i < Slots->nentries; i++)
	{
		SlotEntry  *entry = entry_of(i);

		if (entry->max_wait_epoch == epoch)
			stats->max_wait_time = Max(stats->max_wait_time,
									   pg_atomic_read_u64(&entry->max_wait));
	}
}

/*
 * Fill in how many waits there were in each bucket of the histogram.
 */
void
slots_get_wait_counts(uint64 counts[SLOTS_WAIT_BUCKETS])
{
	for (int i = 0; i < SLOTS_WAIT_BUCKETS; i++)
		counts[i] = pg_atomic_read_u64(&Slots->wait_counts[i]);
}

/*
 * Let all totals count from now on.  The present holders count as admitted
 * since: so admitted = completed + failed + running + lent, always.
 */
void
slots_reset_stats(void)
{
	uint64		own[OWN_TOTALS];
	TimestampTz now = GetCurrentTimestamp();

	sum_own_totals(own);

	SpinLockAcquire(&Slots->mutex);
	memcpy(Slots->own_baseline, own, sizeof(own));
	Slots->own_baseline[TOTAL_ADMITTED] = own[TOTAL_COMPLETED] + own[TOTAL_FAILED];
	memcpy(Slots->pool_baseline, Slots->totals, sizeof(Slots->totals));
	for (int i = 0; i < SLOTS_WAIT_BUCKETS; i++)
		pg_atomic_write_u64(&Slots->wait_counts[i], 0);
	Slots->reset_epoch++;
	Slots->stats_reset = now;
	SpinLockRelease(&Slots->mutex);
}

/* ----------------------------------------------------------------
 *		Lending
 * ----------------------------------------------------------------
 */

/* Is it this waiter's duty to look at the holders?  A hint, no lock. */
bool
slots_am_watcher(void)
{
	return Slots->watcher == my_procno;
}

/*
 * Has it been that long (us) since the time in *last?  If so, it becomes now,
 * and only one of those who ask is told so.
 */
static bool
is_due(pg_atomic_uint64 *last, uint64 interval, TimestampTz now)
{
	uint64		seen = pg_atomic_read_u64(last);

	return (uint64) now - seen >= interval &&
		pg_atomic_compare_exchange_u64(last, &seen, now);
}

/*
 * Should an arriving backend look whether lenders have come back to work?
 * Yes if there are any and nobody has looked lately.
 */
bool
slots_lenders_unseen(void)
{
	return (pg_atomic_read_u32(&Slots->word) & WORD_LENDERS) != 0 &&
		is_due(&Slots->lenders_seen, LENDERS_UNSEEN_AFTER,
			   GetCurrentTimestamp());
}

/*
 * In how many ms the watcher is to look at the holders, if that is to be done
 * every so many ms; 0 if it is due, and then only one of those who ask is told
 * so.  The time is that of the pool, not of the watcher: the watchers may change
 * faster than that.
 */
long
slots_until_look(long interval)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		left;

	if (is_due(&Slots->holders_seen, (uint64) interval * 1000, now))
		return 0;
	left = pg_atomic_read_u64(&Slots->holders_seen) + interval * 1000 - now;
	return Max(1, Min(left / 1000 + 1, interval));
}

SlotState
slots_state(int procno)
{
	return pg_atomic_read_u32(&entry_of(procno)->state);
}

/* A number that changes whenever the holder is seen to work. */
uint32
slots_progress(int procno)
{
	return pg_atomic_read_u32(&entry_of(procno)->progress);
}

/*
 * A holder was seen waiting, at that time, for what wait_id says: the same
 * number means the same wait.  If this has been so for lend_after, its slot
 * is lent.
 */
void
slots_holder_waits(int procno, uint64 wait_id, TimestampTz now)
{
	SlotEntry  *entry = entry_of(procno);
	WakeList	wakes = {0};
	uint32		running = SLOT_RUNNING;
	int			lend_after = slots_lend_after();

	if (lend_after < 0)
		return;

	SpinLockAcquire(&Slots->mutex);
	if (entry->wait_id != wait_id)
	{
		entry->wait_id = wait_id;
		entry->wait_seen = now;
	}
	if (now >= TimestampTzPlusMilliseconds(entry->wait_seen, lend_after) &&
		pg_atomic_compare_exchange_u32(&entry->state, &running, SLOT_LENT))
	{
		Slots->lent++;
		Slots->totals[TOTAL_LENDS]++;
		pg_atomic_fetch_or_u32(&Slots->word, WORD_LENDERS);
		pg_atomic_fetch_sub_u32(&Slots->word, 1);
		pg_atomic_write_u64(&entry->since, now);
	}
	call_head_if_free(&wakes);
	SpinLockRelease(&Slots->mutex);
	wake_all(&wakes);
}

/*
 * A holder was seen to work: if its slot was lent, it counts again, above the
 * limit if need be.
 */
void
slots_holder_works(int procno)
{
	SlotEntry  *entry = entry_of(procno);
	WakeList	wakes = {0};
	uint32		lent = SLOT_LENT;

	if (entry->wait_id == 0 &&
		pg_atomic_read_u32(&entry->state) != SLOT_LENT)
		return;

	SpinLockAcquire(&Slots->mutex);
	entry->wait_id = 0;
	if (pg_atomic_read_u32(&entry->state) == SLOT_LENT)
	{
		/* Count first: from the exchange on, the owner may give it back. */
		pg_atomic_fetch_add_u32(&Slots->word, 1);
		if (pg_atomic_compare_exchange_u32(&entry->state, &lent, SLOT_RUNNING))
			forget_lender();
		else
			pg_atomic_fetch_sub_u32(&Slots->word, 1);	/* the owner left */
	}
	call_head_if_free(&wakes);
	SpinLockRelease(&Slots->mutex);
	wake_all(&wakes);
}
