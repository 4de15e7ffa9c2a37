/*-------------------------------------------------------------------------
 *
 * wait_queue.c
 *		The queues, the order in them, and the lock.
 *
 * Each pool and each hot spot has a queue, first come, first served; but those
 * for which others wait go before all, and those that may hold locks before
 * those that hold none: see slots_queue_append().  Who can hardly be served in
 * time lets a newer one go first: see pass_over_late().  The next waiter is the
 * head of a queue with a free place.  Aged queues go first, then higher
 * priorities, then those for which others wait, then longer waits.  A waiter
 * sleeps on its latch and is woken in one of two ways:
 *
 * granted	A slot is counted for it, or changes hands, and the waiter leaves
 *			its queue and becomes a holder before its latch is set.  So no grant is
 *			lost: whatever the waiter does next, it holds a slot and releases it.
 * called	Only the head of a queue: its latch is set, and it must claim a
 *			free slot in competition with backends that are on a CPU already
 *			(barging).  If it comes too late, it sleeps on.
 *
 * A slot that is handed off stays idle until its new holder gets a CPU.  If
 * all were, a convoy would form.  So a released slot is handed off only if the
 * next waiter has waited for n times HANDOFF_AFTER, and fewer than n
 * hand-offs, and fewer than half of the slots or places, are in flight; or if
 * there was no hand-off for HANDOFF_AFTER: those in flight may not wake up.
 * Otherwise the next waiter is called.
 *
 * Only slots_unlock() releases the lock, and it calls the next waiter if a
 * slot is free.  So whenever the lock is free and a waiter could use a free
 * slot, the next waiter has been called and has not answered yet.
 *
 * Loops under the lock are bounded by a small constant, or by the queues with
 * waiters: at most 101, fewer than 20 times per section.  A section was measured
 * to last 0.2 us on the average, with 31 pools 0.5.
 *
 * Locking: "the lock" is in this file; see slots_internal.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"
#include "storage/latch.h"
#include "storage/proc.h"

#include "core/slots_internal.h"

/* ms.  From 5 to 100 ms, throughput and latency differ by a fifth at most. */
#define HANDOFF_AFTER	20
#define AGED_AFTER		1000	/* ms; see has_aged() */
#define SEVERAL_CLIENTS	4		/* that gave up: others may, too, */
#define REMEMBERED_FOR	5000	/* if it was within so many ms */
#define MAX_AT_ONCE		4		/* backends readmitted in one section */

SlotShared *Slots = NULL;
SlotEntry  *MySlotEntry = NULL;
int			my_slot_procno = INVALID_PROC_NUMBER;

/* Whose latches to set when the lock is free: see wake_later() */
static SlotEntry *wakeups[3 + MAX_AT_ONCE];
static int	nwakeups;

/* ---- Wake-ups ---- */

/*
 * Set its latch after the lock is released: that of a backend granted the
 * slot, of the next one, of the worker, and of those that readmit() lets in.
 * Lock held.
 */
static void
wake_later(SlotEntry *entry)
{
	Assert(nwakeups < lengthof(wakeups));
	wakeups[nwakeups++] = entry;
}

/* Wake the worker if it dozes.  Lock held. */
void
slots_call_worker(void)
{
	if (Slots->worker_dozes)
	{
		Slots->worker_dozes = false;
		wake_later(entry_of(Slots->worker));
	}
}

/* ---- The order ---- */

/* The next queue with waiters after that one, or NO_QUEUE.  A hint without the lock. */
int
slots_next_queue(int queue)
{
	for (queue++; queue < SLOTS_QUEUES; queue = (queue / 64 + 1) * 64)
	{
		uint64		rest = Slots->waiting[queue / 64] >> (queue % 64);

		if (rest != 0)
			return queue + pg_rightmost_one_pos64(rest);
	}
	return NO_QUEUE;
}

/* A hint. */
bool
slots_any_waits(void)
{
	return slots_next_queue(NO_QUEUE) != NO_QUEUE;
}

/* Was its queue passed over for so long that it goes first?  Lock held. */
static bool
has_aged(const SlotEntry *head)
{
	uint64		since = queue_at(head->queue)->passed_over_since;

	return since != 0 && passed_since(since, AGED_AFTER, Slots->now);
}

/* Does the head of a queue go before that of another?  Lock held. */
static bool
goes_first(const SlotEntry *head, const SlotEntry *other)
{
	int			order = has_aged(head) - has_aged(other);

	if (order == 0)
		order = pool_of(head)->definition.priority - pool_of(other)->definition.priority;
	if (order == 0)
		order = head->is_awaited - other->is_awaited;
	return order > 0 || (order == 0 && head->queued < other->queued);
}

