/*
 * slots.pml
 *		A model of the semaphore (src/core), in Promela, the language of the model
 *		checker spin.
 *
 * A few backends run statements through the gate.  Others cancel them.  The worker takes
 * samples, marks contenders of hot spots, and changes limits.  spin visits every state that
 * any interleaving of their steps leads to.
 * What it proves, for the sizes in run.sh:
 *
 * (a) No slot and no place leaks: when all processes are done, nothing is counted, all
 *	   flags are clear, all queues are empty.  A backend whose wait in the middle of a
 *	   transaction has ended holds a slot.
 * (b) The limits hold: each count has at least the backends that say they are counted
 *	   there.  It exceeds its limit only by those that were counted above it for a reason,
 *	   like a forced entry, and by as many as a limit that fell left above it, until they
 *	   end.  Without a limit for all, nothing is counted.
 * (c) No wake-up is lost: a state in which no process can move has all of them done.
 *	   Whenever the lock is free, a slot is free, and a backend waits whose queue has a
 *	   free place, the next one (without a limit for all, that of each such queue) has been
 *	   called and has not answered yet.  If no slot is free, no first of a queue waits that
 *	   needs only a place, and has one free.  Exempt are the times in which a change of
 *	   limits is on its way, if there is no limit for all; a backend has yet to take the
 *	   lock for a place it released; and a waiter was called in vain.
 * (d) Flags: whenever the lock is free, that of a queue says whether backends wait in it;
 *	   that of all, whether any waits for a slot alone, as far as (c) demands.  None waits
 *	   while the gate is off and no change of that is on its way.
 * (e) Each waiter gets in, or leaves: with backends that never stop coming (FOREVER), by
 *	   weak fairness; but with a limit for all, one that begins and that others in the
 *	   middle pass is left to (f).  With HOLDER=WAITS, all are done in the end, without
 *	   the last resort; with STAYS, all others, by that.
 * (f) Order: a backend that claims a slot, or is granted one, is the first of its queue.
 *	   One that others wait for goes ahead of all for which none waits.
 *	   Where slots are limited, one in the middle of a transaction goes ahead of those
 *	   that begin theirs, unless these, or one before them, have waited for HANDOFF_AFTER:
 *	   then it goes behind all.  It never goes ahead of another one in the middle, nor of
 *	   one that has waited so long.  An exchange of tickets moves only those that are
 *	   impatient and hold no locks, and passes over none that was called.
 * (g) A hot spot that is gone has no limit.
 *
 * How to read it: an inline or macro in lower case is the function of its name in
 * src (run.sh checks that there is one); members and constants have their names, too.
 * Those in capitals are the model's own.  What a C function returns is in "ok", or in
 * the local variable of that name in its caller.  Every atomic instruction on a count,
 * and every look at a state, a limit, a mark or a wake-up without the lock, is one step.
 * A step has more only where the rest is local or guarded by the lock, or where that is
 * as good, as to compare and exchange until it succeeds.  Ghosts, which the code does not
 * have, change within the step they belong to.
 *
 * Memory is sequentially consistent.
 *
 * Left out: totals; all pools but "default"; the reserve, which is a forced entry; limits
 * that are only observed.  What depends on time or CPU time is a guess: all answers are
 * tried.  So is which of several queues goes first.  An exit of a backend that waits takes
 * the steps of a cancel; an error or an exit of one that works takes those of a release.
 *
 * Copyright (c) 2026, admission_gate authors
 */

/*
 * Parameters: run.sh gives all of them a value.
 *
 * BACKENDS		2 to 4, with ROUNDS statements each; FOREVER: they never stop
 * LIMIT		of all at the start, or NO_LIMIT; POOL_LIMIT likewise, not with HOT
 * BARGING		0: none barges, and each wait has been long: fewer states
 * INTERRUPTS	how many cancels, time-outs and idle wake-ups there are
 * MAX_QUEUE	max_queue_length
 * FORCE		1: some backends may not wait
 * RESIZE		1: the worker sets the limit to RESIZE_1, then to RESIZE_2; 0: the gate is off
 * HOT			hot spots, up to 2, each with a limit of 1 at the start
 * MARK			hot_spot of all but the first BYSTANDERS: these want the place of WANT - 1
 *				in the middle of their transactions, if that is not 0
 * SAMPLES		how many samples the worker takes, of what DO says
 * GONE			1: waiters find that nothing has been sampled, and their queue has not moved
 * VICTIM		FOREVER: the one that is to get in
 * IMPATIENT	so many backends, the last ones, have time-outs; who is late is a guess
 * ONLY_QUEUE	1: backends only queue, anywhere in their transactions, and leave, until they stop
 * EARLY		1: they have not begun, and need a slot as well: a long statement
 * HOLDER		WAITS: 0, with a slot, waits for 1, and is found not to be at work, or to want
 *				a lock of 1; STAYS: it waits for all others, but seems to be at work
 */
#define DO_HOLDERS		1		/* set limits by the number of holders at work */
#define DO_RELIEVE		2		/* the last resort */
#define DO_LET_IN		4		/* find that others wait for a waiter */
#define DO_MARK			8		/* mark a backend, or take its place */
#define DO_ADAPT		16		/* change the limit of a hot spot, or forget it */
#define WAITS			1
#define STAYS			2
#define WORKERS			(SAMPLES > 0 || RESIZE || (HOLDER != 0 && !GONE))
#if BYSTANDERS > 0 && (WANT) != 0
#define WANTING			1
#else
#define WANTING			0
#endif
#define ALL_PROCESSES	(BACKENDS + WORKERS)

/* ---- slots.h, slots_internal.h ---- */
#define USAGE_COUNT		15
#define USAGE_WAITERS	16
#define NO_LIMIT		USAGE_COUNT
#define INVALID_PROC_NUMBER 4
#define MAX_HOT_SPOTS	2
#define DEFAULT_POOL	0
#define SLOTS_QUEUES	3
#define NO_QUEUE		SLOTS_QUEUES
#define HOT_SPOT_QUEUE	1
#define SLOT_NONE		0
#define SLOT_WAITING	1
#define SLOT_RUNNING	2
typedef EntryList { byte head = INVALID_PROC_NUMBER, tail = INVALID_PROC_NUMBER, length };
typedef SlotQueue {
	byte usage; byte limit = NO_LIMIT; EntryList waiters; byte last_before = INVALID_PROC_NUMBER;
	byte last_awaited = INVALID_PROC_NUMBER
};
typedef SlotEntry {
	byte state; bool counted; byte pool = NO_QUEUE;	/* one word; the place in a pool */
	byte place = NO_QUEUE;	/* another one: at a hot spot */
	byte queue, hot_spot; bool needs_only_place, holds_locks, is_awaited, wakeup_pending;
	byte prev = INVALID_PROC_NUMBER, next = INVALID_PROC_NUMBER
};
typedef SlotShared {
	byte usage; byte limit = LIMIT; byte max_active = LIMIT;	/* NO_LIMIT: -1 */
	bool mutex, worker_dozes
};
SlotShared Slots;
SlotEntry entries[INVALID_PROC_NUMBER];
SlotQueue queues[SLOTS_QUEUES];
bool hot_spots[MAX_HOT_SPOTS];	/* Is there one? */
byte latches;					/* a bit for each backend whose latch is set */
#define entry_of(p)				entries[p]
#define queue_at(i)				queues[i]
#define MySlotEntry				entry_of(me)
#define slots_in_use()			(Slots.usage & USAGE_COUNT)
#define waiters_flag_is_set()	((Slots.usage & USAGE_WAITERS) != 0)
#define slots_are_limited()		(Slots.limit != NO_LIMIT)
#define IS_CAPPED				(Slots.max_active != 0 && Slots.max_active != NO_LIMIT)
#define slot_is_free()			(slots_in_use() < Slots.limit)
#define places_in_use(i)		(queue_at(i).usage & USAGE_COUNT)
#define queue_has_place_free(i)	(places_in_use(i) < queue_at(i).limit)
#define QUEUE_COUNTS(i)			((i) > DEFAULT_POOL || queue_at(i).limit != NO_LIMIT)

