/*-------------------------------------------------------------------------
 *
 * slots.c
 *		The shared semaphore: take, wait, give back, barge.  Knows nothing of
 *		SQL, time-outs or wait events.
 *
 * The semaphore is one 32-bit word: the number of slots in use, and two flags
 * in its highest bits, "somebody waits" and "somebody has lent a slot".  While
 * no flag is set, a slot is taken and given back by one compare-and-exchange;
 * as the flags are larger than any limit, "word < limit" tests all of it.
 *
 * Every backend has an entry in an array indexed by its proc number.  Waiting
 * entries form a first-come queue for each pool, linked by proc numbers, since
 * pointers need not mean the same in every process.  The next of all that wait
 * is the first in one of the queues: see slots_queue.c.  A waiter sleeps on
 * its own latch and is woken in one of two ways:
 *
 * granted	The slot changes hands: the count stays, the waiter is taken out of
 *			its queue and made a holder before its latch is set.  So a grant is
 *			never lost: whatever the waiter does next, it holds a slot and will
 *			give it back.
 * called	Only the next: its latch is set and it has to claim a free slot
 *			itself, in competition with backends that are on a CPU already
 *			(barging).  It may find that it came too late and sleeps on.
 *			Once it has waited for longer than handoff_after, the next slot
 *			given back is granted to it, or soon after: see below.
 *
 * A granted slot is idle until its heir has been given a CPU, and that may take
 * longer than many statements: if every slot were on such a way, everybody would
 * have to queue because everybody does.  So, unless handoff_after is 0, a slot given
 * back is granted only if fewer are on such a way than the next has waited for
 * whole times handoff_after: one at first, and the more, the longer the wait, but no
 * more than half of the slots.  Until then, whoever is next is called.  Heirs that do
 * not come are not waited for: there is one more whenever the last one was
 * granted its slot handoff_after ago.
 *
 * Pools: a backend belongs to one, and a pool that has a limit of its own has a
 * word of its own.  A backend of such a pool counts itself there first, then in
 * the word for all; if that fails, it takes the first step back.  The waiters'
 * flag of a pool's word says that its queue is not empty; that of the word for
 * all, that somebody waits whose pool has a slot free.  So backends of other
 * pools do not notice a queue that only waits for its own pool's slots.
 *
 * No wake-up is lost, because:
 *	 - a slot is given back, or a step taken back, without the mutex only if
 *	   the same atomic instruction sees the waiters' flag clear, and an arriving
 *	   waiter sets the flags before it looks for a free slot for the last time;
 *	   a slot is given back to the pool before it is to all;
 *	 - every section under the mutex that may free a slot or change who is next
 *	   ends with slots_settle(), so that when the mutex is free, "a slot is free
 *	   and somebody could have it" implies that the next has been called and
 *	   has not answered yet; or it is one of a row that grants slots until none
 *	   is free or nobody waits.
 * test/model mirrors this protocol in a model checker's language.
 *
 * The watcher is one of the waiters, which wakes up from time to time.  It looks at
 * the holders (lending.c) and reports what it saw: a holder that has done nothing for
 * long enough becomes a lender (slots_lending.c) and keeps its slot on paper while
 * the slot counts as free.  If a queue stands still all the same, it lets the next
 * one in above the limit (slots_stall.c).  The last in a queue at the time of the
 * appointment is made watcher, as it will be here longest: the duty, and with
 * it one wake-up, changes hands about once per length of the queue.  If a watcher is
 * late, as a stopped process is, the next backend to enter a queue takes its place, or
 * another waiter, each of which wakes up every few seconds to see to it.
 *
 * Turns and retained slots: see slots_turns.c.  Contention, for which fewer slots
 * are given out than the limit says: see slots_contention.c.
 *
 * Observing: nobody enters the queue any more; who would have is counted and
 * enters above the limit.  Setting it empties the queues and ends all turns.
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
 *	 RUNNING -> LONG	anybody, under the mutex, by compare-and-exchange
 *	 LONG -> RUNNING	owner, under the mutex
 *	 RUNNING -> NONE	owner, by exchange
 *	 LENT -> NONE		owner, by exchange
 *	 LONG -> NONE		owner, by exchange
 * The exchanges decide who wins when an owner leaves while others lend its
 * slot or take it as that of a long statement: the owner gives back what the state it
 * found says.
 *
 * Locking: see slots_shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "settings.h"
#include "slots.h"
#include "slots_shared.h"

SlotShared *Slots = NULL;
SlotEntry  *MySlotEntry = NULL;
int			my_slot_procno = NOBODY;

/* Does this backend hold a slot that it took from the reserve? */
static bool in_reserve = false;