static bool
is_impatient(const SlotEntry *entry)
{
	return entry->patience > 0 || entry->client_patience > 0;
}

/* us.  Lock held. */
static inline uint64
time_in_queue(const SlotEntry *entry)
{
	return Slots->now - entry->arrived;
}

/*
 * Has this waiter used half of its time?  What clients have is a guess, and
 * rather too long: a cancel needs a process of its own, which waits for a CPU.
 * So a quarter of that counts.  One whose client is still there after four times
 * what others had is patient after all.  Lock held.
 */
static bool
is_late(const SlotEntry *entry)
{
	uint64		waited = time_in_queue(entry);

	return (entry->patience > 0 && waited > entry->patience / 2) ||
		(waited > entry->client_patience / 4 && waited < entry->client_patience * 4);
}

/*
 * Would this waiter be late if it had to wait as long as the head of its queue
 * has?  If all had more time than it has, it would never be served.  Lock held.
 */
static bool
is_hurried(const SlotEntry *entry, const SlotEntry *head)
{
	return entry->patience > 0 && time_in_queue(head) > entry->patience / 2;
}

/*
 * The client of this waiter gives up: it cancels or hangs up, after so many us.
 * A few that do so tell how long clients wait, until none has for a while; above
 * all those whose cancels come soonest.  Lock held.
 */
void
slots_note_client(const SlotEntry *entry, uint64 after)
{
	SlotQueue  *queue = queue_at(entry->queue);
	int64		more = Max(after, 1) - queue->given_up_after;

	if (passed_since(queue->given_up, REMEMBERED_FOR, Slots->now))
		queue->clients = 0;
	queue->clients = Min(queue->clients + 1, SEVERAL_CLIENTS);
	queue->given_up_after += queue->clients == 1 ? more : more < 0 ? more / 2 : more / 32;
	queue->given_up = Slots->now;
}

/* The head of a queue and a later waiter exchange their tickets.  Lock held. */
static void
exchange_tickets(SlotQueue *queue, SlotEntry *head, SlotEntry *later)
{
	dlist_node *before = later->link.prev;
	uint64		queued = head->queued;

	if (queue->last_before == &head->link)
		queue->last_before = &later->link;
	else if (queue->last_before == &later->link)
		queue->last_before = &head->link;
	dlist_delete(&later->link);
	dlist_delete(&head->link);
	dlist_push_head(&queue->waiters, &later->link);
	dlist_insert_after(before == &head->link ? &later->link : before, &head->link);
	head->queued = later->queued;
	later->queued = queued;
}

/*
 * A waiter that others may wait for, or that nobody seems to give up, keeps its
 * ticket: its rank in the queue, and the time of arrival that counts for the
 * order.  Of the others, the head exchanges its ticket, when it has used half
 * of its time, with the one that came last, which has all of its time to run;
 * but not if it was called, or if that one is late itself.  Otherwise those
 * would be served first that are about to give up.  Every other turn is for
 * whoever has less time than the queue takes.  Lock held.
 */
static void
pass_over_late(void)
{
	for (int index = NO_QUEUE; (index = slots_next_queue(index)) != NO_QUEUE;)
	{
		SlotQueue  *queue = queue_at(index);
		SlotEntry  *head = first_waiter(index);
		SlotEntry  *last;

		if (!is_impatient(head) || head->wakeup_pending)
			continue;
		last = dlist_tail_element(SlotEntry, impatient_link, &queue->impatient);
		if (!is_late(last) &&
			(is_late(head) || (queue->is_odd_turn && is_hurried(last, head))))
			exchange_tickets(queue, head, last);
	}
}

/* The next waiter, or NULL.  Lock held. */
SlotEntry *
slots_next_waiter(void)
{
	SlotEntry  *next = NULL;

	for (int queue = NO_QUEUE; (queue = slots_next_queue(queue)) != NO_QUEUE;)
	{
		SlotEntry  *head = first_waiter(queue);

		if (queue_has_place_free(queue) && (next == NULL || goes_first(head, next)))
			next = head;
	}
	return next;
}

/* The lowest priority that may barge ahead of the next waiter.  Lock held. */
int
slots_priority_of(const SlotEntry *next)
{
	if (next == NULL)
		return NO_PRIORITY;
	return has_aged(next) ? PG_INT32_MAX : pool_of(next)->definition.priority;
}

/*
 * A backend of this priority gets a slot, or has had one: it may have taken that
 * without the lock.  A queue begins to age if its head has a lower priority and
 * could use the slot.  Lock held.
 */
