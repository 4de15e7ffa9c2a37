/*-------------------------------------------------------------------------
 *
 * acquire.c
 *		Acquiring and releasing slots; settings; shared memory.  Knows nothing
 *		of SQL, time-outs or wait events.
 *
 * A backend that finds no free slot enters the queue of its pool or hot spot.
 * It is then granted a slot, or called to claim one (wait_queue.c).  The
 * waiters' flag of the count for all is set only if a backend waits and its
 * queue has a free place: other backends do not notice a queue that waits for
 * its own places.
 *
 * No wake-up is lost, because:
 *	 - without the lock, a backend releases a slot or undoes a count only if
 *	   the atomic operation finds the waiters' flag clear.  An arriving waiter
 *	   sets the flags before its last check for a free slot.  The queue's
 *	   count is lowered before the count of all;
 *	 - slots_unlock() calls the next waiter if a slot is free.
 * test/model checks this protocol.
 *
 * States of an entry, and which process changes them:
 *	 NONE -> RUNNING				its backend, after it was counted
 *	 NONE -> WAITING -> NONE		its backend, under the lock
 *	 WAITING -> RUNNING				any process, under the lock
 *	 RUNNING -> NONE				its backend
 *
 * A place at a hot spot is counted first, then put into the entry: by its
 * backend, or the process that grants it.  The process that takes it from there
 * by an exchange counts it out: its backend, or the worker.
 *
 * Locking: see slots_internal.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/ipc.h"
#include "storage/shmem.h"

#include "core/slots_internal.h"

/* SlotEntry.history if all the last transactions wanted a hot spot */
#define ALWAYS_WANTED	0xFF

/* What this backend has just been counted for */
static Hold next_hold;

static pg_atomic_uint32 no_state;	/* SLOT_NONE */
pg_atomic_uint32 *my_slot_state = &no_state;
static const bool no_sample = false;
const volatile bool *slots_seem_long = &no_sample;

/* Does it wait, or has it waited, for a second admission?  It counts as one. */
static bool is_readmission = false;

static void slots_at_exit(int code, Datum arg);

static inline bool
my_pool_is_current(void)
{
	return my_pool.generation == pg_atomic_read_u32(&Slots->generation);
}

/* Take this backend's entry, until it exits. */
static pg_noinline void
attach_entry(void)
{
	my_slot_procno = MY_PROC_NUMBER;
	MySlotEntry = entry_of(my_slot_procno);
	my_slot_state = &MySlotEntry->state;
	slots_seem_long = &MySlotEntry->seems_long;
	MySlotEntry->expected = 0;
	Assert(state_of(MySlotEntry) == SLOT_NONE);
	/* What an earlier process has left, up to wanted_relation */
	pg_atomic_write_u64(&MySlotEntry->last_wait, 0);
	memset(&MySlotEntry->hot_spot, 0, offsetof(SlotEntry, totals) - offsetof(SlotEntry, hot_spot));
	on_shmem_exit(slots_at_exit, (Datum) 0);
	pg_atomic_fetch_add_u32(&Slots->attached, 1);
	/* More backends may follow. */
	slots_lock();
	slots_call_worker();
	slots_unlock();
}

/* The queue in which this backend counts and waits */
static int
my_queue(void)
{
	int			hot_spot = *(volatile uint8 *) &MySlotEntry->hot_spot;

	if (hot_spot == 0 || my_pool.has_limit)
		return MySlotEntry->pool;
	return slots_hot_spot_queue(hot_spot - 1);
}

/* Must this backend be counted in its queue?  One that has a place is. */
static inline bool
needs_place(void)
{
	return my_pool.has_limit ||
		(unlikely(MySlotEntry->hot_spot != 0) && !is_at_hot_spot(MySlotEntry));
}

/* Count this backend in next_hold.  Returns false if it may not be now. */
static inline bool
count_me_in(CountWhen when)
{
	next_hold.place = NO_QUEUE;
	if (unlikely(needs_place()) && !count_place(my_queue(), when, &next_hold.place))
		return false;
	if (count_slot(when, &next_hold.counted))
		return true;
	slots_return_place(next_hold.place);
	return false;
}

static inline void
count_admission(void)
{
	/* Show the sampler that this is not the same wait as before. */
	(*(volatile uint16 *) &MySlotEntry->statement)++;
	if (likely(!is_readmission))
		add_to_own(TOTAL_ADMITTED, 1);
}

