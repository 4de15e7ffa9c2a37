/*
 * slots.pml
 *		A model of the semaphore (src/core), in Promela, the language of the model
 *		checker spin.
 *
 * A few backends run one statement after the other through the gate.  Others cancel
 * them, change the limit, switch the gate off, and take samples: these lend slots and
 * take them back, let waiters in, mark contenders of hot spots, move them to places,
 * change the limits of hot spots and forget them.  spin visits every state that any
 * interleaving of their steps leads to.  What it proves, for the sizes in run.sh:
 *
 * (a) No slot and no place leaks: when all processes are done, nothing is counted, all
 *	   flags are clear, all queues are empty, there is neither a watcher nor a lender.  A
 *	   backend whose wait in the middle of a transaction has ended holds a slot.
 * (b) The limits hold: each count has at least the backends whose state says that they
 *	   hold a slot or a place there, and at most its limit.  A slot is handed off only
 *	   below the limit.  Exempt are a forced entry, a waiter that is let in, a lender that
 *	   works again, a contender that is moved to a place, and holders when a limit is
 *	   lowered or the gate is off; from the limit for all, but not from that of a hot
 *	   spot, one that waited in the middle of its transaction, or that kept a place.
 * (c) No wake-up is lost: a state in which no process can move has all of them done.
 *	   Whenever the lock is free, a slot is free, and a backend waits whose queue has a
 *	   place free, the next one has been called and has not answered yet; without a limit
 *	   for all, the first of each such queue.  If no slot is free, no first of a queue
 *	   waits that needs only a place, and has one free.  Exempt is the time in which a
 *	   change of limits is on its way, if there is no limit for all; in which a backend
 *	   that released a place has yet to take the lock; and in which another waiter that
 *	   was called has yet to find that it came too late.
 * (d) Flags and the watcher: whenever the lock is free, the flag of a queue says whether
 *	   backends wait in it; that of all, as far as (c) demands, whether there is a limit
 *	   for all and a backend waits whose queue has a place free.  If a backend waits, the
 *	   watcher is one that waits.  None waits while the gate is off and no change of that
 *	   is on its way.
 * (e) Each waiter gets in, or leaves: with backends that never stop coming (FOREVER), by
 *	   weak fairness; but with a limit for all, one whose transaction begins may be passed
 *	   by two that wait in the middle of theirs, in turn.  If a holder waits for a backend
 *	   in the queue (HOLDER=WAITS), all are done in the end; if one never releases its
 *	   slot (HOLDER=STAYS), all others.
 * (f) Order: a backend that claims a slot, or is granted one, is the first of its queue.
 *	   With a limit for all, those in the middle of a transaction go first.
 * (g) A hot spot that is gone has no limit.
 *
 * How to read it: an inline, or a macro in lower case, is the function of its name in
 * src (run.sh checks that there is one); members and constants have their names, too.
 * Macros in capitals are the model's own.  What a C function returns is in "ok", or in
 * the local variable of that name in its caller.  Every atomic instruction on a count,
 * and every look at a state, a limit, a mark or a wake-up without the lock, is one step.
 * A step has more only where the rest is local or guarded by the lock, or where that is
 * as good, as to compare and exchange until it succeeds.  Ghosts, which the code does not
 * have, change within the step they belong to.
 *
 * Left out:
 *	 - Totals and times.  Whether handoff_after or lend_after has passed, a hot spot needs
 *	   another limit, a statement wants it or a queue stands still is anybody's guess: all
 *	   answers are tried.  Only where a sample is what ends the run (HOLDER), it comes when
 *	   nothing else can happen, and the watcher has been awake since it was appointed.
 *	 - Samples are taken by a process of their own; a watcher is never late.
 *	 - All pools but "default": priorities, aging, and pools that change.  Which of several
 *	   queues goes first is a guess, renewed when a backend enters or leaves one.
 *	 - Long statements (long_share.c); entering as a lender; the reserve of superusers,
 *	   which is a forced entry; limits that are only observed; sched_yield().
 *	 - Memory is sequentially consistent; semaphore.c argues why weaker hardware will do.
 * An exit of a backend that waits takes the steps of a cancel; an error or an exit of
 * one that works takes those of a release.
 *
 * Copyright (c) 2026, admission_gate authors
 */

/*
 * Parameters: run.sh gives all of them a value.
 *
 * BACKENDS		2 to 4, with ROUNDS statements each; FOREVER: they never stop
 * LIMIT		of all at the start, or NO_LIMIT; POOL_LIMIT likewise, not with HOT
 * BARGING		0: handoff_after is 0
 * INTERRUPTS	how many cancels, time-outs and idle wake-ups there are
 * MAX_QUEUE	max_queue_length
 * FORCE		1: some backends may not wait
 * RESIZERS		processes that set the limit to RESIZE_1, then to RESIZE_2; 0: the gate
 *				is off
 * HOT			hot spots, up to 2, each with a limit of 1 at the start
 * MARK			hot_spot of all but the first BYSTANDERS: these want the place of WANT - 1
 *				in the middle of their transactions, if that is not 0
 * SAMPLERS		processes that take SAMPLES, all together, of what DO says
 * KEEP			1: a transaction has two statements, and keeps only its place in between
 * HOLDER		WAITS: 0, with a slot, waits for 1; STAYS: it waits for all others
 */
#define DO_HOLDERS		1		/* lend a slot, take a lent one back */
#define DO_RELIEVE		2		/* the last resort */
#define DO_LET_IN		4		/* let a waiter in */
#define DO_MARK			8		/* mark a backend, move it to a place */
#define DO_ADAPT		16		/* change the limit of a hot spot, or forget it */
#ifndef SAMPLERS
#define SAMPLERS		(SAMPLES > 0 || HOLDER != 0)
#endif
#define DOES(what)		(SAMPLES > 0 && (DO & (what)) != 0)
#define WAITS			1
#define STAYS			2
#define LENDING			(HOLDER == WAITS || DOES(DO_HOLDERS))
#if BYSTANDERS > 0 && (WANT) != 0
#define WANTING			1
#else
#define WANTING			0
#endif
#define PLACES			(HOT > 0 || POOL_LIMIT != NO_LIMIT)

