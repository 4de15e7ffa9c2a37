/*
 * slots.pml
 *		A model of the semaphore and its queues (src/core), in Promela, the language of
 *		the model checker spin.
 *
 * A few backends run one statement after the other through the gate.  Others cancel
 * them, lend their slots, make their statements long, let them in above the limit,
 * change the limit, switch it off, and remove a pool.  Samplers mark them as contenders
 * of hot spots, move them from place to place, change the limits of hot spots, merge
 * and forget them.  spin visits every state that any interleaving of their steps leads
 * to.  What it proves, for the sizes that run.sh sets:
 *
 * (a) No slot and no place leaks: when all processes are done, all words are 0 (nothing
 *	   in use, all flags clear), the queues and the list of statements that pause are
 *	   empty, and there is no watcher, lender or long statement.
 * (b) The limits hold: a backend counts itself by a compare-and-exchange that finds
 *	   fewer than the limit that it read before; and in every state at all, each word
 *	   counts at least the backends whose state says that they hold a slot or a place
 *	   there.  So what a word counts is what is held, but for moments.  A slot that is
 *	   handed off, too, goes to a backend under the limit.  Exempt are only: a forced
 *	   entry, a waiter that is let in, the return of a lender, a long statement that
 *	   ends before its transaction does, and a holder that is moved to a place.
 * (c) No wake-up is lost: every state in which no process can move has all of them
 *	   done; and whenever the mutex is free, "a slot is free and a backend waits whose
 *	   queue has a place free, too" implies that a wake-up of the next one is pending;
 *	   without a limit for all, that of the first of each queue that has a place free.
 *	   Exempt is the time in which
 *	   - a change of limits is on its way, if there is no limit for all;
 *	   - a backend that released a place of a queue with waiters has not got the mutex
 *		 yet: it wakes the next;
 *	   - the wake-up of another waiter is pending, whose queue has no place free any
 *		 more because another backend came by: when it finds that out, it wakes the
 *		 next.
 * (d) Flags and duty: whenever the mutex is free, the flag of a queue says whether
 *	   it is empty.  The flag of all is set if a backend waits whose queue has a place
 *	   free and there is a limit for all, but for the exemption of a released place; it
 *	   is clear if no backend waits, or there is no such limit.  The lenders' flag says
 *	   whether there are any.  If a backend waits, the watcher is in a queue.  No backend
 *	   waits in a pool that is gone, nor in any queue while the gate is off, but for the
 *	   time in which that change is on its way.
 * (e) No backend starves: with backends that never stop coming (FOREVER), a waiter
 *	   gets a slot in the end, if every process that can go on for ever does so once
 *	   (weak fairness).  That is not so where several barge at a queue with a limit of
 *	   its own: its place is free for a moment before it is handed off, and each time
 *	   another one may take it, until the last resort; so there, it is shown for one
 *	   that barges.  With a holder that waits for a backend in the queue (HIDDEN),
 *	   all backends are done in the end.  With a holder that never releases its slot
 *	   nor lends it (STUCK), all others are; and so they are if a watcher is
 *	   stopped besides (STOPPED).
 * (f) Order: a backend that enters from a queue is the first of it, and no backend
 *	   waits in a queue without a limit that is to go before it, if there is a limit for
 *	   all.  Exempt are those that are let in.  Whenever the mutex is free, the priority
 *	   that it takes to barge is at least that of the next, but for the exemption in (d).
 * (g) Long statements: a statement gives its slot up once when it becomes long, and has
 *	   one again only when it is long no more.  Whenever the mutex is free, those that
 *	   pause are in the list, and none but long ones.  None pauses without end, even if
 *	   another never ends, nor works (LONG_STUCK).
 * (h) Hot spots: one that is gone has no limit; in the end, each is a part of one that
 *	   is there, and has its own queue.
 *
 * How: names are those of the C code; each inline is the function of its name.
 * Every atomic instruction on a word, on a state or on a limit is one step, and
 * so is every look at a wake-up, a long statement or the watcher without the mutex.  A
 * step contains more than that only where the rest is local, or is guarded by the mutex
 * and read by no process that does not hold it, or where the comment says why it is
 * as good.  The state and the place of a backend change in one step.  Ghosts, variables
 * that the code does not have, change within the step they belong to.  A process
 * "monitor" waits for a state that breaks an invariant.
 *
 * Queues: 0 is that of the pool "default".  With two pools, 1 is that of the other; the
 * even backends are of pool 1, the odd ones of "default", or all are of pool 1
 * (ONE_POOL); each may have a limit, and one may have a higher priority.  The last ones
 * are those of the hot spots, numbered from 1.  Among equals, first come, first served:
 * the time of arrival is how many of those that wait came before.
 *
 * Left out: totals and times.  Whether the next has waited for handoff_after, a holder
 * has done nothing for lend_after, waits for others or is at work, a hot spot needs
 * another limit, a long statement has had its turn, the watcher is late, a queue stands
 * still or holders block each other is anybody's guess instead, so all answers are
 * tried.  Only where the last resort, or a look, is what ends the run (HIDDEN, STUCK,
 * LONG_STUCK), it comes when nothing else can happen.  Left out are priority aging, the
 * reserve of superusers (it is a forced entry), limits that are only observed, changes of
 * a pool other than its removal, and the second look for a free slot before queueing: it
 * is as if the backend came later.  Memory is sequentially consistent: what weaker hardware
 * does is argued in semaphore.c.  An exit while a backend waits takes the steps of a
 * cancel, an exit while it works those of a release.
 *
 * Parameters: see below.  MUTANT names a mistake to make, to see that it is
 * found: run.sh says what it is.
 *
 * Copyright (c) 2026, admission_gate authors
 */

/* ---- Parameters ---- */

#ifndef BACKENDS
#define BACKENDS	3			/* 2 to 4 */
#endif
#ifndef ROUNDS
#define ROUNDS		1			/* statements of each */
#endif
#ifndef LIMIT
#define LIMIT		1			/* at the start; 0: none but those of hot spots */
#endif
#ifndef BARGING
#define BARGING	1			/* 0: handoff_after is 0 */
#endif
#ifndef INTERRUPTS
#define INTERRUPTS	0			/* cancels, time-outs and idle wake-ups */
#endif
#ifndef MAX_QUEUE
#define MAX_QUEUE	BACKENDS	/* max_queue_length */
#endif
#ifndef FORCE
#define FORCE		0			/* 1: some backends may not wait */
#endif
#ifndef LOOKS
#define LOOKS		0			/* looks of watchers at the holders */
#endif
#ifndef RELIEFS
#define RELIEFS		0			/* looks of watchers at queues that stand still */
#endif
#ifndef TAKEOVER
#define TAKEOVER	0			/* 1: the watcher may be late */
#endif
#ifndef RESIZERS
#define RESIZERS	0			/* processes that set the limit */
#endif
#ifndef RESIZE_1
#define RESIZE_1	LIMIT		/* to these values; 0: the gate is off, NO_LIMIT:
								 * as LIMIT=0 */
#endif
#ifndef RESIZE_2
#define RESIZE_2	LIMIT
#endif
#ifndef LONGS
#define LONGS		0			/* ticks of long statements, and time-outs of
								 * those that pause */
#endif
#ifndef WORKERS
#define WORKERS		(LONGS > 0)	/* parallel workers that tick for any backend */
#endif
								/* LONG_STUCK: the statement of 0, once it is
								 * long, waits until all others are done */
#ifndef POOLS
#define POOLS		1			/* or 2 */
#endif
#ifndef DEFAULT_LIMIT
#define DEFAULT_LIMIT 0			/* of pool 0; 0: none */
#endif
#ifndef POOL_LIMIT
#define POOL_LIMIT	0			/* of pool 1 */
#endif
#ifndef PRIORITY
#define PRIORITY	0			/* of pool 1: 1 is higher than the other's, -1
								 * lower, 0 the same */
#endif
								/* ONE_POOL: all are of pool 1 */
#ifndef REMOVE
#define REMOVE		0			/* 1: pool 1 is removed at some time */
#endif
#ifndef HOT
#define HOT			0			/* hot spots, up to 2 */
#endif
#ifndef SPOT_LIMIT
#define SPOT_LIMIT	1			/* of each at the start */
#endif
#ifndef FIRST_MARK
#define FIRST_MARK	1			/* of all backends but the first BYSTANDERS */
#endif
#ifndef BYSTANDERS
#define BYSTANDERS	0
#endif
#ifndef SAMPLERS
#define SAMPLERS	(SAMPLES > 0)
#endif
#ifndef SAMPLES
#define SAMPLES		0			/* what samplers do, all together, of: */
#endif
#define DO_MOVE		1			/* mark a backend, move it to a place */
#define DO_LIMIT	2			/* change a limit */
#define DO_LET_IN	4			/* let a waiter in */
#define DO_MERGE	8			/* make hot spot 2 a part of 1 */
#define DO_FORGET	16			/* forget hot spots, and form them anew */
#ifndef DO
#define DO			(DO_MOVE + DO_LIMIT)
#endif
								/* CROWD: samplers begin when all backends but
								 * one wait, or all are done */
#ifndef SWITCH
#define SWITCH		0			/* 1: hot spots are switched off at some time */
#endif
#ifdef HIDDEN					/* 0 holds a slot and waits for 1 */
#define LENDING		1
#else
#define LENDING		(LOOKS > 0)
#endif
#ifdef STUCK					/* 0 holds a slot until all others are done */
#define RELIEVES	1			/* STOPPED: 1 does nothing once it is watcher,
								 * until all but 0 are done */
#else
#define RELIEVES	(RELIEFS > 0)
#endif

/* ---- Mutants ---- */