/* Make this backend a holder of next_hold. */
static inline void
become_holder(TimestampTz since)
{
	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE);
	count_admission();
	pg_atomic_write_u64(&MySlotEntry->since, since);
	slots_occupy(MySlotEntry, next_hold.place);
	pg_atomic_write_u32(&MySlotEntry->state, state_with(SLOT_RUNNING, &next_hold));
}

/* slots_try_acquire() if something may have to be counted */
static pg_noinline bool
try_to_be_counted(TimestampTz since, bool begins_block)
{
	if (unlikely(MySlotEntry == NULL))
		attach_entry();
	/* A lone statement shows what it wants when it starts (src/wanted.c). */
	if (!begins_block && !is_at_hot_spot(MySlotEntry))
		MySlotEntry->hot_spot = 0;
	if (unlikely(!my_pool_is_current()) && !is_readmission)
		slots_join_pool();
	if (!count_me_in(COUNT_IF_NONE_WAITS))
		return false;
	become_holder(since);
	return true;
}

/*
 * Acquire a slot if one is free and no backend waits: the hot path.  since:
 * when this backend's work began, for the views.  begins_block: by BEGIN.
 */
bool
slots_try_acquire(TimestampTz since, bool begins_block)
{
	SlotEntry  *me = MySlotEntry;

	/* A backend is attached before it joins a pool. */
	if (unlikely(!my_pool_is_current()) || slots_are_limited() ||
		my_pool.has_limit || me->hot_spot != 0)
		return try_to_be_counted(since, begins_block);

	/* Nothing is counted: as in become_holder(). */
	Assert(!is_readmission);
	me->statement++;
	add_to_own(TOTAL_ADMITTED, 1);
	pg_atomic_write_u64(&me->since, since);
	pg_atomic_write_u32(&me->state, SLOT_RUNNING);
	return true;
}

/* Acquire a free slot although others wait, but none of a higher priority. */
bool
slots_try_barge(TimestampTz since)
{
	bool		others_wait = waiters_flag_is_set() ||
	(pg_atomic_read_u32(&queue_at(my_queue())->usage) & USAGE_WAITERS) != 0;

	if ((others_wait &&
		 slots_my_pool()->priority < (int32) pg_atomic_read_u32(&Slots->next_priority)) ||
		!count_me_in(COUNT_IF_FREE))
		return false;
	become_holder(since);
	if (others_wait)
		add_to_own(TOTAL_BARGED, 1);
	return true;
}

/*
 * Acquire a slot at once: the backend must not wait, and has tried.  Returns
 * true if it is above the limit.
 */
bool
slots_force(TimestampTz since)
{
	bool		forced = !count_me_in(COUNT_IF_FREE);

	if (forced)
	{
		(void) count_me_in(COUNT_ALWAYS);
		if (!is_readmission)
			add_to_own(TOTAL_FORCED, 1);
	}
	become_holder(since);
	return forced;
}

/*
 * Acquire a slot, above the limit if necessary, if fewer than size backends
 * hold one of the reserve.
 */
bool
slots_acquire_reserved(int size, TimestampTz since)
{
	if (!count_up(&Slots->reserved, size, COUNT_IF_FREE))
		return false;
	MySlotEntry->reserved = true;
	if (!slots_force(since))
		leave_reserve(MySlotEntry); /* one was free after all */
	return true;
}

/* The guts of slots_enqueue(): sets next_hold unless it queues.  Lock held. */
static SlotState
enter_queue(int max_queue_length, bool holds_locks, uint64 patience)
{
	SlotQueue  *queue = queue_at(MySlotEntry->queue);

	/*
	 * A backend that may hold locks needs only a place.  Others may overtake
	 * waiters of lower priority.
	 */
	if (queue->nwaiters == 0 &&
		((MySlotEntry->needs_only_place &&
		  count_place(MySlotEntry->queue, COUNT_IF_FREE, &next_hold.place) &&
		  count_slot(COUNT_ALWAYS, &next_hold.counted)) ||
		 (slots_my_pool()->priority > slots_priority_of(slots_next_waiter()) &&
		  count_in(MySlotEntry->queue, COUNT_IF_FREE, &next_hold))))
		return SLOT_RUNNING;
	if (none_may_queue())
	{
		/* If the gate is off, this backend does not know it yet. */
		if (Slots->settings.max_active != 0)
		{
			add_to_own(TOTAL_WOULD_QUEUE, 1);
			slots_call_worker();
		}
		(void) count_in(MySlotEntry->queue, COUNT_ALWAYS, &next_hold);
		return SLOT_RUNNING;
	}
	if (max_queue_length >= 0 && queue->nwaiters >= max_queue_length)
	{
		add_to_own(TOTAL_REJECTIONS, 1);
		return SLOT_NONE;
	}

	add_to_own(TOTAL_QUEUED, 1);
	pg_atomic_write_u64(&MySlotEntry->since, Slots->timestamp);
	MySlotEntry->queued = Slots->now;
	MySlotEntry->holds_locks = holds_locks;
	MySlotEntry->patience = holds_locks ? 0 : patience;
	pg_atomic_write_u32(&MySlotEntry->state, SLOT_WAITING);
	slots_queue_append(MySlotEntry);
	return SLOT_WAITING;
}

