/*
 * slots.pml
 *		A model of the semaphore and its queues (src/core: semaphore.c, wait_queue.c,
 *		lending.c, long_share.c, load_control.c, effective_limit.c, pools.c,
 *		limits.c; src/watcher.c), in Promela, the language of the model
 *		checker spin.
 *
 * A few backends run one statement after the other through the gate.  Others cancel
 * them, lend their slots, make their statements long, let them in above the limit as
 * a last resort, change the limit, switch it off, lower it for a while and remove a
 * pool.  spin visits every state that any interleaving of their steps leads to.  What
 * it proves, for the sizes that run.sh sets:
 *
 * (a) No slot leaks: when all processes are done, the word for all and that of each
 *	   pool are 0 (no slot in use, all flags clear), the queues and the lists of long
 *	   statements are empty, and there is no watcher, lender or long statement.
 * (b) The limit holds: at the moment of any admission, the backends that hold
 *	   a slot that counts, the new one included and whatever way each of them came
 *	   in, are no more than the limit.  Exempt are only: a forced entry that finds
 *	   no slot free, a waiter that the last resort lets in, the return of a lender,
 *	   and a long statement that ends before its transaction does.  These do count, so
 *	   the next backend under the limit waits until there are fewer.  The moment is
 *	   the compare-and-exchange of the word, and the limit is the one that this
 *	   attempt read before it; for a slot that is handed off, the moment is the
 *	   look at the count under the mutex.  The same holds for the backends of a pool
 *	   that has a limit of its own: the moment is the compare-and-exchange of the
 *	   pool's word, and a backend that is not yet counted in all, and may have to
 *	   step back, is among them.  While there is no limit for all, that of a pool
 *	   does not hold for a backend that waits for it or would have to, but it still
 *	   counts.  Besides, in every state at all each word counts at least as many
 *	   slots as are held, and no slot is released that is not counted.
 * (c) No wake-up is lost: every state in which no process can move has all of them
 *	   done; and whenever the mutex is free, "a slot is free and a backend waits whose
 *	   pool has a slot free, too" implies that a wake-up of the next one is pending.
 *	   Exempt is the time in which
 *	   - a backend that released a slot to a pool with waiters, or took the step into
 *		 it back, has not got the mutex yet: it wakes the next;
 *	   - the wake-up of another waiter is pending, whose pool has no slot free any more
 *		 because another backend came by: when that waiter finds it out, it wakes the
 *		 next.
 * (d) Duty: whenever the mutex is free and a backend waits, the watcher is in
 *	   a queue.  A pool's flag says whether its queue is empty.  The flag of all
 *	   is set if a backend waits whose pool has a slot free, but for the first
 *	   of the exemptions; it is clear if no backend waits, and may stay set for
 *	   a while when the last slot of a pool is taken.  The lenders' flag
 *	   says whether there are any.  No backend waits in a pool that is gone.  While
 *	   there is no limit, the queues are empty, but for the time in which that change
 *	   is on its way through them.  While the limit is lowered for contention,
 *	   the flag of all is set, even if no backend waits.  All this holds, too, where a
 *	   backend that enters a queue, or wakes up in one, takes the watch over from a
 *	   watcher that is late (TAKEOVER).
 * (e) No backend starves: with backends that never stop coming (FOREVER), a waiter
 *	   gets a slot in the end, if every process that can go on for ever does so once
 *	   (weak fairness).  With a holder that waits for a backend in the queue (HIDDEN),
 *	   all backends are done in the end.  With a holder that never releases its slot
 *	   nor lends it (STUCK), all others are; and so they are if a watcher is
 *	   stopped besides (STOPPED).
 * (f) Order: a backend that enters from a queue is the first of it, and no backend
 *	   waits in the other pool, if that has no limit, that is to go before it.  Exempt
 *	   from the second half is a waiter that is let in because its own pool is full: by
 *	   the last resort, which goes by the clock of all for the next of all, and by the
 *	   time of its own queue for each full pool; or because there is no limit any
 *	   more.  Whenever the mutex is free, the priority that it takes to barge is at
 *	   least that of the next, but for the first of the exemptions.
 * (g) Long statements: a statement gives its slot up once when it becomes long; from
 *	   then on it releases none, and it has one again only when it is long no more.
 *	   Whenever one becomes long, there are no more long ones than the limit has slots.
 *	   Whenever the mutex is free, the long ones are those that are counted, and each
 *	   is of the state that its list says.  None pauses without end: those that pause
 *	   are woken when others end; and if one of the others never ends, nor ticks, nor
 *	   looks (LONG_STUCK), those that pause look when their time is up, and end all the
 *	   same.
 *
 * How: names are those of the C code; each inline is the function of its name.
 * Every atomic instruction on a word, on a state or on a limit is one step, and
 * so is every look at a wake-up, a long statement or the watcher without the mutex.  A
 * step contains more than that only where the rest is local, or is guarded by the mutex
 * and read by no process that does not hold it, or where the comment says why it is
 * as good.  Ghosts, variables that the code does not have, change within the
 * step they belong to.  A process "monitor" waits for a state that breaks an
 * invariant.
 *
 * One pool, the default, has no limit of its own, so its word is left out: its
 * flag would say what that of all says.  With two pools (POOLS), the even
 * backends are of pool 1 and the odd ones of pool 0, the default, or all are of
 * pool 1 (ONE_POOL), where fewer of them have to be enough to fill it; each may have
 * a limit, and one may have a higher priority.  Among equals, first come, first
 * served: the time of arrival is how many of those that wait came before.
 *
 * Left out: totals and times.  Whether the next has waited for handoff_after, a holder
 * has done nothing for lend_after or is at work, a long statement has had its turn or
 * has not been seen for long, the watcher is late, a queue stands still or holders
 * block each other is anybody's guess instead, so all answers are tried.  So is how many
 * long statements may go on: at least one.  Only where the last resort, or the
 * look of a long statement that pauses, is what ends the run (STUCK, LONG_STUCK), it
 * comes when nothing else can happen.  Priority aging is left out, and so are the
 * reserve of superusers (it is a forced entry), limits that are only observed, and
 * changes of a pool other than its removal.  A compare-and-exchange that is bound to
 * fail as the state it wants was not there before is left out as well.  The list of
 * latches to set is a set, emptied in any order.  That the watcher looks for contention
 * as long as the limit is lowered is left out: the process that does it here comes by
 * itself.  Memory is sequentially consistent: what weaker hardware does is argued in
 * semaphore.c, not shown here.  An exit while a backend waits takes the steps of a
 * cancel, an exit while it works those of a release.  The second look for a free slot
 * before queueing is left out: it is as if the backend came later.
 *
 * Parameters: see below.  MUTANT names a mistake to make, to see that it is
 * found: the comments with M_ say what it is.
 *
 * Copyright (c) 2026, admission_gate authors
 */

/* ---- Parameters ---- */

#ifndef BACKENDS
#define BACKENDS	3			/* at most 5 */
#endif
#ifndef ROUNDS
#define ROUNDS		1			/* statements of each */
#endif
#ifndef LIMIT
#define LIMIT		1			/* at the start */
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
#define RESIZE_1	LIMIT		/* to these values; 0: no limit */
#endif
#ifndef RESIZE_2
#define RESIZE_2	LIMIT
#endif
#ifndef ADAPTS
#define ADAPTS		0			/* looks for contention */
#endif
								/* FINDS_ITSELF: the limit is adapted even if
								 * no backend waits */
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
#define DEFAULT_LIMIT 0			/* of pool 0, the default one; 0: none */
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

#define M_NONE				0
#define M_FLAG_LATE			1	/* the last look before the flag of all */
#define M_LEAVE_SILENTLY	2	/* no wake-up after leaving the queue */
#define M_REFUSE_AND_KEEP	3	/* a refused grant is not released */
#define M_RELEASE_BLINDLY	4	/* no look at the waiters' flag */
#define M_PLAIN_STORE		5	/* the owner leaves without an exchange */
#define M_GRANT_ABOVE		6	/* a slot is granted above a lowered limit */
#define M_STATE_FIRST		7	/* a lender works before its slot counts */
#define M_DUTY_LOST			8	/* the watcher leaves without a successor */
#define M_DUTY_ASLEEP		9	/* the new watcher is not woken */
#define M_RAISE_SILENTLY	10	/* no waiter enters when the limit is raised */
#define M_STILL_PENDING		11	/* the wake-up of a waiter that came too late
								 * remains pending */
#define M_LEAVE_UNSEEN		12	/* leaves the queue without a look whether it
								 * is there still */