mtype = {
	M_NONE, M_FLAG_LATE, M_LEAVE_SILENTLY, M_REFUSE_AND_KEEP, M_RELEASE_BLINDLY,
	M_PLAIN_STORE, M_GRANT_ABOVE, M_STATE_FIRST, M_DUTY_LOST, M_DUTY_ASLEEP,
	M_RAISE_SILENTLY, M_STILL_PENDING, M_LEAVE_UNSEEN, M_RETURN_UNCOUNTED,
	M_RESET_LATE, M_NEVER_OVERDUE, M_FLAG_STAYS, M_LEND_SILENTLY, M_CLAIM_UNCOUNTED,
	M_CLAIM_SILENTLY, M_RELEASE_SILENTLY, M_ALWAYS_IN_FLIGHT, M_RELIEF_UNCOUNTED,
	M_RELIEF_SILENTLY, M_RELIEF_NEVER, M_WATCH_UNSEEN, M_NO_GUARD, M_LONG_SILENTLY,
	M_LONG_UNCOUNTED, M_LONG_RELEASES, M_LONG_STAYS, M_LONG_ENDS_SILENTLY,
	M_LONG_SLEEPS, M_LONG_LOOK_FIRST, M_STEP_BACK_SILENTLY,
	M_QUEUE_FLAG_LATE, M_PLACE_LAST, M_FLAG_LEFT_OUT, M_CLAIM_OUT_OF_TURN,
	M_FORGET_WAITERS, M_JOIN_LATE, M_GRANT_UNCOUNTED, M_RELIEF_OF_NEXT,
	M_OFF_KEEPS_QUEUES, M_RELEASE_ON, M_QUEUE_WHILE_OFF, M_MOVE_BLINDLY,
	M_MOVE_UNCOUNTED, M_LENDER_KEEPS_BOTH, M_LENDER_TWICE, M_LENDER_FORGETS,
	M_FORGET_SILENTLY, M_LIMIT_SILENTLY, M_LEAVE_MARKED, M_MERGE_SILENTLY,
	M_MERGE_FLAGLESS, M_MERGE_UNSEEN, M_ADAPT_UNSEEN, M_LET_IN_UNSEEN, M_LET_IN_NEVER,
	M_QUEUE_EARLY, M_CALL_AGAIN
};

#ifndef MUTANT
#define MUTANT		M_NONE
#endif

/* ---- Shared memory ---- */

#define WORD_COUNT		15
#define WORD_LENDERS	16
#define WORD_WAITERS	32
#define NO_LIMIT		WORD_COUNT
#define OR_NONE(limit)	((limit) > 0 -> (limit) : NO_LIMIT)

#define INVALID_PROC_NUMBER			BACKENDS
#define NO_PRIORITY		0
#define QUEUES			(POOLS + HOT)
#define NO_QUEUE		QUEUES

#define SLOT_NONE		0
#define SLOT_WAITING	1
#define SLOT_RUNNING	2
#define SLOT_LENT		3
#define SLOT_LONG		4

#define LONG_NOT		0
#define LONG_RUNNING	1
#define LONG_PAUSED		2

byte word;
byte limit = OR_NONE(LIMIT);
bool mutex;
typedef EntryList { byte head = INVALID_PROC_NUMBER; byte tail = INVALID_PROC_NUMBER; byte length };
EntryList queue[QUEUES];
byte queue_word[QUEUES];
byte queue_limit[QUEUES] = NO_LIMIT;
byte watcher = INVALID_PROC_NUMBER;
byte lent;
#if RESIZERS > 0
bool is_off;					/* max_active is 0 */
#define IS_OFF			is_off
#else
#define IS_OFF			false
#endif
#if LONGS
EntryList long_paused;
#endif
#if PRIORITY != 0
byte next_priority = NO_PRIORITY;
#endif
#if REMOVE
bool removed;					/* pool 1 is: this is the generation */
bool pools_lock;				/* held exclusively */
#endif
#if HOT
byte part_of[HOT + 1];			/* [0] is not used */
bool is_there[HOT + 1];			/* its key is not HOT_SPOT_NONE */
#endif

/* Entries */
byte state[BACKENDS];
byte place[BACKENDS] = NO_QUEUE;	/* one word with the state */
byte prev[BACKENDS] = INVALID_PROC_NUMBER;
byte next[BACKENDS] = INVALID_PROC_NUMBER;
bool wakeup_pending[BACKENDS];
#define HAS_SINCE		(QUEUES > 1 && (PRIORITY == 0 || HOT))
#if HAS_SINCE
byte since[BACKENDS];			/* how many that wait came before */
#endif
#if REMOVE
byte pool[BACKENDS];
#endif
#if HOT
byte mark[BACKENDS];			/* hot_spot; 0: none */
byte in_queue[BACKENDS];
#endif
#if LONGS
byte long_state[BACKENDS];
#endif

byte latches;					/* a bit for each that is set */

/* ---- Ghosts and budgets ---- */

byte resizing;					/* limits changed, the waiters not yet let in */
byte calls_owed;				/* backends that released a place of a queue with
								 * waiters, and are to take the mutex for it */
byte done;						/* processes at their end */
bool is_next, is_under_limit;	/* never true: what spin names if it has to be */
byte interrupts = INTERRUPTS;
byte looks = LOOKS;
#if RELIEFS > 0
byte reliefs = RELIEFS;
#endif
#ifdef FOREVER
bool overdue;					/* 0 has waited for handoff_after */
byte handoff_pending = INVALID_PROC_NUMBER;	/* the entry whose; if any,
								 * handoffs_in_flight is 1 */
#endif
#ifdef HIDDEN
bool blocked;					/* 0 waits for 1 */
bool finished;					/* 1 is done */
#endif
#if LONGS
byte ticks = LONGS;
#endif
#if SAMPLES
byte samples = SAMPLES;
#endif
#if HOT == 2
byte merging;					/* hot spots merged, the waiters not yet moved */
#endif
#ifdef STOPPED
byte rest;						/* backends done that neither stick nor stop */
bool stopped;					/* 1 has */
#define REST_IS_DONE	(rest == BACKENDS - 2)
#else
#define REST_IS_DONE	(done == PROCESSES - WORKERS - 1)
#endif
#define PROCESSES		(BACKENDS + RESIZERS + REMOVE + WORKERS + SAMPLERS + SWITCH)

#define IN_USE			(word & WORD_COUNT)
#define IS_LIMITED		(limit != NO_LIMIT)	/* slots_are_limited() */
#define PLACES(i)		(queue_word[i] & WORD_COUNT)
#define BIT(p)			(1 << (p))

#if BACKENDS == 2
#define SUM(f)			(f(0) + f(1))
#elif BACKENDS == 3
#define SUM(f)			(f(0) + f(1) + f(2))
#else
#define SUM(f)			(f(0) + f(1) + f(2) + f(3))
#endif
#define ALL(f)			(SUM(f) == BACKENDS)
#if QUEUES == 1
#define ALL_QUEUES(f)	f(0)
#define ANY_QUEUE(f)	f(0)
#elif QUEUES == 2
#define ALL_QUEUES(f)	(f(0) && f(1))
#define ANY_QUEUE(f)	(f(0) || f(1))
#else
#define ALL_QUEUES(f)	(f(0) && f(1) && f(2))
#define ANY_QUEUE(f)	(f(0) || f(1) || f(2))
#endif

/*
 * What every process needs for itself: an expected word and limit, a queue, the place
 * just counted or to be released, the latches to set, what a function returns, what an
 * exchange found, a waiter, whether the waiters of a queue are to be told, whether
 * it enters as a lender.
 */
#define LOCALS \
	byte w; byte lim; byte q; byte at = NO_QUEUE; byte wakes; bool ok; bool swapped; \
	byte found; byte waiter; bool told; bool lends; \
	LOCALS_OF_QUEUES
#if QUEUES > 1
#define LOCALS_OF_QUEUES	byte next_one = INVALID_PROC_NUMBER
#else
#define LOCALS_OF_QUEUES
#endif

#define WHEN(condition, statements) if :: condition -> statements :: else fi
#define EITHER(condition, statements, others) if :: condition -> statements :: else -> others fi

/* ---- Queues ---- */

/* The even backends are of pool 1: two of three; or all backends are. */
#ifdef ONE_POOL
#define FIRST_POOL(p)	1
#else
#define FIRST_POOL(p)	(((p) + 1) % POOLS)
#endif
#define LIMIT_AT_FIRST(i) ((i) == 0 -> DEFAULT_LIMIT : POOL_LIMIT)
#if REMOVE
#define POOL(p)			pool[p]
#define IS_CURRENT		(joined == removed)
#define MY_PRIORITY		(joined -> PRIORITY_OF_POOL(0) : PRIORITY_OF_POOL(FIRST_POOL(me)))
#else
#define POOL(p)			FIRST_POOL(p)
#define IS_CURRENT		true
#define MY_PRIORITY		PRIORITY_OF_POOL(POOL(me))
#endif

#define IS_OF_HOT_SPOT(i) ((i) >= POOLS)
#define QUEUE_OF(h)		((h) + POOLS - 1)	/* its own; slots_hot_spot_queue(): */
#define HOT_SPOT_QUEUE(h) QUEUE_OF(part_of[h])
#define MARK_STUCK		3
#define COUNTS(i)		(IS_OF_HOT_SPOT(i) || queue_limit[i] != NO_LIMIT)
#if HOT
#define IS_LEFT_OUT(p)	(LIMIT_AT_FIRST(POOL(p)) > 0)
#define MY_QUEUE \
	((mark[me] == 0 || mark[me] == MARK_STUCK || IS_LEFT_OUT(me)) -> POOL(me) : \
	 HOT_SPOT_QUEUE(mark[me]))
#define QUEUE(p)		in_queue[p]
#define IS_STUCK(p)		(mark[p] == MARK_STUCK)
#else
#define IS_STUCK(p)		false
#define MY_QUEUE		POOL(me)
#define QUEUE(p)		POOL(p)
#endif

#define PRIORITY_OF_POOL(i) ((i) == 0 -> 2 : 2 + PRIORITY)
#define HIGHEST_PRIORITY (PRIORITY > 0 -> 2 + PRIORITY : 2)
#define PRIORITY_OF(p)	((p) == INVALID_PROC_NUMBER -> NO_PRIORITY : PRIORITY_OF_POOL(POOL(p)))

/* Does waiter a go before waiter b, of another queue? */
#if PRIORITY == 0
#define IS_BEFORE(a, b)	(since[a] < since[b])
#elif HOT
#define IS_BEFORE(a, b)	(PRIORITY_OF(a) > PRIORITY_OF(b) || (POOL(a) == POOL(b) && since[a] < since[b]))
#else
#define IS_BEFORE(a, b)	(PRIORITY_OF(a) > PRIORITY_OF(b))
#endif

#define HAS_WAITERS(i)	(queue[i].head != INVALID_PROC_NUMBER)
#define ANY_WAITS		ANY_QUEUE(HAS_WAITERS)
#define CAN(i)			(HAS_WAITERS(i) && PLACES(i) < queue_limit[i])

/*
 * slots_next_waiter().  With one queue, that is the head, at any time.  With more, the
 * look at the word of each that has a limit and waiters is a step.
 */