/* ---- The model's own: ghosts and budgets ---- */
byte first_queue;				/* the one that goes before others */
byte resizing;					/* limits changed, the waiters not yet let in */
byte calls_owed;				/* backends that are to call a waiter for a place they released */
byte exempt;					/* a bit for each backend counted above the limit for all */
byte above;						/* slots left above a limit for all that fell */
byte has_waited;				/* for each in a queue, if it has for HANDOFF_AFTER */
bool blocked, ended;			/* HOLDER=WAITS: 0 waits for 1, which has ended */
byte done;						/* processes at their end */
byte interrupts = INTERRUPTS, samples = SAMPLES, resizes = 2 * RESIZE;
short unlocking;				/* a bit for the process for which Unlocker is to unlock */
bool passed_told; byte passed_wakes;	/* its "told" and "wakes" */
bool overdue;					/* FOREVER: VICTIM has waited for HANDOFF_AFTER */
byte handoff_pending = INVALID_PROC_NUMBER;	/* FOREVER: whose; if any, handoffs_in_flight is 1 */
#define IS_EXEMPT(p)	((exempt & BIT(p)) != 0)
#define LEAVE_ABOVE \
	above = (slots_in_use() > Slots.limit + SUM(IS_EXEMPT) -> \
			 slots_in_use() - Slots.limit - SUM(IS_EXEMPT) : 0)
#define WHEN(condition, statements) if :: condition -> statements :: else fi
#define EITHER(condition, statements, others) if :: condition -> statements :: else -> others fi
#define BIT(p)			(1 << (p))
#define IS_WAITING(p)	(entry_of(p).state == SLOT_WAITING)
#define IS_RUNNING(p)	(entry_of(p).state == SLOT_RUNNING)
#define HEAD(i)			queue_at(i).waiters.head
#define HAS_WAITERS(i)	(HEAD(i) != INVALID_PROC_NUMBER)
#define CAN(i)			(HAS_WAITERS(i) && queue_has_place_free(i))
#define SET_FLAG(usage)	usage = usage | USAGE_WAITERS
#define CLEAR_FLAG(usage) usage = usage & ~USAGE_WAITERS
#define HAS_SLOT(p)	(IS_RUNNING(p) && entry_of(p).counted)
#define IS_AT_HOT_SPOT(p)		(entry_of(p).place != NO_QUEUE)
#define SUM(f)			(f(0) + f(1) + f(2) + f(3))
#define ALL_QUEUES(f)	(f(0) && f(1) && f(2))
#define ANY_QUEUE(f)	(f(0) || f(1) || f(2))
#define OPTIONS(f)		f(0) f(1) f(2)
/* The look at the usage of a queue is a step; that of a pool without a limit is none. */
#if HOT < 2
#define EACH_QUEUE(f)	d_step { next_one = INVALID_PROC_NUMBER; f(0); f(1) }
#else
#define EACH_QUEUE(f)	d_step { next_one = INVALID_PROC_NUMBER; f(0); f(1) }; d_step { f(2) }
#endif
/* Which queue goes first, if there is a limit for all */
#define NO_ORDER		((!RESIZE && !slots_are_limited()) || !(ANY_QUEUE(HAS_WAITERS)))
#define ORDER(i)		:: !NO_ORDER && HAS_WAITERS(i) -> first_queue = i
#define ORDER_QUEUES	if OPTIONS(ORDER) :: NO_ORDER -> first_queue = 0 fi
/* A step, unless the limit for all may change meanwhile */
#if RESIZE
#define STEADY
#else
#define STEADY			atomic
#endif
/* Of every process.  counted, place: what it has just counted, or is to release (Hold) */
#define LOCALS \
	bool counted, ok, told, was_free; byte place = NO_QUEUE, had_place = NO_QUEUE; \
	byte wakes, index, next_one = INVALID_PROC_NUMBER

/* ---- slots_internal.h ---- */
#define COUNT_IF_NONE_WAITS 0
#define COUNT_IF_FREE	1
#define COUNT_ALWAYS	2
inline count_up(cell, most, when)
{
	d_step {
		ok = ((when) == COUNT_ALWAYS ||
			  ((when) == COUNT_IF_FREE -> cell & USAGE_COUNT : cell) < most);
		cell = cell + ok
	}
}

inline count_place(i, when)
{
	ok = true;
	WHEN(HOT > 0 || POOL_LIMIT != NO_LIMIT,
		 atomic {
			WHEN(QUEUE_COUNTS(i), count_up(queue_at(i).usage, queue_at(i).limit, when);
				 WHEN(ok, place = i))
		 })
}

/* told: that queue has waiters, so the caller is to take and release the lock. */
inline count_place_out(i)
{
	WHEN(i != NO_QUEUE,
		 d_step {
			assert(places_in_use(i) > 0);
			WHEN(!told && (queue_at(i).usage & USAGE_WAITERS) != 0, told = true; calls_owed++);
			queue_at(i).usage--; i = NO_QUEUE
		 })
}

/* Without a limit for all, a slot is not counted.  p: who may be counted above it */
inline count_slot(when, p)
{
	STEADY {
		counted = slots_are_limited(); ok = true;
		WHEN(counted,
			 atomic {
				count_up(Slots.usage, Slots.limit, when); WHEN(!ok, counted = false);
				WHEN((when) == COUNT_ALWAYS, exempt = exempt | BIT(p))
			 })
	}
}

inline count_in(i, when, p)
{
	count_place(i, when);
	WHEN(ok, count_slot(when, p); WHEN(!ok, count_place_out(place)))
}
#define COUNT_SLOT_OUT(p) \
	Slots.usage--; counted = false; above = above - (above > 0 && !IS_EXEMPT(p)); \
	exempt = exempt & ~BIT(p)