static void
note_passed_over(int priority)
{
	for (int index = NO_QUEUE; (index = slots_next_queue(index)) != NO_QUEUE;)
	{
		SlotQueue  *queue = queue_at(index);
		SlotEntry  *head = first_waiter(index);

		if (queue->passed_over_since == 0 &&
			pool_of(head)->definition.priority < priority && queue_has_place_free(index))
			queue->passed_over_since = Slots->now;
	}
}

/* ---- The queues: the lock is held ---- */

/*
 * Put an entry into its queue, whose flag is set, if it has one.  If slots are
 * limited, a backend that may hold locks goes before those that hold none,
 * unless these have waited for HANDOFF_AFTER; never before another one that
 * may hold locks.
 */
void
slots_queue_append(SlotEntry *entry)
{
	SlotQueue  *queue = queue_at(entry->queue);
	dlist_node *end = &queue->waiters.head;
	dlist_node *next = queue->last_before->next;

	if (next != end &&
		(!entry->holds_locks || !slots_are_limited() ||
		 passed_since(dlist_container(SlotEntry, link, next)->queued, HANDOFF_AFTER, entry->queued)))
		next = end;
	dlist_insert_before(next, &entry->link);
	entry->arrived = entry->queued;
	if (!entry->holds_locks && queue->clients >= SEVERAL_CLIENTS &&
		!passed_since(queue->given_up, REMEMBERED_FOR, entry->queued))
		entry->client_patience = queue->given_up_after;
	if (is_impatient(entry))
		dlist_push_tail(&queue->impatient, &entry->impatient_link);
	queue->nwaiters++;
	if (entry->holds_locks)
		queue->last_before = &entry->link;
	Slots->waiting[entry->queue / 64] |= UINT64CONST(1) << (entry->queue % 64);
	entry->is_awaited = false;
	entry->wakeup_pending = false;
	slots_call_worker();
}

/* How long it can wait no longer counts for the order. */
static void
end_impatience(SlotEntry *entry)
{
	if (is_impatient(entry))
		dlist_delete(&entry->impatient_link);
	entry->patience = entry->client_patience = 0;
}

static void
unlink_entry(SlotQueue *queue, SlotEntry *entry)
{
	if (queue->last_awaited == &entry->link)
		queue->last_awaited = entry->link.prev;
	if (queue->last_before == &entry->link)
		queue->last_before = entry->link.prev;
	dlist_delete(&entry->link);
}

/*
 * Others wait for what this waiter holds: it goes before those for which none
 * waits, and after those that were found sooner.  It keeps a call, and does
 * not let others go first.
 */
void
slots_queue_first(SlotEntry *entry)
{
	SlotQueue  *queue = queue_at(entry->queue);

	if (entry->is_awaited)
		return;
	entry->is_awaited = true;
	end_impatience(entry);
	unlink_entry(queue, entry);
	dlist_insert_after(queue->last_awaited, &entry->link);
	if (queue->last_before == queue->last_awaited)
		queue->last_before = &entry->link;
	queue->last_awaited = &entry->link;
}

void
slots_queue_remove(SlotEntry *entry)
{
	int			index = entry->queue;
	SlotQueue  *queue = queue_at(index);

	unlink_entry(queue, entry);
	end_impatience(entry);
	entry->holds_locks = false;
	if (--queue->nwaiters == 0)
	{
		pg_atomic_fetch_and_u32(&queue->usage, ~USAGE_WAITERS);
		queue->passed_over_since = 0;
		Slots->waiting[index / 64] &= ~(UINT64CONST(1) << (index % 64));
	}
}

/* ---- Slots for waiters ---- */

/* Make a waiter a holder of what is already counted.  Lock held. */
void
slots_make_holder(SlotEntry *entry, const Hold *hold)
{
	SlotQueue  *queue = queue_at(entry->queue);

	Assert(state_of(entry) == SLOT_WAITING);
	slots_queue_remove(entry);
	note_passed_over(pool_of(entry)->definition.priority);
	queue->is_odd_turn = !queue->is_odd_turn;
	queue->passed_over_since = 0;
	queue->moved = Slots->now;
	queue->stall = 0;
	slots_occupy(entry, hold->place);
	pg_atomic_write_u64(&entry->since, Slots->timestamp);
	pg_write_barrier();			/* it reads its state without the lock */
	pg_atomic_write_u32(&entry->state, state_with(SLOT_RUNNING, hold));
}

/* The same, and wake it.  Lock held. */
static void
grant(SlotEntry *entry, const Hold *hold)
{
	entry->grant_pending = true;	/* before it sees its state */
	slots_make_holder(entry, hold);
	wake_later(entry);
}