#if QUEUES == 1
#define next_one		queue[0].head
#define slots_next_waiter()	skip
#define FORGET_NEXT		skip
#else
#define FORGET_NEXT		next_one = INVALID_PROC_NUMBER
#define IS_LOOKED_AT(i)	(HAS_WAITERS(i) && queue_limit[i] != NO_LIMIT)
#if QUEUES == 2
#define ONE_LOOK		(!IS_LOOKED_AT(0) || !IS_LOOKED_AT(1))
#define THIRD			skip
#else
#define ONE_LOOK		(IS_LOOKED_AT(0) + IS_LOOKED_AT(1) + IS_LOOKED_AT(2) < 2)
#define THIRD			consider(2)
#endif

inline consider(i)
{
	d_step {
		if
		:: CAN(i) && (next_one == INVALID_PROC_NUMBER || IS_BEFORE(queue[i].head, next_one)) ->
			next_one = queue[i].head
		:: else
		fi
	}
}

inline slots_next_waiter()
{
	if
	:: atomic { ONE_LOOK -> consider(0); consider(1); THIRD }
	:: !ONE_LOOK -> consider(0); consider(1); THIRD
	fi
}
#endif

/* ---- Primitives ---- */

/* The mood of a backend that sleeps */
#define CALM			0
#define DISTURBED		1		/* an interrupt, harmless or not */
#define EXPIRED			2		/* queue_timeout, but granted meanwhile */

inline slots_lock()
{
	atomic { !mutex -> mutex = true }
}

/* Under the mutex alone, so it is no step of its own. */
inline slots_wake_later(p)
{
	wakes = wakes | BIT(p)
}

#define LATCH_IS_SET(p)	(latches & BIT(p))

inline reset_latch(p)
{
	latches = latches & ~BIT(p)
}

/* Whose latch is set need not run at once, so that is no step of its own. */
inline release_mutex()
{
	d_step { mutex = false; latches = latches | wakes; wakes = 0 }
}

/*
 * slots_unlock().  Mutants have wakes_next false: all is as it should be, but the next
 * is not woken.
 */
inline slots_unlock(wakes_next)
{
	wake_next(wakes_next);
	release_mutex()
}

/* ---- Counting ---- */

#define note_lender()	d_step { lent++; word = word | WORD_LENDERS }

/* count_up_if_free(), while the limit cannot change: one step. */
inline count_up_at_once(cell, most, barge)
{
	d_step {
		if
		:: (barge -> cell & WORD_COUNT : cell) < most -> cell = cell + 1; ok = true
		:: else -> ok = false
		fi
	}
}

#if RESIZERS || SWITCH || (SAMPLES && (DO & ~(DO_MOVE + DO_LET_IN)))

/* Step by step: the look at the word, that at the limit, the exchange. */
inline count_up_if_free(cell, most, barge)
{
	w = cell;
	do
	:: atomic {
			lim = most;
			WHEN(!((barge -> w & WORD_COUNT : w) < lim), ok = false; w = 0; lim = 0; break)
		};
		atomic {
			lim = 0;
			EITHER(cell == w, cell = w + 1; ok = true; w = 0; break, w = cell)
		}
	od
}

#else
#define count_up_if_free(cell, most, barge) count_up_at_once(cell, most, barge)
#endif

/* count_place_if_free(), under the mutex: at = the place. */
inline count_place_if_free(i)
{
	if
	:: COUNTS(i) ->
		atomic {
			count_up_at_once(queue_word[i], queue_limit[i], true);
			WHEN(ok, at = i)
		}
	:: else -> ok = true
	fi
}

/* count_place() */
inline count_place(i)
{
	if
	:: d_step { COUNTS(i) -> queue_word[i] = queue_word[i] + 1; at = i }
	:: else
	fi
}

/* Part of a step */
inline place_out()
{
	assert(PLACES(at) > 0);
	queue_word[at] = queue_word[at] - 1;
	at = NO_QUEUE
}

/* count_place_out(), under the mutex */
inline count_place_out()
{
	if
	:: d_step { at != NO_QUEUE -> place_out() }
	:: else
	fi
}

/* The same without it: told = the caller has to take it. */
inline count_place_out_unlocked()
{
	if
	:: d_step {
			at != NO_QUEUE ->
			told = ((queue_word[at] & WORD_WAITERS) != 0);
			place_out();
			calls_owed = calls_owed + told
		}
	:: else
	fi
}

/* slots_lock(), of a backend that may be told so */
inline slots_lock_owing()
{
	atomic {
		!mutex ->
		mutex = true;
		calls_owed = calls_owed - told;
		told = false
	}
}

/* count_in_with_place(): at = the place. */
inline count_in_with_place(barge)
{
	q = MY_QUEUE;
	if
	:: COUNTS(q) ->
		count_up_if_free(queue_word[q], queue_limit[q], barge);
		WHEN(ok, at = q)
	:: else -> ok = true
	fi;
	q = 0;
	if
	:: ok ->
		count_up_if_free(word, limit, barge);
		if
		:: ok
		:: else ->
			count_place_out_unlocked();
			if
			:: told && MUTANT != M_STEP_BACK_SILENTLY ->
				slots_lock_owing();
				slots_unlock(true)
			:: else -> d_step { calls_owed = calls_owed - told; told = false }
			fi
		fi
	:: else
	fi
}

#if HOT && LENDING
/* count_me_in(), and slots_enter_as_lender() */
inline count_me_in(barge)
{
	if
	:: mark[me] == MARK_STUCK && IS_LIMITED ->
		slots_lock();
		note_lender();
		slots_unlock(true);
		lends = true;
		ok = true
	:: else -> count_in_with_place(barge)
	fi
}
#else
#define count_me_in(barge)	count_in_with_place(barge)
#endif

/* count_in_if_free() */
inline count_in_if_free(i)
{
	count_place_if_free(i);
	if
	:: ok ->
		count_up_at_once(word, limit, true);
		WHEN(!ok, count_place_out())
	:: else
	fi
}

/* count_in(): above the limits if need be, see property (b) */
inline count_in(i)
{
	count_place(i);
	word = word + 1
}

/* ---- The queues ---- */

/* become_holder() */
inline become_holder()
{
	atomic {
		state[me] = (lends -> SLOT_LENT : SLOT_RUNNING);
		place[me] = at;
		at = NO_QUEUE;
		lends = false
	}
}

/* slots_list_append() */
inline slots_list_append(list, p)
{
	prev[p] = list.tail;
	next[p] = INVALID_PROC_NUMBER;
	EITHER(list.tail == INVALID_PROC_NUMBER, list.head = p, next[list.tail] = p);
	list.tail = p;
	list.length++
}

/* slots_list_remove().  Old links are wiped: fewer states. */
inline slots_list_remove(list, p)
{
	EITHER(prev[p] == INVALID_PROC_NUMBER, list.head = next[p], next[prev[p]] = next[p]);
	EITHER(next[p] == INVALID_PROC_NUMBER, list.tail = prev[p], prev[next[p]] = prev[p]);
	prev[p] = INVALID_PROC_NUMBER;
	next[p] = INVALID_PROC_NUMBER;
	list.length--;
	assert((list.length == 0) == (list.head == INVALID_PROC_NUMBER))
}

/*
 * Is the watcher late?  Anybody's guess; but if it was stopped, it is known to be,
 * as time passes when nothing else can happen.
 */
#ifdef STOPPED
#define WATCHER_IS_LATE	(watcher == 1 && stopped)
#define IN_TIME			(!WATCHER_IS_LATE)
#define GUARDS			(next_look == NEVER && WATCHER_IS_LATE && MUTANT != M_NO_GUARD && timeout)
#else
#define WATCHER_IS_LATE	TAKEOVER
#define IN_TIME			true
#endif

#define IS_WAITING(p)	(state[p] == SLOT_WAITING)

/* slots_queue_append() */
inline slots_queue_append(p)
{
	wakeup_pending[p] = false;
#if HAS_SINCE
	since[p] = SUM(IS_WAITING) - 1;
#endif
	slots_list_append(queue[QUEUE(p)], p);
	if
	:: watcher == INVALID_PROC_NUMBER || WATCHER_IS_LATE -> watcher = p
	:: watcher != INVALID_PROC_NUMBER
	fi
}

/* Those that came later have one less before them.  Others have 0. */
inline forget_arrival(p)
{
#if HAS_SINCE
	found = 0;
	do
	:: found < BACKENDS ->
		WHEN(since[found] > since[p], since[found] = since[found] - 1);
		found++
	:: else -> break
	od;
	found = 0;
	since[p] = 0
#endif
	skip
}

/* take_out_of_queue(): part of a step. */
inline take_out_of_queue(p)
{
	slots_list_remove(queue[QUEUE(p)], p);
	if
	:: !HAS_WAITERS(QUEUE(p)) -> queue_word[QUEUE(p)] = queue_word[QUEUE(p)] & ~WORD_WAITERS
	:: else
	fi
}

/* A backend that will wait for long: one of the same queue, else of any. */
#define TAIL_OR(i, other) (HAS_WAITERS(i) -> queue[i].tail : other)
#if QUEUES == 1
#define LAST_IN_A_QUEUE	queue[0].tail
#elif QUEUES == 2
#define LAST_IN_A_QUEUE	TAIL_OR(0, queue[1].tail)
#else
#define LAST_IN_A_QUEUE	TAIL_OR(0, TAIL_OR(1, queue[2].tail))
#endif

/* slots_queue_remove(): the links and the queue's flag, the watcher. */
inline slots_queue_remove(p)
{
	d_step {
		assert(state[p] == SLOT_WAITING);
		forget_arrival(p);
		take_out_of_queue(p)
	};
	d_step {
		if
		:: watcher == p && MUTANT != M_DUTY_LOST ->
			watcher = TAIL_OR(QUEUE(p), LAST_IN_A_QUEUE);
			if
			:: watcher != INVALID_PROC_NUMBER && MUTANT != M_DUTY_ASLEEP ->
				slots_wake_later(watcher)
			:: else
			fi
		:: else
		fi
	}
}

/* slots_queue_move(); another pool, if need be, is joined by the caller. */
inline slots_queue_move(p, to)
{
	d_step {
		take_out_of_queue(p);
#if HOT
		in_queue[p] = to
#else
		pool[p] = to
#endif
	};
	WHEN(MUTANT != M_MERGE_FLAGLESS, queue_word[to] = queue_word[to] | WORD_WAITERS);
	d_step { slots_list_append(queue[to], p) }
}

/* Property (f): does no backend wait before p that can have a slot, whatever words say? */
#define NOT_BEFORE(i) \
	(i == QUEUE(waiter) || !HAS_WAITERS(i) || !IS_LIMITED || queue_limit[i] != NO_LIMIT || \
	 !IS_BEFORE(queue[i].head, waiter))