static void slots_at_exit(int code, Datum arg);

/* ----------------------------------------------------------------
 *		Shared memory
 * ----------------------------------------------------------------
 */

/*
 * How many bytes it will take.  MaxBackends must be known.
 */
static Size
shmem_size(void)
{
	return add_size(PG_CACHE_LINE_SIZE + offsetof(SlotShared, entries),
					mul_size(MaxBackends, sizeof(PaddedSlotEntry)));
}

/*
 * Ask for the shared memory, and for the lock.  From a shmem_request_hook.
 */
void
slots_shmem_request(void)
{
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche(SLOTS_TRANCHE, 1);
}

/*
 * Create the semaphore, with that limit (see slots_set_limit), enforced or only
 * observed, those pools, that time before lending (see slots_set_lend_after), that CPU
 * time of a long statement and with or without load control, or find it if it exists.
 * The caller holds AddinShmemInitLock.
 */
void
slots_shmem_init(int limit, bool observing, const PoolDefinitions *pools,
				 int lend_after, int long_after, bool load_control)
{
	bool		found;
	void	   *area;

	area = ShmemInitStruct("admission_gate slots", shmem_size(), &found);
	Slots = (SlotShared *) TYPEALIGN(PG_CACHE_LINE_SIZE, area);
	slots_look = &Slots->look;
	if (found)
		return;

	memset(Slots, 0, offsetof(SlotShared, entries));
	pg_atomic_init_u32(&Slots->word, 0);
	pg_atomic_init_u32(&Slots->effective_limit, NO_LIMIT);
	pg_atomic_init_u32(&Slots->generation, 0);
	pg_atomic_init_u32(&Slots->heirs_coming, 0);
	pg_atomic_init_u32(&Slots->next_priority, (uint32) NO_PRIORITY);
	pg_atomic_init_u32(&Slots->lend_after, (uint32) lend_after);
	pg_atomic_init_u32(&Slots->long_after, (uint32) long_after);
	pg_atomic_init_u32(&Slots->unknown_logged, 0);
	pg_atomic_init_u32(&Slots->load_control, load_control);
	pg_atomic_init_u64(&Slots->lenders_seen, 0);
	pg_atomic_init_u64(&Slots->holders_seen, 0);
	pg_atomic_init_u64(&Slots->look.seen, 0);
	pg_atomic_init_u64(&Slots->look.interval, 0);
	SpinLockInit(&Slots->mutex);
	Slots->limit = limit;
	Slots->observing = observing;
	Slots->retained.head = Slots->retained.tail = NOBODY;
	Slots->long_going_on.head = Slots->long_going_on.tail = NOBODY;
	Slots->long_paused.head = Slots->long_paused.tail = NOBODY;
	Slots->watcher = NOBODY;
	slots_init_stall_clock(&Slots->stall);
	Slots->pools_lock = &GetNamedLWLockTranche(SLOTS_TRANCHE)->lock;
	Slots->nentries = MaxBackends;
	slots_reset_law(GetCurrentTimestamp());

	for (int i = 0; i < Slots->nentries; i++)
	{
		SlotEntry  *entry = &Slots->entries[i].entry;

		memset(entry, 0, sizeof(SlotEntry));
		pg_atomic_init_u32(&entry->state, SLOT_NONE);
		pg_atomic_init_u32(&entry->progress, 0);
		pg_atomic_init_u64(&entry->since, 0);
		pg_atomic_init_u64(&entry->last_wait, 0);
		pg_atomic_init_u64(&entry->max_wait, 0);
		for (int t = 0; t < OWN_TOTALS; t++)
			pg_atomic_init_u64(&entry->totals[t], 0);
	}
	slots_init_pools(pools);
}