#define M_RETURN_UNCOUNTED	13	/* a lender's slot does not count again */
#define M_RESET_LATE		14	/* the latch is reset after the look */
#define M_NEVER_OVERDUE		15	/* others may barge before the next for ever */
#define M_FLAG_STAYS		16	/* the flag of all stays set when no backend
								 * waits */
#define M_LEND_SILENTLY		17	/* no wake-up after a slot was lent */
#define M_CLAIM_UNCOUNTED	18	/* a woken waiter enters without counting */
#define M_CLAIM_SILENTLY	19	/* it does not wake the next one */
#define M_RELEASE_SILENTLY	20	/* no wake-up after a slot was released */
#define M_ALWAYS_IN_FLIGHT	25	/* a hand-off counts as in flight when the
								 * backend is awake */

#define M_ADAPT_SILENTLY	34	/* no wake-up when the limit is used in full again */
#define M_STAY_LOWERED		35	/* the limit stays lowered when no backend waits */
#define M_LOWER_UNSEEN		45	/* the flag of all is clear when it is lowered
								 * and no backend waits */

#define M_RELIEF_UNCOUNTED	36	/* a backend let in above the limit does not count */
#define M_RELIEF_SILENTLY	37	/* no wake-up, and the flag stays, after that */
#define M_RELIEF_NEVER		38	/* no backend is let in above the limit */
#define M_WATCH_UNSEEN		42	/* takes the watch over without a look whether it
								 * waits still */
#define M_NO_GUARD			43	/* no waiter wakes up to see if it is watched */

/* With long statements; M_PLAIN_STORE, too */
#define M_LONG_SILENTLY		50	/* no wake-up after a slot was given up */
#define M_LONG_UNCOUNTED	51	/* one that ends being long has its slot again, but
								 * that does not count */
#define M_LONG_RELEASES		52	/* one that ends releases a slot it gave up */
#define M_LONG_STAYS		53	/* one that ends stays in its list */
#define M_LONG_ENDS_SILENTLY 54	/* those that pause are not told when one ends */
#define M_LONG_UNBOUNDED	55	/* there are more of them than slots */
#define M_LONG_LEASE		56	/* one that does nothing goes on for ever */
#define M_LONG_LOOK_FIRST	57	/* only the first that pauses looks, though it may
								 * be awake: it caught an error */

/* With two pools */
#define M_STEP_BACK_SILENTLY 26	/* no wake-up after a step taken back */
#define M_POOL_FLAG_LATE	27	/* the last look before the flag of the pool */
#define M_POOL_LAST			28	/* a slot is released to all, then to the pool */
#define M_FLAG_LEFT_OUT		29	/* the flag of all stays clear when a pool gets
								 * a slot free */
#define M_CLAIM_OUT_OF_TURN	30	/* a woken waiter enters though another is next */
#define M_FORGET_WAITERS	31	/* a removed pool's waiters stay there */
#define M_JOIN_LATE			32	/* enters the queue of a pool that is gone */
#define M_GRANT_UNCOUNTED	33	/* a granted slot does not count in the pool */
#define M_RELIEF_OF_NEXT	39	/* not the first of a full pool: only the next */
#define M_OFF_KEEPS_POOLS	40	/* full pools keep their queues without a limit */
#define M_RELEASE_ON		44	/* waiters are let in though there is a limit again */
#define M_QUEUE_WHILE_OFF	41	/* a backend queues although there is no limit */

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

#define SLOT_NONE		0
#define SLOT_WAITING	1
#define SLOT_RUNNING	2
#define SLOT_LENT		3
#define SLOT_LONG		4

#define LONG_NOT		0
#define LONG_RUNNING	1
#define LONG_PAUSED		2
#define LONG_UNCOUNTED	3

byte word;
byte effective_limit = LIMIT;
#if ADAPTS
byte limit = LIMIT;
#define WHOLE_LIMIT		OR_NONE(limit)
#define IS_LOWERED		(effective_limit != WHOLE_LIMIT)
#else
#define IS_LOWERED		false
#endif

bool mutex;
typedef EntryList { byte head = INVALID_PROC_NUMBER; byte tail = INVALID_PROC_NUMBER; byte length };
EntryList queue[POOLS];
byte watcher = INVALID_PROC_NUMBER;
byte lent;
#if LONGS
byte nlong;
EntryList long_running;
EntryList long_paused;
#endif

#if POOLS == 2
byte pool_word[POOLS];
#if PRIORITY != 0
byte next_priority = NO_PRIORITY;
#endif
#endif
#if REMOVE
byte pool_limit = OR_NONE(POOL_LIMIT);	/* effective, of pool 1 */
bool removed;					/* pool 1 is: this is the generation */
bool pools_lock;				/* held exclusively */
#endif

/* Entries */
byte state[BACKENDS];
byte prev[BACKENDS];
byte next[BACKENDS];
bool wakeup_pending[BACKENDS];
#if POOLS == 2
bool counted_in_pool[BACKENDS];
#endif
#if POOLS == 2 && PRIORITY == 0
byte since[BACKENDS];			/* how many that wait came before */
#endif
#if REMOVE
byte pool[BACKENDS];
#endif
#if LONGS
byte long_state[BACKENDS];
#endif

bool latch[BACKENDS];

/* ---- Ghosts and budgets ---- */

byte holders;					/* backends whose slot counts, by their state */
byte resizing;					/* limits changed, the waiters not yet let in */
#if POOLS == 2
byte pool_holders[POOLS];		/* whose slot their pool counts: likewise, and
								 * those who may have to step back */
byte calls_owed;				/* backends that released a slot to a pool whose
								 * queue is not empty, and are to take the mutex
								 * for it */
#endif
byte done;						/* processes at their end */
bool is_next;					/* never true: what spin names if it has to be */
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
#ifdef STOPPED
byte rest;						/* backends done that neither stick nor stop */
bool stopped;					/* 1 has */
#define REST_IS_DONE	(rest == BACKENDS - 2)
#else
#define REST_IS_DONE	(done == PROCESSES - WORKERS - 1)
#endif
#define PROCESSES		(BACKENDS + RESIZERS + (ADAPTS > 0) + REMOVE + WORKERS)

/* Is there no limit?  Under the mutex. */
#if RESIZERS > 0
#define IS_OFF			(effective_limit == NO_LIMIT)
#else
#define IS_OFF			false
#endif

#define IN_USE			(word & WORD_COUNT)
#define BIT(p)			(1 << (p))

/*
 * What every process needs for itself: an expected word and limit, the list of
 * latches to set, what a function returns, what an exchange found, a waiter; the next
 * of all, what is known of pool 0, whether the pool's waiters are to be told.
 */
#define LOCALS \
	byte w; byte lim; byte wakes; bool ok; bool swapped; byte found; byte waiter; \
	LOCALS_OF_POOLS
#if POOLS == 2
#define LOCALS_OF_POOLS	byte next_one = INVALID_PROC_NUMBER; bool can_0; bool told
#else
#define LOCALS_OF_POOLS
#endif

#define WORDS_DONE		w = 0; lim = 0

/* ---- Pools ---- */

/* The even backends are of pool 1: two of three; or all backends are. */
#ifdef ONE_POOL
#define FIRST_POOL(p)	1
#else
#define FIRST_POOL(p)	(((p) + 1) % POOLS)
#endif
#if REMOVE
#define POOL(p)			pool[p]
#define LIMIT_OF(i)		((i) == 0 -> OR_NONE(DEFAULT_LIMIT) : pool_limit)
#define IS_CURRENT		(joined == removed)
#define MY_PRIORITY		(joined -> PRIORITY_OF_POOL(0) : PRIORITY_OF_POOL(FIRST_POOL(me)))
#define MY_POOL_HAS_LIMIT \
	((joined -> DEFAULT_LIMIT : LIMIT_AT_FIRST(FIRST_POOL(me))) > 0)
#else
#define POOL(p)			FIRST_POOL(p)
#define LIMIT_OF(i)		OR_NONE(LIMIT_AT_FIRST(i))
#define IS_CURRENT		true
#define MY_PRIORITY		PRIORITY_OF_POOL(POOL(me))
#define MY_POOL_HAS_LIMIT (LIMIT_AT_FIRST(POOL(me)) > 0)
#endif
#define LIMIT_AT_FIRST(i) ((i) == 0 -> DEFAULT_LIMIT : POOL_LIMIT)
#define OTHER_POOL(i)	(1 - (i))

#define PRIORITY_OF_POOL(i) ((i) == 0 -> 2 : 2 + PRIORITY)
#define HIGHEST_PRIORITY (PRIORITY > 0 -> 2 + PRIORITY : 2)
#define PRIORITY_OF(p)	((p) == INVALID_PROC_NUMBER -> NO_PRIORITY : PRIORITY_OF_POOL(POOL(p)))