#if QUEUES == 1
#define IS_FIRST		(queue[0].head == waiter)
#else
#define IS_FIRST		(queue[QUEUE(waiter)].head == waiter && ALL_QUEUES(NOT_BEFORE))
#endif

/* slots_grant(), with place "at"; in_order: property (f) is to hold. */
inline slots_grant(p, in_order)
{
	d_step {
		waiter = p;
		FORGET_NEXT;
		assert(!(in_order) || IS_FIRST || is_next)
	};
	slots_queue_remove(waiter);
	atomic {
		state[waiter] = SLOT_RUNNING;
		place[waiter] = at;
		slots_wake_later(waiter);
		at = NO_QUEUE;
		waiter = 0
	}
}

#if QUEUES > 1
/* head_to_call(): the look at the word of each queue is a step. */
inline consider_to_call(i)
{
	d_step {
		WHEN(next_one == INVALID_PROC_NUMBER && CAN(i) &&
			 (!wakeup_pending[queue[i].head] || MUTANT == M_CALL_AGAIN),
			 next_one = queue[i].head)
	}
}

inline head_to_call()
{
	consider_to_call(0);
	consider_to_call(1);
#if QUEUES > 2
	consider_to_call(2)
#endif
}
#else
#define head_to_call()	skip
#endif

/* What wake_next() ends with */
inline call_next(wakes_next)
{
	d_step {
		if
		:: wakes_next && next_one != INVALID_PROC_NUMBER && IN_USE < limit &&
		   !wakeup_pending[next_one] ->
			wakeup_pending[next_one] = true;
			slots_wake_later(next_one)
		:: else
		fi;
		FORGET_NEXT
	}
}

/*
 * wake_next(): looks at the word once.  With one queue and one limit, the flag of all is
 * set already when a backend waits.
 */
inline wake_next(wakes_next)
{
	slots_next_waiter();
#if PRIORITY != 0
	WHEN(next_priority != PRIORITY_OF(next_one), next_priority = PRIORITY_OF(next_one));
#endif
	if
	:: !IS_LIMITED ->
		atomic { word = word & ~WORD_WAITERS; FORGET_NEXT };
		head_to_call();
		call_next(wakes_next)
	:: IS_LIMITED && next_one == INVALID_PROC_NUMBER ->
		word = (MUTANT == M_FLAG_STAYS -> word : word & ~WORD_WAITERS)
	:: IS_LIMITED && next_one != INVALID_PROC_NUMBER ->
#if QUEUES > 1 || RESIZERS
		if
		:: !(word & WORD_WAITERS) && MUTANT != M_FLAG_LEFT_OUT ->
			word = word | WORD_WAITERS
		:: else
		fi;
#endif
		call_next(wakes_next)
	fi
}

/* forget_lender() */
inline forget_lender()
{
	d_step {
		assert(lent > 0);
		lent--;
		WHEN(lent == 0, word = word & ~WORD_LENDERS)
	}
}

/* ---- The backend's own slot ---- */

#if REMOVE
/*
 * slots_join_pool(), of a backend that neither holds a slot nor waits.  The one thing
 * that it can find is that its pool is gone.
 */
inline join_pool_unless_current()
{
	if
	:: IS_CURRENT
	:: !IS_CURRENT ->
		atomic {
			!pools_lock ->
			joined = removed;
			WHEN(joined, pool[me] = 0)
		}
	fi
}

/* lock_as_member() */
inline lock_as_member()
{
	do
	:: join_pool_unless_current();
	   slots_lock();
	   if
	   :: IS_CURRENT || MUTANT == M_JOIN_LATE -> break
	   :: !IS_CURRENT && MUTANT != M_JOIN_LATE -> slots_unlock(true)
	   fi
	od
}
#else
#define join_pool_unless_current()	skip
#define lock_as_member()			slots_lock()
#endif

/* slots_try_acquire() */
inline slots_try_acquire()
{
	ok = false;
	join_pool_unless_current();
	count_me_in(false);
	WHEN(ok, become_holder())
}

/*
 * others_are_waiting(), as far as it matters, and what follows from it: ok = others
 * wait before which this backend may not barge.
 */
#define BARGES_ANY	(BARGING && MY_PRIORITY == HIGHEST_PRIORITY)

inline others_are_waiting()
{
	if
	:: BARGES_ANY -> ok = false
	:: !BARGES_ANY && (word & WORD_WAITERS) -> ok = true
	:: !BARGES_ANY && !(word & WORD_WAITERS) -> ok = ((queue_word[MY_QUEUE] & WORD_WAITERS) != 0)
	fi;
#if PRIORITY != 0
	WHEN(ok && BARGING, ok = (MY_PRIORITY < next_priority))
#endif
}

/* slots_try_barge() */
inline slots_try_barge()
{
	others_are_waiting();
	if
	:: ok -> ok = false
	:: else ->
		count_me_in(true);
		WHEN(ok, become_holder())
	fi
}

/* slots_force() */
inline slots_force()
{
	slots_try_acquire();
	if
	:: ok
	:: else ->
		count_me_in(true);
		WHEN(!ok, q = MY_QUEUE; count_in(q); q = 0);
		become_holder()
	fi
}

/* may_overtake(), once the next is known */
#if PRIORITY == 0
#define MAY_OVERTAKE	(!HAS_WAITERS(QUEUE(me)) && next_one == INVALID_PROC_NUMBER)
#else
#define MAY_OVERTAKE	(!HAS_WAITERS(QUEUE(me)) && MY_PRIORITY > PRIORITY_OF(next_one))
#endif

inline set_flag_of_queue()
{
	queue_word[QUEUE(me)] = queue_word[QUEUE(me)] | WORD_WAITERS
}

#define MUST_NOT_QUEUE	(IS_OFF && MUTANT != M_QUEUE_WHILE_OFF)

/* slots_enqueue(): ok = taken; else state[me] tells waiting from full. */
inline slots_enqueue()
{
	assert(state[me] == SLOT_NONE);
	q = (MUTANT == M_QUEUE_EARLY -> MY_QUEUE : 0);
	lock_as_member();
#if HOT
	in_queue[me] = (MUTANT == M_QUEUE_EARLY -> q : MY_QUEUE);
	q = 0;
#endif
	if
	:: !MUST_NOT_QUEUE ->
		WHEN(MUTANT != M_QUEUE_FLAG_LATE, set_flag_of_queue());
		WHEN(IS_LIMITED && MUTANT != M_FLAG_LATE, word = word | WORD_WAITERS)
	:: MUST_NOT_QUEUE
	fi;
	slots_next_waiter();
	if
	:: atomic { MAY_OVERTAKE -> FORGET_NEXT };
		count_in_if_free(QUEUE(me))
	:: atomic { !MAY_OVERTAKE -> FORGET_NEXT; ok = false }
	fi;
	if
	:: ok
	:: !ok && MUST_NOT_QUEUE -> count_in(QUEUE(me)); ok = true
	:: !ok && !MUST_NOT_QUEUE && queue[QUEUE(me)].length >= MAX_QUEUE
	:: !ok && !MUST_NOT_QUEUE && queue[QUEUE(me)].length < MAX_QUEUE ->
		atomic {
			state[me] = SLOT_WAITING;
			slots_queue_append(me)
		}
	fi;
	if
	:: d_step {
			!HAS_WAITERS(QUEUE(me)) ->
			queue_word[QUEUE(me)] = queue_word[QUEUE(me)] & ~WORD_WAITERS
		}
	:: else
	fi;
	wake_next(true);
	if
	:: HAS_WAITERS(QUEUE(me)) && MUTANT == M_QUEUE_FLAG_LATE -> set_flag_of_queue()
	:: HAS_WAITERS(QUEUE(me)) && MUTANT == M_FLAG_LATE -> word = word | WORD_WAITERS
	:: else
	fi;
	release_mutex();
	WHEN(ok, become_holder())
}

/* slots_is_its_turn(), once the next is known */
#define IS_MY_TURN \
	((IS_LIMITED -> next_one : queue[QUEUE(me)].head) == me || MUTANT == M_CLAIM_OUT_OF_TURN)

/* slots_claim(): the look at the state, that at the wake-up, the mutex. */
inline slots_claim()
{
	if
	:: state[me] != SLOT_WAITING -> ok = true
	:: else ->
		if
		:: wakeup_pending[me] ->
			slots_lock();
			if
			:: state[me] != SLOT_WAITING -> ok = true
			:: else ->
				wakeup_pending[me] = (MUTANT == M_STILL_PENDING && wakeup_pending[me]);
				slots_next_waiter();
				if
				:: atomic { IS_MY_TURN -> FORGET_NEXT };
					if
					:: MUTANT == M_CLAIM_UNCOUNTED && IN_USE < limit -> ok = true
					:: else -> count_in_if_free(QUEUE(me))
					fi;
					if
					:: ok ->
						slots_grant(me, true);
						wakes = wakes & ~BIT(me)
					:: else
					fi
				:: atomic { !IS_MY_TURN -> FORGET_NEXT; ok = false }
				fi
			fi;
			slots_unlock(MUTANT != M_CLAIM_SILENTLY)
		:: else -> ok = false
		fi
	fi;
	if
	:: ok -> wakeup_pending[me] = false	/* means nothing now: fewer states */
	:: else
	fi
}

/* slots_leave_queue(): ok = left.  Our state is stable under the mutex. */
inline slots_leave_queue()
{
	atomic {
		!mutex ->
		mutex = true;
		ok = (state[me] == SLOT_WAITING || MUTANT == M_LEAVE_UNSEEN)
	};
	if
	:: ok ->
		slots_queue_remove(me);
		atomic { state[me] = SLOT_NONE; wakeup_pending[me] = false }
	:: else
	fi;
	slots_unlock(MUTANT != M_LEAVE_SILENTLY)
}

/*
 * May the next have the slot that is released?  The one look at the word
 * decides; which waiter is next, and the limit, are stable under the mutex.  Without a
 * clock, a hand-off in flight is waited for, however long that takes, and
 * no wait is ever long enough for two of them.
 */
#define GRANTABLE \
	(next_one != INVALID_PROC_NUMBER && \
	 (IN_USE <= limit || MUTANT == M_GRANT_ABOVE))

/* may_hand_off() */
#ifdef FOREVER
#define MAY_HAND_OFF \
	(!BARGING || \
	 (MUTANT != M_NEVER_OVERDUE && (next_one != 0 || overdue) && \
	  handoff_pending == INVALID_PROC_NUMBER))