inline take_place(p) { atomic { place = entry_of(p).place; entry_of(p).place = NO_QUEUE } }

/* ---- PostgreSQL's lists, without the circle ---- */
#define PREV(p)			entry_of(p).prev
#define NEXT(p)			entry_of(p).next

/* At the end, if there is none to go before */
inline LIST_INSERT(list, p, before)
{
	NEXT(p) = before;
	EITHER(before == INVALID_PROC_NUMBER,
		   PREV(p) = list.tail; list.tail = p, PREV(p) = PREV(before); PREV(before) = p);
	EITHER(PREV(p) == INVALID_PROC_NUMBER, list.head = p, NEXT(PREV(p)) = p);
	list.length++
}

/* Old links are wiped: fewer states. */
inline LIST_REMOVE(list, p)
{
	EITHER(PREV(p) == INVALID_PROC_NUMBER, list.head = NEXT(p), NEXT(PREV(p)) = NEXT(p));
	EITHER(NEXT(p) == INVALID_PROC_NUMBER, list.tail = PREV(p), PREV(NEXT(p)) = PREV(p));
	PREV(p) = INVALID_PROC_NUMBER; NEXT(p) = INVALID_PROC_NUMBER; list.length--;
	assert((list.length == 0) == (list.head == INVALID_PROC_NUMBER))
}

/* ---- wait_queue.c ---- */
/* next_one is it; the look at the usage of each queue is a step. */
#define LOOK_AT(i) \
	WHEN(CAN(i) && (next_one == INVALID_PROC_NUMBER || GOES_FIRST(i)), next_one = HEAD(i))
#define GOES_FIRST(i) \
	(overdue && (HEAD(i) == VICTIM || next_one == VICTIM) -> HEAD(i) == VICTIM : (i) == first_queue)
inline slots_next_waiter() { EACH_QUEUE(LOOK_AT) }
inline slots_lock() { atomic { !Slots.mutex -> Slots.mutex = true } }
inline wake_later(p) { wakes = wakes | BIT(p) }
#define LOOK_FOR_CALL(i) \
	WHEN(next_one == INVALID_PROC_NUMBER && CAN(i) && !entry_of(HEAD(i)).wakeup_pending, \
		 next_one = HEAD(i))

inline head_to_call() { EACH_QUEUE(LOOK_FOR_CALL) }

hidden byte walker;
#define IS_IMPATIENT(p) \
	((p) >= BACKENDS - IMPATIENT && !entry_of(p).holds_locks && !entry_of(p).is_awaited)

/* index: the one that came last, which is any; next_one: the head */
inline exchange_tickets(i)
{
	d_step {
		next_one = HEAD(i); walker = PREV(index);
		assert(IS_IMPATIENT(index) && IS_IMPATIENT(next_one) && !entry_of(next_one).wakeup_pending);	/* (f) */
		if
		:: queue_at(i).last_before == next_one -> queue_at(i).last_before = index
		:: queue_at(i).last_before == index -> queue_at(i).last_before = next_one
		:: else
		fi;
		LIST_REMOVE(queue_at(i).waiters, index); LIST_REMOVE(queue_at(i).waiters, next_one);
		LIST_INSERT(queue_at(i).waiters, index, HEAD(i));
		WHEN(walker == next_one, walker = index);
		walker = NEXT(walker); LIST_INSERT(queue_at(i).waiters, next_one, walker);
		WHEN(((has_waited >> index) & 1) != ((has_waited >> next_one) & 1),
			 has_waited = has_waited ^ (BIT(index) | BIT(next_one)))
	}
}
#define MAY_EXCHANGE(i, p) \
	(HAS_WAITERS(i) && IS_WAITING(p) && entry_of(p).queue == i && HEAD(i) != p && \
	 IS_IMPATIENT(p) && IS_IMPATIENT(HEAD(i)) && !entry_of(HEAD(i)).wakeup_pending)
#define CHOOSE(i, p)	:: MAY_EXCHANGE(i, p) -> index = p
#define PASS_OVER_LATE(i) \
	if CHOOSE(i, 0) CHOOSE(i, 1) CHOOSE(i, 2) CHOOSE(i, 3) :: index = INVALID_PROC_NUMBER fi; \
	WHEN(index != INVALID_PROC_NUMBER, exchange_tickets(i)); \
	index = 0; next_one = INVALID_PROC_NUMBER

inline pass_over_late()
{
	WHEN(IMPATIENT > 0, atomic { PASS_OVER_LATE(0); WHEN(HOT > 0, PASS_OVER_LATE(1)) })
}

/* With the next waiter in next_one */
#define slots_is_its_turn(p) \
	((slots_are_limited() -> next_one : HEAD(entry_of(p).queue)) == p)

/* Up to the look whether a slot is free, with publish_next(); the latter comes first. */
inline wake_next()
{
	slots_next_waiter();
	if
	:: d_step {
			slots_are_limited() ->
			EITHER(next_one == INVALID_PROC_NUMBER, CLEAR_FLAG(Slots.usage), SET_FLAG(Slots.usage))
		}
	:: d_step { !slots_are_limited() -> CLEAR_FLAG(Slots.usage) };
		head_to_call()
	fi
}
#define CALL_NEXT \
	WHEN(next_one != INVALID_PROC_NUMBER && (was_free || slot_is_free()) && \
		 !entry_of(next_one).wakeup_pending, \
		 entry_of(next_one).wakeup_pending = true; wake_later(next_one)); \
	next_one = INVALID_PROC_NUMBER; was_free = false

/* As good as part of the step before; a backend whose latch is set need not run at once. */
#define RELEASE_LOCK \
	Slots.mutex = false; latches = latches | wakes; wakes = 0; \
	calls_owed = calls_owed - told; told = false
#define MAY_READMIT(i)	(CAN(i) && entry_of(HEAD(i)).needs_only_place)
#define READMIT(i) \
	:: d_step { \
			MAY_READMIT(i) -> \
			next_one = HEAD(i); WHEN(QUEUE_COUNTS(i), queue_at(i).usage++; place = i) \
		}; \
		count_slot(COUNT_ALWAYS, next_one); grant(next_one)

/* The caller has looked whether a slot is free; if one was, the next is called. */
inline readmit() { do OPTIONS(READMIT) :: !ANY_QUEUE(MAY_READMIT) -> break od }

/* There is much to it, so there may be a process for it: only one at a time has the lock. */
inline slots_unlock()
{
	pass_over_late();
#if WANTING
	d_step {
		passed_told = told; passed_wakes = wakes; told = false; wakes = 0;
		next_one = INVALID_PROC_NUMBER; unlocking = 1 << _pid
	};
	(unlocking & (1 << _pid)) == 0
#else
	wake_next(); d_step { CALL_NEXT; RELEASE_LOCK }
#endif
}
#define LAST_BEFORE(p)	queue_at(entry_of(p).queue).last_before
#define LAST_AWAITED(p)	queue_at(entry_of(p).queue).last_awaited
/*
 * Has the waiter next_one waited for HANDOFF_AFTER?  A guess, but remembered; so is who
 * else is in the queue then, as one in the middle of a transaction goes behind these.
 */