/*
 * Enter the queue; but acquire a slot if one is free, or if the limit is off
 * or only observed.  max_queue_length (-1: no bound) applies if the pool has
 * none.  holds_locks: in the middle of its transaction, the backend may hold
 * some.  patience: after how many us a time-out of its own ends the wait, or 0;
 * does not count with holds_locks.  *queue_length receives the number of
 * waiters.  Returns the state: SLOT_NONE if the queue is full.
 */
SlotState
slots_enqueue(int max_queue_length, bool holds_locks, uint64 patience, int *queue_length)
{
	SlotState	result;
	SlotQueue  *queue;
	TimestampTz now;

	slots_lock();

	/* One admitted before ends in the pool that counted it. */
	while (!my_pool_is_current() && !is_readmission)
	{
		slots_unlock();
		slots_join_pool();
		slots_lock();
	}

	MySlotEntry->queue = my_queue();
	queue = queue_at(MySlotEntry->queue);
	if (pool_of(MySlotEntry)->definition.max_queue_length != POOLS_QUEUE_LENGTH_UNSET)
		max_queue_length = pool_of(MySlotEntry)->definition.max_queue_length;
	*queue_length = queue->nwaiters;

	/* Set the flags before the last look for a free slot. */
	if (!none_may_queue())
	{
		pg_atomic_fetch_or_u32(&queue->usage, USAGE_WAITERS);
		if (slots_are_limited())
			pg_atomic_fetch_or_u32(&Slots->usage, USAGE_WAITERS);
	}
	result = enter_queue(max_queue_length, holds_locks, patience);
	if (queue->nwaiters == 0)
		pg_atomic_fetch_and_u32(&queue->usage, ~USAGE_WAITERS);
	now = Slots->timestamp;
	slots_unlock();

	if (result == SLOT_RUNNING)
		become_holder(now);
	return result;
}

/* If this backend was granted or handed a slot, it is awake now. */
static void
finish_handoff(void)
{
	MySlotEntry->grant_pending = false;
	if (MySlotEntry->handoff_pending)
		pg_atomic_fetch_sub_u32(&Slots->handoffs_in_flight, 1);
	MySlotEntry->handoff_pending = false;
}

/* This backend was called: if it is still the next, claim a free slot. */
static void
claim_free_slot(void)
{
	Hold		hold;

	slots_lock();
	MySlotEntry->wakeup_pending = false;
	if (state_of(MySlotEntry) == SLOT_WAITING &&
		slots_is_its_turn(MySlotEntry) &&
		count_in(MySlotEntry->queue, COUNT_IF_FREE, &hold))
		slots_make_holder(MySlotEntry, &hold);
	slots_unlock();
}

/*
 * Does this waiter hold a slot now, granted or claimed?  Call this whenever
 * its latch was set.
 */
bool
slots_claim(void)
{
	if (state_of(MySlotEntry) == SLOT_WAITING && MySlotEntry->wakeup_pending)
		claim_free_slot();
	if (state_of(MySlotEntry) == SLOT_WAITING)
		return false;

	pg_read_barrier();			/* pairs with that of slots_make_holder() */
	finish_handoff();
	count_admission();
	return true;
}

/*
 * Leave the queue, and count the reason.  client_left: the client has given up.
 * Returns false if a slot was granted meanwhile: call slots_claim() or
 * slots_refuse_grant().
 */
bool
slots_leave_queue(SlotTotal reason, bool client_left)
{
	bool		left;

	slots_lock();
	left = state_of(MySlotEntry) == SLOT_WAITING;
	if (left)
	{
		if (client_left)
			slots_note_client(MySlotEntry, Slots->now - MySlotEntry->arrived);
		slots_queue_remove(MySlotEntry);
		pg_atomic_write_u32(&MySlotEntry->state, SLOT_NONE);
		add_to_own(reason, 1);
	}
	slots_unlock();
	return left;
}