#define MAY_KEEP		(!MAY_HAND_OFF)
#define START_HANDOFF(p) handoff_pending = p
#define finish_handoff(p) \
	if \
	:: MUTANT != M_ALWAYS_IN_FLIGHT && handoff_pending == p -> \
		handoff_pending = INVALID_PROC_NUMBER \
	:: else \
	fi
#else
#define MAY_HAND_OFF	true	/* either, if barging is allowed */
#define MAY_KEEP		BARGING
#define START_HANDOFF(p) skip
#define finish_handoff(p) skip
#endif

#define IS_RUNNING(p)	(state[p] == SLOT_RUNNING)

/* slots_hand_off(); q: had_place */
inline slots_hand_off()
{
	slots_next_waiter();
	d_step {
#if QUEUES > 1
		WHEN(q != NO_QUEUE && !IS_LIMITED, next_one = queue[q].head);
#endif
		q = 0
	};
	if
	:: atomic {
			GRANTABLE && MAY_HAND_OFF ->
			assert(SUM(IS_RUNNING) < limit || is_under_limit)	/* property (b) */
		};
		if
		:: MUTANT != M_GRANT_UNCOUNTED -> count_place_if_free(QUEUE(next_one))
		:: else -> atomic { ok = true; at = QUEUE(next_one) }
		fi;
		if
		:: ok ->
			START_HANDOFF(next_one);
			slots_grant(next_one, true);
			ok = false
		:: else -> atomic { word = word - 1; FORGET_NEXT }
		fi
	:: atomic { !GRANTABLE || MAY_KEEP -> FORGET_NEXT };
		word = word - 1
	fi
}

/*
 * free_slot(), with place "at".  To look at the word until an exchange succeeds or the
 * flag is set is as good as one step.
 */
inline free_slot()
{
	q = at;
	WHEN(MUTANT != M_PLACE_LAST, count_place_out_unlocked());
	d_step {
		assert(IN_USE > 0);
		if
		:: told -> ok = false
		:: !told && ((word & WORD_WAITERS) == 0 || MUTANT == M_RELEASE_BLINDLY) ->
			word = word - 1;
			q = 0;
			ok = true
		:: else -> ok = false
		fi
	};
	if
	:: ok
	:: else ->
		slots_lock_owing();
		slots_hand_off();
		slots_unlock(MUTANT != M_RELEASE_SILENTLY)
	fi;
	WHEN(MUTANT == M_PLACE_LAST, count_place_out())
}

/* drop_slot() */
inline drop_slot()
{
	if
	:: MUTANT == M_PLAIN_STORE -> atomic { found = state[me]; at = place[me] }
	:: else
	fi;
	atomic {
		WHEN(MUTANT != M_PLAIN_STORE, found = state[me]; at = place[me]);
		at = (MUTANT == M_LEAVE_MARKED && at != NO_QUEUE -> MY_QUEUE : at);
		state[me] = SLOT_NONE;
		place[me] = NO_QUEUE
	};
	if
	:: atomic { found == SLOT_RUNNING -> found = 0 };
		free_slot()
#if LONGS
	:: atomic { found == SLOT_LONG -> found = 0 };
		slots_forget_long();
		WHEN(MUTANT == M_LONG_RELEASES, free_slot())
#endif
#if LENDING
	:: atomic { found == SLOT_LENT -> found = 0 };
		slots_forget_lending()
#endif
	fi
}

/* slots_refuse_grant() */
inline slots_refuse_grant()
{
	finish_handoff(me);
	EITHER(MUTANT != M_REFUSE_AND_KEEP, drop_slot(), state[me] = SLOT_NONE)
}

/* slots_resume() */
inline slots_resume()
{
	if
#if LENDING
	:: state[me] == SLOT_LENT && !IS_STUCK(me) -> slots_end_lending()
#endif
	:: else
	fi
}

/* ---- Setting the limit and the pools ---- */

/* grant_one(): ok = granted. */
inline grant_one()
{
	slots_lock();
	slots_next_waiter();
	EITHER(next_one != INVALID_PROC_NUMBER, count_in_if_free(QUEUE(next_one)), ok = false);
	if
	:: ok -> slots_grant(next_one, true)
	:: else -> d_step { FORGET_NEXT; resizing-- }
	fi;
	slots_unlock(true)
}

/* slots_grant_free(); the caller has raised "resizing". */
inline slots_grant_free()
{
	do
	:: grant_one();
		WHEN(!ok, break)
	od
}

#if RESIZERS
#define HEAD_OR(i, other) (HAS_WAITERS(i) -> queue[i].head : other)
#if QUEUES == 1
#define ANY_WAITER		queue[0].head
#elif QUEUES == 2
#define ANY_WAITER		HEAD_OR(0, queue[1].head)
#else
#define ANY_WAITER		HEAD_OR(0, HEAD_OR(1, queue[2].head))
#endif

/* release_one(): ok = there was a waiter. */
inline release_one()
{
	slots_lock();
	ok = (ANY_WAITS && (IS_OFF || MUTANT == M_RELEASE_ON));
	if
	:: ok ->
		assert(IS_OFF || is_under_limit);	/* property (b) */
		waiter = ANY_WAITER;
		count_in(QUEUE(waiter));
		slots_grant(waiter, false)
	:: else -> resizing--
	fi;
	slots_unlock(true)
}

/* slots_set_limit(); hot spots end by a process of its own, Switch(). */
inline slots_set_limit(new_limit)
{
	slots_lock();
	atomic { is_off = (new_limit == 0); limit = OR_NONE(new_limit); resizing++ };
	slots_unlock(MUTANT != M_RAISE_SILENTLY);
	if
	:: MUTANT == M_RAISE_SILENTLY -> resizing--
	:: else ->
	if
	:: new_limit == 0 && MUTANT != M_OFF_KEEPS_QUEUES ->
		do
		:: release_one();
			WHEN(!ok, break)
		od
	:: new_limit != 0 || MUTANT == M_OFF_KEEPS_QUEUES -> slots_grant_free()
	fi
	fi
}
#endif

#if REMOVE
/* move_one_waiter(): ok = there was one. */
inline move_one_waiter()
{
	atomic {
		!mutex ->
		mutex = true;
		ok = HAS_WAITERS(1)
	};
	if
	:: ok ->
		waiter = queue[1].head;
		slots_queue_move(waiter, 0);
		waiter = 0
	:: else
	fi;
	slots_unlock(true)
}

/* slots_set_pools(), and all that it does: pool 1 is not defined any more. */
inline slots_set_pools()
{
	atomic { !pools_lock -> pools_lock = true };
	slots_lock();
	atomic { queue_limit[1] = NO_LIMIT; resizing++ };
	removed = true;
	slots_unlock(true);
	do
	:: MUTANT != M_FORGET_WAITERS ->
		move_one_waiter();
		WHEN(!ok, break)
	:: MUTANT == M_FORGET_WAITERS -> break
	od;
	pools_lock = false;
	slots_grant_free()
}
#endif

/* ---- Hot spots ---- */

#if HOT

/*
 * move_to_place(): "was" and "found" are what the state and the place were, maybe long
 * before, and what the exchange expects.
 */
inline read_state(p)
{
	atomic { was = state[p]; found = place[p] }
}

inline move_to_place(p, to)
{
	if
	:: (was == SLOT_RUNNING || was == SLOT_LENT) && found != to &&
	   (found == NO_QUEUE || IS_OF_HOT_SPOT(found)) ->
		slots_lock();
		WHEN(to != NO_QUEUE && MUTANT != M_MOVE_UNCOUNTED, count_place(to));
		atomic {
			if
			:: state[p] == was && place[p] == found -> place[p] = to; at = found
			:: else -> at = (MUTANT == M_MOVE_BLINDLY -> found : to)
			fi
		};
		count_place_out();
		slots_unlock(true)
	:: else
	fi;
	was = 0;
	found = 0
}

/* slots_let_in() */
inline slots_let_in(p)
{
	slots_lock();
	if
	:: state[p] == SLOT_WAITING || MUTANT == M_LET_IN_UNSEEN ->
		count_in(QUEUE(p));
		slots_grant(p, false)
	:: else
	fi;
	slots_unlock(true)
}

/* forget(): part of a step. */
inline forget_hot_spot(h)
{
	is_there[h] = false;
	part_of[h] = h;
	queue_limit[QUEUE_OF(h)] = NO_LIMIT
}
#endif

/* ---- Lending ---- */

#if LENDING

/* slots_forget_lending(), of a place "at" that it kept */
inline slots_forget_lending()
{
	slots_lock();
	EITHER(MUTANT != M_LENDER_FORGETS, count_place_out(), at = NO_QUEUE);
	forget_lender();
	slots_unlock(true)
}

/* A place that is kept while the slot is lent; MUTANT: that of a pool, too */
#define IS_KEPT(i) \
	((i) == NO_QUEUE || IS_OF_HOT_SPOT(i) || MUTANT == M_LENDER_KEEPS_BOTH)

/* lend() */
inline lend(p)
{
	atomic {
		swapped = (state[p] == SLOT_RUNNING && (IS_LIMITED || !IS_KEPT(place[p])));
		if
		:: swapped ->
			state[p] = SLOT_LENT;
			if
			:: IS_KEPT(place[p]) -> at = (MUTANT == M_LENDER_TWICE -> place[p] : NO_QUEUE)
			:: else -> at = place[p]; place[p] = NO_QUEUE
			fi
		:: else
		fi
	};
	if
	:: swapped ->
		note_lender();
		count_place_out();
		atomic { word = word - 1; swapped = false }
	:: else
	fi
}

/* end_lending() */
inline end_lending(p)
{
	if
	:: state[p] == SLOT_LENT ->
		WHEN(place[p] == NO_QUEUE, q = POOL(p); count_place(q); q = 0);
		WHEN(MUTANT != M_STATE_FIRST && MUTANT != M_RETURN_UNCOUNTED, word = word + 1);
		atomic {
			swapped = (state[p] == SLOT_LENT);
			if
			:: swapped && at != NO_QUEUE -> state[p] = SLOT_RUNNING; place[p] = at; at = NO_QUEUE
			:: swapped && at == NO_QUEUE -> state[p] = SLOT_RUNNING
			:: else
			fi
		};
		EITHER(swapped, forget_lender(), count_place_out(); word = word - 1);
		WHEN(MUTANT == M_STATE_FIRST, word = word + 1);
		swapped = false
	:: else
	fi
}

/* slots_note_holder(), of one that works or has done nothing for lend_after */
inline slots_note_holder(p, works)
{
	slots_lock();
	if
	:: works -> end_lending(p)
	:: !(works) -> lend(p)
	fi;
	slots_unlock(MUTANT != M_LEND_SILENTLY)
}