#ifdef FOREVER
#define MAY_GO_BEHIND(p) true
#define HAS_WAITED		ok = (!BARGING || (next_one == VICTIM && overdue))
#else
#define MAY_GO_BEHIND(p) (!BARGING || (has_waited & BIT(p)) != 0)
#define IN_QUEUE(q)		(IS_WAITING(q) && entry_of(q).queue == entry_of(next_one).queue)
#define HAS_WAITED \
	if \
	:: BARGING && (has_waited & BIT(next_one)) == 0 -> ok = false \
	:: has_waited = has_waited | BIT(next_one) | IN_QUEUE(0) | IN_QUEUE(1) << 1 | \
		IN_QUEUE(2) << 2 | IN_QUEUE(3) << 3; ok = true \
	fi
#endif
#define SET_STATE(p) \
	d_step { \
		entry_of(p).state = SLOT_RUNNING; entry_of(p).counted = counted; \
		entry_of(p).pool = place; counted = false; place = NO_QUEUE \
	}
#define BEHIND(p)		((p) != INVALID_PROC_NUMBER -> NEXT(p) : INVALID_PROC_NUMBER)
#define MAY_BE_PASSED(p) \
	((p) != INVALID_PROC_NUMBER -> \
	 !entry_of(p).holds_locks && !entry_of(p).is_awaited && (has_waited & BIT(p)) == 0 : true)
#define FIRST_IN(list, last) (last == INVALID_PROC_NUMBER -> list.head : NEXT(last))
/* next_one: the one that p may go before */
inline slots_queue_append(p)
{
	entry_of(p).wakeup_pending = false; entry_of(p).is_awaited = false;
	next_one = FIRST_IN(queue_at(entry_of(p).queue).waiters, LAST_BEFORE(p));
	EITHER(entry_of(p).holds_locks && slots_are_limited() && next_one != INVALID_PROC_NUMBER,
		   HAS_WAITED, ok = true);
	WHEN(ok, next_one = INVALID_PROC_NUMBER);
	LIST_INSERT(queue_at(entry_of(p).queue).waiters, p, next_one);
	WHEN(entry_of(p).holds_locks, LAST_BEFORE(p) = p);
	assert(PREV(p) == INVALID_PROC_NUMBER || !entry_of(p).holds_locks ||
		   entry_of(PREV(p)).holds_locks || entry_of(PREV(p)).is_awaited ||
		   !slots_are_limited() || MAY_GO_BEHIND(PREV(p)));	/* (f) */
	assert(MAY_BE_PASSED(NEXT(p)) && MAY_BE_PASSED(BEHIND(NEXT(p))) &&
		   MAY_BE_PASSED(BEHIND(BEHIND(NEXT(p)))));	/* (f) */
	ORDER_QUEUES; Slots.worker_dozes = false
}

inline close_limits()
{
	d_step {
		WHEN(IS_CAPPED, Slots.limit = Slots.max_active; LEAVE_ABOVE);
		WHEN(POOL_LIMIT != NO_LIMIT, queue_at(DEFAULT_POOL).limit = POOL_LIMIT)
	}
}
#define any_limit_is_reached() \
	((IS_CAPPED && slots_in_use() >= Slots.max_active) || \
	 (POOL_LIMIT != NO_LIMIT && places_in_use(DEFAULT_POOL) >= POOL_LIMIT))
#define MAY_DOZE		(!ANY_QUEUE(HAS_WAITERS) && !any_limit_is_reached())

inline slots_try_to_doze()
{
	slots_lock(); WHEN(MAY_DOZE, Slots.worker_dozes = true; close_limits()); slots_unlock()
}

inline unlink_entry(p)
{
	WHEN(LAST_AWAITED(p) == p, LAST_AWAITED(p) = PREV(p));
	WHEN(LAST_BEFORE(p) == p, LAST_BEFORE(p) = PREV(p));
	LIST_REMOVE(queue_at(entry_of(p).queue).waiters, p)
}

inline slots_queue_first(p)
{
	WHEN(!entry_of(p).is_awaited,
		 atomic {
			entry_of(p).is_awaited = true; unlink_entry(p);
			next_one = FIRST_IN(queue_at(entry_of(p).queue).waiters, LAST_AWAITED(p));
			LIST_INSERT(queue_at(entry_of(p).queue).waiters, p, next_one);
			WHEN(LAST_BEFORE(p) == LAST_AWAITED(p), LAST_BEFORE(p) = p);
			LAST_AWAITED(p) = p; next_one = INVALID_PROC_NUMBER; ORDER_QUEUES;
			assert(PREV(p) == INVALID_PROC_NUMBER || entry_of(PREV(p)).is_awaited);	/* (f) */
			assert(NEXT(p) == INVALID_PROC_NUMBER || !entry_of(NEXT(p)).is_awaited)	/* (f) */
		 })
}

inline slots_queue_remove(p)
{
	atomic {
		assert(IS_WAITING(p)); unlink_entry(p);
		entry_of(p).is_awaited = false; entry_of(p).holds_locks = false;
		WHEN(!HAS_WAITERS(entry_of(p).queue), CLEAR_FLAG(queue_at(entry_of(p).queue).usage));
		has_waited = has_waited & ~BIT(p); ORDER_QUEUES
	}
}

inline slots_occupy(p)
{
	WHEN(HOT > 0 && place != NO_QUEUE,
		 d_step { assert(!IS_AT_HOT_SPOT(p)); entry_of(p).place = place; place = NO_QUEUE })
}

inline slots_make_holder(p)
{
	slots_queue_remove(p); slots_occupy(p); SET_STATE(p)
}

inline grant(p)
{
	assert(p == HEAD(entry_of(p).queue));	/* (f) */
	slots_make_holder(p); wake_later(p)
}

inline slots_grant_above_limit(p)
{
	count_in(entry_of(p).queue, COUNT_ALWAYS, p); slots_make_holder(p); wake_later(p)
}