/* Release what the entry no longer names. */
static void
release(Hold had)
{
	bool		others_wait = count_place_out(had.place);
	uint32		usage;

	if (had.counted)
	{
		usage = pg_atomic_read_u32(&Slots->usage);
		Assert((usage & USAGE_COUNT) > 0);
		while (likely(!others_wait) && (usage & USAGE_WAITERS) == 0)
			if (pg_atomic_compare_exchange_u32(&Slots->usage, &usage, usage - 1))
				return;
	}
	if (had.counted || others_wait)
	{
		slots_lock();
		slots_hand_off(&had);
		slots_unlock();
	}
}

/* Release this backend's slot and its places, in a pool and at a hot spot. */
static void
drop_all(void)
{
	int			place = unlikely(is_at_hot_spot(MySlotEntry)) ? take_place(MySlotEntry) : NO_QUEUE;
	uint32		state = pg_atomic_exchange_u32(&MySlotEntry->state, SLOT_NONE);
	Hold		had = {(state & STATE_COUNTED) != 0, pool_in(state)};

	leave_reserve(MySlotEntry);
	if (unlikely(place != NO_QUEUE))
	{
		slots_return_place(had.place);
		had.place = place;
	}
	release(had);
}

/* Pass on a slot that was granted too late. */
void
slots_refuse_grant(void)
{
	finish_handoff();
	drop_all();
	add_to_own(TOTAL_CANCELS, 1);
}

/* An admitted backend begins or continues a statement. */
void
slots_resume(void)
{
	(*(volatile uint16 *) &MySlotEntry->statement)++;
}

/* Release this backend's slot and places, if any. */
void
slots_release(void)
{
	SlotEntry  *me = MySlotEntry;

	if (me == NULL)
		return;
	if (likely(pg_atomic_read_u32(&me->state) == SLOT_RUNNING && !is_at_hot_spot(me)))
	{
		pg_atomic_write_u32(&me->state, SLOT_NONE);
		leave_reserve(me);
	}
	else if (pg_atomic_read_u32(&me->state) != SLOT_NONE || is_at_hot_spot(me))
	{
		/* FATAL may come before the wait has its cleanup. */
		if (state_of(me) == SLOT_WAITING &&
			!slots_leave_queue(TOTAL_CANCELS, false))
			slots_refuse_grant();
		drop_all();
	}
}

/* Evidence for a limit or, of those that it counts, for a lower one */
static void
count_evidence(pg_atomic_uint32 *count)
{
	bool		counted = (pg_atomic_read_u32(&MySlotEntry->state) & STATE_COUNTED) != 0;

	if (counted == slots_are_limited())
		pg_atomic_fetch_add_u32(count, 1);
}

/*
 * A time-out has ended a statement of this backend, but not in a queue: one of
 * its client after so many us, or, with 0, another.  Before it first acquires a
 * slot, there is nothing to count it in.
 */
void
slots_count_overdue(uint64 client_left_after)
{
	if (MySlotEntry == NULL)
		return;
	if (client_left_after > 0)
	{
		slots_lock();
		slots_note_client(MySlotEntry, client_left_after);
		slots_unlock();
	}
	add_to_own(TOTAL_OVERDUE, 1);
	count_evidence(&Slots->overdue);
}

/* The statement of this holder has ended just before a time-out would end it. */
void
slots_count_nearly_overdue(void)
{
	count_evidence(&Slots->nearly_overdue);
}

static inline bool
has_wanted(const SlotEntry *me)
{
	return (me->hot_spot | me->history | me->wanted_of | me->has_wanted |
			me->wanted_relation) != 0;
}

/*
 * Does the session stay a contender between two transactions?  It does if all
 * its last ones wanted the hot spot.  If they do not show what they want, some
 * samples will not find them in line: once it has begun, the habit lasts while
 * they run such statements and one of the last was seen.
 */
static bool
keeps_habit(const SlotEntry *me)
{
	return me->history == ALWAYS_WANTED ||
		(me->has_habit && me->history != 0 && me->hidden_of == me->hot_spot);
}

/*
 * The transaction has ended, and this backend has released what it had.
 * Completions count with or without a place: the control judges the limit by
 * them.
 */