/* slots_end_lending() */
inline slots_end_lending()
{
	slots_lock();
	end_lending(me);
	slots_unlock(true)
}

/*
 * sampler_watch(), sampler_recall_lenders(): does p wait, that is, do nothing?  Anything
 * is possible.  A look that finds nothing new changes nothing, so it is left out.
 */
#ifdef HIDDEN
#define MAY_WAIT(p)		(p == 0 && blocked)
#define MAY_WORK(p)		(p != 0 || !blocked)
#else
#define MAY_WAIT(p)		true
#define MAY_WORK(p)		true
#endif

inline look_at_holders()
{
	other = 0;
	do
	:: other < BACKENDS ->
		if
		:: state[other] == SLOT_RUNNING && MAY_WAIT(other) ->
			slots_note_holder(other, false)
		:: state[other] == SLOT_LENT && MAY_WORK(other) ->
			slots_note_holder(other, true)
#ifndef HIDDEN
		:: true					/* not for long enough, or not at all */
#else
		:: !(state[other] == SLOT_RUNNING && MAY_WAIT(other)) &&
		   !(state[other] == SLOT_LENT && MAY_WORK(other))
#endif
		fi;
		other++
	:: other == BACKENDS -> other = 0; break
	od;
#if defined(HIDDEN) && HOT
	/* What keeps 0 is found to be a lock of 1; or it is found to wait in vain. */
	if
	:: blocked && MUTANT != M_LET_IN_NEVER -> slots_let_in(1)
	:: blocked && MUTANT != M_LET_IN_NEVER -> read_state(0); move_to_place(0, NO_QUEUE)
	:: else
	fi
#endif
}

inline recall_lenders()
{
	other = 0;
	do
	:: other < BACKENDS ->
		if
		:: state[other] == SLOT_LENT && MAY_WORK(other) ->
			slots_note_holder(other, true)
		:: state[other] != SLOT_LENT || MAY_WAIT(other)
		fi;
		other++
	:: other == BACKENDS -> other = 0; break
	od
}
#endif

/* ---- Samplers ---- */

#if SAMPLES

/*
 * slots_note_activity(): marks, unmarks, or finds p stuck.  Only p reads its mark, when it
 * comes, so that is one step with the look at its state.
 */
inline slots_note_activity(p)
{
	atomic {
		read_state(p);
		if
		:: !IS_LEFT_OUT(p) -> mark[p] = 1; to = HOT_SPOT_QUEUE(1)
#if HOT == 2
		:: !IS_LEFT_OUT(p) -> mark[p] = 2; to = HOT_SPOT_QUEUE(2)
#endif
		:: mark[p] = 0
		:: mark[p] = (LENDING -> MARK_STUCK : mark[p])
		fi
	};
	move_to_place(p, to);
	to = NO_QUEUE;
	ok = false
}

/* adapt(), and slots_grant_free(): the look at the key comes before the mutex. */
inline adapt(h)
{
	if
	:: is_there[h] ->
		slots_lock();
		if
		:: (is_there[h] || MUTANT == M_ADAPT_UNSEEN) && part_of[h] == h ->
			atomic {
				if
				:: queue_limit[QUEUE_OF(h)] != 1 -> queue_limit[QUEUE_OF(h)] = 1
				:: queue_limit[QUEUE_OF(h)] != 2 -> queue_limit[QUEUE_OF(h)] = 2; resizing++; grows = true
				:: queue_limit[QUEUE_OF(h)] != NO_LIMIT ->
					queue_limit[QUEUE_OF(h)] = NO_LIMIT; resizing++; grows = true
				fi
			}
		:: else
		fi;
		slots_unlock(MUTANT != M_LIMIT_SILENTLY);
		if
		:: grows && MUTANT != M_LIMIT_SILENTLY -> slots_grant_free()
		:: else -> resizing = resizing - grows
		fi;
		grows = false
	:: else
	fi
}

/* adapt(), of one that has ended, with its parts */
inline end_hot_spot(h)
{
	slots_lock();
	if
	:: is_there[h] && part_of[h] == h ->
		atomic {
			resizing++;
#if HOT == 2
			WHEN(is_there[3 - h] && part_of[3 - h] == h, forget_hot_spot(3 - h));
#endif
			forget_hot_spot(h)
		};
		grows = true
	:: else
	fi;
	slots_unlock(MUTANT != M_FORGET_SILENTLY);
	if
	:: grows && MUTANT != M_FORGET_SILENTLY -> slots_grant_free()
	:: else -> resizing = resizing - grows
	fi;
	grows = false
}

/* find_or_form(): one that is free, whatever marks say. */
inline form(h)
{
	slots_lock();
	if
	:: !is_there[h] && PLACES(QUEUE_OF(h)) == 0 && !HAS_WAITERS(QUEUE_OF(h)) ->
		is_there[h] = true
	:: else
	fi;
	slots_unlock(true)
}

#if HOT == 2
/* note_crossing(), merge(): both were found to have a queue before the mutex. */
#define BOTH_ARE_THERE \
	(is_there[1] && is_there[2] && part_of[1] == 1 && part_of[2] == 2)

inline merge()
{
	if
	:: BOTH_ARE_THERE ->
		slots_lock();
		ok = (BOTH_ARE_THERE || MUTANT == M_MERGE_UNSEEN);
		if
		:: ok ->
			atomic { part_of[2] = 1; merging++ };
			queue_limit[QUEUE_OF(2)] = NO_LIMIT
		:: else
		fi;
		slots_unlock(MUTANT != M_MERGE_SILENTLY);
		do
		:: ok ->
			atomic {
				!mutex ->
				mutex = true;
				waiter = queue[QUEUE_OF(2)].head;
				ok = (waiter != INVALID_PROC_NUMBER && MUTANT != M_FORGET_WAITERS)
			};
			EITHER(ok, slots_queue_move(waiter, QUEUE_OF(1)), merging--);
			waiter = 0;
			slots_unlock(MUTANT != M_MERGE_SILENTLY)
		:: else -> break
		od
	:: else
	fi
}
#endif

#define MAY_DO(what)	((DO & (what)) && samples > 0)

proctype Sampler()
{
	LOCALS;
	byte p;
	byte was;
	byte to = NO_QUEUE;
	bool grows;

#ifdef CROWD
	SUM(IS_WAITING) == BACKENDS - 1 || done >= BACKENDS;
#endif
	do
	:: atomic { MAY_DO(DO_MOVE) -> samples--; select(p : 0 .. BACKENDS - 1) };
		slots_note_activity(p);
		p = 0
	:: atomic { MAY_DO(DO_LIMIT) -> samples--; select(p : 1 .. HOT) };
		adapt(p);
		p = 0; ok = false
	:: atomic { MAY_DO(DO_LET_IN) -> samples--; select(p : 0 .. BACKENDS - 1) };
		slots_let_in(p);
		p = 0; ok = false
#if HOT == 2
	:: atomic { MAY_DO(DO_MERGE) -> samples-- };
		merge();
		ok = false
#endif
	:: atomic { MAY_DO(DO_FORGET) -> samples--; select(p : 1 .. HOT) };
		end_hot_spot(p);
		p = 0; ok = false
	:: atomic { MAY_DO(DO_FORGET) -> samples--; select(p : 1 .. HOT) };
		form(p);
		p = 0; ok = false
	:: samples == 0 -> break
	od;
	done++
}
#endif

#if SWITCH
/* slots_schedule_samples(): there are to be no hot spots any more. */
proctype Switch()
{
	LOCALS;
	byte h = 1;

	resizing++;
	do
	:: h <= HOT ->
		slots_lock();
		atomic { forget_hot_spot(h); h++ };
		slots_unlock(MUTANT != M_FORGET_SILENTLY)
	:: else -> break
	od;
	h = 0;
	EITHER(MUTANT != M_FORGET_SILENTLY, slots_grant_free(), resizing--);
	done++
}
#endif

/* ---- Long statements ---- */

#if LONGS

/* slots_may_be_long() */
#define MAY_BE_LONG(p)	(!IS_OFF && POOL(p) == 0 && queue_limit[0] == NO_LIMIT)

#define IS_NOT_LONG(p)	(long_state[p] == LONG_NOT)
#define IS_LONG_PAUSED(p) (long_state[p] == LONG_PAUSED)

/* Does a sample find it at work?  Not the one that only waits. */
#ifdef LONG_STUCK
#define IS_LONG_WORKING(p) \
	(long_state[p] == LONG_RUNNING && (p != 0 || MUTANT == M_LONG_SLEEPS))
#else
#define IS_LONG_WORKING(p) (long_state[p] == LONG_RUNNING)
#endif

/*
 * change_state(): part of a step.  The state and the first that pauses are read without
 * the mutex, but as hints: a process that reads old ones looks again when its latch is set.
 */
inline change_state(p, new_state)
{
	WHEN(long_state[p] == LONG_PAUSED, slots_list_remove(long_paused, p));
	long_state[p] = new_state;
	WHEN(long_state[p] == LONG_PAUSED, slots_list_append(long_paused, p))
}

/* resume_next(): part of a step.  At least one works; no more than two are resumed. */
inline resume_next()
{
	do
	:: long_paused.head != INVALID_PROC_NUMBER && found < 2 ->
		waiter = long_paused.head;
		change_state(waiter, LONG_RUNNING);
		slots_wake_later(waiter);
		found++
	:: long_paused.head == INVALID_PROC_NUMBER || SUM(IS_LONG_WORKING) > 0 -> break
	od;
	WHEN(found > 0 && long_paused.head != INVALID_PROC_NUMBER,
		slots_wake_later(long_paused.head));
	found = 0;
	waiter = 0
}

/* slots_share_cpus(), of a sample */
inline slots_share_cpus()
{
	slots_lock();
	atomic { resume_next() };
	slots_unlock(true)
}

/* demote(): ok = done. */
inline demote(p)
{
	atomic {
		swapped = (state[p] == SLOT_RUNNING);
		WHEN(swapped, state[p] = SLOT_LONG; at = place[p]; q = at; place[p] = NO_QUEUE)
	};
	if
	:: swapped ->
		count_place_out();
		slots_hand_off();
		swapped = false;
		ok = true
	:: else -> ok = false
	fi
}

/*
 * slots_tick_long(), of the backend itself if own: ok = it has to pause.  It does if too
 * many work, or its turn is over and another one pauses, or for a rest, in which none
 * works until its time is up: so only where there are such times.
 */
#ifdef LONG_STUCK
#define RESTS	true
#else
#define RESTS	false
#endif