proctype Unlocker()
{
	LOCALS;

end:
	do
	:: d_step {
			unlocking != 0 -> told = passed_told; wakes = passed_wakes;
			passed_told = false; passed_wakes = 0
		};
		EITHER(slot_is_free(), was_free = true, readmit());
		wake_next();
		d_step { CALL_NEXT; RELEASE_LOCK; unlocking = 0; ok = false }
	od
}
#define HEAD_OR(i, other) (HAS_WAITERS(i) -> HEAD(i) : other)
#define ANY_WAITER		HEAD_OR(0, HEAD_OR(1, HEAD(2)))
inline grant_one()
{
	slots_lock();
	next_one = INVALID_PROC_NUMBER;
	EITHER(Slots.max_active == 0, next_one = ANY_WAITER, skip);
	ok = (next_one != INVALID_PROC_NUMBER);
	EITHER(ok,
		   assert(!slots_are_limited());	/* (b) */
		   count_in(entry_of(next_one).queue, COUNT_ALWAYS, next_one),
		   slots_next_waiter();
		   EITHER(next_one != INVALID_PROC_NUMBER,
				  count_in(entry_of(next_one).queue, COUNT_IF_FREE, next_one), ok = false));
	EITHER(ok, grant(next_one), resizing--);
	slots_unlock()
}

inline slots_grant_free() { do :: grant_one(); WHEN(!ok, break) od }

/*
 * may_hand_off() is a guess, unless BARGING is 0.  FOREVER, a hand-off in flight is
 * waited for, and no wait is ever long enough for two of them.
 */
#ifdef FOREVER
#define may_hand_off() \
	(!BARGING || ((next_one != VICTIM || overdue) && handoff_pending == INVALID_PROC_NUMBER))
#define MAY_KEEP		(!may_hand_off())
#define START_HANDOFF	handoff_pending = next_one
#define finish_handoff() \
	d_step { WHEN(handoff_pending == me, handoff_pending = INVALID_PROC_NUMBER) }
#else
#define may_hand_off()	true
#define MAY_KEEP		BARGING
#define START_HANDOFF	skip
#define finish_handoff() skip
#endif
#define GRANTABLE \
	(next_one != INVALID_PROC_NUMBER && \
	 (!slots_are_limited() || (counted && slots_in_use() <= Slots.limit)))

/* had_place and counted: what is released; the place is counted out already. */
inline slots_hand_off(p)
{
	slots_next_waiter();
	WHEN(had_place != NO_QUEUE && !slots_are_limited(), next_one = HEAD(had_place));
	if
	:: atomic {
			GRANTABLE && may_hand_off() ->
			assert(SUM(HAS_SLOT) < Slots.limit)	/* (b) */
		};
		count_place(entry_of(next_one).queue, COUNT_IF_FREE)
	:: !GRANTABLE || MAY_KEEP -> ok = false
	fi;
	EITHER(ok, START_HANDOFF; WHEN(counted, exempt = exempt & ~BIT(p)); grant(next_one),
		   WHEN(counted, d_step { COUNT_SLOT_OUT(p) }))
}

/* ---- acquire.c: acquire ---- */
#define slots_is_uncounted() \
	(IS_RUNNING(me) && !MySlotEntry.counted && MySlotEntry.pool == NO_QUEUE)
#define MARK_OF(p)		entry_of(p).hot_spot
#define slots_hot_spot_queue(h)	(HOT_SPOT_QUEUE + (h))
#define my_queue() \
	(MARK_OF(me) == 0 -> DEFAULT_POOL : slots_hot_spot_queue(MARK_OF(me) - 1))

inline slots_return_place() { count_place_out(place); WHEN(told, slots_lock(); slots_unlock()) }

/* needs_place() comes to the same where there are no places */
inline count_me_in(when)
{
	WHEN(HOT > 0, index = my_queue());
	EITHER(IS_AT_HOT_SPOT(me), ok = true, count_place(index, when));
	WHEN(ok, count_slot(when, me); WHEN(!ok, slots_return_place()))
}
inline become_holder() { slots_occupy(me); assert(MySlotEntry.state == SLOT_NONE); SET_STATE(me) }
inline slots_try_acquire() { count_me_in(COUNT_IF_NONE_WAITS); WHEN(ok, become_holder()) }
#define OTHERS_WAIT \
	(waiters_flag_is_set() || (queue_at(my_queue()).usage & USAGE_WAITERS) != 0)

inline slots_try_barge()
{
	ok = (BARGING || !OTHERS_WAIT); WHEN(ok, count_me_in(COUNT_IF_FREE)); WHEN(ok, become_holder())
}

inline slots_force()
{
	count_me_in(COUNT_IF_FREE); WHEN(!ok, count_me_in(COUNT_ALWAYS)); become_holder()
}
#define MY_QUEUE		MySlotEntry.queue
#define MAY_OVERTAKE	(!HAS_WAITERS(MY_QUEUE) && next_one == INVALID_PROC_NUMBER)

/* ok: acquired; queued: waits; else the queue is full. */
inline enter_queue()
{
	EITHER(MySlotEntry.needs_only_place && !HAS_WAITERS(MY_QUEUE),
		   count_place(MY_QUEUE, COUNT_IF_FREE); WHEN(ok, count_slot(COUNT_ALWAYS, me)), ok = false);
	WHEN(!ok, slots_next_waiter(); WHEN(MAY_OVERTAKE, count_in(MY_QUEUE, COUNT_IF_FREE, me)));
	WHEN(RESIZE, WHEN(!ok && Slots.max_active == 0, count_in(MY_QUEUE, COUNT_ALWAYS, me)));
	atomic {
		queued = (!ok && queue_at(MY_QUEUE).waiters.length < MAX_QUEUE);
		WHEN(queued,
			 MySlotEntry.state = SLOT_WAITING; MySlotEntry.holds_locks = MySlotEntry.needs_only_place;
			 if :: IMPATIENT > 0 -> MySlotEntry.holds_locks = false :: true fi;	/* is_lone() */
			 slots_queue_append(me); ok = false);
		WHEN(!HAS_WAITERS(MY_QUEUE), CLEAR_FLAG(queue_at(MY_QUEUE).usage))
	}
}
#define SET_FLAGS \
	WHEN(Slots.max_active != 0, SET_FLAG(queue_at(MY_QUEUE).usage)); \
	d_step { WHEN(Slots.max_active != 0 && slots_are_limited(), SET_FLAG(Slots.usage)) }

/* First the flags, then a last look */
inline slots_enqueue()
{
	atomic { slots_lock(); MY_QUEUE = my_queue() };
	SET_FLAGS; enter_queue(); slots_unlock();
	WHEN(ok, become_holder())
}

/* ---- acquire.c: claim, leave, release ---- */
inline claim_free_slot()
{
	atomic { slots_lock(); MySlotEntry.wakeup_pending = false; ok = !IS_WAITING(me) };
	WHEN(!ok,
		 slots_next_waiter(); WHEN(slots_is_its_turn(me), count_in(MySlotEntry.queue, COUNT_IF_FREE, me));
		 WHEN(ok, assert(me == HEAD(MySlotEntry.queue)); slots_make_holder(me)));
	slots_unlock()
}

/* To look at the state a moment before the wake-up would come to the same. */
inline slots_claim()
{
	if
	:: d_step { MySlotEntry.state != SLOT_WAITING -> MySlotEntry.wakeup_pending = false; ok = true }
	:: IS_WAITING(me) && MySlotEntry.wakeup_pending -> claim_free_slot()
	:: else -> ok = false
	fi;
	WHEN(ok, finish_handoff())
}