/* ---- slots.h, slots_internal.h ---- */

#define USAGE_COUNT		15
#define USAGE_WAITERS	16
#define NO_LIMIT		USAGE_COUNT

#define INVALID_PROC_NUMBER 4
#define MAX_HOT_SPOTS	2
#define SLOTS_MAX_POOLS	1
#define DEFAULT_POOL	0
#define SLOTS_QUEUES	(SLOTS_MAX_POOLS + MAX_HOT_SPOTS)
#define NO_QUEUE		SLOTS_QUEUES
#define HOT_SPOT_NONE	0
#define HOT_SPOT_RELATION 1

#define SLOT_NONE		0
#define SLOT_WAITING	1
#define SLOT_RUNNING	2
#define SLOT_LENT		3

typedef EntryList { byte head = INVALID_PROC_NUMBER; byte tail = INVALID_PROC_NUMBER; byte length };
typedef SlotQueue {
	byte usage; byte limit = NO_LIMIT; EntryList waiters; byte last_before = INVALID_PROC_NUMBER
};
typedef HotSpot { byte kind };	/* key.kind */
typedef SlotEntry {
	byte state; byte place = NO_QUEUE;	/* one word */
	byte queue; byte hot_spot; bool admitted_before; bool wakeup_pending;
	byte prev = INVALID_PROC_NUMBER; byte next = INVALID_PROC_NUMBER
};
typedef SlotShared {
	byte usage; byte limit = LIMIT; byte max_active = LIMIT;	/* NO_LIMIT: -1 */
	bool mutex; byte watcher = INVALID_PROC_NUMBER; byte lent
};

SlotShared Slots;
SlotEntry entries[INVALID_PROC_NUMBER];
SlotQueue queues[SLOTS_QUEUES];
HotSpot hot_spots[MAX_HOT_SPOTS];
byte latches;					/* a bit for each backend whose latch is set */

#define entry_of(p)				entries[p]
#define queue_at(i)				queues[i]
#define MySlotEntry				entry_of(me)
#define slots_in_use()			(Slots.usage & USAGE_COUNT)
#define waiters_flag_is_set()	((Slots.usage & USAGE_WAITERS) != 0)
#define slots_are_limited()		(Slots.limit != NO_LIMIT)
#define slot_is_free()			(slots_in_use() < Slots.limit)
#define is_of_hot_spot(i)		((i) >= SLOTS_MAX_POOLS)
#define queue_has_limit(i)		(queue_at(i).limit != NO_LIMIT)
#define places_in_use(i)		(queue_at(i).usage & USAGE_COUNT)
#define queue_has_place_free(i)	(places_in_use(i) < queue_at(i).limit)
#define queue_counts(i)			(is_of_hot_spot(i) || queue_has_limit(i))

/* ---- The model's own ---- */

/* Ghosts and budgets */
byte first_queue;				/* the one that goes before others */
byte resizing;					/* limits changed, the waiters not yet let in */
byte calls_owed;				/* backends that released a place of a queue with
								 * waiters, and have not released the lock since */
byte exempt;					/* a bit for each backend counted above the limit for all */
byte done;						/* processes at their end */
byte interrupts = INTERRUPTS;
byte samples = SAMPLES;
bool watching;					/* HOLDER: the watcher has been awake */
bool blocked, finished;			/* HOLDER=WAITS: 0 waits; 1 is done */
bool overdue;					/* FOREVER: 0 has waited for handoff_after */
#ifdef FOREVER
byte handoff_pending = INVALID_PROC_NUMBER;	/* the entry whose; if any,
								 * handoffs_in_flight is 1 */
#endif

#define WHEN(condition, statements) if :: condition -> statements :: else fi
#define EITHER(condition, statements, others) if :: condition -> statements :: else -> others fi
#define BIT(p)			(1 << (p))
#define LATCH_IS_SET(p)	(latches & BIT(p))
#define IS_WAITING(p)	(entry_of(p).state == SLOT_WAITING)
#define IS_RUNNING(p)	(entry_of(p).state == SLOT_RUNNING)
#define IS_HOLDER(p)	(IS_RUNNING(p) || entry_of(p).state == SLOT_LENT)
#define HEAD(i)			queue_at(i).waiters.head
#define HAS_WAITERS(i)	(HEAD(i) != INVALID_PROC_NUMBER)
#define CAN(i)			(HAS_WAITERS(i) && queue_has_place_free(i))
#define SET_FLAG(usage)	usage = usage | USAGE_WAITERS
#define CLEAR_FLAG(usage) usage = usage & ~USAGE_WAITERS
#define COUNT_EXEMPT(p)	d_step { Slots.usage++; exempt = exempt | BIT(p) }
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
#define NO_ORDER		((RESIZERS == 0 && !slots_are_limited()) || !(ANY_QUEUE(HAS_WAITERS)))
#define ORDER(i)		:: !NO_ORDER && HAS_WAITERS(i) -> first_queue = i
#define ORDER_QUEUES	if OPTIONS(ORDER) :: NO_ORDER -> first_queue = 0 fi

/*
 * What every process needs for itself: the place just counted or to be released, that of
 * one that is readmitted, the one released last, the state that an exchange found, the
 * latches to set, a result, whether the queue whose place was released has waiters, a
 * queue or the like, the next waiter.
 */
#define LOCALS \
	byte place = NO_QUEUE; byte room = NO_QUEUE; byte had_place; byte was; byte wakes; \
	bool ok; bool told; bool was_free; byte index; byte next_one = INVALID_PROC_NUMBER