/*
 * Is there a semaphore, that is, was the library preloaded?
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
	my_slot_procno = MY_PROC_NUMBER;
	Assert(my_slot_procno >= 0 && my_slot_procno < Slots->nentries);
	MySlotEntry = &Slots->entries[my_slot_procno].entry;
	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	Assert(!MySlotEntry->counted);
	on_shmem_exit(slots_at_exit, (Datum) 0);
}

/* ----------------------------------------------------------------
 *		Counting
 * ----------------------------------------------------------------
 */

/*
 * Raise a count if it is below the limit; with barge, whatever the flags
 * say.  Competes with backends that do not hold the mutex.
 */
static inline bool
count_up_if_free(pg_atomic_uint32 *word, pg_atomic_uint32 *limit, bool barge)
{
	uint32		old = pg_atomic_read_u32(word);

	while ((barge ? old & WORD_COUNT : old) < pg_atomic_read_u32(limit))
	{
		if (pg_atomic_compare_exchange_u32(word, &old, old + 1))
			return true;
	}
	return false;
}

/*
 * Count one slot of that entry in its pool, if that has a limit of its own.
 * Returns false if the pool has none free.
 */
bool
slots_count_in_pool_if_free(SlotEntry *entry, bool barge)
{
	SlotPool   *pool = pool_of(entry);

	Assert(!entry->counted);
	if (!pool_has_limit(pool))
		return true;
	if (!count_up_if_free(&pool->word, &pool->effective_limit, barge))
		return false;
	entry->counted = true;
	return true;
}

/*
 * What that entry holds is no longer in use, as far as its pool counts it.
 * Returns whether the pool's waiters are to be told; nobody needs to if the
 * mutex is held.
 */
bool
slots_count_out_of_pool(SlotEntry *entry)
{
	uint32		word;

	if (likely(!entry->counted))
		return false;
	word = pg_atomic_fetch_sub_u32(&pool_of(entry)->word, 1);
	Assert((word & WORD_COUNT) > 0);
	entry->counted = false;
	return (word & WORD_WAITERS) != 0;
}

/*
 * Count one slot of that entry in its pool and in all, if both have one free.
 * The mutex is held.
 */
bool
slots_count_in_if_free(SlotEntry *entry)
{
	if (!slots_count_in_pool_if_free(entry, true))
		return false;
	if (count_up_if_free(&Slots->word, &Slots->effective_limit, true))
		return true;
	(void) slots_count_out_of_pool(entry);
	return false;
}

/*
 * Count one slot of this backend in its pool and in all, if both have one free;
 * with barge, even if others wait.  The mutex is not held.
 */
static pg_noinline bool
count_in_beside_pool(bool barge)
{
	if (!slots_count_in_pool_if_free(MySlotEntry, barge))
		return false;
	if (count_up_if_free(&Slots->word, &Slots->effective_limit, barge))
		return true;

	if (slots_count_out_of_pool(MySlotEntry))
	{
		WakeList	wakes = {0};
		TimestampTz now = GetCurrentTimestamp();

		SpinLockAcquire(&Slots->mutex);
		slots_settle(now, &wakes);
		SpinLockRelease(&Slots->mutex);
		slots_wake_all(&wakes);
	}
	return false;
}

/*
 * Count one slot of that entry in its pool and in all, above the limits if need be.
 */
void
slots_count_in(SlotEntry *entry)
{
	SlotPool   *pool = pool_of(entry);

	if (pool_has_limit(pool))
	{
		pg_atomic_fetch_add_u32(&pool->word, 1);
		entry->counted = true;
	}
	pg_atomic_fetch_add_u32(&Slots->word, 1);
}

/* ----------------------------------------------------------------
 *		The backend's own slot
 * ----------------------------------------------------------------
 */

/* Let whoever watches see that this is not the same wait as before. */
static inline void
show_progress(void)
{
	pg_atomic_write_u32(&MySlotEntry->progress,
						pg_atomic_read_u32(&MySlotEntry->progress) + 1);
}

/* What every admission begins with, whichever way it came about. */
static inline void
count_admission(void)
{
	show_progress();
	add_to_own(TOTAL_ADMITTED, 1);
}