void
slots_end_transaction(bool failed)
{
	SlotEntry  *me = MySlotEntry;
	int			queue;

	if (me == NULL || !has_wanted(me))
		return;
	queue = my_queue();
	if (is_of_hot_spot(queue) && !failed)
		pg_atomic_fetch_add_u32(&hot_spot_at(queue)->completed, 1);
	slots_count_wanted();
	me->history = (me->history << 1 | me->has_wanted) & ALWAYS_WANTED;
	me->has_habit = keeps_habit(me);
	me->has_wanted = false;
	me->wanted_of = me->hidden_of = 0;
	me->wanted_relation = InvalidOid;
	if (!me->has_habit)
		me->hot_spot = 0;
}

static pg_noinline void
release_and_end(bool failed)
{
	slots_release();
	slots_end_transaction(failed);
}

/*
 * The transaction has ended: count it if it was admitted, and release what it
 * has left.
 */
void
slots_end(bool failed, bool was_admitted)
{
	SlotEntry  *me = MySlotEntry;

	if (me == NULL)
		return;
	if (was_admitted)
		add_to_own(failed ? TOTAL_FAILED : TOTAL_COMPLETED, 1);
	if (unlikely(pg_atomic_read_u32(&me->state) != SLOT_NONE || is_at_hot_spot(me) || has_wanted(me)))
		release_and_end(failed);
}

/* ---- Places in the middle of a transaction ---- */

/* Does this backend have a place in any queue?  In a pool with a limit it has. */
bool
slots_has_place(void)
{
	return is_at_hot_spot(MySlotEntry) || my_pool.has_limit;
}

/*
 * Take a place at that hot spot for this backend, which has a slot.  Returns
 * false if none is free.  A backend that has a place anywhere keeps that one.
 */
bool
slots_take_place(int hot_spot)
{
	int			queue = slots_hot_spot_queue(hot_spot);
	CountWhen	when = is_of_long(queue) ? COUNT_IF_NONE_WAITS : COUNT_IF_FREE;
	int			place;

	slots_resume();
	if (state_of(MySlotEntry) != SLOT_RUNNING || slots_has_place())
		return true;
	if (!count_place(queue, when, &place))
		return false;
	MySlotEntry->hot_spot = hot_spot + 1;
	slots_occupy(MySlotEntry, place);
	return true;
}

/*
 * No place was free: release the slot, to wait for both by slots_enqueue().
 * Until slots_end_readmission(), no admission is counted.  has_begun: the
 * transaction may hold locks, and needs only a place.
 */
void
slots_give_up_for(int hot_spot, bool has_begun)
{
	MySlotEntry->hot_spot = hot_spot + 1;
	drop_all();
	is_readmission = true;
	MySlotEntry->needs_only_place = has_begun;
}

/* The wait has ended.  If it failed, acquire a slot without a place. */
void
slots_end_readmission(TimestampTz since)
{
	if (state_of(MySlotEntry) == SLOT_NONE)
	{
		MySlotEntry->hot_spot = 0;
		MySlotEntry->wanted_of = 0; /* it has not found out */
		(void) slots_force(since);
	}
	MySlotEntry->needs_only_place = is_readmission = false;
}

/* Release the place, but keep the slot. */
void
slots_release_place(void)
{
	Hold		had = {.counted = false};

	if (!is_at_hot_spot(MySlotEntry))
		return;
	MySlotEntry->hot_spot = 0;
	had.place = take_place(MySlotEntry);
	release(had);
}

/* on_shmem_exit callback: release what error cleanup has not. */
static void
slots_at_exit(int code, Datum arg)
{
	slots_release();
	finish_handoff();
	Assert(pg_atomic_read_u32(&MySlotEntry->state) == SLOT_NONE && !MySlotEntry->reserved);
	MySlotEntry = NULL;
	my_slot_state = &no_state;
	slots_seem_long = &no_sample;
}

/* ---- Settings ---- */

/*
 * Change the settings.  Waiters enter if they may now.  If the limit is
 * lowered, holders finish first.
 */
void
slots_set(const SlotSettings *settings)
{
	slots_lock();
	Slots->settings = *settings;
	if (settings->max_active != -1)
		Slots->cpu_limit = 0;
	slots_set_max_active();
	slots_unlock();
	if (!slots_have_hot_spots())
		slots_end_hot_spots();
	slots_grant_free();
}

/* ---- Looking at entries ---- */

/* Changes whenever a backend first meets the gate */
uint32
slots_attached(void)
{
	return pg_atomic_read_u32(&Slots->attached);
}