/* ---- slots_internal.h ---- */

inline count_up_if_free(cell, most, barge)
{
	d_step { ok = ((barge -> cell & USAGE_COUNT : cell) < most); cell = cell + ok }
}

inline count_place_if_free(i, barge)
{
	ok = true;
	WHEN(PLACES,
		 atomic {
			WHEN(queue_counts(i),
				 count_up_if_free(queue_at(i).usage, queue_at(i).limit, barge);
				 WHEN(ok, place = i))
		 })
}

inline count_place(i)
{
	WHEN(PLACES, d_step { WHEN(queue_counts(i), queue_at(i).usage++; place = i) })
}

/* told: that queue has waiters, so the caller is to take and release the lock. */
inline count_place_out()
{
	WHEN(place != NO_QUEUE,
		 d_step {
			assert(places_in_use(place) > 0);
			told = ((queue_at(place).usage & USAGE_WAITERS) != 0);
			calls_owed = calls_owed + told; queue_at(place).usage--; place = NO_QUEUE
		 })
}

inline count_in_if_free(i)
{
	count_place_if_free(i, true);
	WHEN(ok,
		 count_up_if_free(Slots.usage, Slots.limit, true);
		 WHEN(!ok, count_place_out()))
}
inline count_in(i) { count_place(i); Slots.usage++ }
inline count_out() { count_place_out(); Slots.usage-- }

/* ---- wait_queue.c: lists ---- */

#define PREV(p)			entry_of(p).prev
#define NEXT(p)			entry_of(p).next

inline slots_list_append(list, p)
{
	PREV(p) = list.tail; NEXT(p) = INVALID_PROC_NUMBER;
	EITHER(list.tail == INVALID_PROC_NUMBER, list.head = p, NEXT(list.tail) = p);
	list.tail = p; list.length++
}

inline list_insert(list, p, before)
{
	PREV(p) = PREV(before); NEXT(p) = before; PREV(before) = p;
	EITHER(PREV(p) == INVALID_PROC_NUMBER, list.head = p, NEXT(PREV(p)) = p);
	list.length++
}

/* Old links are wiped: fewer states. */
inline slots_list_remove(list, p)
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
	(overdue && (HEAD(i) == 0 || next_one == 0) -> HEAD(i) == 0 : (i) == first_queue)
inline slots_next_waiter() { EACH_QUEUE(LOOK_AT) }
inline slots_lock() { atomic { !Slots.mutex -> Slots.mutex = true } }
inline slots_wake_later(p) { wakes = wakes | BIT(p) }

#define LOOK_FOR_CALL(i) \
	WHEN(next_one == INVALID_PROC_NUMBER && CAN(i) && !entry_of(HEAD(i)).wakeup_pending, \
		 next_one = HEAD(i))

inline head_to_call() { EACH_QUEUE(LOOK_FOR_CALL) }

/* With the next waiter in next_one */
#define slots_is_its_turn(p) \
	((slots_are_limited() -> next_one : HEAD(entry_of(p).queue)) == p)

/* Up to the look whether a slot is free */
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
		 entry_of(next_one).wakeup_pending = true; slots_wake_later(next_one)); \
	next_one = INVALID_PROC_NUMBER; was_free = false

/*
 * Releasing the lock is as good as part of the step before, and a backend whose latch is
 * set need not run at once.
 */
#define RELEASE_LOCK \
	Slots.mutex = false; latches = latches | wakes; wakes = 0; \
	calls_owed = calls_owed - told; told = false

#define MAY_READMIT(i)	(CAN(i) && entry_of(HEAD(i)).admitted_before)
#define READMIT(i) \
	:: d_step { \
			MAY_READMIT(i) -> \
			next_one = HEAD(i); WHEN(queue_counts(i), queue_at(i).usage++; room = i) \
		}; \
		COUNT_EXEMPT(next_one); grant(next_one, room)

/* The caller has looked whether a slot is free; if one was, the next is called. */
inline readmit() { do OPTIONS(READMIT) :: !ANY_QUEUE(MAY_READMIT) -> break od }

inline slots_unlock()
{
#if WANTING
	EITHER(slot_is_free(), was_free = true, readmit());
#endif
	wake_next(); d_step { CALL_NEXT; RELEASE_LOCK }
}

#define appoint_watcher(p) Slots.watcher = p; watching = false

#define TAIL_OR(i, other) (HAS_WAITERS(i) -> queue_at(i).waiters.tail : other)
#define LAST_IN_A_QUEUE TAIL_OR(0, TAIL_OR(1, TAIL_OR(2, INVALID_PROC_NUMBER)))

#define LAST_BEFORE(p)	queue_at(entry_of(p).queue).last_before

inline take_out_of_queue(p)
{
	WHEN(LAST_BEFORE(p) == p, LAST_BEFORE(p) = PREV(p));
	slots_list_remove(queue_at(entry_of(p).queue).waiters, p);
	WHEN(!HAS_WAITERS(entry_of(p).queue), CLEAR_FLAG(queue_at(entry_of(p).queue).usage))
}

/* next_one: the one that p goes before */
inline add_to_queue(p)
{
	next_one = INVALID_PROC_NUMBER;
	/* As if none of those behind had waited for handoff_after */
	WHEN(entry_of(p).admitted_before && slots_are_limited(),
		 next_one = (LAST_BEFORE(p) == INVALID_PROC_NUMBER ->
					 HEAD(entry_of(p).queue) : NEXT(LAST_BEFORE(p)));
		 LAST_BEFORE(p) = p);
	EITHER(next_one != INVALID_PROC_NUMBER,
		   list_insert(queue_at(entry_of(p).queue).waiters, p, next_one),
		   slots_list_append(queue_at(entry_of(p).queue).waiters, p))
}