inline slots_tick_long(p, own)
{
	slots_lock();
	if
	:: MAY_BE_LONG(p) && state[p] == SLOT_LONG -> ok = true
	:: MAY_BE_LONG(p) && state[p] != SLOT_LONG -> demote(p)
	:: !MAY_BE_LONG(p) -> ok = false
	fi;
	if
	:: ok && own ->
		atomic {
			change_state(p, LONG_RUNNING);
			if
			:: SUM(IS_LONG_WORKING) > 1 || long_paused.head != INVALID_PROC_NUMBER || RESTS ->
				change_state(p, LONG_PAUSED);
				if
				:: resume_next()
				:: RESTS
				fi
			:: true
			fi;
			ok = (long_state[p] == LONG_PAUSED)
		}
	:: else -> ok = false
	fi;
	slots_unlock(MUTANT != M_LONG_SILENTLY)
}

/* slots_long_resume() */
inline slots_long_resume(p)
{
	slots_lock();
	d_step {
		WHEN(long_state[p] == LONG_PAUSED, change_state(p, LONG_RUNNING))
	};
	slots_unlock(true)
}

/* end_turn(), after which none rests */
inline end_turn()
{
	atomic {
		WHEN(MUTANT != M_LONG_STAYS, change_state(me, LONG_NOT));
		WHEN(MUTANT != M_LONG_ENDS_SILENTLY, resume_next())
	}
}

/* slots_forget_long() */
inline slots_forget_long()
{
	slots_lock();
	end_turn();
	slots_unlock(true)
}

/* slots_end_long(), of a long statement: the backend works, or lends. */
inline slots_end_long()
{
	slots_lock();
	end_turn();
	if
	:: WHEN(MUTANT != M_LONG_UNCOUNTED, count_in(POOL(me)));
		become_holder()
#if LENDING
	:: IS_LIMITED -> note_lender(); state[me] = SLOT_LENT
#endif
	fi;
	slots_unlock(true)
}

/*
 * The time for which a process that pauses sleeps is up.  At any time, but not often; where
 * that is what ends the run, when nothing else can happen.
 */
#define HAS_TO_LOOK(p) \
	(long_paused.head == p || !MAY_BE_LONG(p) || MUTANT != M_LONG_LOOK_FIRST)
#ifdef LONG_STUCK
#define PAUSE_IS_OVER(p) \
	atomic { HAS_TO_LOOK(p) && timeout -> time_is_up = true }
#else
#define PAUSE_IS_OVER(p) \
	atomic { HAS_TO_LOOK(p) && ticks > 0 -> ticks--; time_is_up = true }
#endif

/*
 * pause_statement(), up to where it sleeps: leaves the loop if it does not pause, as
 * slots_long_pauses() says, or must not.
 */
#define LOOK_IN_TIME(p) \
	if \
	:: long_paused.head == p || time_is_up -> slots_share_cpus() \
	:: else \
	fi; \
	time_is_up = false; \
	if \
	:: long_state[p] != LONG_PAUSED -> break \
	:: else \
	fi; \
	if \
	:: !MAY_BE_LONG(p) -> break \
	:: atomic { MAY_BE_LONG(p) && ticks > 0 -> ticks-- }; break /* in the way */ \
	:: MAY_BE_LONG(p) \
	fi

/*
 * pause_statement(); ok is true at first.  An error, caught or not, ends the pause, and
 * leaves the statement among those that pause.
 */
inline pause_statement()
{
	do
	:: true ->
		LOOK_IN_TIME(me);
		if
		:: LATCH_IS_SET(me)
		:: PAUSE_IS_OVER(me)
		:: atomic { interrupts > 0 -> interrupts--; mood = DISTURBED }
		fi;
		reset_latch(me);
		WHEN(mood == DISTURBED, mood = CALM; ok = false; break)
	od;
	WHEN(ok, slots_long_resume(me))
}

/*
 * What a backend does with its slot: its statement ticks, another statement begins or it
 * begins to write, or that is all.
 */
inline work()
{
	do
	:: atomic { ticks > 0 -> ticks-- };
		slots_tick_long(me, true);
		WHEN(ok, pause_statement());
		ok = false
	:: state[me] == SLOT_LONG -> slots_end_long()
	:: true -> break
	od;
#ifdef LONG_STUCK
	WHEN(me == 0 && state[me] == SLOT_LONG, REST_IS_DONE)
#endif
}

#define TICKS(p) \
	atomic { \
		ticks > 0 && (state[p] == SLOT_RUNNING || state[p] == SLOT_LONG) -> \
		ticks--; holder = p \
	}

/* Parallel workers of any backend, one at a time.  That they pause is left out. */
proctype Worker()
{
	LOCALS;
	byte holder;

	do
	:: true ->
		if
		:: TICKS(0)
		:: TICKS(1)
#if BACKENDS > 2
		:: TICKS(2)
#endif
#if BACKENDS > 3
		:: TICKS(3)
#endif
		:: done == PROCESSES - WORKERS -> break
		fi;
		slots_tick_long(holder, false);
		holder = 0
	od;
	done++
}

#endif

/* ---- The last resort ---- */

#if RELIEVES

/*
 * stands_still(): has no waiter been let in for too long?  Anybody's guess; where that is
 * what ends the run, always, as time passes when nothing else can happen.  Where
 * it is not the next that has waited for too long, the first of a full queue may have.
 */
#define IS_FULL(i)		(HAS_WAITERS(i) && !CAN(i) && MUTANT != M_RELIEF_OF_NEXT)
#ifdef STUCK
#define LONG_ENOUGH(i)	(next_one == INVALID_PROC_NUMBER && IS_FULL(i))
#define NOT_LONG_ENOUGH (next_one == INVALID_PROC_NUMBER && !(ANY_QUEUE(IS_FULL)))
#else
#define LONG_ENOUGH(i)	IS_FULL(i)
#define NOT_LONG_ENOUGH	true
#endif

/* let_in() */
inline let_in(first, in_order)
{
	waiter = first;
	WHEN(MUTANT != M_RELIEF_UNCOUNTED, count_in(QUEUE(waiter)));
	slots_grant(waiter, in_order)
}

/* slots_relieve_stall() */
inline slots_relieve_stall()
{
	slots_lock();
	slots_next_waiter();
	if
	:: next_one != INVALID_PROC_NUMBER -> let_in(next_one, true)
#if QUEUES > 1
	:: LONG_ENOUGH(0) -> let_in(queue[0].head, false)
	:: LONG_ENOUGH(1) -> let_in(queue[1].head, false)
#endif
#if QUEUES > 2
	:: LONG_ENOUGH(2) -> let_in(queue[2].head, false)
#endif
	:: atomic { NOT_LONG_ENOUGH -> FORGET_NEXT }
	fi;
	EITHER(MUTANT != M_RELIEF_SILENTLY, slots_unlock(true), release_mutex())
}

#endif

/* ---- A backend ---- */

/*
 * The interval has passed of a backend that was watcher when it fell asleep.  At any time,
 * but not often, or nothing would ever end; where looks are what ends the run,
 * they are as many as it takes, but each when there is nothing else to do: the
 * interval is long.
 */
#ifdef HIDDEN
#define TIME_IS_UP		(next_look == LATER && timeout)
#else
#define TIME_IS_UP		(next_look == LATER && looks > 0)
#endif

/* Likewise, but the queue stands still. */
#ifdef STUCK
#define STANDS_STILL	(next_look == LATER && MUTANT != M_RELIEF_NEVER && timeout)
#elif RELIEFS > 0
#define STANDS_STILL	(next_look == LATER && reliefs > 0)
#endif

#define NEVER			0
#define LATER			1
#define NOW				2		/* at the holders */
#define AT_QUEUES		3

/* sampler_watch() */
inline watch()
{
#if LENDING
	WHEN(next_look == NOW, look_at_holders());
#endif
#if RELIEVES
	WHEN(next_look == AT_QUEUES, slots_relieve_stall());
#endif
	next_look = (LENDING || RELIEVES -> LATER : NEVER)
}

#if TAKEOVER
/* slots_am_watcher(), before the look at who it is now */
inline take_watch_over()
{
	if
	:: watcher != me && WATCHER_IS_LATE ->
		atomic {
			!mutex ->
			mutex = true;
			if
			:: state[me] == SLOT_WAITING || MUTANT == M_WATCH_UNSEEN ->
				watcher = me
			:: else
			fi
		};
		slots_unlock(true)
	:: watcher == me || IN_TIME
	fi
}
#endif

/* sleep_in_queue() and what wait_for_slot() does about errors: ok = granted. */
inline sleep_in_queue()
{
	do
	:: true ->
#if TAKEOVER
		take_watch_over();
#endif
#ifdef STOPPED
		if
		:: me == 1 && watcher == me ->
			stopped = true;
			REST_IS_DONE;
			stopped = false
		:: else
		fi;
#endif
#if LENDING || RELIEVES
		EITHER(watcher == me, watch(), next_look = NEVER);
#endif

		/* queue_timeout: leaves, or else it must have been granted a slot */
		if
		:: mood == DISTURBED ->
			slots_leave_queue();
			EITHER(ok, ok = false; break, mood = EXPIRED)
		:: mood == DISTURBED -> mood = CALM
		:: mood == CALM
		fi;

		/* WaitLatch */
		if
		:: LATCH_IS_SET(me)
#if LENDING
		:: atomic {
				TIME_IS_UP ->
				next_look = NOW;
				looks = (looks > 0 -> looks - 1 : 0)
			}
#endif
#if RELIEVES
		:: atomic {
				STANDS_STILL ->
				next_look = AT_QUEUES;
#if RELIEFS > 0
				reliefs--
#endif
			}
#endif
#ifdef STOPPED
		:: GUARDS
#endif
		:: atomic {
				interrupts > 0 && mood == CALM ->
				interrupts--; mood = DISTURBED
			}
		:: mood == EXPIRED
		fi;
		WHEN(MUTANT != M_RESET_LATE, reset_latch(me));

		/*
		 * CHECK_FOR_INTERRUPTS: an error leaves, and so does an exit; else
		 * it may reset the latch again
		 */
		if
		:: mood == DISTURBED ->
			slots_leave_queue();
			EITHER(ok, ok = false, slots_refuse_grant(); ok = false);
			break
		:: mood == DISTURBED -> reset_latch(me)
		:: true
		fi;

		slots_claim();
		WHEN(MUTANT == M_RESET_LATE, reset_latch(me));
		WHEN(ok, finish_handoff(me); break);
		assert(mood != EXPIRED)
	od;
	mood = CALM;
	next_look = NEVER
}