/* ok: left */
inline slots_leave_queue()
{
	atomic { slots_lock(); ok = IS_WAITING(me) };
	WHEN(ok, slots_queue_remove(me);
		 d_step { MySlotEntry.state = SLOT_NONE; MySlotEntry.wakeup_pending = false });
	slots_unlock()
}

/* "place" and "counted", which the entry does not name any more */
inline release()
{
	had_place = place; count_place_out(place);
	WHEN(counted,
		 d_step {
			assert(slots_in_use() > 0);
			WHEN(!told && !waiters_flag_is_set(), COUNT_SLOT_OUT(me))
		 });
	WHEN(counted || told, slots_lock(); slots_hand_off(me); slots_unlock());
	had_place = NO_QUEUE
}
#define HAVE_NONE \
	MySlotEntry.state = SLOT_NONE; MySlotEntry.counted = false; MySlotEntry.pool = NO_QUEUE

inline drop_all()
{
	WHEN(IS_AT_HOT_SPOT(me), take_place(me));
	atomic {
		counted = MySlotEntry.counted;
		WHEN(MySlotEntry.pool != NO_QUEUE, place = MySlotEntry.pool); HAVE_NONE
	};
	release()
}

inline slots_refuse_grant() { finish_handoff(); drop_all() }

/* A plain store, where it is counted nowhere */
inline slots_release()
{
	if
	:: slots_is_uncounted() && !IS_AT_HOT_SPOT(me) -> d_step { HAVE_NONE }
	:: else -> WHEN(MySlotEntry.state != SLOT_NONE || IS_AT_HOT_SPOT(me), drop_all())
	fi
}

/* ---- acquire.c: places in the middle of a transaction ---- */
inline slots_take_place(h)
{
	ok = (!IS_RUNNING(me) || IS_AT_HOT_SPOT(me));
	WHEN(!ok,
		 count_place(slots_hot_spot_queue(h), BARGING);
		 WHEN(ok, MARK_OF(me) = h + 1; slots_occupy(me)))
}
inline slots_give_up_for(h) { MARK_OF(me) = h + 1; drop_all(); MySlotEntry.needs_only_place = !EARLY }
inline slots_end_readmission()
{
	WHEN(MySlotEntry.state == SLOT_NONE, MARK_OF(me) = 0; slots_force());
	MySlotEntry.needs_only_place = false
}
inline slots_release_place() { WHEN(IS_AT_HOT_SPOT(me), MARK_OF(me) = 0; take_place(me); release()) }

/* ---- hot_spots.c ---- */
/* "from": the place that it had */
inline slots_withdraw_place(p)
{
	WHEN(from != NO_QUEUE,
		 atomic { WHEN(entry_of(p).place == from, entry_of(p).place = NO_QUEUE; place = from) };
		 WHEN(place != NO_QUEUE, slots_return_place()))
}

inline slots_move_queue_of(p)
{
	slots_lock(); close_limits();
	WHEN(IS_WAITING(p), next_one = HEAD(entry_of(p).queue); slots_grant_above_limit(next_one));
	slots_unlock()
}
/* Whether it may is a guess; in the end, when nothing moves, it does. */
inline relieve(p) { if :: slots_grant_above_limit(p) :: HOLDER == 0 fi }
inline slots_serve_awaited(p)
{
	slots_lock(); WHEN(IS_WAITING(p), slots_queue_first(p); relieve(p)); slots_unlock()
}
#define QUEUE_OF(h)		slots_hot_spot_queue(h)
#define IS_THERE(h)		hot_spots[h]
#define slots_have_hot_spots() (Slots.max_active != 0)
#define IS_FREE(h) \
	(!IS_THERE(h) && places_in_use(QUEUE_OF(h)) == 0 && !HAS_WAITERS(QUEUE_OF(h)))
#define UNMARK(p, h)	WHEN(MARK_OF(p) == (h) + 1, MARK_OF(p) = 0)
inline form(h)
{
	atomic { UNMARK(0, h); UNMARK(1, h); UNMARK(2, h); UNMARK(3, h) };
	slots_lock(); hot_spots[h] = true; slots_unlock()
}
inline end_hot_spot(h)
{
	slots_lock();
	d_step { hot_spots[h] = false; queue_at(QUEUE_OF(h)).limit = NO_LIMIT };
	slots_unlock()
}

/* The one that is there already, or a new one */
inline find_or_form(h) { WHEN(IS_FREE(h), form(h)) }

/*
 * A sample finds a holder contending for h, or doing nothing.  Between its look and the
 * exchange of the place, the backend may get anywhere.
 */
inline slots_note_activity(p, h)
{
	WHEN(IS_RUNNING(p) || IS_AT_HOT_SPOT(p),
		 from = entry_of(p).place;
		 if
		 :: true -> find_or_form(h); atomic { WHEN(IS_THERE(h), MARK_OF(p) = h + 1) }
		 :: MARK_OF(p) = 0; slots_withdraw_place(p)
		 :: slots_withdraw_place(p)
		 fi)
}

/* Any limit that the limit control could find; slots_adapt_hot_spots() */
#define OWN_LIMIT		queue_at(QUEUE_OF(h)).limit
#define ANOTHER(new)	OWN_LIMIT != new -> raised = (new > OWN_LIMIT); OWN_LIMIT = new
inline adapt(h)
{
	if
	:: OWN_LIMIT == NO_LIMIT -> end_hot_spot(h)
	:: slots_lock();
		atomic {
			if :: ANOTHER(1) :: ANOTHER(2) :: ANOTHER(NO_LIMIT) fi; resizing = resizing + raised
		};
		slots_unlock(); WHEN(raised, raised = false; slots_grant_free())
	fi
}

inline slots_end_hot_spots() { for (h : 0 .. HOT - 1) { WHEN(IS_THERE(h), end_hot_spot(h)) } }

/* ---- at_work.c: the limits ---- */
#define NOT_AT_WORK(p)	(blocked && entry_of(0).p)
/* How many more?  A guess; but in the end, one holder is not at work. */
inline set_limit(cell, most, idle)
{
	slots_lock();
	atomic {
		select(more : 0 .. BACKENDS - 1);
		WHEN(HOLDER, more = idle);
		raised = raised || most + more > cell;
		cell = most + more; LEAVE_ABOVE; more = 0
	};
	slots_unlock()
}

/* A sample is complete. */
inline slots_adapt_to_work()
{
	WHEN(IS_CAPPED, set_limit(Slots.limit, Slots.max_active, NOT_AT_WORK(counted)));
	WHEN(POOL_LIMIT != NO_LIMIT,
		 set_limit(queue_at(DEFAULT_POOL).limit, POOL_LIMIT, NOT_AT_WORK(place == DEFAULT_POOL)));
	atomic { ok = (raised || ANY_QUEUE(HAS_WAITERS)); raised = false; resizing = resizing + ok };
	WHEN(ok, slots_grant_free())
}