/* Part of a step */
inline slots_queue_append(p)
{
	entry_of(p).wakeup_pending = false; add_to_queue(p); ORDER_QUEUES;
	WHEN(Slots.watcher == INVALID_PROC_NUMBER, appoint_watcher(p))
}

inline slots_queue_remove(p)
{
	atomic {
		assert(entry_of(p).state == SLOT_WAITING); take_out_of_queue(p); ORDER_QUEUES;
		WHEN(Slots.watcher == p,
			 appoint_watcher(TAIL_OR(entry_of(p).queue, LAST_IN_A_QUEUE));
			 WHEN(Slots.watcher != INVALID_PROC_NUMBER, slots_wake_later(Slots.watcher)))
	}
}

/* at: the place just counted */
inline slots_make_holder(p, at)
{
	slots_queue_remove(p);
	d_step { entry_of(p).state = SLOT_RUNNING; entry_of(p).place = at; at = NO_QUEUE }
}

inline grant(p, at)
{
	assert(p == HEAD(entry_of(p).queue));	/* (f) */
	slots_make_holder(p, at); slots_wake_later(p)
}

inline slots_grant_above_limit(p)
{
	count_in(entry_of(p).queue); slots_make_holder(p, place); slots_wake_later(p)
}

#define HEAD_OR(i, other) (HAS_WAITERS(i) -> HEAD(i) : other)
#define ANY_WAITER	HEAD_OR(0, HEAD_OR(1, HEAD(2)))

inline grant_one()
{
	slots_lock();
	EITHER(Slots.max_active == 0,
		   next_one = ANY_WAITER;
		   ok = (next_one != INVALID_PROC_NUMBER);
		   WHEN(ok, assert(Slots.max_active == 0); count_in(entry_of(next_one).queue)),	/* (b) */
		   slots_next_waiter();
		   EITHER(next_one != INVALID_PROC_NUMBER,
				  count_in_if_free(entry_of(next_one).queue), ok = false));
	EITHER(ok, grant(next_one, place), resizing--);
	slots_unlock()
}

/* The caller has raised "resizing". */
inline slots_grant_free() { do :: grant_one(); WHEN(!ok, break) od }

/*
 * may_hand_off() is a guess, unless handoff_after is 0.  FOREVER, a hand-off in flight is
 * waited for, and no wait is ever long enough for two of them.
 */
#ifdef FOREVER
#define may_hand_off() \
	(!BARGING || ((next_one != 0 || overdue) && handoff_pending == INVALID_PROC_NUMBER))
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

#define GRANTABLE		(next_one != INVALID_PROC_NUMBER && slots_in_use() <= Slots.limit)

inline slots_hand_off()
{
	slots_next_waiter();
	WHEN(had_place != NO_QUEUE, WHEN(!slots_are_limited(), next_one = HEAD(had_place)));
	if
	:: atomic {
			GRANTABLE && may_hand_off() ->
			assert(SUM(IS_RUNNING) < Slots.limit)	/* (b) */
		};
		count_place_if_free(entry_of(next_one).queue, true)
	:: !GRANTABLE || MAY_KEEP -> ok = false
	fi;
	EITHER(ok, START_HANDOFF; grant(next_one, place), Slots.usage--)
}

/* ---- lending.c: lenders ---- */

inline slots_note_lender() { Slots.lent++ }
inline forget_lender() { Slots.lent-- }
inline slots_forget_lending()
{
	slots_lock(); count_place_out(); forget_lender(); slots_unlock()
}

/* That of a hot spot, or none; the place of a pool is lent as well. */
#define IS_KEPT(place)	((place) != DEFAULT_POOL)

/* ok: lent */
inline lend(p)
{
	atomic {
		ok = (entry_of(p).state == SLOT_RUNNING &&
			  (slots_are_limited() || !IS_KEPT(entry_of(p).place)));
		WHEN(ok,
			 entry_of(p).state = SLOT_LENT;
			 WHEN(!IS_KEPT(entry_of(p).place),
				  place = entry_of(p).place; entry_of(p).place = NO_QUEUE))
	};
	WHEN(ok, slots_note_lender(); count_out())
}

inline end_lending(p)
{
	if
	:: entry_of(p).state == SLOT_LENT ->
		WHEN(entry_of(p).place == NO_QUEUE, count_place(DEFAULT_POOL));
		Slots.usage++;
		atomic {
			ok = (entry_of(p).state == SLOT_LENT);
			WHEN(ok,
				 entry_of(p).state = SLOT_RUNNING;
				 WHEN(place != NO_QUEUE, entry_of(p).place = place; place = NO_QUEUE))
		};
		EITHER(ok, forget_lender(), count_out())	/* or the backend left */
	:: else
	fi
}

inline slots_note_holder(p, worked)
{
	slots_lock(); EITHER(worked, end_lending(p), lend(p)); slots_unlock()
}

inline slots_end_lending() { slots_lock(); end_lending(me); slots_unlock() }

/* ---- semaphore.c: acquire ---- */

#define MARK_OF(p)		entry_of(p).hot_spot
#define slots_hot_spot_queue(h)	(SLOTS_MAX_POOLS + (h))
#define my_queue() \
	(MARK_OF(me) == 0 -> DEFAULT_POOL : slots_hot_spot_queue(MARK_OF(me) - 1))
/* One that has kept a place needs no other: the pool has no limit then. */
#define QUEUE_TO_COUNT_IN (MySlotEntry.place != NO_QUEUE -> DEFAULT_POOL : my_queue())

/* With count_in_with_place(), which comes to the same where there are no places */
inline count_me_in(barge)
{
	WHEN(HOT > 0, index = QUEUE_TO_COUNT_IN);
	count_place_if_free(index, barge);
	WHEN(ok,
		 count_up_if_free(Slots.usage, Slots.limit, barge);
		 WHEN(!ok, count_place_out(); WHEN(told, slots_lock(); slots_unlock())))
}