SlotLook
slots_look_at(int procno)
{
	SlotEntry  *entry = entry_of(procno);

	return (SlotLook)
	{
		.state = state_of(entry),
			.is_awake = !*(volatile bool *) &entry->grant_pending,
			.has_long_place = is_of_long(place_of(entry)),
			.progress = *(volatile uint16 *) &entry->statement,
			.failures = pg_atomic_read_u64(&entry->totals[TOTAL_FAILED])
	};
}

/* ---- Shared memory ---- */

#define SLOTS_TRANCHE	"admission_gate"

static Size
shmem_size(void)
{
	return add_size(offsetof(SlotShared, entries), mul_size(MaxBackends, sizeof(SlotEntry)));
}

void
slots_shmem_request(void)
{
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche(SLOTS_TRANCHE, 1);
}

/*
 * Create or find the shared memory.  Returns true if it is new: the caller,
 * which holds AddinShmemInitLock, then publishes all settings, pools first.
 */
bool
slots_shmem_init(void)
{
	bool		found;

	Slots = ShmemInitStruct("admission_gate slots", shmem_size(), &found);
	Assert((uintptr_t) Slots % PG_CACHE_LINE_SIZE == 0);
	slots_hot_kinds = &Slots->hot_kinds;
	slots_us_per_cost = &Slots->us_per_cost;
	slots_surprises = Slots->surprises;
	if (found)
		return false;

	memset(Slots, 0, shmem_size());
	pg_atomic_init_u32(&Slots->usage, 0);
	pg_atomic_init_u32(&Slots->limit, NO_LIMIT);
	pg_atomic_init_u32(&Slots->generation, 0);
	pg_atomic_init_u32(&Slots->handoffs_in_flight, 0);
	pg_atomic_init_u32(&Slots->next_priority, (uint32) NO_PRIORITY);
	pg_atomic_init_u32(&Slots->unknown_logged, 0);
	pg_atomic_init_u32(&Slots->overdue, 0);
	pg_atomic_init_u32(&Slots->nearly_overdue, 0);
	pg_atomic_init_u32(&Slots->attached, 0);
	pg_atomic_init_u32(&Slots->reserved, 0);
	SpinLockInit(&Slots->mutex);
	Slots->worker = INVALID_PROC_NUMBER;
	pg_atomic_init_u32(&Slots->hot_kinds, 0);
	Slots->pools_lock = &GetNamedLWLockTranche(SLOTS_TRANCHE)->lock;
	for (int i = 0; i < SLOTS_MAX_POOLS; i++)
	{
		pg_atomic_init_u64(&Slots->pools[i].max_wait, 0);
		for (int b = 0; b < SLOTS_WAIT_BUCKETS; b++)
			pg_atomic_init_u64(&Slots->pools[i].wait_counts[b], 0);
	}
	Slots->us_per_cost = FIRST_US_PER_COST;
	SpinLockInit(&Slots->known.mutex);
	for (int i = 0; i < SURPRISES / 32; i++)
		pg_atomic_init_u32(&Slots->surprises[i], 0);
	for (int i = 0; i < MAX_HOT_SPOTS + LONG_CLASSES; i++)
	{
		if (i >= MAX_HOT_SPOTS)
			Slots->hot_spots[i].key.kind = HOT_SPOT_LONG;
		pg_atomic_init_u32(&Slots->hot_spots[i].completed, 0);
		pg_atomic_init_u32(&Slots->hot_spots[i].passed, 0);
		pg_atomic_init_u64(&Slots->hot_spots[i].admitted, 0);
		pg_atomic_init_u64(&Slots->hot_spots[i].wait_time, 0);
	}
	for (int i = 0; i < SLOTS_QUEUES; i++)
	{
		pg_atomic_init_u32(&queue_at(i)->usage, 0);
		pg_atomic_init_u32(&queue_at(i)->limit, NO_LIMIT);
		dlist_init(&queue_at(i)->waiters);
		dlist_init(&queue_at(i)->impatient);
		queue_at(i)->last_awaited = queue_at(i)->last_before = &queue_at(i)->waiters.head;
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		SlotEntry  *entry = entry_of(i);

		pg_atomic_init_u32(&entry->state, SLOT_NONE);
		pg_atomic_init_u32(&entry->place, NO_QUEUE);
		pg_atomic_init_u64(&entry->since, 0);
		pg_atomic_init_u64(&entry->last_wait, 0);
		pg_atomic_init_u64(&entry->workers_time, 0);
		for (int t = 0; t < SLOT_TOTALS; t++)
			pg_atomic_init_u64(&entry->totals[t], 0);
	}
	return true;
}