/* This backend, whose slot is counted, is a holder from now on. */
static inline void
become_holder(TimestampTz since)
{
	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	pg_atomic_write_u64(&MySlotEntry->since, since);
	pg_atomic_write_u32(&MySlotEntry->state, SLOT_RUNNING);
	count_admission();
	if (unlikely(gate_turn_length > 0))
		slots_begin_turn();
}

/*
 * Take a slot if one is free and nobody waits.  This is the hot path.
 * since: when this backend's work began, for the views.
 */
bool
slots_try_take(TimestampTz since)
{
	if (unlikely(MySlotEntry == NULL))
		attach_entry();
	if (unlikely(!my_pool_is_current()))
		slots_join_pool();
	if (unlikely(slots_away_since != 0) && slots_resume_turn(since))
	{
		count_admission();
		return true;
	}

	if (unlikely(my_pool_has_limit) ? count_in_beside_pool(false) :
		count_up_if_free(&Slots->word, &Slots->effective_limit, false))
	{
		become_holder(since);
		return true;
	}
	return false;
}

/* Does anybody wait for a slot of this backend's pool, or of all? */
bool
slots_others_wait(void)
{
	return (pg_atomic_read_u32(&Slots->word) & WORD_WAITERS) != 0 ||
		(pg_atomic_read_u32(&pool_of(MySlotEntry)->word) & WORD_WAITERS) != 0;
}

/*
 * Take a slot if one is free, even if others wait, as far as barging is allowed: never
 * before those of higher priority.
 */
bool
slots_try_barge(TimestampTz since)
{
	bool		others_wait = slots_others_wait();

	if (others_wait &&
		(gate_handoff_after == 0 ||
		 my_pool_priority < (int32) pg_atomic_read_u32(&Slots->next_priority)))
		return false;
	if (my_pool_has_limit ? !count_in_beside_pool(true) :
		!count_up_if_free(&Slots->word, &Slots->effective_limit, true))
		return false;

	become_holder(since);
	if (others_wait)
		add_to_own(TOTAL_BARGED, 1);
	return true;
}

/*
 * Take a slot at once, above the limit if need be: for a backend that may not
 * wait, because others may wait for it.  Returns whether it is above the limit.
 */
bool
slots_force(TimestampTz since)
{
	bool		forced;

	if (slots_try_take(since))
		return false;

	forced = !count_in_beside_pool(true);
	if (forced)
		slots_count_in(MySlotEntry);
	become_holder(since);
	if (forced)
		add_to_own(TOTAL_FORCED, 1);
	return forced;
}

/*
 * Take a slot above the limit if fewer than that many backends hold one that they
 * took so.  Whether this backend may is the caller's business.
 */
bool
slots_enter_reserved(int size, TimestampTz since)
{
	int			used = 0;

	LWLockAcquire(Slots->pools_lock, LW_EXCLUSIVE);
	for (int procno = 0; procno < Slots->nentries && used < size; procno++)
	{
		if (entry_of(procno)->reserved)
			used++;
	}
	in_reserve = MySlotEntry->reserved = used < size;
	LWLockRelease(Slots->pools_lock);

	if (!in_reserve)
		return false;
	if (!slots_force(since))
		in_reserve = MySlotEntry->reserved = false; /* one was free after all */
	return true;
}

/*
 * May this backend, which has just arrived, have a free slot before that
 * waiter, the next, or NOBODY?  Mutex held.
 */
static bool
goes_before(int next, TimestampTz now)
{
	return pool_of(MySlotEntry)->queue.head == NOBODY &&
		my_pool_priority > slots_priority_of(next, now);
}

/*
 * Take the mutex, as one who belongs to a pool that is there.
 */
static void
lock_as_member(void)
{
	for (;;)
	{
		if (!my_pool_is_current())
			slots_join_pool();
		SpinLockAcquire(&Slots->mutex);
		if (my_pool_is_current())
			return;
		SpinLockRelease(&Slots->mutex);
	}
}

/*
 * Enter the queue, unless a slot is free after all, there is no limit any more or it
 * is only observed, or the queue is full: max_queue_length (-1: any) backends wait already, or as
 * many as are set for the pool.  now: the present time.  *queue_length receives
 * how many wait already.
 */