inline become_holder()
{
	d_step {
		assert(MySlotEntry.state == SLOT_NONE);
		assert(MySlotEntry.place == NO_QUEUE || place == NO_QUEUE);
		MySlotEntry.state = SLOT_RUNNING;
		WHEN(place != NO_QUEUE, MySlotEntry.place = place; place = NO_QUEUE)
	}
}

inline slots_try_acquire() { count_me_in(false); WHEN(ok, become_holder()) }

#define OTHERS_WAIT \
	(waiters_flag_is_set() || (queue_at(my_queue()).usage & USAGE_WAITERS) != 0)

inline slots_try_barge()
{
	EITHER(BARGING, ok = true, ok = !OTHERS_WAIT);
	WHEN(ok, count_me_in(true));
	WHEN(ok, become_holder())
}

inline barge_or_force()
{
	count_me_in(true);
	WHEN(!ok, index = QUEUE_TO_COUNT_IN; count_place(index); COUNT_EXEMPT(me); ok = true);
	become_holder()
}

inline slots_force() { slots_try_acquire(); WHEN(!ok, barge_or_force()) }

#define MY_QUEUE		MySlotEntry.queue
#define MAY_OVERTAKE	(!HAS_WAITERS(MY_QUEUE) && next_one == INVALID_PROC_NUMBER)

/* ok: acquired; queued: waits; else the queue is full. */
inline enter_queue()
{
#if WANTING
	EITHER(MySlotEntry.admitted_before && !HAS_WAITERS(MY_QUEUE),
		   count_place_if_free(MY_QUEUE, true); WHEN(ok, COUNT_EXEMPT(me)), ok = false);
	WHEN(!ok, slots_next_waiter(); WHEN(MAY_OVERTAKE, count_in_if_free(MY_QUEUE)));
#else
	slots_next_waiter();
	EITHER(MAY_OVERTAKE, count_in_if_free(MY_QUEUE), ok = false);
#endif
	WHEN(RESIZERS > 0, WHEN(!ok && Slots.max_active == 0, count_in(MY_QUEUE); ok = true));
	atomic {
		queued = (!ok && queue_at(MY_QUEUE).waiters.length < MAX_QUEUE);
		WHEN(queued, MySlotEntry.state = SLOT_WAITING; slots_queue_append(me));
		WHEN(!HAS_WAITERS(MY_QUEUE), CLEAR_FLAG(queue_at(MY_QUEUE).usage))
	}
}

inline slots_enqueue()
{
	atomic {
		slots_lock(); MY_QUEUE = my_queue();
		WHEN(Slots.max_active != 0, SET_FLAG(queue_at(MY_QUEUE).usage))
	};
	d_step { WHEN(Slots.max_active != 0 && slots_are_limited(), SET_FLAG(Slots.usage)) };
	enter_queue(); slots_unlock();
	WHEN(ok, become_holder())
}

/* ---- semaphore.c: claim, leave, release ---- */

inline claim_free_slot()
{
	atomic {
		slots_lock(); ok = (MySlotEntry.state != SLOT_WAITING);
		MySlotEntry.wakeup_pending = false
	};
	if
	:: ok
	:: else ->
		slots_next_waiter();
		WHEN(slots_is_its_turn(me), count_in_if_free(MySlotEntry.queue));
		WHEN(ok, assert(me == HEAD(MySlotEntry.queue)); slots_make_holder(me, place))
	fi;
	slots_unlock()
}

/* To look at the state a moment before the wake-up would come to the same. */
inline slots_claim()
{
	if
	:: d_step { MySlotEntry.state != SLOT_WAITING -> MySlotEntry.wakeup_pending = false; ok = true }
	:: MySlotEntry.state == SLOT_WAITING && MySlotEntry.wakeup_pending -> claim_free_slot()
	:: else -> ok = false
	fi;
	WHEN(ok,
		 finish_handoff();
		 WHEN(LENDING, WHEN(MySlotEntry.state == SLOT_LENT, slots_end_lending(); ok = true)))
}

/* ok: left */
inline slots_leave_queue()
{
	atomic { slots_lock(); ok = (MySlotEntry.state == SLOT_WAITING) };
	WHEN(ok,
		 slots_queue_remove(me);
		 d_step { MySlotEntry.state = SLOT_NONE; MySlotEntry.wakeup_pending = false });
	slots_unlock()
}

inline free_slot_to_waiters(is_counted)
{
	slots_lock();
	WHEN(!is_counted, Slots.usage = Slots.usage + 1);
	slots_hand_off(); slots_unlock()
}

inline free_slot()
{
	had_place = place; count_place_out();
	d_step {
		assert(slots_in_use() > 0); ok = (!told && !waiters_flag_is_set());
		Slots.usage = Slots.usage - ok
	};
	WHEN(!ok, free_slot_to_waiters(true))
}

inline drop_slot()
{
	atomic {
		was = MySlotEntry.state; place = MySlotEntry.place;
		MySlotEntry.state = SLOT_NONE; MySlotEntry.place = NO_QUEUE
	};
	if
	:: was == SLOT_NONE ->
		had_place = place; count_place_out();
		WHEN(told, free_slot_to_waiters(false))
	:: was == SLOT_LENT -> slots_forget_lending()
	:: else -> assert(was != SLOT_WAITING); free_slot()
	fi
}

inline slots_keep_place()
{
	atomic {
		was = MySlotEntry.state; ok = (MySlotEntry.place != NO_QUEUE);
		WHEN(ok, MySlotEntry.state = SLOT_NONE)
	};
	EITHER(!ok, drop_slot(), EITHER(was == SLOT_LENT, slots_forget_lending(), free_slot()))
}

inline slots_refuse_grant() { finish_handoff(); drop_slot() }
inline slots_resume() { WHEN(MySlotEntry.state == SLOT_LENT, slots_end_lending()) }