/* ---- The lock ---- */

/*
 * Take the lock.  Until slots_unlock(), raise no error, allocate nothing, and
 * take no other lock.
 */
void
slots_lock(void)
{
	uint64		now = monotonic_us();
	TimestampTz timestamp = GetCurrentTimestamp();

	nwakeups = 0;
	SpinLockAcquire(&Slots->mutex);
	/* Another process may have read its clock later, and been faster. */
	Slots->now = Max(Slots->now, now);
	Slots->timestamp = timestamp;
}

/* Without a limit for all: a head that could enter and was not called */
static SlotEntry *
head_to_call(void)
{
	for (int queue = NO_QUEUE; (queue = slots_next_queue(queue)) != NO_QUEUE;)
	{
		SlotEntry  *head = first_waiter(queue);

		if (queue_has_place_free(queue) && !head->wakeup_pending)
			return head;
	}
	return NULL;
}

/* May this waiter take a free slot?  Lock held. */
bool
slots_is_its_turn(SlotEntry *entry)
{
	return entry == (slots_are_limited() ? slots_next_waiter() : first_waiter(entry->queue));
}

/*
 * Publish the waiters' flag of Slots->usage, which stays clear without a limit
 * for all, and the lowest priority that may barge.  Write only changes: every
 * statement reads these.  Lock held.
 */
static void
publish_next(const SlotEntry *next)
{
	uint32		priority = (uint32) slots_priority_of(next);
	bool		flag = next != NULL && slots_are_limited();

	if (pg_atomic_read_u32(&Slots->next_priority) != priority)
		pg_atomic_write_u32(&Slots->next_priority, priority);
	if (flag && !waiters_flag_is_set())
		pg_atomic_fetch_or_u32(&Slots->usage, USAGE_WAITERS);
	else if (!flag && waiters_flag_is_set())
		pg_atomic_fetch_and_u32(&Slots->usage, ~USAGE_WAITERS);
}

/*
 * While no slot is free, let in waiters that need only a place, if they are the
 * first of their queue and it has one free.  If there are many, later sections
 * let in the rest.  Lock held.
 */
static void
readmit(void)
{
	int			readmitted = 0;

	for (int queue = NO_QUEUE; (queue = slots_next_queue(queue)) != NO_QUEUE;)
	{
		SlotEntry  *head;
		Hold		hold;

		while (readmitted < MAX_AT_ONCE &&
			   (head = first_waiter(queue)) != NULL && head->needs_only_place &&
			   count_place(queue, COUNT_IF_FREE, &hold.place) &&
			   count_slot(COUNT_ALWAYS, &hold.counted))
		{
			grant(head, &hold);
			readmitted++;
		}
	}
}

/*
 * Call the next waiter if a slot is free, or was free and readmit() did not
 * run.  Lock held.
 */
static void
wake_next(bool was_free)
{
	SlotEntry  *next = slots_next_waiter();

	/* Set the flag before the test, as slots_enqueue() does. */
	publish_next(next);
	if (!slots_are_limited())
		next = head_to_call();
	if (next != NULL && (was_free || slot_is_free()) && !next->wakeup_pending)
	{
		next->wakeup_pending = true;
		wake_later(next);
	}
}

/*
 * Put queues in order, call the next waiter if a slot is free, release the
 * lock, set latches.
 */
void
slots_unlock(void)
{
	bool		was_free;

	pass_over_late();
	was_free = slot_is_free();
	if (!was_free)
		readmit();
	wake_next(was_free);
	SpinLockRelease(&Slots->mutex);
	for (int i = 0; i < nwakeups; i++)
		SetLatch(&GetPGProcByNumber(procno_of(wakeups[i]))->procLatch);
}

/* Count a place out, if it is one, and call the next waiter if it can enter. */
void
slots_return_place(int place)
{
	if (likely(!count_place_out(place)))
		return;
	slots_lock();
	slots_unlock();				/* this calls it */
}

/* ---- Entries by limits ---- */

/*
 * The setting, or the limit of the CPUs, has changed: publish the limit that
 * holds, with as many more slots as before for holders that are not at work.
 * Lock held.
 */
void
slots_set_max_active(void)
{
	int			max_active = Slots->settings.max_active;
	int			more = Slots->max_active > 0 ? pg_atomic_read_u32(&Slots->limit) - Slots->max_active : 0;

	if (max_active == -1 && Slots->cpu_limit > 0)
		max_active = Slots->cpu_limit;
	Slots->max_active = max_active;
	pg_atomic_write_u32(&Slots->limit, max_active > 0 ? max_active + more : NO_LIMIT);
}