SlotEnqueued
slots_enqueue(int max_queue_length, TimestampTz now, int *queue_length)
{
	SlotEnqueued result;
	SlotPool   *pool;
	WakeList	wakes = {0};

	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);

	lock_as_member();
	pool = pool_of(MySlotEntry);
	if (pool->definition.max_queue_length != POOLS_QUEUE_LENGTH_UNSET)
		max_queue_length = pool->definition.max_queue_length;

	/*
	 * First the flags, then a last look for a free slot: a slot given back
	 * before is seen here, one given back later comes to the queue.
	 */
	if (!Slots->observing && Slots->limit != 0)
	{
		pg_atomic_fetch_or_u32(&pool->word, WORD_WAITERS);
		pg_atomic_fetch_or_u32(&Slots->word, WORD_WAITERS);
	}

	*queue_length = pool->queue.length;
	if (goes_before(slots_next_waiter(now), now) &&
		slots_count_in_if_free(MySlotEntry))
		result = SLOT_ENQUEUE_TAKEN;
	else if (Slots->limit == 0)
	{
		/* It has yet to hear that the gate is off. */
		result = SLOT_ENQUEUE_TAKEN;
		slots_count_in(MySlotEntry);
	}
	else if (Slots->observing)
	{
		result = SLOT_ENQUEUE_OBSERVED;
		pool->totals[TOTAL_WOULD_QUEUE]++;
		slots_count_in(MySlotEntry);
	}
	else if (max_queue_length >= 0 && pool->queue.length >= max_queue_length)
	{
		result = SLOT_ENQUEUE_FULL;
		pool->totals[TOTAL_REJECTIONS]++;
	}
	else
	{
		result = SLOT_ENQUEUED;
		pool->totals[TOTAL_QUEUED]++;
		pg_atomic_write_u64(&MySlotEntry->since, now);
		pg_atomic_write_u32(&MySlotEntry->state, SLOT_WAITING);
		slots_queue_append(my_slot_procno, now);
	}

	if (pool->queue.head == NOBODY)
		pg_atomic_fetch_and_u32(&pool->word, ~WORD_WAITERS);
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);

	if (result == SLOT_ENQUEUE_TAKEN || result == SLOT_ENQUEUE_OBSERVED)
		become_holder(now);
	return result;
}

/* If this backend has been granted a slot, it is awake now. */
static void
arrive_as_heir(void)
{
	if (!MySlotEntry->inheriting)
		return;
	MySlotEntry->inheriting = false;
	Assert(pg_atomic_read_u32(&Slots->heirs_coming) > 0);
	pg_atomic_fetch_sub_u32(&Slots->heirs_coming, 1);
}

/*
 * To be asked by a waiter whenever its latch was set: does it hold a slot?
 * Either it was granted one, or it was called, is still the next and finds one
 * free.
 */
bool
slots_claim(void)
{
	WakeList	wakes = {0};
	bool		mine = false;

	if (pg_atomic_read_u32(&MySlotEntry->state) != SLOT_WAITING)
		mine = true;
	else if (MySlotEntry->called)
	{
		TimestampTz now = GetCurrentTimestamp();

		SpinLockAcquire(&Slots->mutex);
		if (pg_atomic_read_u32(&MySlotEntry->state) != SLOT_WAITING)
			mine = true;
		else
		{
			MySlotEntry->called = false;
			if (slots_next_waiter(now) == my_slot_procno &&
				slots_count_in_if_free(MySlotEntry))
			{
				slots_grant(my_slot_procno, now, &wakes);
				wakes.n--;		/* we are awake */
				mine = true;
			}
		}
		slots_settle(now, &wakes);
		SpinLockRelease(&Slots->mutex);
		slots_wake_all(&wakes);
	}

	if (mine)
	{
		pg_read_barrier();		/* see slots_grant */
		arrive_as_heir();
		count_admission();
		if (unlikely(gate_turn_length > 0))
			slots_begin_turn();
		if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_LENT)
			slots_holder_works(my_slot_procno); /* we were slow to wake up */
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
	TimestampTz now = GetCurrentTimestamp();
	bool		left = false;

	SpinLockAcquire(&Slots->mutex);
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_WAITING)
	{
		slots_queue_remove(my_slot_procno, now, &wakes);
		pg_atomic_write_u32(&MySlotEntry->state, SLOT_NONE);
		pool_of(MySlotEntry)->totals[reason == SLOT_LEAVE_TIMEOUT ?
									 TOTAL_TIMEOUTS : TOTAL_CANCELS]++;
		left = true;
	}
	slots_settle(now, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
	return left;
}