/* admission_enter(): ok = holds a slot. */
inline admission_enter()
{
	slots_try_acquire();
	if
	:: ok
	:: else ->
#if LENDING
		if
		:: (word & WORD_LENDERS) -> recall_lenders()
		:: true					/* looked at lately */
		fi;
#endif
		slots_try_barge();
		if
		:: ok
		:: !ok ->
			slots_enqueue();
			if
			:: !ok && state[me] != SLOT_NONE -> sleep_in_queue()
			:: ok || state[me] == SLOT_NONE
			fi
#if FORCE
		:: !ok -> slots_force(); ok = true
#endif
		fi
	fi
}

proctype Backend(byte me)
{
	LOCALS;
	byte rounds = ROUNDS;
	byte mood = CALM;
	byte next_look = NEVER;
	byte other;
#if HOT
	byte was;
#endif
#if REMOVE
	bool joined;				/* the default pool, as pool 1 is gone */
#endif
#if LONGS
	bool time_is_up;
#endif

	do
	:: rounds > 0 ->
#ifndef FOREVER
		rounds--;
#endif
		admission_enter();
		if
		:: ok ->
			ok = false;
#ifdef HIDDEN
			if
			:: me == 0 ->
				blocked = true;
				finished;
				blocked = false
			:: else
			fi;
			slots_resume();
#else
#if LONGS
			work();
#endif
#if LENDING
			if
			:: true -> slots_resume()
			:: true
			fi;
#endif
#endif
#ifdef STUCK
			WHEN(me == 0, REST_IS_DONE);
#endif
			drop_slot();
			ok = false
		:: else
		fi
	:: rounds == 0 -> break
	od;
#ifdef HIDDEN
	WHEN(me == 1, finished = true);
#endif
#ifdef STOPPED
	rest = rest + (me > 1);
#endif
	done++
}

#if RESIZERS
/* A process that publishes settings: see settings.c.  A new limit: */
proctype Resizer()
{
	LOCALS;

	slots_set_limit(RESIZE_1);
	slots_set_limit(RESIZE_2);
	done++
}
#endif

#if REMOVE
/* and new pools */
proctype Remover()
{
	LOCALS;

	slots_set_pools();
	done++
}
#endif

init
{
	byte i;

	atomic {
		queue_limit[0] = OR_NONE(DEFAULT_LIMIT);
#if POOLS == 2
		queue_limit[1] = OR_NONE(POOL_LIMIT);
#endif
#if HOT
		for (i : 1 .. HOT) {
			part_of[i] = i;
			is_there[i] = true;
			queue_limit[QUEUE_OF(i)] = SPOT_LIMIT
		}
#endif
		for (i : 0 .. BACKENDS - 1) {
#if REMOVE
			pool[i] = FIRST_POOL(i);
#endif
#if HOT
			mark[i] = (i < BYSTANDERS -> 0 : FIRST_MARK);
#endif
			run Backend(i)
		}
#if RESIZERS
		run Resizer();
#if RESIZERS == 2
		run Resizer();
#endif
#endif
#if REMOVE
		run Remover();
#endif
#if SAMPLES
		run Sampler();
#if SAMPLERS == 2
		run Sampler();
#endif
#endif
#if SWITCH
		run Switch();
#endif
#if LONGS
		WHEN(WORKERS, run Worker());
#endif
		i = 0
	}
}

/* ---- Properties ---- */

#define IS_EMPTY(list) \
	(list.head == INVALID_PROC_NUMBER && list.tail == INVALID_PROC_NUMBER && list.length == 0)

/* (a), (h) */
#define NOTHING_IS_LEFT(i) (queue_word[i] == 0 && IS_EMPTY(queue[i]))
#if LONGS
#define NONE_IS_LONG \
	(IS_EMPTY(long_paused) && ALL(IS_NOT_LONG))
#else
#define NONE_IS_LONG	true
#endif
#if HOT
#define IS_WELL(h)		(!is_there[h] || (is_there[part_of[h]] && part_of[part_of[h]] == part_of[h]))
#define HAS_NO_LIMIT(h)	(is_there[h] || queue_limit[QUEUE_OF(h)] == NO_LIMIT)
#if HOT == 2
#define PARTS_ARE_WELL	(IS_WELL(1) && IS_WELL(2))
#define NONE_IS_GONE	(HAS_NO_LIMIT(1) && HAS_NO_LIMIT(2))
#else
#define PARTS_ARE_WELL	IS_WELL(1)
#define NONE_IS_GONE	HAS_NO_LIMIT(1)
#endif
#else
#define PARTS_ARE_WELL	true
#define NONE_IS_GONE	true
#endif
#define CLEAN \
	(word == 0 && lent == 0 && watcher == INVALID_PROC_NUMBER && calls_owed == 0 && \
	 ALL_QUEUES(NOTHING_IS_LEFT) && NONE_IS_LONG && PARTS_ARE_WELL)

/* (b) */
#define HOLDS_PLACE_0(p) (place[p] == 0)
#define HOLDS_PLACE_1(p) (place[p] == 1)
#define HOLDS_PLACE_2(p) (place[p] == 2)
#if QUEUES == 1
#define PLACES_COUNTED	true
#elif QUEUES == 2
#define PLACES_COUNTED \
	(PLACES(0) >= SUM(HOLDS_PLACE_0) && PLACES(1) >= SUM(HOLDS_PLACE_1))
#else
#define PLACES_COUNTED \
	(PLACES(0) >= SUM(HOLDS_PLACE_0) && PLACES(1) >= SUM(HOLDS_PLACE_1) && \
	 PLACES(2) >= SUM(HOLDS_PLACE_2))
#endif
#define ALL_COUNTED		(IN_USE >= SUM(IS_RUNNING) && PLACES_COUNTED)

/* (c) */
#if QUEUES == 1
#define NEXT			queue[0].head
#define PENDING_BEFORE(i) false
#else
#define FIRST(can, i, other) \
	((can) && ((other) == INVALID_PROC_NUMBER || IS_BEFORE(queue[i].head, other)) -> queue[i].head : other)
#define NEXT_OF_TWO		FIRST(CAN(1), 1, (CAN(0) -> queue[0].head : INVALID_PROC_NUMBER))
#if QUEUES == 2
#define NEXT			NEXT_OF_TWO
#else
#define NEXT			FIRST(CAN(2), 2, NEXT_OF_TWO)
#endif
#define PENDING_BEFORE(i) (HAS_WAITERS(i) && wakeup_pending[queue[i].head] && !CAN(i))
#endif
#define IS_CALLED(i)	(!CAN(i) || wakeup_pending[queue[i].head])
#define WAKEUP_PENDING \
	(IN_USE >= limit || NEXT == INVALID_PROC_NUMBER || calls_owed > 0 || \
	 (IS_LIMITED && (wakeup_pending[NEXT] || ANY_QUEUE(PENDING_BEFORE))) || \
	 (!IS_LIMITED && (resizing > 0 || ALL_QUEUES(IS_CALLED))))

/* (d), (f) */
#define QUEUE_FLAG_RIGHT(i) \
	(((queue_word[i] & WORD_WAITERS) != 0) == HAS_WAITERS(i))
#define FLAGS_RIGHT \
	(ALL_QUEUES(QUEUE_FLAG_RIGHT) && \
	 ((word & WORD_WAITERS) == 0 || (ANY_WAITS && IS_LIMITED)) && \
	 ((word & WORD_WAITERS) != 0 || !IS_LIMITED || NEXT == INVALID_PROC_NUMBER || calls_owed > 0) && \
	 ((word & WORD_LENDERS) != 0) == (lent > 0))
#define WATCHED \
	(!ANY_WAITS || (watcher != INVALID_PROC_NUMBER && state[watcher] == SLOT_WAITING))
#if PRIORITY != 0
#define PRIORITY_RIGHT	(next_priority >= PRIORITY_OF(NEXT) || calls_owed > 0)
#else
#define PRIORITY_RIGHT	true
#endif
#define NONE_KEPT		(!IS_OFF || resizing > 0 || !ANY_WAITS)
#if REMOVE
#define NONE_LEFT		(!removed || pools_lock || !HAS_WAITERS(1))
#elif HOT == 2
#define NONE_LEFT		(part_of[2] == 2 || merging > 0 || !HAS_WAITERS(QUEUE_OF(2)))
#else
#define NONE_LEFT		true
#endif

/* (g).  The owner may be about to say that its statement is not long any more. */
#if LONGS
#define ENTRY_RIGHT(p) \
	(state[p] == SLOT_LONG || state[p] == SLOT_NONE || long_state[p] == LONG_NOT)
#define LONG_RIGHT \
	(long_paused.length == SUM(IS_LONG_PAUSED) && ALL(ENTRY_RIGHT))
#else
#define LONG_RIGHT		true
#endif

/* Sleeps until something is wrong, or all are done: then it looks about. */
active proctype monitor()
{
	/* Never true: what spin names when it finds something wrong. */
	bool watched, wakeup_is_pending, flags_are_right, all_are_counted, none_is_left;
	bool none_is_kept, priority_is_right, all_is_clean, long_ones_are_right;
	bool none_is_gone_with_a_limit;

end:
	if
	:: atomic { !mutex && !WATCHED -> assert(watched) }
	:: atomic { !mutex && !WAKEUP_PENDING -> assert(wakeup_is_pending) }
	:: atomic { !mutex && !FLAGS_RIGHT -> assert(flags_are_right) }
	:: atomic { !mutex && !PRIORITY_RIGHT -> assert(priority_is_right) }
	:: atomic { !ALL_COUNTED -> assert(all_are_counted) }
	:: atomic { !mutex && !NONE_LEFT -> assert(none_is_left) }
	:: atomic { !mutex && !NONE_KEPT -> assert(none_is_kept) }
	:: atomic { !mutex && !NONE_IS_GONE -> assert(none_is_gone_with_a_limit) }
	:: atomic { !mutex && !LONG_RIGHT -> assert(long_ones_are_right) }
	:: atomic { done == PROCESSES && !CLEAN -> assert(all_is_clean) }
	fi
}

#ifdef FOREVER
/* The clock: 0, being in the queue, will have been there for long. */
active proctype clock()
{
	do
	:: atomic { state[0] == SLOT_WAITING && !overdue -> overdue = true }
	:: atomic { state[0] != SLOT_WAITING && overdue -> overdue = false }
	od
}

ltl served { [] (state[0] == SLOT_WAITING -> <> (state[0] != SLOT_WAITING)) }
#endif

#if defined(HIDDEN) || defined(STUCK) || defined(LONG_STUCK)
ltl finish { <> (done == PROCESSES) }
#endif