/* ---- semaphore.c: places in the middle of a transaction ---- */

inline slots_take_place(h)
{
	WHEN(LENDING, slots_resume());
	ok = (!IS_RUNNING(me) || MySlotEntry.place != NO_QUEUE);
	if
	:: ok
	:: else ->
		count_place_if_free(slots_hot_spot_queue(h), BARGING);
		WHEN(ok,
			 MARK_OF(me) = h + 1;
			 atomic {
				WHEN(IS_RUNNING(me) && MySlotEntry.place == NO_QUEUE,
					 MySlotEntry.place = place; place = NO_QUEUE)
			 };
			 count_place_out();	/* a sample was faster */
			 WHEN(told, slots_lock(); slots_unlock()))
	fi
}

inline slots_give_up_for(h)
{
	MARK_OF(me) = h + 1; drop_slot(); MySlotEntry.admitted_before = true
}

inline slots_end_readmission()
{
	WHEN(MySlotEntry.state == SLOT_NONE, MARK_OF(me) = 0; slots_force());
	MySlotEntry.admitted_before = false
}

inline slots_release_place()
{
	atomic { place = MySlotEntry.place; MySlotEntry.place = NO_QUEUE };
	WHEN(place != NO_QUEUE,
		 MARK_OF(me) = 0;
		 had_place = place; count_place_out();
		 WHEN(told, free_slot_to_waiters(false)))
}

/* ---- hot_spots.c ---- */

/* "was" and "from" are what the exchange expects. */
#define READ_STATE(p)	d_step { was = entry_of(p).state; from = entry_of(p).place }

inline move_to_place(p, to)
{
	if
	:: from != to && from != DEFAULT_POOL ->
		slots_lock();
		WHEN(to != NO_QUEUE, count_place(to));
		atomic {
			EITHER(entry_of(p).state == was && entry_of(p).place == from,
				   entry_of(p).place = to; place = from, place = to)
		};
		count_place_out(); slots_unlock()
	:: else
	fi
}

inline slots_let_in(p)
{
	slots_lock(); WHEN(entry_of(p).state == SLOT_WAITING, slots_grant_above_limit(p)); slots_unlock()
}

#define QUEUE_OF(h)		slots_hot_spot_queue(h)
#define IS_THERE(h)		(hot_spots[h].kind != HOT_SPOT_NONE)
#define slots_have_hot_spots() (Slots.max_active != 0)
#define CAN_FORM(h) \
	(!IS_THERE(h) && places_in_use(QUEUE_OF(h)) == 0 && !HAS_WAITERS(QUEUE_OF(h)))

inline forget(h)
{
	hot_spots[h].kind = HOT_SPOT_NONE; queue_at(QUEUE_OF(h)).limit = NO_LIMIT
}

#define UNMARK(p, h)	WHEN(MARK_OF(p) == (h) + 1, MARK_OF(p) = 0)

inline clear_marks_for(h) { atomic { UNMARK(0, h); UNMARK(1, h); UNMARK(2, h); UNMARK(3, h) } }

/* The one that is there already, or a new one */
inline find_or_form(h)
{
	if
	:: !IS_THERE(h) ->
		slots_lock(); ok = (CAN_FORM(h) && slots_have_hot_spots());
		WHEN(ok, hot_spots[h].kind = HOT_SPOT_RELATION);
		slots_unlock();
		WHEN(ok, clear_marks_for(h))
	:: else
	fi
}

/* A sample finds a holder contending for h, at work, or doing nothing. */
inline slots_note_activity(p, h)
{
	READ_STATE(p); to = NO_QUEUE;
	if
	:: was != SLOT_RUNNING && was != SLOT_LENT && from == NO_QUEUE
	:: else ->
		if
		:: find_or_form(h);
			atomic { WHEN(IS_THERE(h), MARK_OF(p) = h + 1; to = slots_hot_spot_queue(h)) }
		:: MARK_OF(p) = 0
		:: true
		fi;
		move_to_place(p, to)
	fi
}

/* Any limit that the limit control could find; slots_adapt_hot_spots() */
#define OWN_LIMIT		queue_at(QUEUE_OF(h)).limit
#define ANOTHER(new)	OWN_LIMIT != new -> raised = (new > OWN_LIMIT); OWN_LIMIT = new

inline adapt(h)
{
	slots_lock();
	atomic {
		if
		:: !IS_THERE(h) || !slots_have_hot_spots()
		:: else -> if :: OWN_LIMIT == NO_LIMIT -> forget(h)
			:: ANOTHER(1) :: ANOTHER(2) :: ANOTHER(NO_LIMIT) fi
		fi;
		resizing = resizing + raised
	};
	slots_unlock();
	WHEN(raised, raised = false; slots_grant_free())
}

/* The gate is off: there are no hot spots any more. */
inline slots_schedule_samples()
{
	index = 0;
	do
	:: index < HOT ->
		slots_lock(); d_step { forget(index) }; slots_unlock();
		atomic { clear_marks_for(index); index++ }
	:: else -> break
	od;
	slots_grant_free()
}

/* ---- lending.c: the last resort ---- */

#define IS_FULL(i)		(HAS_WAITERS(i) && !queue_has_place_free(i))
#define FIRST_OF_FULL(i) :: IS_FULL(i) -> next_one = HEAD(i)

/* Lets the next waiter in, or the first of a queue without a free place. */
inline slots_relieve_stall()
{
	slots_lock(); slots_next_waiter();
	if
	:: next_one != INVALID_PROC_NUMBER						/* relieve_next() */
	OPTIONS(FIRST_OF_FULL)									/* relieve_full_queue() */
	:: next_one == INVALID_PROC_NUMBER && !(ANY_QUEUE(IS_FULL))
	fi;
	WHEN(next_one != INVALID_PROC_NUMBER, slots_grant_above_limit(next_one));
	slots_unlock()
}