/* Let a sleeping waiter in, above the limits if necessary.  Lock held. */
void
slots_grant_above_limit(SlotEntry *entry)
{
	Hold		hold;

	(void) count_in(entry->queue, COUNT_ALWAYS, &hold);
	pool_of(entry)->totals[TOTAL_STALLS]++;
	grant(entry, &hold);
}

/* Let in the next waiter, or one without a limit to wait for, if any. */
static bool
grant_one(void)
{
	CountWhen	when = COUNT_ALWAYS;
	SlotEntry  *next;
	Hold		hold;
	bool		granted;

	slots_lock();
	if (none_may_queue())
		next = slots_any_waits() ? first_waiter(slots_next_queue(NO_QUEUE)) : NULL;
	else
	{
		next = slots_next_waiter();
		when = COUNT_IF_FREE;
	}
	granted = next != NULL && count_in(next->queue, when, &hold);
	if (granted)
		grant(next, &hold);
	slots_unlock();
	return granted;
}

/* Let waiters in as far as the limits allow. */
void
slots_grant_free(void)
{
	while (grant_one())
		 /* the lock is free in between */ ;
}

/* May a released slot be handed off to the next waiter?  Lock held. */
static bool
may_hand_off(const SlotEntry *next)
{
	const int64 delay = HANDOFF_AFTER * INT64CONST(1000);
	int64		waited = Slots->now - next->queued;
	uint32		in_flight = pg_atomic_read_u32(&Slots->handoffs_in_flight);
	uint32		most = Min(pg_atomic_read_u32(&Slots->limit),
						   pg_atomic_read_u32(&queue_at(next->queue)->limit)) / 2;

	return waited >= delay &&
		((in_flight < Max(most, 1) && waited >= delay * (in_flight + 1)) ||
		 (int64) (Slots->now - Slots->last_handoff) >= delay);
}

/*
 * Release what this backend had: its slot, if had->counted, which Slots->usage
 * still counts; and its place, which is counted out.  Hand the slot off to the
 * next waiter if that is allowed.  Lock held.
 */
void
slots_hand_off(const Hold *had)
{
	bool		limited = slots_are_limited();
	SlotEntry  *next;
	Hold		hold = *had;

	/* First: a queue that has aged goes before others. */
	note_passed_over(pool_of(MySlotEntry)->definition.priority);
	next = had->place != NO_QUEUE && !limited ?
		first_waiter(had->place) : slots_next_waiter();
	if (next != NULL &&
		(!limited || (had->counted && slots_in_use() <= pg_atomic_read_u32(&Slots->limit))) &&
		may_hand_off(next) &&
		count_place(next->queue, COUNT_IF_FREE, &hold.place))
	{
		Slots->last_handoff = Slots->now;
		pg_atomic_fetch_add_u32(&Slots->handoffs_in_flight, 1);
		next->handoff_pending = true;
		grant(next, &hold);
	}
	else if (had->counted)
		pg_atomic_fetch_sub_u32(&Slots->usage, 1);
}

/*
 * Describe the limit that keeps this backend out, which is in no queue any
 * more: that of its last queue if it is exhausted, else that for all.
 */
void
slots_get_my_limit(SlotLimit *limit)
{
	int			mine;

	Assert(state_of(MySlotEntry) == SLOT_NONE);
	memset(limit, 0, sizeof(SlotLimit));
	slots_lock();
	mine = MySlotEntry->queue;
	limit->is_of_queue = !queue_has_place_free(mine) || !slots_are_limited();
	if (limit->is_of_queue)
	{
		limit->in_use = places_in_use(mine);
		limit->max_active = is_of_hot_spot(mine) ? pg_atomic_read_u32(&queue_at(mine)->limit) :
			pool_of(MySlotEntry)->definition.max_active;
		if (limit->max_active == NO_LIMIT || limit->max_active <= 0)
			limit->max_active = Max(limit->in_use, 1);	/* it has just ended */
		limit->waiting = queue_at(mine)->nwaiters;
		if (is_of_hot_spot(mine))
		{
			limit->hot_spot = hot_spot_at(mine)->key;
			if (limit->hot_spot.kind == HOT_SPOT_NONE)	/* likewise */
				limit->hot_spot.kind = HOT_SPOT_TRANSACTION;
		}
	}
	else
	{
		limit->max_active = Max(Slots->max_active, 1);
		limit->in_use = slots_in_use();
		for (int queue = NO_QUEUE; (queue = slots_next_queue(queue)) != NO_QUEUE;)
			limit->waiting += queue_at(queue)->nwaiters;
	}
	slots_unlock();
}