/*
 * Give a slot back that the caller no longer counts as its own.
 */
static void
free_slot(void)
{
	uint32		word;
	bool		pool_waits;
	WakeList	wakes = {0};
	TimestampTz now;

	pool_waits = slots_count_out_of_pool(MySlotEntry);
	word = pg_atomic_read_u32(&Slots->word);
	Assert((word & WORD_COUNT) > 0);
	while (likely(!pool_waits) && (word & WORD_WAITERS) == 0)
	{
		if (pg_atomic_compare_exchange_u32(&Slots->word, &word, word - 1))
			return;
	}

	now = GetCurrentTimestamp();
	SpinLockAcquire(&Slots->mutex);
	slots_note_passed_over(pool_of(MySlotEntry)->definition.priority,
						   pg_atomic_read_u64(&MySlotEntry->since));
	slots_pass_on(now, false, &wakes);
	SpinLockRelease(&Slots->mutex);
	slots_wake_all(&wakes);
}

/*
 * End this backend's hold on its slot, lent or not.
 */
static void
drop_slot(void)
{
	SlotState	state = pg_atomic_exchange_u32(&MySlotEntry->state, SLOT_NONE);

	if (unlikely(in_reserve))
		in_reserve = MySlotEntry->reserved = false;
	if (likely(state == SLOT_RUNNING))
		free_slot();
	else if (state == SLOT_LONG)
		slots_forget_long();
	else
	{
		Assert(state == SLOT_LENT);
		slots_forget_lending();
	}
}

/*
 * Pass a slot on that was granted too late to be of use.
 */
void
slots_refuse_grant(void)
{
	arrive_as_heir();
	drop_slot();
	SpinLockAcquire(&Slots->mutex);
	pool_of(MySlotEntry)->totals[TOTAL_CANCELS]++;
	SpinLockRelease(&Slots->mutex);
}

/*
 * The backend, which holds a slot, goes on working, with another statement or the same: tell
 * the watcher, and take the slot back if it was lent, or given up for a long statement
 * that is over, above the limit if need be.
 */
void
slots_resume(bool other_statement)
{
	SlotState	state = pg_atomic_read_u32(&MySlotEntry->state);

	show_progress();
	if (unlikely(state == SLOT_LENT))
		slots_holder_works(my_slot_procno);
	else if (unlikely(state == SLOT_LONG) && other_statement)
		slots_end_long();
}

/* This backend's place among the entries, or -1 if it has not come to the gate */
int
slots_my_procno(void)
{
	return my_slot_procno;
}

/*
 * The backend's work is done, well or not: give its slot back, or keep it for
 * the rest of its turn.
 */
void
slots_give_back(bool failed)
{
	add_to_own(failed ? TOTAL_FAILED : TOTAL_COMPLETED, 1);
	if (unlikely(gate_turn_length > 0) && !failed && !in_reserve && slots_retain())
		return;
	drop_slot();
}

/*
 * on_shmem_exit callback: whatever this backend was about, leave no trace.
 * By before_shmem_exit callbacks, it has left the queue, unless it had no room
 * for one, and its transaction has been aborted already.
 */
static void
slots_at_exit(int code, Datum arg)
{
	if (pg_atomic_read_u32(&MySlotEntry->state) == SLOT_WAITING &&
		!slots_leave_queue(SLOT_LEAVE_CANCEL))
		slots_refuse_grant();

	if (slots_retained_mine)
		slots_end_my_turn();
	else if (pg_atomic_read_u32(&MySlotEntry->state) != SLOT_NONE)
	{
		pg_read_barrier();		/* see slots_grant */
		arrive_as_heir();		/* of a slot granted since it had no room */
		slots_give_back(true);
	}

	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	Assert(!MySlotEntry->inheriting);
	MySlotEntry->reserved = false;	/* it may have ended on the way to its
									 * slot */
	MySlotEntry = NULL;
}