/* ---- at_work.c: the last resort ---- */
#define FIRST_OF(i)		:: HAS_WAITERS(i) -> next_one = HEAD(i); slots_grant_above_limit(next_one)

/* Lets the first of any queue in. */
inline slots_relieve_stall()
{
	slots_lock(); if OPTIONS(FIRST_OF) :: !(ANY_QUEUE(HAS_WAITERS)) fi; slots_unlock()
}

/* ---- acquire.c: settings ---- */
inline slots_set(new_limit)
{
	slots_lock();
	d_step {
		Slots.max_active = new_limit; resizing++;
		Slots.limit = (new_limit == 0 -> NO_LIMIT : new_limit); LEAVE_ABOVE
	};
	slots_unlock();
	WHEN(HOT > 0 && !slots_have_hot_spots(), slots_end_hot_spots());
	slots_grant_free()
}

/* ---- my_slot.c ---- */
/* The mood of a backend that sleeps */
#define CALM			0
#define DISTURBED		1		/* an interrupt, harmless or not */
#define EXPIRED			2		/* queue_timeout, but granted meanwhile */
#define RESET_LATCH(p)	latches = latches & ~BIT(p)
inline abandon_wait() { slots_leave_queue(); WHEN(!ok, slots_refuse_grant()); ok = false }

/* ok: granted */
inline sleep_in_queue()
{
	do
	:: true ->
		/* queue_timeout: leaves, or else it must have been granted a slot */
		if
		:: mood == DISTURBED ->
			slots_leave_queue(); EITHER(ok, ok = false; break, mood = EXPIRED)
		:: mood == DISTURBED -> mood = CALM
		:: mood == CALM
		fi;
		atomic {				/* WaitLatch(), ResetLatch() */
			if
			:: (latches & BIT(me)) != 0
			:: interrupts > 0 && mood == CALM -> interrupts--; mood = DISTURBED
			:: mood == EXPIRED
			:: GONE && (HOLDER == 0 || timeout) -> looks = true
			fi;
			RESET_LATCH(me)
		};
		/* CHECK_FOR_INTERRUPTS(): an error leaves, else it may reset the latch again */
		if
		:: mood == DISTURBED -> abandon_wait(); break
		:: mood == DISTURBED -> RESET_LATCH(me)
		:: true
		fi;
		slots_claim(); WHEN(ok, break); assert(mood != EXPIRED);
		WHEN(GONE, WHEN(looks, looks = false; slots_move_queue_of(me)))
	od;
	looks = false; mood = CALM
}

/* ok: holds a slot */
inline my_slot_acquire()
{
	slots_try_acquire();
	if
	:: ok
	:: else -> slots_try_barge();	/* enter_or_wait() */
		if :: ok :: !ok -> wait_for_slot() :: !ok && FORCE -> slots_force() fi
	fi
}

/* ok: granted, or acquired at once */
inline wait_for_slot() { slots_enqueue(); WHEN(queued, queued = false; sleep_in_queue()) }
inline wait_for_place(h) { slots_give_up_for(h); wait_for_slot(); slots_end_readmission() }
inline my_slot_want(h)
{
	slots_take_place(h);
	WHEN(!ok, wait_for_place(h));
	assert(IS_RUNNING(me))			/* (a) */
}

/* ---- The processes ---- */
/* slots_end_transaction(): it begins the next one as a contender, or not. */
#define MAY_FORGET		if :: want == 0 || rounds > 0 :: want != 0 -> MARK_OF(me) = 0 fi

proctype Backend(byte me, want)
{
	LOCALS;
	byte rounds = ROUNDS;
	byte mood = CALM;
	bool queued, looks;

	do
	:: rounds > 0 ->
#ifndef FOREVER
		rounds--;
#endif
		my_slot_acquire();
		if
		:: ok ->
			WHEN(WANTING, WHEN(want != 0, my_slot_want(want - 1)));
#if HOLDER != 0
			WHEN(HOLDER == WAITS && me == 0, blocked = true; ended; blocked = false);
			WHEN(HOLDER == STAYS && me == 0, done == BACKENDS - 1);
#endif
			/* Another statement of its transaction, or a failed subtransaction */
			if :: WANTING -> slots_release_place() :: true fi
		:: else
		fi;
		slots_release();
		atomic { ok = false; MySlotEntry.queue = 0; MAY_FORGET }
	:: rounds == 0 -> break
	od;
	atomic { WHEN(me == 1, ended = true); done++ }
}

#if ONLY_QUEUE
/* As the lock stays taken, (c) and (d) are left out. */
proctype Waiter(byte me)
{
	LOCALS;

	do
	:: atomic {
			!IS_WAITING(me) -> MySlotEntry.state = SLOT_WAITING;
			if :: MySlotEntry.holds_locks = true :: MySlotEntry.holds_locks = false fi;
			slots_queue_append(me); ok = false; next_one = INVALID_PROC_NUMBER
		}
	:: atomic { IS_WAITING(me) -> slots_queue_first(me) }
	:: IMPATIENT > 0 -> pass_over_late()
	:: atomic { IS_WAITING(me) -> slots_queue_remove(me); MySlotEntry.state = SLOT_NONE }
	:: !IS_WAITING(me) -> break
	od;
	done++
}
#endif
#define MAY_DO(what) \
	((DO & (what)) && samples > 0 && ((what) < DO_MARK || slots_have_hot_spots()))
#define ANY_BACKEND		select(p : 0 .. BACKENDS - 1)
#define ANY_HOT_SPOT	select(h : 0 .. HOT - 1)

/* The process that samples: see sampler.c. */
proctype Worker()
{
	LOCALS;
	byte p, h, from, more;
	bool raised;

	do
	:: done >= BACKENDS && resizes == 0 -> break
#if RESIZE
	:: resizes > 0 -> slots_set((resizes == 2 -> RESIZE_1 : RESIZE_2)); resizes--
#endif
#if HOLDER
	:: !Slots.worker_dozes && MAY_DOZE -> slots_try_to_doze()
	:: HOLDER == STAYS && timeout && !Slots.worker_dozes -> slots_relieve_stall()
	:: HOLDER == WAITS && timeout && !Slots.worker_dozes && blocked ->
		/* What keeps 0 is found to be a lock of 1; or else it is found doing nothing. */
		if
		:: slots_serve_awaited(1)
		:: slots_adapt_to_work();
			WHEN(HOT > 0, from = entry_of(0).place; slots_withdraw_place(0))
		fi
#else
	:: atomic { MAY_DO(DO_HOLDERS) -> samples-- }; slots_adapt_to_work()
	:: atomic { MAY_DO(DO_RELIEVE) -> samples-- }; slots_relieve_stall()
	:: atomic { MAY_DO(DO_LET_IN) -> samples--; ANY_BACKEND }; WHEN(IS_WAITING(p), slots_serve_awaited(p))
	:: atomic { MAY_DO(DO_MARK) -> samples--; ANY_BACKEND; ANY_HOT_SPOT };
		slots_note_activity(p, h)
	:: atomic { MAY_DO(DO_ADAPT) -> samples--; ANY_HOT_SPOT }; WHEN(IS_THERE(h), adapt(h))
#endif
	od;
	done++
}