/* ---- semaphore.c: settings ---- */

inline slots_set(new_limit)
{
	slots_lock();
	d_step {
		Slots.max_active = new_limit; resizing++;
		Slots.limit = (new_limit == 0 -> NO_LIMIT : new_limit)
	};
	slots_unlock();
	WHEN(HOT > 0 && Slots.max_active == 0, resizing++; slots_schedule_samples());
	slots_grant_free()
}

/* ---- admission.c ---- */

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
		WHEN(HOLDER != 0, WHEN(Slots.watcher == me, watching = true));

		/* queue_timeout: leaves, or else it must have been granted a slot */
		if
		:: mood == DISTURBED ->
			slots_leave_queue();
			EITHER(ok, ok = false; break, mood = EXPIRED)
		:: mood == DISTURBED -> mood = CALM
		:: mood == CALM
		fi;

		atomic {				/* WaitLatch(), ResetLatch() */
			if
			:: LATCH_IS_SET(me)
			:: interrupts > 0 && mood == CALM -> interrupts--; mood = DISTURBED
			:: mood == EXPIRED
			fi;
			RESET_LATCH(me)
		};

		/* CHECK_FOR_INTERRUPTS(): an error leaves, else it may reset the latch again */
		if
		:: mood == DISTURBED -> abandon_wait(); break
		:: mood == DISTURBED -> RESET_LATCH(me)
		:: true
		fi;

		slots_claim();
		WHEN(ok, break);
		assert(mood != EXPIRED)
	od;
	mood = CALM
}

/* ok: holds a slot */
inline admission_enter()
{
	slots_try_acquire();
	if
	:: ok
	:: else ->					/* enter_or_wait() */
		slots_try_barge();
		if
		:: ok
		:: !ok -> wait_for_slot()
		:: !ok && FORCE -> slots_force()
		fi
	fi
}

/* ok: granted, or acquired at once */
inline wait_for_slot() { slots_enqueue(); WHEN(queued, queued = false; sleep_in_queue()) }
inline wait_for_place(h) { slots_give_up_for(h); wait_for_slot(); slots_end_readmission() }

inline admission_want(h)
{
	slots_take_place(h);
	WHEN(!ok, wait_for_place(h));
	assert(IS_HOLDER(me))			/* (a) */
}

/* ---- The processes ---- */

/* end_wanting(): it begins the next transaction as a contender, or not. */
#if WANTING
#define MAY_FORGET		if :: want == 0 || rounds > 0 :: want != 0 -> MARK_OF(me) = 0 fi
#else
#define MAY_FORGET		skip
#endif

proctype Backend(byte me, want)
{
	LOCALS;
	byte rounds = ROUNDS;
	byte mood = CALM;
	bool queued;

	do
	:: rounds > 0 ->
#ifndef FOREVER
		rounds--;
#endif
		admission_enter();
		if
		:: ok ->
			WHEN(WANTING, WHEN(want != 0, admission_want(want - 1)));
			WHEN(HOLDER == WAITS && me == 0, blocked = true; finished; blocked = false);
			WHEN(HOLDER == STAYS && me == 0, done == BACKENDS - 1);
			if
			:: LENDING -> slots_resume()	/* another statement of its transaction */
			:: WANTING -> slots_release_place()		/* a subtransaction fails */
			:: true
			fi;
			WHEN(KEEP, slots_keep_place(); slots_force(); slots_keep_place());
			drop_slot();
			atomic { exempt = exempt & ~BIT(me); MAY_FORGET }
		:: else
		fi
	:: rounds == 0 -> break
	od;
	atomic { WHEN(HOLDER == WAITS && me == 1, finished = true); done++ }
}

#define MAY_DO(what)	((DO & (what)) && samples > 0)
#define ANY_BACKEND		select(p : 0 .. BACKENDS - 1)
#define ANY_HOT_SPOT	select(h : 0 .. HOT - 1)

/* What any process does that takes a sample: see sampler.c. */
proctype Sampler()
{
	LOCALS;
	byte p, h, from, to;
	bool worked, raised;

	do
#if HOLDER
	:: done == BACKENDS -> break
	:: HOLDER == STAYS && timeout && watching -> slots_relieve_stall()
	:: HOLDER == WAITS && timeout && watching && blocked ->
		/* What keeps 0 is found to be a lock of 1; or else it is found doing nothing. */
		WHEN(entry_of(0).state == SLOT_RUNNING, slots_note_holder(0, false));
		if
		:: slots_let_in(1)
		:: HOT > 0 -> READ_STATE(0); move_to_place(0, NO_QUEUE)
		:: HOT == 0
		fi
#else
	:: samples == 0 -> break
	:: atomic { MAY_DO(DO_HOLDERS) -> samples--; ANY_BACKEND };
		worked = (entry_of(p).state == SLOT_LENT); slots_note_holder(p, worked)
	:: atomic { MAY_DO(DO_RELIEVE) -> samples-- }; slots_relieve_stall()
	:: atomic { MAY_DO(DO_LET_IN) -> samples--; ANY_BACKEND };
		WHEN(entry_of(p).state == SLOT_WAITING, slots_let_in(p))
	:: atomic { MAY_DO(DO_MARK) -> samples--; ANY_BACKEND; ANY_HOT_SPOT };
		slots_note_activity(p, h)
	:: atomic { MAY_DO(DO_ADAPT) -> samples--; ANY_HOT_SPOT };
		WHEN(IS_THERE(h), adapt(h))
#endif
	od;
	done++
}

/* A process that publishes settings: see settings.c. */
proctype Resizer()
{
	LOCALS;

	slots_set(RESIZE_1); slots_set(RESIZE_2); done++
}