/*
 * The next: slots_next_waiter().  With one pool, that is the head, at any
 * time; with two, a look at the word of a pool that has a limit and waiters is
 * a step, and CAN(i) is what it tells.
 */
#if POOLS == 1
#define next_one		queue[0].head
#define slots_next_waiter()	skip
#define FORGET_NEXT		skip
#else
#define CAN(i) \
	(queue[i].head != INVALID_PROC_NUMBER && (pool_word[i] & WORD_COUNT) < LIMIT_OF(i))
#if PRIORITY == 0
#define FIRST_1			(since[queue[1].head] < since[queue[0].head])
#else
#define FIRST_1			(PRIORITY > 0)
#endif
#define NEXT_IF(can0, can1) \
	((can1) && (!(can0) || FIRST_1) -> queue[1].head : \
	 ((can0) -> queue[0].head : INVALID_PROC_NUMBER))
#define NEXT			NEXT_IF(CAN(0), CAN(1))
#define FORGET_NEXT		next_one = INVALID_PROC_NUMBER

inline slots_next_waiter()
{
#if DEFAULT_LIMIT > 0
	can_0 = CAN(0);
	d_step { next_one = NEXT_IF(can_0, CAN(1)); can_0 = false }
#else
	next_one = NEXT
#endif
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

#define SET_LATCH(p) \
	atomic { (wakes & BIT(p)) -> latch[p] = true; wakes = wakes & ~BIT(p) }

inline wake_all()
{
	do
	:: SET_LATCH(0)
	:: SET_LATCH(1)
#if BACKENDS > 2
	:: SET_LATCH(2)
#endif
#if BACKENDS > 3
	:: SET_LATCH(3)
#endif
#if BACKENDS > 4
	:: SET_LATCH(4)
#endif
	:: wakes == 0 -> break
	od
}

/*
 * slots_unlock().  Mutants have wakes_next false: all is as it should be, but the next
 * is not woken.
 */
inline slots_unlock(wakes_next)
{
	wake_next(wakes_next);
	mutex = false;
	wake_all()
}

/* Ghost: an admission, under the limit that the backend knows. */
inline admitted(limit)
{
	holders++;
	assert(holders <= limit)	/* property (b) */
}

/* ---- Counting ---- */

#if RESIZERS == 0 && ADAPTS == 0

/*
 * count_up_if_free().  As long as the limit does not change, its looks and
 * exchanges are as good as one step: that of the exchange that succeeds, or of
 * the look that finds nothing free.
 */
inline count_up_if_free(barge)
{
	d_step {
		if
		:: (barge -> IN_USE : word) < effective_limit ->
			word = word + 1;
			admitted(effective_limit);
			ok = true
		:: else -> ok = false
		fi
	}
}

#else

/* One step: read the limit and, locally, compare.  Leaves the loop. */
#define TEST_LIMIT(value) \
	atomic { \
		lim = effective_limit; \
		if \
		:: (value) < lim \
		:: else -> ok = false; WORDS_DONE; break \
		fi \
	}

/* One step: compare and exchange.  Leaves the loop. */
#define COUNT_UP \
	atomic { \
		if \
		:: word == w -> word = w + 1; admitted(lim); ok = true; WORDS_DONE; break \
		:: else -> w = word \
		fi \
	}

/* count_up_if_free() */
inline count_up_if_free(barge)
{
	w = word;
	do
	:: TEST_LIMIT((barge -> w & WORD_COUNT : w));
	   COUNT_UP
	od
}

#endif

#if POOLS == 2

/*
 * count_up_if_free(), on the word of a pool: one step, as its limit changes but
 * once, when it ceases.
 */
inline count_up_in_pool(p, barge)
{
	d_step {
		if
		:: (barge -> pool_word[POOL(p)] & WORD_COUNT : pool_word[POOL(p)]) <
		   LIMIT_OF(POOL(p)) ->
			pool_word[POOL(p)] = pool_word[POOL(p)] + 1;
			counted_in_pool[p] = true;
			pool_holders[POOL(p)]++;
			assert(pool_holders[POOL(p)] <= LIMIT_OF(POOL(p)));	/* property (b) */
			ok = true
		:: else -> ok = false
		fi
	}
}

/* count_in_pool_if_free() */
inline count_in_pool_if_free(p, barge)
{
	assert(!counted_in_pool[p]);
	if
	:: LIMIT_OF(POOL(p)) == NO_LIMIT -> ok = true
	:: LIMIT_OF(POOL(p)) != NO_LIMIT -> count_up_in_pool(p, barge)
	fi
}

/* The pool's part of count_in(). */
inline count_in_pool(p)
{
	if
	:: LIMIT_OF(POOL(p)) != NO_LIMIT ->
		pool_word[POOL(p)] = pool_word[POOL(p)] + 1;
		counted_in_pool[p] = true
	:: else
	fi
}

/* Ghost: p holds nothing any more that its pool counts. */
inline left_pool(p)
{
	if
	:: counted_in_pool[p] || (MUTANT == M_GRANT_UNCOUNTED && LIMIT_OF(POOL(p)) != NO_LIMIT) ->
		pool_holders[POOL(p)]--
	:: else
	fi
}

/* count_out_of_pool(): part of a step. */
inline count_out_of_pool(p)
{
	if
	:: counted_in_pool[p] ->
		assert((pool_word[POOL(p)] & WORD_COUNT) > 0);
		pool_word[POOL(p)] = pool_word[POOL(p)] - 1;
		counted_in_pool[p] = false
	:: else
	fi
}

/* Are the pool's waiters to be told?  To stand before count_out_of_pool(). */
#define POOL_WAITS(p)	(counted_in_pool[p] && (pool_word[POOL(p)] & WORD_WAITERS))

/* slots_lock(), of a backend that released a slot to a pool with waiters. */
inline slots_lock_owing()
{
	atomic {
		!mutex ->
		mutex = true;
		calls_owed = calls_owed - told;
		told = false
	}
}

/* count_in_with_pool() */
inline count_in_with_pool(barge)
{
	count_in_pool_if_free(me, barge);
	if
	:: ok ->
		count_up_if_free(barge);
		if
		:: ok
		:: else ->
			d_step {
				told = (POOL_WAITS(me) && MUTANT != M_STEP_BACK_SILENTLY);
				left_pool(me);
				count_out_of_pool(me);
				calls_owed = calls_owed + told
			};
			if
			:: told ->
				slots_lock_owing();
				slots_unlock(true)
			:: else
			fi
		fi
	:: else
	fi
}

/* count_in_if_free() */
inline count_in_if_free(p)
{
	count_in_pool_if_free(p, true);
	if
	:: ok ->
		count_up_if_free(true);
		if
		:: ok
		:: else -> d_step { left_pool(p); count_out_of_pool(p) }
		fi
	:: else
	fi
}

#else							/* one pool without a limit of its own */

#define count_in_with_pool(barge)	count_up_if_free(barge)
#define count_in_if_free(p)		count_up_if_free(true)
#define count_in_pool(p)				skip
#define left_pool(p)					skip
#define count_out_of_pool(p)			skip

#endif

/* count_in(), of one slot: above the limits if need be, see property (b) */
inline count_in(p)
{
#if POOLS == 2
	d_step {
		count_in_pool(p);
		pool_holders[POOL(p)] = pool_holders[POOL(p)] + counted_in_pool[p]
	};
#endif
	atomic { word = word + 1; holders++ }
}

/* ---- The queues ---- */

/* become_holder() */
inline become_holder()
{
	state[me] = SLOT_RUNNING
}

/* slots_list_append() */
inline slots_list_append(list, p)
{
	prev[p] = list.tail;
	next[p] = INVALID_PROC_NUMBER;
	if
	:: list.tail == INVALID_PROC_NUMBER -> list.head = p
	:: else -> next[list.tail] = p
	fi;
	list.tail = p;
	list.length++
}

/* slots_list_remove().  Old links are wiped: fewer states. */
inline slots_list_remove(list, p)
{
	if
	:: prev[p] == INVALID_PROC_NUMBER -> list.head = next[p]
	:: else -> next[prev[p]] = next[p]
	fi;
	if
	:: next[p] == INVALID_PROC_NUMBER -> list.tail = prev[p]
	:: else -> prev[next[p]] = prev[p]
	fi;
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

/* slots_queue_append() */
inline slots_queue_append(p)
{
	wakeup_pending[p] = false;
#if POOLS == 2 && PRIORITY == 0
	since[p] = queue[0].length + queue[1].length;
#endif
	slots_list_append(queue[POOL(p)], p);
	if
	:: watcher == INVALID_PROC_NUMBER || WATCHER_IS_LATE -> watcher = p
	:: watcher != INVALID_PROC_NUMBER
	fi
}

#if POOLS == 2 && PRIORITY == 0
#define MOVE_UP(q) \
	if \
	:: q < BACKENDS && since[q] > found -> since[q] = since[q] - 1 \
	:: else \
	fi

/* Those that came later have one less before them.  Others have 0. */
inline forget_arrival(p)
{
	found = since[p];
	since[p] = 0;
	MOVE_UP(0);
	MOVE_UP(1);
#if BACKENDS > 2
	MOVE_UP(2);
#endif
#if BACKENDS > 3
	MOVE_UP(3);
#endif
#if BACKENDS > 4
	MOVE_UP(4);
#endif
	found = 0
}
#else
#define forget_arrival(p)		skip
#endif

/* Out of the list of that pool; the flag goes with the last. */
inline leave_list(i, p)
{
	slots_list_remove(queue[i], p);
#if POOLS == 2
	if
	:: queue[i].head == INVALID_PROC_NUMBER -> pool_word[i] = pool_word[i] & ~WORD_WAITERS
	:: else
	fi
#endif
}

#if POOLS == 1
#define SUCCESSOR(p)	queue[0].tail
#else
/* The last of the same pool, else last_in_a_queue() */
#define SUCCESSOR(p) \
	(queue[POOL(p)].tail != INVALID_PROC_NUMBER -> queue[POOL(p)].tail : \
	 queue[OTHER_POOL(POOL(p))].tail)
#endif

/* slots_queue_remove(): the links and the pool's flag, the watcher. */
inline slots_queue_remove(p)
{
	d_step {
		assert(state[p] == SLOT_WAITING);
		forget_arrival(p);
		leave_list(POOL(p), p)
	};
	d_step {
		if
		:: watcher == p && MUTANT != M_DUTY_LOST ->
			watcher = SUCCESSOR(p);
			if
			:: watcher != INVALID_PROC_NUMBER && MUTANT != M_DUTY_ASLEEP ->
				slots_wake_later(watcher)
			:: else
			fi
		:: else
		fi
	}
}

/*
 * Property (f): does no backend wait before p that can have a slot?  Those in the
 * other pool count only if that has no limit: else it may have had no slot free at the
 * time of the look.
 */
#define IS_FIRST(p)		(queue[POOL(p)].head == p)
#if POOLS == 1
#define NONE_BEFORE(p) true
#else
#define IS_BEFORE(i) \
	(queue[i].head != INVALID_PROC_NUMBER && LIMIT_OF(i) == NO_LIMIT && \
	 ((i) == 1 -> FIRST_1 : !FIRST_1))
#define NONE_BEFORE(p) \
	(queue[OTHER_POOL(POOL(p))].head == INVALID_PROC_NUMBER || !IS_BEFORE(OTHER_POOL(POOL(p))))
#endif

/* slots_grant(); of_all: to the next of all, not only of its pool. */
inline slots_grant(p, of_all)
{
	d_step {
		waiter = p;
		FORGET_NEXT;
		assert(state[waiter] == SLOT_WAITING);
		if
		:: IS_FIRST(waiter) && (!(of_all) || NONE_BEFORE(waiter))
		:: else -> assert(is_next)	/* property (f) */
		fi
	};
	slots_queue_remove(waiter);
	atomic {
		state[waiter] = SLOT_RUNNING;
		slots_wake_later(waiter);
		waiter = 0
	}
}

/* While the limit is lowered, the flag of all is set. */
inline flag_lowered()
{
#if ADAPTS
	if
	:: IS_LOWERED && !(word & WORD_WAITERS) && MUTANT != M_LOWER_UNSEEN ->
		word = word | WORD_WAITERS
	:: else
	fi
#else
	skip
#endif
}

/* slots_restore_limit(), for wake_next() if no backend waits and a slot is free */
inline slots_restore_limit()
{
#if ADAPTS
	if
	:: IS_LOWERED && IN_USE < effective_limit && MUTANT != M_STAY_LOWERED ->
		effective_limit = WHOLE_LIMIT
	:: else
	fi
#else
	skip
#endif
}

/*
 * wake_next(): looks at the word once.  With one pool, the flag of all is set
 * already when a backend waits.
 */
inline wake_next(wakes_next)
{
#if POOLS == 1
#if ADAPTS
	if
	:: queue[0].head == INVALID_PROC_NUMBER ->
		flag_lowered();
		slots_restore_limit()
	:: else
	fi;
#endif
	d_step {
		if
		:: queue[0].head == INVALID_PROC_NUMBER && !IS_LOWERED && MUTANT != M_FLAG_STAYS ->
			word = word & ~WORD_WAITERS
		:: queue[0].head == INVALID_PROC_NUMBER && !IS_LOWERED && MUTANT == M_FLAG_STAYS
		:: queue[0].head != INVALID_PROC_NUMBER && wakes_next &&
		   IN_USE < effective_limit && !wakeup_pending[queue[0].head] ->
			wakeup_pending[queue[0].head] = true;
			slots_wake_later(queue[0].head)
		:: else
		fi
	}
#else
	slots_next_waiter();
#if PRIORITY != 0
	if
	:: next_priority != PRIORITY_OF(next_one) -> next_priority = PRIORITY_OF(next_one)
	:: else
	fi;
#endif
	if
	:: next_one == INVALID_PROC_NUMBER ->
		flag_lowered();
		slots_restore_limit();
		if
		:: !IS_LOWERED -> word = word & ~WORD_WAITERS
		:: else
		fi
	:: else ->
		if
		:: !(word & WORD_WAITERS) && MUTANT != M_FLAG_LEFT_OUT ->
			word = word | WORD_WAITERS
		:: else
		fi;
		d_step {
			if
			:: wakes_next && IN_USE < effective_limit && !wakeup_pending[next_one] ->
				wakeup_pending[next_one] = true;
				slots_wake_later(next_one)
			:: else
			fi;
			FORGET_NEXT
		}
	fi
#endif
}

/* forget_lender() */
inline forget_lender()
{
	d_step {
		assert(lent > 0);
		lent--;
		if
		:: lent == 0 -> word = word & ~WORD_LENDERS
		:: else
		fi
	}
}

/* ---- The backend's own slot ---- */

#if REMOVE
/*
 * slots_join_pool(), of a backend that neither holds a slot nor waits.  The one thing
 * that it can find is that its pool is gone.
 */
inline slots_join_pool()
{
	atomic {
		!pools_lock ->
		joined = removed;
		if
		:: joined -> pool[me] = 0
		:: else
		fi
	}
}

inline join_pool_unless_current()
{
	if
	:: IS_CURRENT
	:: !IS_CURRENT -> slots_join_pool()
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
#if POOLS == 2
	if
	:: MY_POOL_HAS_LIMIT -> count_in_with_pool(false)
	:: !MY_POOL_HAS_LIMIT -> count_up_if_free(false)
	fi;
#else
	count_up_if_free(false);
#endif
	if
	:: ok -> become_holder()
	:: else
	fi
}

/*
 * others_are_waiting(), as far as it matters, and what follows from it: ok = others
 * wait before which this backend may not barge.
 */
#define BARGES_ANY	(BARGING && (POOLS == 1 || MY_PRIORITY == HIGHEST_PRIORITY))

inline others_are_waiting()
{
	if
	:: BARGES_ANY -> ok = false
	:: !BARGES_ANY && (word & WORD_WAITERS) -> ok = true
	:: !BARGES_ANY && !(word & WORD_WAITERS) ->
#if POOLS == 2
		ok = ((pool_word[POOL(me)] & WORD_WAITERS) != 0)
#else
		ok = false				/* the other flag says the same */
#endif
	fi;
#if POOLS == 2 && PRIORITY != 0
	if
	:: ok && BARGING -> ok = (MY_PRIORITY < next_priority)
	:: else
	fi
#endif
}

/* slots_try_barge() */
inline slots_try_barge()
{
	others_are_waiting();
	if
	:: ok -> ok = false
	:: else ->
#if POOLS == 2
		if
		:: MY_POOL_HAS_LIMIT -> count_in_with_pool(true)
		:: !MY_POOL_HAS_LIMIT -> count_up_if_free(true)
		fi;
#else
		count_up_if_free(true);
#endif
		if
		:: ok -> become_holder()
		:: else
		fi
	fi
}

/* slots_force() */
inline slots_force()
{
	slots_try_acquire();
	if
	:: ok
	:: else ->
		count_in_with_pool(true);
		if
		:: ok
		:: else -> count_in(me)
		fi;
		become_holder()
	fi
}

/* may_overtake(), once the next is known */
#if POOLS == 1
#define MAY_OVERTAKE	(queue[0].head == INVALID_PROC_NUMBER)
#else
#define MAY_OVERTAKE \
	(queue[POOL(me)].head == INVALID_PROC_NUMBER && MY_PRIORITY > PRIORITY_OF(next_one))
#endif

inline set_flag_of_pool()
{
#if POOLS == 2
	pool_word[POOL(me)] = pool_word[POOL(me)] | WORD_WAITERS
#else
	skip
#endif
}

#define MUST_NOT_QUEUE	(IS_OFF && MUTANT != M_QUEUE_WHILE_OFF)

/* slots_enqueue(): ok = taken; else state[me] tells waiting from full. */
inline slots_enqueue()
{
	assert(state[me] == SLOT_NONE);
	lock_as_member();
	if
	:: !MUST_NOT_QUEUE ->
#if POOLS == 2 && MUTANT != M_POOL_FLAG_LATE
		set_flag_of_pool();
#endif
		if
		:: MUTANT != M_FLAG_LATE -> word = word | WORD_WAITERS
		:: else
		fi
	:: MUST_NOT_QUEUE
	fi;
	slots_next_waiter();
	if
	:: atomic { MAY_OVERTAKE -> FORGET_NEXT };
		count_in_if_free(me)
	:: atomic { !MAY_OVERTAKE -> FORGET_NEXT; ok = false }
	fi;
	if
	:: ok
	:: !ok && MUST_NOT_QUEUE -> count_in(me); ok = true
	:: !ok && !MUST_NOT_QUEUE && queue[POOL(me)].length >= MAX_QUEUE
	:: !ok && !MUST_NOT_QUEUE && queue[POOL(me)].length < MAX_QUEUE ->
		atomic {
			state[me] = SLOT_WAITING;
			slots_queue_append(me)
		}
	fi;
#if POOLS == 2
	d_step {
		if
		:: queue[POOL(me)].head == INVALID_PROC_NUMBER ->
			pool_word[POOL(me)] = pool_word[POOL(me)] & ~WORD_WAITERS
		:: else
		fi
	};
#endif
#if MUTANT == M_POOL_FLAG_LATE || MUTANT == M_FLAG_LATE
	wake_next(true);
	if
	:: queue[POOL(me)].head != INVALID_PROC_NUMBER && MUTANT == M_POOL_FLAG_LATE ->
		set_flag_of_pool()
	:: queue[0].head != INVALID_PROC_NUMBER && MUTANT == M_FLAG_LATE ->
		word = word | WORD_WAITERS
	:: else
	fi;
	mutex = false;
	wake_all();
#else
	slots_unlock(true);
#endif
	if
	:: ok -> become_holder()
	:: else
	fi
}

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
				:: atomic {
						next_one == me || MUTANT == M_CLAIM_OUT_OF_TURN ->
						FORGET_NEXT
					};
					if
					:: MUTANT == M_CLAIM_UNCOUNTED && IN_USE < effective_limit ->
						atomic { ok = true; holders++ }
					:: else -> count_in_if_free(me)
					fi;
					if
					:: ok ->
						slots_grant(me, true);
						wakes = wakes & ~BIT(me)
					:: else
					fi
				:: atomic {
						next_one != me && MUTANT != M_CLAIM_OUT_OF_TURN ->
						FORGET_NEXT; ok = false
					}
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
	 (IN_USE <= effective_limit || MUTANT == M_GRANT_ABOVE))

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

/* slots_hand_off() */
inline slots_hand_off()
{
	slots_next_waiter();
	if
	:: atomic { GRANTABLE && MAY_HAND_OFF ->
				admitted(effective_limit); START_HANDOFF(next_one) };
#if POOLS == 1
		slots_grant(next_one, true)
#else
#if MUTANT == M_GRANT_UNCOUNTED
		d_step {
			ok = true;
			pool_holders[POOL(next_one)] = pool_holders[POOL(next_one)] +
				(LIMIT_OF(POOL(next_one)) != NO_LIMIT)
		};
#else
		count_in_pool_if_free(next_one, true);
#endif
		if
		:: ok -> slots_grant(next_one, true); ok = false
		:: else -> atomic { word = word - 1; holders--; FORGET_NEXT }
		fi
#endif
	:: atomic { !GRANTABLE || MAY_KEEP -> FORGET_NEXT };
		word = word - 1
	fi
}

/*
 * free_slot().  To look at the word until an exchange succeeds or the flag is
 * set is as good as one step.
 */
inline free_slot()
{
#if POOLS == 2 && MUTANT != M_POOL_LAST
	d_step {
		told = POOL_WAITS(me);
		count_out_of_pool(me);
		calls_owed = calls_owed + told
	};
#endif
	d_step {
		assert(IN_USE > 0);
		if
#if POOLS == 2
		:: told -> ok = false
#endif
		:: (word & WORD_WAITERS) == 0 || MUTANT == M_RELEASE_BLINDLY ->
			word = word - 1;
			ok = true
		:: else -> ok = false
		fi
	};
	if
	:: ok
	:: else ->
#if POOLS == 2
		slots_lock_owing();
#else
		slots_lock();
#endif
		slots_hand_off();
		slots_unlock(MUTANT != M_RELEASE_SILENTLY)
	fi;
#if MUTANT == M_POOL_LAST
	count_out_of_pool(me)
#endif
}

/* drop_slot() */
inline drop_slot()
{
#if MUTANT == M_PLAIN_STORE
	atomic {
		found = state[me];
		if
		:: found == SLOT_RUNNING -> holders--; left_pool(me)
		:: else
		fi
	};
	state[me] = SLOT_NONE;
#else
	atomic {
		found = state[me];
		state[me] = SLOT_NONE;
		if
		:: found == SLOT_RUNNING -> holders--; left_pool(me)
		:: else
		fi
	};
#endif
	if
	:: atomic { found == SLOT_RUNNING -> found = 0 };
		free_slot()
#if LONGS
	:: atomic { found == SLOT_LONG -> found = 0 };
		slots_forget_long();
#if MUTANT == M_LONG_RELEASES
		free_slot()
#endif
#endif
#if LENDING
	:: atomic { found == SLOT_LENT -> found = 0 };
		slots_lock();
		forget_lender();
		slots_unlock(true)
#endif
	fi
}

/* slots_refuse_grant() */
inline slots_refuse_grant()
{
	finish_handoff(me);
#if MUTANT == M_REFUSE_AND_KEEP
	atomic { state[me] = SLOT_NONE; holders-- }
#else
	drop_slot()
#endif
}

/* slots_release() */
inline slots_release()
{
	drop_slot()
}

/* slots_resume(), with another statement or the same */
inline slots_resume()
{
	if
#if LENDING
	:: state[me] == SLOT_LENT -> slots_end_lending()
#endif
#if LONGS
	:: state[me] == SLOT_LONG -> slots_end_long()
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
	if
	:: next_one != INVALID_PROC_NUMBER -> count_in_if_free(next_one)
	:: else -> ok = false
	fi;
	if
	:: ok -> slots_grant(next_one, true)
	:: else -> d_step { FORGET_NEXT; resizing-- }
	fi;
	slots_unlock(true)
}

#if POOLS == 1
#define ANY_WAITER		queue[0].head
#else
#define ANY_WAITER		(queue[0].head != INVALID_PROC_NUMBER -> queue[0].head : queue[1].head)
#endif

/* release_one(): ok = there was a waiter. */
inline release_one()
{
	slots_lock();
	if
	:: !IS_OFF && MUTANT != M_RELEASE_ON -> ok = false
	:: (IS_OFF || MUTANT == M_RELEASE_ON) && ANY_WAITER != INVALID_PROC_NUMBER ->
		assert(IS_OFF);			/* property (b) */
		waiter = ANY_WAITER;
		count_in(waiter);
		slots_grant(waiter, false);
		ok = true
	:: else -> ok = false
	fi;
	if
	:: ok
	:: else -> resizing--
	fi;
	slots_unlock(true)
}

/* slots_set_limit() */
inline slots_set_limit(new_limit)
{
	slots_lock();
#if ADAPTS
	atomic {
		if
		:: limit != new_limit ->
			limit = new_limit;
			effective_limit = OR_NONE(new_limit)
		:: else
		fi;
		resizing++
	};
#else
	atomic {
		effective_limit = OR_NONE(new_limit);
		resizing++
	};
#endif
	slots_unlock(MUTANT != M_RAISE_SILENTLY);
#if MUTANT == M_RAISE_SILENTLY
	resizing--;
#else
	do
	:: new_limit == 0 && MUTANT != M_OFF_KEEPS_POOLS ->
		release_one();
		if
		:: ok
		:: else -> break
		fi
	:: new_limit != 0 || MUTANT == M_OFF_KEEPS_POOLS ->
		grant_one();
		if
		:: ok
		:: else -> break
		fi
	od
#endif
}

#ifdef FINDS_ITSELF
#define MAY_ADAPT	true
#else
#define MAY_ADAPT	(word & WORD_WAITERS)
#endif

#if ADAPTS
/* slots_adapt_limit(), in steps down of one slot, and up of any number */
inline slots_adapt_limit()
{
	slots_lock();
	if
	:: WHOLE_LIMIT != NO_LIMIT && MAY_ADAPT ->
		if
		:: effective_limit < WHOLE_LIMIT -> effective_limit = effective_limit + 1
#ifdef FINDS_ITSELF
		:: effective_limit < WHOLE_LIMIT ->
			atomic { effective_limit = WHOLE_LIMIT; resizing++; grows = true }
#else
		:: effective_limit < WHOLE_LIMIT -> effective_limit = WHOLE_LIMIT
#endif
		:: effective_limit > 1 -> effective_limit = effective_limit - 1
		:: true					/* the same once more */
		fi
	:: else
	fi;
	slots_unlock(MUTANT != M_ADAPT_SILENTLY);
#ifdef FINDS_ITSELF
	/* An open gate that has grown: slots_grant_free() */
	do
	:: grows ->
		grant_one();
		if
		:: ok
		:: else -> grows = false
		fi
	:: !grows -> break
	od
#endif
}
#endif

#if REMOVE
/* move_one_waiter(): ok = there was one. */
inline move_one_waiter()
{
	atomic {
		!mutex ->
		mutex = true;
		ok = (queue[1].head != INVALID_PROC_NUMBER)
	};
	if
	:: ok ->
		d_step {
			waiter = queue[1].head;
			leave_list(1, waiter);
			assert(!counted_in_pool[waiter]);
			pool[waiter] = 0
		};
		pool_word[0] = pool_word[0] | WORD_WAITERS;
		d_step {
			slots_list_append(queue[0], waiter);
			waiter = 0
		}
	:: else
	fi;
	slots_unlock(true)
}

/* slots_set_pools(), and all that it does: pool 1 is not defined any more. */
inline slots_set_pools()
{
	atomic { !pools_lock -> pools_lock = true };
	slots_lock();
	atomic { pool_limit = NO_LIMIT; resizing++ };
	removed = true;
	slots_unlock(true);
#if MUTANT != M_FORGET_WAITERS
	do
	:: move_one_waiter();
		if
		:: ok
		:: else -> break
		fi
	od;
#endif
	pools_lock = false;
	do
	:: grant_one();
		if
		:: ok
		:: else -> break
		fi
	od
}
#endif

/* ---- Lending ---- */

/* lend() */
inline lend(p)
{
	atomic {
		swapped = (state[p] == SLOT_RUNNING);
		if
		:: swapped -> state[p] = SLOT_LENT; holders--; left_pool(p)
		:: else
		fi
	};
	if
	:: swapped ->
		d_step { lent++; word = word | WORD_LENDERS };
#if POOLS == 2
		d_step { count_out_of_pool(p) };
#endif
		atomic { word = word - 1; swapped = false }
	:: else
	fi
}

/* end_lending() */
inline end_lending(p)
{
#if MUTANT == M_STATE_FIRST || MUTANT == M_RETURN_UNCOUNTED
	atomic {
		swapped = (state[p] == SLOT_LENT);
		if
		:: swapped -> state[p] = SLOT_RUNNING; holders++
		:: else
		fi
	};
	if
	:: swapped ->
#if MUTANT == M_STATE_FIRST
		word = word + 1;
#endif
		forget_lender()
	:: else
	fi;
	swapped = false
#else
	if
	:: state[p] == SLOT_LENT ->
#if POOLS == 2
		d_step { count_in_pool(p) };
#endif
		word = word + 1;
		atomic {
			swapped = (state[p] == SLOT_LENT);
			if
			:: swapped ->
				state[p] = SLOT_RUNNING;
				holders++;
#if POOLS == 2
				pool_holders[POOL(p)] = pool_holders[POOL(p)] + counted_in_pool[p]
#endif
			:: else
			fi
		};
		if
		:: swapped -> forget_lender()
		:: else ->
#if POOLS == 2
			d_step { count_out_of_pool(p) };
#endif
			word = word - 1
		fi;
		swapped = false
	:: else
	fi
#endif
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
 * lending_watch(), lending_recall(): does p wait, that is, do nothing?  Anything is
 * possible.  A look that finds nothing new changes nothing, so it is left out.
 */
#ifdef HIDDEN
#define MAY_WAIT(p)		(p == 0 && blocked)
#define MAY_WORK(p)		(p != 0 || !blocked)
#else
#define MAY_WAIT(p)		true
#define MAY_WORK(p)		true
#endif

inline lending_watch()
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
	od
}

inline lending_recall()
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

/* ---- Long statements ---- */

#if LONGS

/* A limit that finds itself has a slot for every backend. */
#ifdef FINDS_ITSELF
#define MOST_LONG		NO_LIMIT
#elif ADAPTS
#define MOST_LONG		WHOLE_LIMIT
#else
#define MOST_LONG		effective_limit
#endif

/* may_be_long() */
#define MAY_BE_LONG(p)	(!IS_OFF && POOL(p) == 0 && LIMIT_OF(0) == NO_LIMIT)

/*
 * change_state(): part of a step.  The state and the first that pauses are read without
 * the mutex, but as hints: a process that reads old ones looks again when its latch is set.
 */
inline change_state(p, new_state)
{
	if
	:: long_state[p] == LONG_RUNNING -> slots_list_remove(long_running, p)
	:: long_state[p] == LONG_PAUSED -> slots_list_remove(long_paused, p)
	:: else
	fi;
	long_state[p] = new_state;
	if
	:: long_state[p] == LONG_RUNNING -> slots_list_append(long_running, p)
	:: long_state[p] == LONG_PAUSED -> slots_list_append(long_paused, p)
	:: else
	fi
}

/*
 * Has the first that goes on not been seen for LEASE?  Not if it ticks just now, else it
 * is anybody's guess; where that is what ends the run, it is so if time has passed, as
 * that does only when nothing else can happen.
 */
#define MAY_BE_UNSEEN(seen) \
	(long_running.head != INVALID_PROC_NUMBER && long_running.head != seen && \
	 MUTANT != M_LONG_LEASE)
#ifdef LONG_STUCK
#define IS_UNSEEN(seen)	(MAY_BE_UNSEEN(seen) && time_is_up)
#define IS_SEEN(seen)	(!IS_UNSEEN(seen))
#else
#define IS_UNSEEN(seen)	MAY_BE_UNSEEN(seen)
#define IS_SEEN(seen)	true
#endif

/*
 * look(): at least one goes on, and no more than two are woken to do so.  seen: the
 * statement that ticks just now.
 */
inline look(seen)
{
	atomic {
		if
		:: IS_UNSEEN(seen) ->
			waiter = long_running.head;
			change_state(waiter, LONG_UNCOUNTED)
		:: IS_SEEN(seen)
		fi;
		do
		:: long_paused.head != INVALID_PROC_NUMBER && found < 2 ->
			waiter = long_paused.head;
			change_state(waiter, LONG_RUNNING);
			slots_wake_later(waiter);
			found++
		:: long_paused.head == INVALID_PROC_NUMBER || long_running.length > 0 -> break
		od;
		if
		:: found > 0 && long_paused.head != INVALID_PROC_NUMBER ->
			slots_wake_later(long_paused.head)
		:: else
		fi;
		found = 0;
		waiter = 0
	}
}

/* demote(): ok = done. */
inline demote(p)
{
	if
	:: nlong >= MOST_LONG && MUTANT != M_LONG_UNBOUNDED -> ok = false
	:: else ->
		atomic {
			swapped = (state[p] == SLOT_RUNNING);
			if
			:: swapped -> state[p] = SLOT_LONG; holders--; left_pool(p)
			:: else
			fi
		};
		if
		:: swapped ->
			d_step {
				nlong++;
				assert(nlong <= MOST_LONG);	/* property (g) */
				change_state(p, LONG_RUNNING);
				count_out_of_pool(p)
			};
			slots_hand_off();
			swapped = false;
			ok = true
		:: else -> ok = false
		fi
	fi
}

/*
 * slots_tick_long(): ok = the statement has to pause.  It pauses if too many go on, or
 * its turn is over and another one pauses, or for a rest, in which none goes on until a
 * look whose time is up: so only where there are such looks.
 */
#ifdef LONG_STUCK
#define RESTS	true
#else
#define RESTS	false
#endif

inline slots_tick_long(p)
{
	slots_lock();
	if
	:: MAY_BE_LONG(p) && state[p] == SLOT_LONG -> ok = true
	:: MAY_BE_LONG(p) && state[p] != SLOT_LONG -> demote(p)
	:: !MAY_BE_LONG(p) -> ok = false
	fi;
	if
	:: ok ->
		atomic {
			if
			:: long_state[p] == LONG_UNCOUNTED -> change_state(p, LONG_RUNNING)
			:: long_state[p] == LONG_RUNNING ->
				slots_list_remove(long_running, p);
				slots_list_append(long_running, p)
			:: else
			fi;
			if
			:: long_state[p] == LONG_RUNNING &&
			   (long_running.length > 1 || long_paused.head != INVALID_PROC_NUMBER || RESTS) ->
				change_state(p, LONG_PAUSED)
			:: true
			fi
		};
		if
		:: look(p)
		:: RESTS && long_state[p] == LONG_PAUSED
		fi;
		ok = (long_state[p] == LONG_PAUSED)
	:: else
	fi;
	slots_unlock(MUTANT != M_LONG_SILENTLY)
}

/* slots_look_at_long() */
inline slots_look_at_long()
{
	slots_lock();
	look(INVALID_PROC_NUMBER);
	slots_unlock(true)
}

/* slots_long_resume() */
inline slots_long_resume(p)
{
	slots_lock();
	d_step {
		if
		:: long_state[p] == LONG_PAUSED -> change_state(p, LONG_RUNNING)
		:: else
		fi
	};
	slots_unlock(true)
}

/* forget() */
inline forget_long()
{
	d_step {
		assert(nlong > 0);
		assert(long_state[me] != LONG_NOT);
		nlong--;
		if
		:: MUTANT != M_LONG_STAYS -> change_state(me, LONG_NOT)
		:: else
		fi;
		if
		:: long_paused.head != INVALID_PROC_NUMBER && MUTANT != M_LONG_ENDS_SILENTLY ->
			slots_wake_later(long_paused.head)
		:: else
		fi
	}
}

/* slots_forget_long() */
inline slots_forget_long()
{
	slots_lock();
	forget_long();
	slots_unlock(true)
}

/* slots_end_long(), of a long statement */
inline slots_end_long()
{
	slots_lock();
#if MUTANT == M_LONG_UNCOUNTED
	holders++;
#else
	count_in(me);
#endif
	forget_long();
	state[me] = SLOT_RUNNING;
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
 * slots_long_pauses() says, or not any more; ok = it has to say that it goes on.
 */
#define LOOK_IN_TIME(p) \
	if \
	:: long_paused.head == p || time_is_up -> slots_look_at_long() \
	:: else \
	fi; \
	time_is_up = false; \
	if \
	:: long_state[p] != LONG_PAUSED -> ok = false; break \
	:: else \
	fi; \
	if \
	:: !MAY_BE_LONG(p) -> break \
	:: atomic { MAY_BE_LONG(p) && ticks > 0 -> ticks-- }; break /* in the way */ \
	:: MAY_BE_LONG(p) \
	fi

#define GO_ON(p) \
	if \
	:: ok -> slots_long_resume(p) \
	:: else \
	fi

/*
 * pause_statement() of a backend; ok is true at first.  An error, caught or not, ends
 * the pause, and leaves the statement among those that pause.
 */
inline pause_statement()
{
	do
	:: true ->
		LOOK_IN_TIME(me);
		if
		:: latch[me]
		:: PAUSE_IS_OVER(me)
		:: atomic { interrupts > 0 -> interrupts--; mood = DISTURBED }
		fi;
		latch[me] = false;
		if
		:: mood == DISTURBED -> mood = CALM; ok = false; break
		:: else
		fi
	od;
	GO_ON(me)
}

/* pause_statement() of a parallel worker: the latch that is set is that of its leader. */
inline pause_worker(p)
{
	do
	:: true ->
		LOOK_IN_TIME(p);
		if
		:: long_state[p] != LONG_PAUSED
		:: PAUSE_IS_OVER(p)
		fi
	od;
	GO_ON(p)
}

/*
 * What a backend does with its slot: its statement ticks, another statement begins or it
 * begins to write, or that is all.
 */
inline work()
{
	do
	:: atomic { ticks > 0 -> ticks-- };
		slots_tick_long(me);
		if
		:: ok -> pause_statement()
		:: else
		fi;
		ok = false
	:: state[me] == SLOT_LONG -> slots_resume()
	:: true -> break
	od;
#ifdef LONG_STUCK
	if
	:: me == 0 && state[me] == SLOT_LONG -> REST_IS_DONE
	:: else
	fi
#endif
}

#define TICKS(p) \
	atomic { \
		ticks > 0 && (state[p] == SLOT_RUNNING || state[p] == SLOT_LONG) -> \
		ticks--; holder = p \
	}

/* Parallel workers of any backend, one at a time */
proctype Worker()
{
	LOCALS;
	bool time_is_up;
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
		slots_tick_long(holder);
		if
		:: ok -> pause_worker(holder)
		:: else
		fi;
		holder = 0;
		ok = false
	od;
	done++
}

#endif

/* ---- The last resort ---- */

#if RELIEVES

/*
 * stands_still(): has no waiter been let in for too long?  Anybody's guess; where that is
 * what ends the run, always, as time passes when nothing else can happen.  Where
 * it is not the next that has waited for too long, the first of a full pool may have.
 */
#if POOLS == 2
#define IS_FULL(i)		(queue[i].head != INVALID_PROC_NUMBER && !CAN(i) && MUTANT != M_RELIEF_OF_NEXT)
#else
#define IS_FULL(i)		false
#endif
#ifdef STUCK
#define LONG_ENOUGH(i)	(next_one == INVALID_PROC_NUMBER && IS_FULL(i))
#define NOT_LONG_ENOUGH (next_one == INVALID_PROC_NUMBER && !IS_FULL(0) && !IS_FULL(1))
#else
#define LONG_ENOUGH(i)	IS_FULL(i)
#define NOT_LONG_ENOUGH	true
#endif

/* let_in() */
inline let_in(first, of_all)
{
	waiter = first;
#if MUTANT == M_RELIEF_UNCOUNTED
	holders++;
#else
	count_in(waiter);
#endif
	slots_grant(waiter, of_all)
}

/* slots_relieve_stall() */
inline slots_relieve_stall()
{
	slots_lock();
	slots_next_waiter();
	if
	:: next_one != INVALID_PROC_NUMBER -> let_in(next_one, true)
#if POOLS == 2
	:: LONG_ENOUGH(0) -> let_in(queue[0].head, false)
	:: LONG_ENOUGH(1) -> let_in(queue[1].head, false)
#endif
	:: atomic { NOT_LONG_ENOUGH -> FORGET_NEXT }
	fi;
#if MUTANT == M_RELIEF_SILENTLY
	mutex = false;
	wake_all()
#else
	slots_unlock(true)
#endif
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

/* watch() */
inline watch()
{
#if LENDING
	if
	:: next_look == NOW -> lending_watch()
	:: else
	fi;
#endif
#if RELIEVES
	if
	:: next_look == AT_QUEUES -> slots_relieve_stall()
	:: else
	fi;
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
		if
		:: watcher == me -> watch()
		:: else -> next_look = NEVER
		fi;
#endif

		/* queue_timeout: leaves, or else it must have been granted a slot */
		if
		:: mood == DISTURBED ->
			slots_leave_queue();
			if
			:: ok -> ok = false; break
			:: else -> mood = EXPIRED
			fi
		:: mood == DISTURBED -> mood = CALM
		:: mood == CALM
		fi;

		/* WaitLatch */
		if
		:: latch[me]
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
		if
		:: MUTANT != M_RESET_LATE -> latch[me] = false
		:: else
		fi;

		/*
		 * CHECK_FOR_INTERRUPTS: an error leaves, and so does an exit; else
		 * it may reset the latch again
		 */
		if
		:: mood == DISTURBED ->
			slots_leave_queue();
			if
			:: ok -> ok = false
			:: else -> slots_refuse_grant(); ok = false
			fi;
			break
		:: mood == DISTURBED -> latch[me] = false
		:: true
		fi;

		slots_claim();
		if
		:: MUTANT == M_RESET_LATE -> latch[me] = false
		:: else
		fi;
		if
		:: ok -> finish_handoff(me); break
		:: else
		fi;
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
		:: (word & WORD_LENDERS) -> lending_recall()
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
			if
			:: me == 0 -> REST_IS_DONE
			:: else
			fi;
#endif
			slots_release();
			ok = false
		:: else
		fi
	:: rounds == 0 -> break
	od;
#ifdef HIDDEN
	if
	:: me == 1 -> finished = true
	:: else
	fi;
#endif
#ifdef STOPPED
	rest = rest + (me > 1);
#endif
	done++
}

/* A process that publishes settings: see settings.c.  A new limit: */
proctype Resizer()
{
	LOCALS;

	slots_set_limit(RESIZE_1);
	slots_set_limit(RESIZE_2);
	done++
}

#if ADAPTS
/* A look for contention: by a backend that is about to queue, or the watcher. */
proctype Adapter()
{
	LOCALS;
	byte adapts = ADAPTS;
#ifdef FINDS_ITSELF
	bool grows = false;
#endif

	do
	:: adapts > 0 -> slots_adapt_limit(); adapts--
	:: adapts == 0 -> break
	od;
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
		do
		:: i < BACKENDS ->
			prev[i] = INVALID_PROC_NUMBER;
			next[i] = INVALID_PROC_NUMBER;
#if REMOVE
			pool[i] = FIRST_POOL(i);
#endif
			run Backend(i);
			i++
		:: i == BACKENDS -> break
		od;
		i = 0;
		do
		:: i < RESIZERS -> run Resizer(); i++
		:: i == RESIZERS -> break
		od;
#if ADAPTS
		run Adapter();
#endif
#if REMOVE
		run Remover();
#endif
#if LONGS
		if
		:: WORKERS -> run Worker()
		:: else
		fi
#endif
	}
}

/* ---- Properties ---- */

#define LIST_IS_EMPTY(list) \
	(list.head == INVALID_PROC_NUMBER && list.tail == INVALID_PROC_NUMBER && list.length == 0)

#if POOLS == 1
#define ANY_WAITS	(queue[0].head != INVALID_PROC_NUMBER)
#else
#define ANY_WAITS	(queue[0].head != INVALID_PROC_NUMBER || queue[1].head != INVALID_PROC_NUMBER)
#endif
#define WATCHED \
	(!ANY_WAITS || (watcher != INVALID_PROC_NUMBER && state[watcher] == SLOT_WAITING))

#if POOLS == 1

#define WAKEUP_PENDING \
	(queue[0].head == INVALID_PROC_NUMBER || IN_USE >= effective_limit || \
	 wakeup_pending[queue[0].head])
#define FLAGS_RIGHT \
	(((word & WORD_WAITERS) != 0) == (queue[0].head != INVALID_PROC_NUMBER || IS_LOWERED) && \
	 ((word & WORD_LENDERS) != 0) == (lent > 0))
#define ALL_COUNTED		(IN_USE >= holders)
#define POOLS_CLEAN \
	LIST_IS_EMPTY(queue[0])

#else

/* It is since a slot of its pool was free, which another backend has taken by now. */
#define PENDING_BEFORE(i) \
	(queue[i].head != INVALID_PROC_NUMBER && wakeup_pending[queue[i].head] && !CAN(i))
#define WAKEUP_PENDING \
	(IN_USE >= effective_limit || NEXT == INVALID_PROC_NUMBER || calls_owed > 0 || \
	 wakeup_pending[NEXT] || PENDING_BEFORE(0) || PENDING_BEFORE(1))
#define POOL_FLAG_RIGHT(i) \
	(((pool_word[i] & WORD_WAITERS) != 0) == (queue[i].head != INVALID_PROC_NUMBER))
#define FLAGS_RIGHT \
	(POOL_FLAG_RIGHT(0) && POOL_FLAG_RIGHT(1) && \
	 ((word & WORD_WAITERS) == 0 || ANY_WAITS || IS_LOWERED) && \
	 ((word & WORD_WAITERS) != 0 || NEXT == INVALID_PROC_NUMBER || calls_owed > 0) && \
	 ((word & WORD_LENDERS) != 0) == (lent > 0))
#define POOL_COUNTED(i)	((pool_word[i] & WORD_COUNT) >= pool_holders[i])
#define ALL_COUNTED		(IN_USE >= holders && POOL_COUNTED(0) && POOL_COUNTED(1))
#define POOL_CLEAN(i) \
	(pool_word[i] == 0 && pool_holders[i] == 0 && \
	 LIST_IS_EMPTY(queue[i]))
#define POOLS_CLEAN \
	(POOL_CLEAN(0) && POOL_CLEAN(1) && calls_owed == 0 && NO_PRIORITY_LEFT)

#endif

#if POOLS == 2 && PRIORITY != 0
#define PRIORITY_RIGHT \
	(next_priority >= PRIORITY_OF(NEXT) || calls_owed > 0)
#define NO_PRIORITY_LEFT (next_priority == NO_PRIORITY)
#else
#define PRIORITY_RIGHT	true
#define NO_PRIORITY_LEFT true
#endif

#if LONGS
#define IS_LONG_IN(p, l) (long_state[p] == l)
#if BACKENDS == 2
#define NUMBER_IN(l)	(IS_LONG_IN(0, l) + IS_LONG_IN(1, l))
#elif BACKENDS == 3
#define NUMBER_IN(l)	(IS_LONG_IN(0, l) + IS_LONG_IN(1, l) + IS_LONG_IN(2, l))
#else
#define NUMBER_IN(l) \
	(IS_LONG_IN(0, l) + IS_LONG_IN(1, l) + IS_LONG_IN(2, l) + IS_LONG_IN(3, l))
#endif
/* The owner may be about to say that its statement is not long any more. */
#define ENTRY_RIGHT(p) \
	((state[p] != SLOT_LONG || long_state[p] != LONG_NOT) && \
	 (state[p] == SLOT_LONG || state[p] == SLOT_NONE || long_state[p] == LONG_NOT))
#define LONG_RIGHT \
	(nlong + NUMBER_IN(LONG_NOT) == BACKENDS && \
	 long_running.length == NUMBER_IN(LONG_RUNNING) && \
	 long_paused.length == NUMBER_IN(LONG_PAUSED) && \
	 ENTRY_RIGHT(0) && ENTRY_RIGHT(1) && ENTRY_RIGHT(BACKENDS - 1))
#define NONE_IS_LONG \
	(nlong == 0 && LIST_IS_EMPTY(long_running) && LIST_IS_EMPTY(long_paused))
#else
#define NONE_IS_LONG	true
#endif

#define CLEAN \
	(word == 0 && holders == 0 && lent == 0 && watcher == INVALID_PROC_NUMBER && POOLS_CLEAN && \
	 NONE_IS_LONG)
#if REMOVE
#define NONE_LEFT		(!removed || pools_lock || queue[1].head == INVALID_PROC_NUMBER)
#else
#define NONE_LEFT		true
#endif

#define NONE_KEPT \
	(!IS_OFF || resizing > 0 || !ANY_WAITS)
#if ADAPTS
#define LIMIT_RIGHT		(effective_limit == WHOLE_LIMIT || (word & WORD_WAITERS) != 0)
#else
#define LIMIT_RIGHT		true
#endif

/* Sleeps until something is wrong, or all are done: then it looks about. */
active proctype monitor()
{
	/* Never true: what spin names when it finds something wrong. */
	bool watched, wakeup_is_pending, flags_are_right, all_are_counted, none_is_left;
	bool none_is_kept, priority_is_right, limit_is_right, all_is_clean;
	bool long_ones_are_right;

end:
	if
	:: atomic { !mutex && !WATCHED -> assert(watched) }
	:: atomic { !mutex && !WAKEUP_PENDING -> assert(wakeup_is_pending) }
	:: atomic { !mutex && !FLAGS_RIGHT -> assert(flags_are_right) }
	:: atomic { !mutex && !PRIORITY_RIGHT -> assert(priority_is_right) }
	:: atomic { !mutex && !LIMIT_RIGHT -> assert(limit_is_right) }
	:: atomic { !ALL_COUNTED -> assert(all_are_counted) }
	:: atomic { !mutex && !NONE_LEFT -> assert(none_is_left) }
#if LONGS
	:: atomic { !mutex && !LONG_RIGHT -> assert(long_ones_are_right) }
#endif
#if RESIZERS > 0
	:: atomic { !mutex && !NONE_KEPT -> assert(none_is_kept) }
#endif
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