init
{
	byte i;

	atomic {
		queue_at(DEFAULT_POOL).limit = POOL_LIMIT;
		for (i : 0 .. MAX_HOT_SPOTS - 1) {
			WHEN(i < HOT, hot_spots[i] = true; queue_at(QUEUE_OF(i)).limit = 1)
		};
		for (i : 0 .. BACKENDS - 1) {
			MARK_OF(i) = (HOT == 0 || i < BYSTANDERS -> 0 : MARK);
#if ONLY_QUEUE
			Slots.mutex = true; run Waiter(i);
#else
			run Backend(i, (i < BYSTANDERS -> WANT : 0));
#endif
		};
		WHEN(WORKERS, run Worker());
		WHEN(WANTING, run Unlocker());
		i = 0
	}
}

/* ---- Properties ---- */
/* (a) */
#define NOTHING_IS_LEFT(i) \
	(queue_at(i).usage == 0 && queue_at(i).waiters.length == 0 && !HAS_WAITERS(i) && \
	 queue_at(i).waiters.tail == INVALID_PROC_NUMBER && \
	 queue_at(i).last_before == INVALID_PROC_NUMBER && \
	 queue_at(i).last_awaited == INVALID_PROC_NUMBER)
#define HAS_NO_LIMIT(h)	((h) >= HOT || IS_THERE(h) || queue_at(QUEUE_OF(h)).limit == NO_LIMIT)
#define CLEAN \
	(Slots.usage == 0 && has_waited == 0 && \
	 calls_owed == 0 && exempt == 0 && ALL_QUEUES(NOTHING_IS_LEFT))

/* (b) */
#define HAS(p, i)		(entry_of(p).pool == i || entry_of(p).place == i)
#define IS_COUNTED(i)	(places_in_use(i) >= HAS(0, i) + HAS(1, i) + HAS(2, i) + HAS(3, i))
#define ALL_COUNTED \
	(slots_in_use() >= SUM(HAS_SLOT) && ALL_QUEUES(IS_COUNTED) && \
	 (RESIZE || \
	  (slots_are_limited() -> SUM(IS_RUNNING) == SUM(HAS_SLOT) : Slots.usage == 0)))
#define MAY_EXCEED		(FORCE || RESIZE || SAMPLES > 0 || GONE || HOLDER != 0)
#define IS_WITHIN(i)	(MAY_EXCEED || places_in_use(i) <= queue_at(i).limit)
#define IS_ALL_WITHIN	(slots_in_use() <= Slots.limit + SUM(IS_EXEMPT) + above)
#define WITHIN_LIMITS	(IS_ALL_WITHIN && ALL_QUEUES(IS_WITHIN))

/* (c) */
#define FIRST_OR(i, other) (CAN(i) -> HEAD(i) : other)
#define NEXT_WAITER \
	FIRST_OR(first_queue, FIRST_OR(0, FIRST_OR(1, FIRST_OR(2, INVALID_PROC_NUMBER))))
#define IS_CALLED(i)	(!CAN(i) || entry_of(HEAD(i)).wakeup_pending)
#define CALLED_IN_VAIN(i) (HAS_WAITERS(i) && entry_of(HEAD(i)).wakeup_pending && !CAN(i))
#define WILL_ANSWER(p)	(IS_WAITING(p) && entry_of(p).wakeup_pending)
#define ALL_READMITTED \
	(slot_is_free() || !ANY_QUEUE(MAY_READMIT) || calls_owed > 0 || SUM(WILL_ANSWER) > 0)
#define NEXT_IS_CALLED \
	(!slot_is_free() || NEXT_WAITER == INVALID_PROC_NUMBER || calls_owed > 0 || overdue || \
	 (slots_are_limited() -> \
	  (entry_of(NEXT_WAITER).wakeup_pending || ANY_QUEUE(CALLED_IN_VAIN)) : \
	  (resizing > 0 || ALL_QUEUES(IS_CALLED))))

/* (d) */
#define FLAG_IS_RIGHT(i) \
	(((queue_at(i).usage & USAGE_WAITERS) != 0) == HAS_WAITERS(i))
#define FLAGS_ARE_RIGHT \
	(ALL_QUEUES(FLAG_IS_RIGHT) && \
	 (waiters_flag_is_set() -> slots_are_limited() && ANY_QUEUE(HAS_WAITERS) : \
	  !slots_are_limited() || NEXT_WAITER == INVALID_PROC_NUMBER || calls_owed > 0))
#define NONE_IS_LEFT	(Slots.max_active != 0 || resizing > 0 || !ANY_QUEUE(HAS_WAITERS))

/* Sleeps until something is wrong, or all are done: then it looks about. */
active proctype monitor()
{
	/* Never true: what spin names when it finds something wrong. */
	bool all_is_clean, all_are_counted, limits_hold, next_is_called, flags_are_right;
	bool none_is_left, gone_have_no_limit, all_are_readmitted;

end:
	if
	:: atomic { done == ALL_PROCESSES && !CLEAN -> assert(all_is_clean) }
	:: atomic { !ALL_COUNTED -> assert(all_are_counted) }
	:: atomic { !WITHIN_LIMITS -> assert(limits_hold) }
	:: atomic { !Slots.mutex && !NEXT_IS_CALLED -> assert(next_is_called) }
	:: atomic { !Slots.mutex && !FLAGS_ARE_RIGHT -> assert(flags_are_right) }
	:: atomic { !Slots.mutex && !NONE_IS_LEFT -> assert(none_is_left) }
	:: atomic { !Slots.mutex && !ALL_READMITTED -> assert(all_are_readmitted) }
	:: atomic { !(HAS_NO_LIMIT(0) && HAS_NO_LIMIT(1)) -> assert(gone_have_no_limit) }
	fi
}

#ifdef FOREVER
/* The clock: VICTIM, being in the queue, will have been there for HANDOFF_AFTER. */
active proctype clock()
{
	do
	:: atomic { IS_WAITING(VICTIM) && !overdue -> overdue = true }
	:: atomic { !IS_WAITING(VICTIM) && overdue -> overdue = false }
	od
}

ltl served { [] (IS_WAITING(VICTIM) -> <> !IS_WAITING(VICTIM)) }
#endif

#if HOLDER
ltl finish { <> (done == ALL_PROCESSES) }
#endif