init
{
	byte i;

	atomic {
		queue_at(DEFAULT_POOL).limit = POOL_LIMIT;
		for (i : 0 .. MAX_HOT_SPOTS - 1) {
			WHEN(i < HOT, hot_spots[i].kind = HOT_SPOT_RELATION; queue_at(QUEUE_OF(i)).limit = 1)
		};
		for (i : 0 .. BACKENDS - 1) {
			MARK_OF(i) = (HOT == 0 || i < BYSTANDERS -> 0 : MARK);
			run Backend(i, (i < BYSTANDERS -> WANT : 0))
		};
		for (i : 1 .. 2) {
			WHEN(i <= RESIZERS, run Resizer());
			WHEN(i <= SAMPLERS, run Sampler())
		};
		i = 0
	}
}

/* ---- Properties ---- */

/* (a) */
#define NOTHING_IS_LEFT(i) \
	(queue_at(i).usage == 0 && queue_at(i).waiters.length == 0 && !HAS_WAITERS(i) && \
	 queue_at(i).waiters.tail == INVALID_PROC_NUMBER && \
	 queue_at(i).last_before == INVALID_PROC_NUMBER)
#define HAS_NO_LIMIT(h)	(IS_THERE(h) || queue_at(QUEUE_OF(h)).limit == NO_LIMIT)
#define CLEAN \
	(Slots.usage == 0 && Slots.lent == 0 && Slots.watcher == INVALID_PROC_NUMBER && \
	 calls_owed == 0 && exempt == 0 && ALL_QUEUES(NOTHING_IS_LEFT))

/* (b) */
#define HAS(p, i)		(entry_of(p).place == i)
#define IS_COUNTED(i)	(places_in_use(i) >= HAS(0, i) + HAS(1, i) + HAS(2, i) + HAS(3, i))
#define ALL_COUNTED		(slots_in_use() >= SUM(IS_RUNNING) && ALL_QUEUES(IS_COUNTED))
#define IS_EXEMPT(p)	((exempt & BIT(p)) != 0)
#define MAY_EXCEED \
	(FORCE || RESIZERS > 0 || HOLDER != 0 || DOES(DO_HOLDERS + DO_RELIEVE + DO_LET_IN))
#define IS_WITHIN(i)	(SAMPLES > 0 || places_in_use(i) <= queue_at(i).limit)
#define IN_PASSING		((KEEP || WANTING) && Slots.mutex)	/* free_slot_to_waiters() */
#define IS_ALL_WITHIN	(slots_in_use() <= Slots.limit + SUM(IS_EXEMPT) + IN_PASSING)
#define WITHIN_LIMITS	(MAY_EXCEED || (IS_ALL_WITHIN && ALL_QUEUES(IS_WITHIN)))

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
#define FLAG_IS_RIGHT(i) (((queue_at(i).usage & USAGE_WAITERS) != 0) == HAS_WAITERS(i))
#define FLAGS_ARE_RIGHT \
	(ALL_QUEUES(FLAG_IS_RIGHT) && \
	 (waiters_flag_is_set() -> slots_are_limited() && ANY_QUEUE(HAS_WAITERS) : \
	  !slots_are_limited() || NEXT_WAITER == INVALID_PROC_NUMBER || calls_owed > 0))
#define WATCHED \
	(!ANY_QUEUE(HAS_WAITERS) || \
	 (Slots.watcher != INVALID_PROC_NUMBER && IS_WAITING(Slots.watcher)))
#define NONE_IS_LEFT	(Slots.max_active != 0 || resizing > 0 || !ANY_QUEUE(HAS_WAITERS))

/* (f) */
#define IS_BEHIND(p) \
	(IS_WAITING(p) && entry_of(p).admitted_before && PREV(p) != INVALID_PROC_NUMBER && \
	 !entry_of(PREV(p)).admitted_before)
#define IN_ORDER		(RESIZERS > 0 || !slots_are_limited() || SUM(IS_BEHIND) == 0)

/* Sleeps until something is wrong, or all are done: then it looks about. */
active proctype monitor()
{
	/* Never true: what spin names when it finds something wrong. */
	bool all_is_clean, all_are_counted, limits_hold, next_is_called, flags_are_right, watched;
	bool none_is_left, gone_have_no_limit, all_are_readmitted, in_order;

end:
	if
	:: atomic { done == BACKENDS + RESIZERS + SAMPLERS && !CLEAN -> assert(all_is_clean) }
	:: atomic { !ALL_COUNTED -> assert(all_are_counted) }
	:: atomic { !WITHIN_LIMITS -> assert(limits_hold) }
	:: atomic { !Slots.mutex && !NEXT_IS_CALLED -> assert(next_is_called) }
	:: atomic { !Slots.mutex && !FLAGS_ARE_RIGHT -> assert(flags_are_right) }
	:: atomic { !Slots.mutex && !WATCHED -> assert(watched) }
	:: atomic { !Slots.mutex && !NONE_IS_LEFT -> assert(none_is_left) }
#if WANTING
	:: atomic { !Slots.mutex && !ALL_READMITTED -> assert(all_are_readmitted) }
	:: atomic { !Slots.mutex && !IN_ORDER -> assert(in_order) }
#endif
	:: atomic { !(HAS_NO_LIMIT(0) && HAS_NO_LIMIT(1)) -> assert(gone_have_no_limit) }
	fi
}

#ifdef FOREVER
/* The clock: 0, being in the queue, will have been there for handoff_after. */
active proctype clock()
{
	do
	:: atomic { IS_WAITING(0) && !overdue -> overdue = true }
	:: atomic { !IS_WAITING(0) && overdue -> overdue = false }
	od
}

ltl served { [] (IS_WAITING(0) -> <> !IS_WAITING(0)) }
#endif

#if HOLDER
ltl finish { <> (done == BACKENDS + RESIZERS + SAMPLERS) }
#endif
