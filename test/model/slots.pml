/*
 * slots.pml
 *		A model of src/slots.c, slots_queue.c, slots_turns.c, slots_lending.c,
 *		slots_contention.c, slots_stall.c and slots_pools.c: the semaphore and its
 *		queues, in Promela, the language of the model checker spin.
 *
 * A few backends run one statement after the other through the gate, others
 * cancel them, lend their slots, let them in above the limit as a last resort,
 * change the limit, switch it off, lower it for a while and remove a pool, and
 * spin visits every state that any interleaving of their steps leads to.  What it
 * proves, for the sizes that run.sh sets:
 *
 * (a) No slot leaks: when all are done, the word for all and that of each pool
 *	   are 0 (no slot in use, all flags clear), the queues empty, nobody watcher,
 *	   no lenders.
 * (b) The limit holds: at the moment of any admission, the backends that hold
 *	   a slot that counts, at work or between transactions, the new one included
 *	   and whatever way each of them came in, are no more than the limit.
 *	   Exempt is only who enters by force finding no slot free, who is let in
 *	   from the queue by the last resort, and a lender's return; a turn that
 *	   goes on is no admission.  They do count, so that the next to come under
 *	   the limit waits until there are fewer.  The moment is the
 *	   compare-and-exchange of the word, and the limit is the one that this
 *	   attempt read before it; for a slot that changes hands, the moment is
 *	   the look at the count under the mutex.  The same holds for the backends
 *	   of a pool that has a limit of its own: the moment is the
 *	   compare-and-exchange of the pool's word, and who has yet to be counted
 *	   in all, and may have to step back, is among them.  While there is no limit
 *	   for all, that of a pool does not hold for who would have to wait for it
 *	   or does, but it still counts.  Besides, in every
 *	   state at all each word counts at least as many slots as are held, and no
 *	   slot is given back that is not counted.
 * (c) No wake-up is lost: there is no state that nobody can leave but some
 *	   are not done; and whenever the mutex is free, "a slot is free and
 *	   somebody waits whose pool has a slot free, too" implies that
 *	   slots_next_waiter() has been called.  Exempt is the time in which
 *	   - a change of the limit or of the pools is on its way through the queues;
 *	   - somebody who gave a slot back to a pool with waiters, or took the step
 *		 into it back, has not got the mutex yet: it will see to it;
 *	   - another one has been called, whose pool has no slot free any more as
 *		 somebody came by: when it finds that out, it sees to the next.
 * (d) Duty: whenever the mutex is free and somebody waits, the watcher is in
 *	   a queue.  A pool's flag says whether its queue is empty.  The flag of all
 *	   is set if somebody waits whose pool has a slot free, but for the first
 *	   two of the exemptions; it is clear if nobody waits, and may stay set for
 *	   a while when somebody takes the last slot of a pool.  The lenders' flag
 *	   says whether there are any.  Nobody waits in a pool that is gone.  While
 *	   there is no limit, nobody waits in any queue, nor retains a slot, but for
 *	   the first of the exemptions.  While the limit is lowered for contention,
 *	   the flag of all is set, though nobody may wait.  All this holds, too, where whoever enters a
 *	   queue, or wakes up in one, takes the watch over from one who is late
 *	   (TAKEOVER).
 * (e) Nobody starves: with backends that never stop coming (FOREVER), a waiter
 *	   gets a slot in the end, if whoever can go on for ever does so once
 *	   (weak fairness).  With a holder that waits for somebody in the queue
 *	   (HIDDEN), or clients that say no more while slots are retained (IDLE),
 *	   everybody is done in the end.  With a holder that never gives its slot
 *	   back nor lends it (STUCK), all others are; and so they are if a watcher is
 *	   stopped besides (STOPPED).
 * (f) Order: who enters from a queue is the first of it, and nobody waits in
 *	   the other pool, that having no limit, who is to go before it.  Exempt from
 *	   the second half is who is let in because its own pool is full: by the
 *	   last resort, which sees to the next of all and to each full pool by
 *	   different clocks; or because there is no limit any more.  Whenever
 *	   the mutex is free, the priority that it takes to barge is at least
 *	   that of who is next, but for the first two of the exemptions.
 *
 * How: names are those of the C code; each inline is the function of its name.
 * Every atomic instruction on a word, on a state or on a limit is one step, and
 * so is every look at a call or the watcher without the mutex.  A step contains
 * more than that only where the rest is local or guarded by the mutex and
 * looked at by nobody who does not hold it, or where the comment says why it is
 * as good.  Ghosts, variables that the code does not have, change within the
 * step they belong to.  A process "monitor" waits for a state that breaks an
 * invariant.
 *
 * One pool, the default, has no limit of its own, so its word is left out: its
 * flag would say what that of all says.  With two pools (POOLS), the even
 * backends are of pool 1 and the odd ones of pool 0, the default, or all are of
 * pool 1 (ONE_POOL), where fewer of them have to be enough to fill it; each may have
 * a limit, and one may have a higher priority.  Among equals, who came first
 * goes first: the time of arrival is how many wait that came before.
 *
 * Left out: totals and times.  Whether the next is overdue, a holder has done
 * nothing for lend_after or is at work, a turn is over, a client or the watcher late, a
 * queue stands still or holders block each other is anybody's guess instead, so all
 * answers are tried.  Only where the last resort is what ends the run (STUCK), it acts
 * when nothing else can happen.  Priority aging is left out, and so are the
 * reserve of superusers (it enters by force), limits that are only observed, and changes of a pool other
 * than its removal.  A compare-and-exchange that is bound to fail as the state
 * it wants was not there before is left out as well.  The list of latches to
 * set is a set, emptied in any order.  That the watcher looks for contention as
 * long as the limit is lowered is left out: who does it here comes by itself.  Memory is sequentially consistent: what
 * weaker hardware does is argued in slots.c, not shown here.  Exit while waiting
 * takes the steps of a cancel, exit while working those of a give-back.  The
 * second look for a free slot before queueing is left out: it is as if the
 * backend came later.
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
#define FORCE		0			/* 1: some may not wait */
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
								 * nobody waits */
#ifndef TURNS
#define TURNS		0			/* 1: a slot may be retained */
#endif
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
#define REMOVE		0			/* 1: pool 1 is removed some time */
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
#define M_LEAVE_SILENTLY	2	/* no call after leaving the queue */
#define M_REFUSE_AND_KEEP	3	/* a refused grant is not passed on */
#define M_GIVE_BACK_BLINDLY 4	/* no look at the waiters' flag */
#define M_PLAIN_STORE		5	/* the owner leaves without an exchange */
#define M_GRANT_ABOVE		6	/* a slot is granted above a lowered limit */
#define M_STATE_FIRST		7	/* a lender works before its slot counts */
#define M_DUTY_LOST			8	/* the watcher leaves without a successor */
#define M_DUTY_ASLEEP		9	/* the new watcher is not woken */
#define M_RAISE_SILENTLY	10	/* nobody enters when the limit is raised */
#define M_STILL_CALLED		11	/* who came too late remains called */
#define M_LEAVE_UNSEEN		12	/* leaves the queue without a look whether it
								 * is there still */
#define M_RETURN_UNCOUNTED	13	/* a lender's slot does not count again */
#define M_RESET_LATE		14	/* the latch is reset after the look */
#define M_NEVER_OVERDUE		15	/* the next may be barged before for ever */
#define M_FLAG_STAYS		16	/* the flag of all stays set when nobody waits */
#define M_LEND_SILENTLY		17	/* no call after a slot was lent */
#define M_CLAIM_UNCOUNTED	18	/* the one called enters without counting */
#define M_CLAIM_SILENTLY	19	/* it does not see to the next one */
#define M_GIVE_BACK_SILENTLY 20	/* no call after a slot was given back */

#define M_RETAIN_SILENTLY	21	/* a dozing watcher is not woken */
#define M_SLEEP_ON			22	/* the watcher sleeps beside retained slots */
#define M_TURN_LOST			23	/* a slot taken away is not passed on */
#define M_ALWAYS_COMING		25	/* an heir awake counts as on its way */
#define M_DOZE_FOR_OTHERS	24	/* who is not watcher any more says that the
								 * watcher dozes or not */

#define M_ADAPT_SILENTLY	34	/* no call when the limit is used in full again */
#define M_STAY_LOWERED		35	/* the limit stays lowered when nobody waits */
#define M_LOWER_UNSEEN		45	/* the flag of all is clear when it is lowered
								 * though nobody waits */

#define M_RELIEF_UNCOUNTED	36	/* who is let in above the limit does not count */
#define M_RELIEF_SILENTLY	37	/* no call, and the flag stays, after that */
#define M_RELIEF_NEVER		38	/* nobody is let in above the limit */
#define M_WATCH_UNSEEN		42	/* takes the watch over without a look whether it
								 * waits still */
#define M_NO_GUARD			43	/* no waiter wakes up to see if it is watched */

/* With two pools */
#define M_STEP_BACK_SILENTLY 26	/* no call after a step taken back */
#define M_POOL_FLAG_LATE	27	/* the last look before the flag of the pool */
#define M_POOL_LAST			28	/* a slot is given back to all, then the pool */
#define M_FLAG_LEFT_OUT		29	/* the flag of all stays clear when a pool gets
								 * a slot free */
#define M_CLAIM_OUT_OF_TURN	30	/* who was called enters though another is next */
#define M_FORGET_WAITERS	31	/* a removed pool's waiters stay there */
#define M_JOIN_LATE			32	/* enters the queue of a pool that is gone */
#define M_GRANT_UNCOUNTED	33	/* a granted slot does not count in the pool */
#define M_RELIEF_OF_NEXT	39	/* not the first of a full pool: only the next */
#define M_OFF_KEEPS_POOLS	40	/* full pools keep their queues without a limit */
#define M_RELEASE_ON		44	/* waiters are let in though there is a limit again */
#define M_QUEUE_WHILE_OFF	41	/* somebody queues although there is no limit */

#ifndef MUTANT
#define MUTANT		M_NONE
#endif

/* ---- Shared memory ---- */

#define WORD_COUNT		15
#define WORD_LENDERS	16
#define WORD_WAITERS	32
#define NO_LIMIT		WORD_COUNT
#define OR_NONE(limit)	((limit) > 0 -> (limit) : NO_LIMIT)

#define NOBODY			BACKENDS
#define NO_PRIORITY		0

#define SLOT_NONE		0
#define SLOT_WAITING	1
#define SLOT_RUNNING	2
#define SLOT_LENT		3
#define SLOT_RETAINED	4

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
typedef EntryList { byte head = NOBODY; byte tail = NOBODY; byte length };
EntryList queue[POOLS];
EntryList retained;
byte watcher = NOBODY;
bool watcher_dozes;
byte lent;

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
bool called[BACKENDS];
#if POOLS == 2
bool counted[BACKENDS];
#endif
#if POOLS == 2 && PRIORITY == 0
byte since[BACKENDS];			/* how many came before and are waiting still */
#endif
#if REMOVE
byte pool[BACKENDS];
#endif

bool latch[BACKENDS];

/* ---- Ghosts and budgets ---- */

byte holders;					/* backends whose slot counts, by their state */
byte resizing;					/* limits changed, the queues not yet told */
#if POOLS == 2
byte pool_holders[POOLS];		/* whose slot their pool counts: likewise, and
								 * those who may have to step back */
byte settling;					/* gave a slot to a pool whose queue is not empty,
								 * and are to take the mutex for it */
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
byte coming = NOBODY;			/* the heir that is not awake yet */
#endif
#ifdef IDLE
byte idle;						/* backends whose clients say no more */
#endif
#ifdef HIDDEN
bool blocked;					/* 0 waits for 1 */
bool finished;					/* 1 is done */
#endif
#ifdef STOPPED
byte rest;						/* those done that neither stick nor stop */
bool stopped;					/* 1 has */
#define REST_IS_DONE	(rest == BACKENDS - 2)
#else
#define REST_IS_DONE	(done == BACKENDS - 1)
#endif

/* Is there no limit?  Under the mutex. */
#if RESIZERS > 0
#define IS_OFF			(effective_limit == NO_LIMIT)
#else
#define IS_OFF			false
#endif

#define IN_USE			(word & WORD_COUNT)
#define BIT(p)			(1 << (p))

/*
 * What every process needs for itself: an expected word and limit, the wake
 * list, what a function returns, what an exchange found, the heir; the next of
 * all, what is known of pool 0, whether the pool's waiters are to be told.
 */
#define LOCALS \
	byte w; byte lim; byte wakes; bool ok; bool swapped; byte found; byte heir; \
	LOCALS_OF_POOLS
#if POOLS == 2
#define LOCALS_OF_POOLS	byte next_one = NOBODY; bool can_0; bool told
#else
#define LOCALS_OF_POOLS
#endif

#define WORDS_DONE		w = 0; lim = 0

/* ---- Pools ---- */

/* The even backends are of pool 1: two of three; or all are. */
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
#define PRIORITY_OF(p)	((p) == NOBODY -> NO_PRIORITY : PRIORITY_OF_POOL(POOL(p)))

/*
 * Who is next: slots_next_waiter().  With one pool, that is the head, at any
 * time; with two, a look at the word of a pool that has a limit and waiters is
 * a step, and CAN(i) is what it tells.
 */
#if POOLS == 1
#define next_one		queue[0].head
#define slots_next_waiter()	skip
#define FORGET_NEXT		skip
#else
#define CAN(i) \
	(queue[i].head != NOBODY && (pool_word[i] & WORD_COUNT) < LIMIT_OF(i))
#if PRIORITY == 0
#define FIRST_1			(since[queue[1].head] < since[queue[0].head])
#else
#define FIRST_1			(PRIORITY > 0)
#endif
#define NEXT_IF(can0, can1) \
	((can1) && (!(can0) || FIRST_1) -> queue[1].head : \
	 ((can0) -> queue[0].head : NOBODY))
#define NEXT			NEXT_IF(CAN(0), CAN(1))
#define FORGET_NEXT		next_one = NOBODY

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

inline SpinLockAcquire()
{
	atomic { !mutex -> mutex = true }
}

inline SpinLockRelease()
{
	mutex = false
}

/* Under the mutex alone, so it is no step of its own. */
inline wake_later(p)
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

/* Ghost: somebody's admission, under the limit it knows. */
inline admitted(limit)
{
	holders++;
	assert(holders <= limit)	/* property (b) */
}

/* ---- Counting ---- */

#if RESIZERS == 0 && ADAPTS == 0

/*
 * count_up_if_free().  As long as nobody changes the limit, its looks and
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
			counted[p] = true;
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
	assert(!counted[p]);
	if
	:: LIMIT_OF(POOL(p)) == NO_LIMIT -> ok = true
	:: LIMIT_OF(POOL(p)) != NO_LIMIT -> count_up_in_pool(p, barge)
	fi
}

/* The pool's part of slots_count_in(). */
inline count_in_pool(p)
{
	if
	:: LIMIT_OF(POOL(p)) != NO_LIMIT ->
		pool_word[POOL(p)] = pool_word[POOL(p)] + 1;
		counted[p] = true
	:: else
	fi
}

/* Ghost: p holds nothing any more that its pool counts. */
inline left_pool(p)
{
	if
	:: counted[p] || (MUTANT == M_GRANT_UNCOUNTED && LIMIT_OF(POOL(p)) != NO_LIMIT) ->
		pool_holders[POOL(p)]--
	:: else
	fi
}

/* count_out_of_pool(): part of a step. */
inline count_out_of_pool(p)
{
	if
	:: counted[p] ->
		assert((pool_word[POOL(p)] & WORD_COUNT) > 0);
		pool_word[POOL(p)] = pool_word[POOL(p)] - 1;
		counted[p] = false
	:: else
	fi
}

/* Are the pool's waiters to be told?  To stand before count_out_of_pool(). */
#define POOL_WAITS(p)	(counted[p] && (pool_word[POOL(p)] & WORD_WAITERS))

/* Who gave a slot back to a pool with waiters takes the mutex. */
inline lock_to_settle()
{
	atomic {
		!mutex ->
		mutex = true;
		settling = settling - told;
		told = false
	}
}

/* count_in_beside_pool() */
inline count_in_beside_pool(barge)
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
				settling = settling + told
			};
			if
			:: told ->
				lock_to_settle();
				slots_settle(true);
				SpinLockRelease();
				wake_all()
			:: else
			fi
		fi
	:: else
	fi
}

/* slots_count_in_if_free() */
inline slots_count_in_if_free(p)
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

#define count_in_beside_pool(barge)	count_up_if_free(barge)
#define slots_count_in_if_free(p)		count_up_if_free(true)
#define count_in_pool(p)				skip
#define left_pool(p)					skip
#define count_out_of_pool(p)			skip

#endif

/* slots_count_in(), of one slot: above the limits if need be, see property (b) */
inline slots_count_in(p)
{
#if POOLS == 2
	d_step {
		count_in_pool(p);
		pool_holders[POOL(p)] = pool_holders[POOL(p)] + counted[p]
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
inline list_append(list, p)
{
	prev[p] = list.tail;
	next[p] = NOBODY;
	if
	:: list.tail == NOBODY -> list.head = p
	:: else -> next[list.tail] = p
	fi;
	list.tail = p;
	list.length++
}

/* slots_list_remove().  Old links are wiped: fewer states. */
inline list_remove(list, p)
{
	if
	:: prev[p] == NOBODY -> list.head = next[p]
	:: else -> next[prev[p]] = next[p]
	fi;
	if
	:: next[p] == NOBODY -> list.tail = prev[p]
	:: else -> prev[next[p]] = prev[p]
	fi;
	prev[p] = NOBODY;
	next[p] = NOBODY;
	list.length--;
	assert((list.length == 0) == (list.head == NOBODY))
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
inline queue_append(p)
{
	called[p] = false;
#if POOLS == 2 && PRIORITY == 0
	since[p] = queue[0].length + queue[1].length;
#endif
	list_append(queue[POOL(p)], p);
	if
	:: watcher == NOBODY || WATCHER_IS_LATE -> watcher = p; watcher_dozes = TURNS
	:: watcher != NOBODY
	fi
}

#if POOLS == 2 && PRIORITY == 0
#define MOVE_UP(q) \
	if \
	:: q < BACKENDS && since[q] > found -> since[q] = since[q] - 1 \
	:: else \
	fi

/* Who came later has one less before it.  Others have 0. */
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
	list_remove(queue[i], p);
#if POOLS == 2
	if
	:: queue[i].head == NOBODY -> pool_word[i] = pool_word[i] & ~WORD_WAITERS
	:: else
	fi
#endif
}

#if POOLS == 1
#define SUCCESSOR(p)	queue[0].tail
#else
/* The last of the same pool, else last_in_a_queue() */
#define SUCCESSOR(p) \
	(queue[POOL(p)].tail != NOBODY -> queue[POOL(p)].tail : \
	 queue[OTHER_POOL(POOL(p))].tail)
#endif

/* queue_remove(): the links and the pool's flag, the watcher. */
inline queue_remove(p)
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
			watcher_dozes = TURNS;
			if
			:: watcher != NOBODY && MUTANT != M_DUTY_ASLEEP ->
				wake_later(watcher)
			:: else
			fi
		:: else
		fi
	}
}

/*
 * Property (f): does nobody wait before p who can have a slot?  Who waits in
 * the other pool is asked only if that has no limit: else it may have had no
 * slot free at the time of the look.
 */
#define IS_FIRST(p)		(queue[POOL(p)].head == p)
#if POOLS == 1
#define NOBODY_BEFORE(p) true
#else
#define IS_BEFORE(i) \
	(queue[i].head != NOBODY && LIMIT_OF(i) == NO_LIMIT && \
	 ((i) == 1 -> FIRST_1 : !FIRST_1))
#define NOBODY_BEFORE(p) \
	(queue[OTHER_POOL(POOL(p))].head == NOBODY || !IS_BEFORE(OTHER_POOL(POOL(p))))
#endif

/* slots_grant(); of_all: to the next of all, not only of its pool. */
inline slots_grant(p, of_all)
{
	d_step {
		heir = p;
		FORGET_NEXT;
		assert(state[heir] == SLOT_WAITING);
		if
		:: IS_FIRST(heir) && (!(of_all) || NOBODY_BEFORE(heir))
		:: else -> assert(is_next)	/* property (f) */
		fi
	};
	queue_remove(heir);
	atomic {
		state[heir] = SLOT_RUNNING;
		wake_later(heir);
		heir = 0
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

/* slots_restore_limit(), which slots_settle() calls if nobody waits and a slot is free */
inline restore_limit()
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
 * slots_settle(): looks at the word once.  With one pool, the flag of all is set
 * already when somebody waits.
 */
inline slots_settle(call)
{
#if POOLS == 1
#if ADAPTS
	if
	:: queue[0].head == NOBODY ->
		flag_lowered();
		restore_limit()
	:: else
	fi;
#endif
	d_step {
		if
		:: queue[0].head == NOBODY && !IS_LOWERED && MUTANT != M_FLAG_STAYS ->
			word = word & ~WORD_WAITERS
		:: queue[0].head == NOBODY && !IS_LOWERED && MUTANT == M_FLAG_STAYS
		:: queue[0].head != NOBODY && call &&
		   IN_USE < effective_limit && !called[queue[0].head] ->
			called[queue[0].head] = true;
			wake_later(queue[0].head)
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
	:: next_one == NOBODY ->
		flag_lowered();
		restore_limit();
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
			:: call && IN_USE < effective_limit && !called[next_one] ->
				called[next_one] = true;
				wake_later(next_one)
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

/* slots_resume_turn(): ok = goes on. */
inline slots_resume_turn()
{
	atomic {
		!mutex ->
		mutex = true;
		retained_mine = false;
		ok = (state[me] == SLOT_RETAINED)
	};
	if
	:: ok ->
		d_step {
			list_remove(retained, me);
			state[me] = SLOT_RUNNING
		}
	:: else
	fi;
	SpinLockRelease()
}

#if POOLS == 2
#define MY_POOL_WAITS		((pool_word[POOL(me)] & WORD_WAITERS) != 0)
#else
#define MY_POOL_WAITS		false	/* the other flag says the same */
#endif

#if POOLS == 2
#define MY_POOL_IS_ABOVE	((pool_word[POOL(me)] & WORD_COUNT) > LIMIT_OF(POOL(me)))
#else
#define MY_POOL_IS_ABOVE	false
#endif

#if POOLS == 1
#define NEXT_WAITS		(queue[0].head != NOBODY)
#else
#define NEXT_WAITS		(next_one != NOBODY)
#endif

/*
 * Do others wait, the next not of higher priority, and do the limits hold?  Nothing
 * depends on the two counts, so it is as good to look at both at once.
 */
#define MAY_RETAIN \
	((NEXT_WAITS || MY_POOL_WAITS) && \
	 (next_one == NOBODY || PRIORITY_OF(next_one) <= MY_PRIORITY) && \
	 IN_USE <= effective_limit && !MY_POOL_IS_ABOVE)

/* slots_retain(): retained_mine = done. */
inline slots_retain()
{
	if
	:: (word & WORD_WAITERS) -> ok = true
	:: else -> ok = MY_POOL_WAITS
	fi;
	if
	:: ok ->
		ok = false;
		SpinLockAcquire();
		slots_next_waiter();
		if
		:: atomic { MAY_RETAIN -> FORGET_NEXT };
			atomic {
				if
				:: state[me] == SLOT_RUNNING ->
					state[me] = SLOT_RETAINED;
					retained_mine = true
				:: else
				fi
			};
			d_step {
				if
				:: retained_mine ->
					list_append(retained, me);
					if
					:: watcher_dozes && MUTANT != M_RETAIN_SILENTLY ->
						watcher_dozes = false;
						wake_later(watcher)
					:: else
					fi
				:: else
				fi
			}
		:: atomic { !MAY_RETAIN -> FORGET_NEXT }
		fi;
		SpinLockRelease();
		wake_all()
	:: else
	fi
}

#if REMOVE
/*
 * slots_join_pool(), of a backend that neither holds a slot nor waits, as there
 * are no turns where a pool is removed.  There is one thing that it can find: that
 * its pool may be gone.
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
	   SpinLockAcquire();
	   if
	   :: IS_CURRENT || MUTANT == M_JOIN_LATE -> break
	   :: !IS_CURRENT && MUTANT != M_JOIN_LATE -> SpinLockRelease()
	   fi
	od
}
#else
#define join_pool_unless_current()	skip
#define lock_as_member()			SpinLockAcquire()
#endif

/* slots_try_take() */
inline slots_try_take()
{
	ok = false;
	join_pool_unless_current();
	if
	:: TURNS && retained_mine -> slots_resume_turn()
	:: else
	fi;
	if
	:: ok
	:: else ->
#if POOLS == 2
		if
		:: MY_POOL_HAS_LIMIT -> count_in_beside_pool(false)
		:: !MY_POOL_HAS_LIMIT -> count_up_if_free(false)
		fi;
#else
		count_up_if_free(false);
#endif
		if
		:: ok -> become_holder()
		:: else
		fi
	fi
}

/*
 * others_wait(), as far as it matters, and what follows from it: ok = others
 * wait before whom this backend may not barge.
 */
#define BARGES_ANY	(BARGING && (POOLS == 1 || MY_PRIORITY == HIGHEST_PRIORITY))

inline others_wait()
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
	others_wait();
	if
	:: ok -> ok = false
	:: else ->
#if POOLS == 2
		if
		:: MY_POOL_HAS_LIMIT -> count_in_beside_pool(true)
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
	slots_try_take();
	if
	:: ok
	:: else ->
		count_in_beside_pool(true);
		if
		:: ok
		:: else -> slots_count_in(me)
		fi;
		become_holder()
	fi
}

/* goes_before(), once the next is known */
#if POOLS == 1
#define GOES_BEFORE		(queue[0].head == NOBODY)
#else
#define GOES_BEFORE \
	(queue[POOL(me)].head == NOBODY && MY_PRIORITY > PRIORITY_OF(next_one))
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
	:: atomic { GOES_BEFORE -> FORGET_NEXT };
		slots_count_in_if_free(me)
	:: atomic { !GOES_BEFORE -> FORGET_NEXT; ok = false }
	fi;
	if
	:: ok
	:: !ok && MUST_NOT_QUEUE -> slots_count_in(me); ok = true
	:: !ok && !MUST_NOT_QUEUE && queue[POOL(me)].length >= MAX_QUEUE
	:: !ok && !MUST_NOT_QUEUE && queue[POOL(me)].length < MAX_QUEUE ->
		atomic {
			state[me] = SLOT_WAITING;
			queue_append(me)
		}
	fi;
#if POOLS == 2
	d_step {
		if
		:: queue[POOL(me)].head == NOBODY ->
			pool_word[POOL(me)] = pool_word[POOL(me)] & ~WORD_WAITERS
		:: else
		fi
	};
#endif
	slots_settle(true);
#if MUTANT == M_POOL_FLAG_LATE
	if
	:: queue[POOL(me)].head != NOBODY -> set_flag_of_pool()
	:: else
	fi;
#endif
#if MUTANT == M_FLAG_LATE
	if
	:: queue[0].head != NOBODY -> word = word | WORD_WAITERS
	:: else
	fi;
#endif
	SpinLockRelease();
	wake_all();
	if
	:: ok -> become_holder()
	:: else
	fi
}

/* slots_claim(): the look at the state, that at the call, the mutex. */
inline slots_claim()
{
	if
	:: state[me] != SLOT_WAITING -> ok = true
	:: else ->
		if
		:: called[me] ->
			SpinLockAcquire();
			if
			:: state[me] != SLOT_WAITING -> ok = true
			:: else ->
				called[me] = (MUTANT == M_STILL_CALLED && called[me]);
				slots_next_waiter();
				if
				:: atomic {
						next_one == me || MUTANT == M_CLAIM_OUT_OF_TURN ->
						FORGET_NEXT
					};
					if
					:: MUTANT == M_CLAIM_UNCOUNTED && IN_USE < effective_limit ->
						atomic { ok = true; holders++ }
					:: else -> slots_count_in_if_free(me)
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
			slots_settle(MUTANT != M_CLAIM_SILENTLY);
			SpinLockRelease();
			wake_all()
		:: else -> ok = false
		fi
	fi;
	if
	:: ok -> called[me] = false	/* means nothing now: fewer states */
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
		queue_remove(me);
		atomic { state[me] = SLOT_NONE; called[me] = false }
	:: else
	fi;
	slots_settle(MUTANT != M_LEAVE_SILENTLY);
	SpinLockRelease();
	wake_all()
}

/*
 * May the next have the slot that is given back?  The one look at the word
 * decides; who is next, and the limit, are stable under the mutex.  Without a
 * clock, an heir that is on its way is waited for, however long that takes, and
 * no wait is ever long enough for two of them.
 */
#define GRANTABLE \
	(next_one != NOBODY && \
	 (IN_USE <= effective_limit || MUTANT == M_GRANT_ABOVE))

#ifdef FOREVER
#define IS_OVERDUE \
	(!BARGING || \
	 (MUTANT != M_NEVER_OVERDUE && (next_one != 0 || overdue) && coming == NOBODY))
#define NOT_OVERDUE		(!IS_OVERDUE)
#define IS_COMING(p)	coming = p
#define HAS_COME(p) \
	if \
	:: MUTANT != M_ALWAYS_COMING && coming == p -> coming = NOBODY \
	:: else \
	fi
#else
#define IS_OVERDUE		true	/* either, if barging is allowed */
#define NOT_OVERDUE		BARGING
#define IS_COMING(p)	skip
#define HAS_COME(p)		skip
#endif

/* slots_pass_on() */
inline slots_pass_on(to_next)
{
	slots_next_waiter();
	if
	:: atomic { GRANTABLE && (to_next || IS_OVERDUE) ->
				admitted(effective_limit); IS_COMING(next_one) };
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
	:: atomic { !GRANTABLE || (!(to_next) && NOT_OVERDUE) -> FORGET_NEXT };
		word = word - 1
	fi;
	slots_settle(MUTANT != M_GIVE_BACK_SILENTLY)
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
		settling = settling + told
	};
#endif
	d_step {
		assert(IN_USE > 0);
		if
#if POOLS == 2
		:: told -> ok = false
#endif
		:: (word & WORD_WAITERS) == 0 || MUTANT == M_GIVE_BACK_BLINDLY ->
			word = word - 1;
			ok = true
		:: else -> ok = false
		fi
	};
	if
	:: ok
	:: else ->
#if POOLS == 2
		lock_to_settle();
#else
		SpinLockAcquire();
#endif
		slots_pass_on(false);
		SpinLockRelease();
		wake_all()
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
	:: atomic { found != SLOT_RUNNING -> assert(found == SLOT_LENT); found = 0 };
		SpinLockAcquire();
		forget_lender();
		SpinLockRelease()
	fi
}

/* slots_refuse_grant() */
inline slots_refuse_grant()
{
	HAS_COME(me);
#if MUTANT == M_REFUSE_AND_KEEP
	atomic { state[me] = SLOT_NONE; holders-- }
#else
	drop_slot()
#endif
}

/* slots_give_back() */
inline slots_give_back()
{
	if
	:: TURNS -> slots_retain()	/* the turn is not over */
	:: true
	fi;
	if
	:: retained_mine
	:: else -> drop_slot()
	fi
}

/* slots_end_turn() */
inline slots_end_turn(p)
{
#if POOLS == 2
	d_step {
		list_remove(retained, p);
		left_pool(p);
		count_out_of_pool(p)
	};
	atomic { state[p] = SLOT_NONE; holders-- };
#else
	d_step {
		list_remove(retained, p);
		state[p] = SLOT_NONE;
		holders--
	};
#endif
	if
	:: MUTANT != M_TURN_LOST -> slots_pass_on(true)
	:: else
	fi
}

/* slots_end_idle_turns(): soon = look again soon.  Who is late?  Anybody. */
inline slots_end_idle_turns()
{
	soon = false;
	do
	:: true ->
		SpinLockAcquire();
		if
		:: retained.head != NOBODY ->
			soon = true;
			oldest = retained.head;
			slots_end_turn(oldest);
			oldest = 0;
			SpinLockRelease();
			wake_all()
		:: true ->				/* none or not late */
			atomic {
				soon = (soon || retained.head != NOBODY);
				if
				:: watcher == me || MUTANT == M_DOZE_FOR_OTHERS ->
					watcher_dozes = !soon
				:: else
				fi;
				soon = (soon && MUTANT != M_SLEEP_ON)
			};
			SpinLockRelease();
			break
		fi
	od
}

/* slots_at_exit(), of a backend that works no more. */
inline slots_at_exit()
{
	if
	:: TURNS && retained_mine ->
		atomic {
			!mutex ->
			mutex = true;
			retained_mine = false;
			ok = (state[me] == SLOT_RETAINED)
		};
		if
		:: ok -> slots_end_turn(me)
		:: else
		fi;
		SpinLockRelease();
		wake_all();
		ok = false
	:: else
	fi
}

/* slots_resume() */
inline slots_resume()
{
	slots_holder_works(me)
}

/* ---- Setting the limit and the pools ---- */

/* grant_one(): ok = granted. */
inline grant_one()
{
	SpinLockAcquire();
	slots_next_waiter();
	if
	:: next_one != NOBODY -> slots_count_in_if_free(next_one)
	:: else -> ok = false
	fi;
	if
	:: ok -> slots_grant(next_one, true)
	:: else -> FORGET_NEXT
	fi;
	slots_settle(true);
	if
	:: ok -> SpinLockRelease()
	:: else -> atomic { mutex = false; resizing-- }
	fi;
	wake_all()
}

#if POOLS == 1
#define ANY_WAITER		queue[0].head
#else
#define ANY_WAITER		(queue[0].head != NOBODY -> queue[0].head : queue[1].head)
#endif

/* release_one(): ok = there was something to do. */
inline release_one()
{
	SpinLockAcquire();
	if
	:: !IS_OFF && MUTANT != M_RELEASE_ON -> ok = false
	:: (IS_OFF || MUTANT == M_RELEASE_ON) && TURNS && retained.head != NOBODY ->
		oldest = retained.head;
		slots_end_turn(oldest);
		oldest = 0;
		ok = true
	:: (IS_OFF || MUTANT == M_RELEASE_ON) && retained.head == NOBODY && ANY_WAITER != NOBODY ->
		waiter = ANY_WAITER;
		assert(IS_OFF);			/* property (b) */
		slots_count_in(waiter);
		slots_grant(waiter, false);
		waiter = 0;
		slots_settle(true);
		ok = true
	:: else -> ok = false
	fi;
	if
	:: ok -> SpinLockRelease()
	:: else -> atomic { mutex = false; resizing-- }
	fi;
	wake_all()
}

/* slots_set_limit() */
inline slots_set_limit(new_limit)
{
	SpinLockAcquire();
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
	SpinLockRelease();
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
	SpinLockAcquire();
	if
	:: WHOLE_LIMIT != NO_LIMIT && MAY_ADAPT ->
		if
		:: effective_limit < WHOLE_LIMIT -> effective_limit = effective_limit + 1
		:: effective_limit < WHOLE_LIMIT -> effective_limit = WHOLE_LIMIT
		:: effective_limit > 1 -> effective_limit = effective_limit - 1
		:: true					/* the same once more */
		fi
	:: else
	fi;
	slots_settle(MUTANT != M_ADAPT_SILENTLY);
	SpinLockRelease();
	wake_all()
}
#endif

#if REMOVE
/* move_one_waiter(): ok = there was one. */
inline move_one_waiter()
{
	atomic {
		!mutex ->
		mutex = true;
		ok = (queue[1].head != NOBODY)
	};
	if
	:: ok ->
		d_step {
			heir = queue[1].head;
			leave_list(1, heir);
			assert(!counted[heir]);
			pool[heir] = 0
		};
		pool_word[0] = pool_word[0] | WORD_WAITERS;
		d_step {
			list_append(queue[0], heir);
			heir = 0
		}
	:: else
	fi;
	slots_settle(true);
	SpinLockRelease();
	wake_all()
}

/* slots_set_pools(), and all that it does: pool 1 is not defined any more. */
inline slots_set_pools()
{
	atomic { !pools_lock -> pools_lock = true };
	SpinLockAcquire();
	atomic { pool_limit = NO_LIMIT; resizing++ };
	removed = true;
	SpinLockRelease();
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

/* take_back() */
inline take_back(p)
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
				pool_holders[POOL(p)] = pool_holders[POOL(p)] + counted[p]
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
	SpinLockAcquire();
	if
	:: works -> take_back(p)
	:: !(works) -> lend(p)
	fi;
	slots_settle(MUTANT != M_LEND_SILENTLY);
	SpinLockRelease();
	wake_all()
}

/* slots_holder_works() */
inline slots_holder_works(p)
{
	if
	:: state[p] != SLOT_LENT
	:: else ->
		SpinLockAcquire();
		take_back(p);
		slots_settle(true);
		SpinLockRelease();
		wake_all()
	fi
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

/* ---- The last resort ---- */

#if RELIEVES

/*
 * find_stall(): has nobody been let in for too long?  Anybody's guess; where that is
 * what ends the run, always, as time passes when nothing else can happen.  A pool's
 * own clock is asked if that of all is not the one.
 */
#if POOLS == 2
#define IS_FULL(i)		(queue[i].head != NOBODY && !CAN(i) && MUTANT != M_RELIEF_OF_NEXT)
#else
#define IS_FULL(i)		false
#endif
#ifdef STUCK
#define LONG_ENOUGH(i)	(next_one == NOBODY && IS_FULL(i))
#define NOT_LONG_ENOUGH (next_one == NOBODY && !IS_FULL(0) && !IS_FULL(1))
#else
#define LONG_ENOUGH(i)	IS_FULL(i)
#define NOT_LONG_ENOUGH	true
#endif

/* relieve() */
inline relieve(first, of_all)
{
	waiter = first;
#if MUTANT == M_RELIEF_UNCOUNTED
	holders++;
#else
	slots_count_in(waiter);
#endif
	slots_grant(waiter, of_all);
	waiter = 0
}

/*
 * slots_relieve_stall().  Its first look decides nothing but whether it has a second
 * one; so does whether the holders are at work, but for the time.
 */
inline slots_relieve_stall()
{
	SpinLockAcquire();
	slots_next_waiter();
	if
	:: next_one != NOBODY -> relieve(next_one, true)
#if POOLS == 2
	:: LONG_ENOUGH(0) -> relieve(queue[0].head, false)
	:: LONG_ENOUGH(1) -> relieve(queue[1].head, false)
#endif
	:: atomic { NOT_LONG_ENOUGH -> FORGET_NEXT }
	fi;
	if
	:: MUTANT != M_RELIEF_SILENTLY -> slots_settle(true)
	:: else
	fi;
	SpinLockRelease();
	wake_all()
}

#endif

/* ---- A backend ---- */

/*
 * The interval has passed of who was watcher when it fell asleep.  At any time,
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
	if
	:: TURNS -> slots_end_idle_turns()
	:: else
	fi;
	if
	:: LENDING && next_look == NOW -> lending_watch()
	:: else
	fi;
#if RELIEVES
	if
	:: next_look == AT_QUEUES -> slots_relieve_stall()
	:: else
	fi;
#endif
	next_look = (LENDING || RELIEVES -> LATER : NEVER)
}

#define CALM			0
#define DISTURBED		1		/* an interrupt, harmless or not */
#define EXPIRED			2		/* queue_timeout, but granted meanwhile */

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
				watcher = me;
				watcher_dozes = TURNS
			:: else
			fi
		};
		SpinLockRelease()
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
		if
		:: (LENDING || TURNS || RELIEVES) && watcher == me -> watch()
		:: else -> next_look = NEVER; soon = false
		fi;

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
		:: atomic {
				TIME_IS_UP ->
				next_look = NOW;
				looks = (looks > 0 -> looks - 1 : 0)
			}
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
		:: soon
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
		:: ok -> HAS_COME(me); break
		:: else
		fi;
		assert(mood != EXPIRED)
	od;
	mood = CALM;
	next_look = NEVER;
	soon = false
}

/* admission_enter(): ok = holds a slot. */
inline admission_enter()
{
	slots_try_take();
	if
	:: ok
	:: else ->
		if
		:: LENDING && (word & WORD_LENDERS) -> lending_recall()
		:: true					/* looked at lately */
		fi;
		slots_try_barge();
		if
		:: ok
		:: !ok ->
			slots_enqueue();
			if
			:: !ok && state[me] != SLOT_NONE -> sleep_in_queue()
			:: ok || state[me] == SLOT_NONE
			fi
		:: !ok && FORCE -> slots_force(); ok = true
		fi
	fi
}

proctype Backend(byte me)
{
	LOCALS;
	byte rounds = ROUNDS;
	byte mood = CALM;
	byte next_look = NEVER;
	bool soon;
	bool retained_mine;
	byte oldest;
	byte other;
#if RELIEVES
	byte waiter;
#endif
#if REMOVE
	bool joined;				/* the default pool, as pool 1 is gone */
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
			if
			:: LENDING -> slots_resume()
			:: true
			fi;
#endif
#ifdef STUCK
			if
			:: me == 0 -> REST_IS_DONE
			:: else
			fi;
#endif
			slots_give_back();
			ok = false
		:: else
		fi
	:: rounds == 0 -> break
	od;
#ifdef IDLE
	/* No client says more before all have said all: slots are taken away. */
	idle++;
	idle == BACKENDS;
#endif
	slots_at_exit();
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

/* Who publishes settings: see settings.c.  A new limit: */
proctype Resizer()
{
	LOCALS;
	byte oldest;
	byte waiter;

	slots_set_limit(RESIZE_1);
	slots_set_limit(RESIZE_2);
	done++
}

#if ADAPTS
/* Who looks for contention: those who are about to queue, and the watcher. */
proctype Adapter()
{
	LOCALS;
	byte adapts = ADAPTS;

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
			prev[i] = NOBODY;
			next[i] = NOBODY;
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
		run Remover()
#endif
	}
}

/* ---- Properties ---- */

#if POOLS == 1
#define SOMEBODY_WAITS	(queue[0].head != NOBODY)
#else
#define SOMEBODY_WAITS	(queue[0].head != NOBODY || queue[1].head != NOBODY)
#endif
#define WATCHED \
	(!SOMEBODY_WAITS || (watcher != NOBODY && state[watcher] == SLOT_WAITING))

#if POOLS == 1

#define CALLED \
	(queue[0].head == NOBODY || IN_USE >= effective_limit || resizing > 0 || called[queue[0].head])
#define FLAGS_RIGHT \
	((((word & WORD_WAITERS) != 0) == (queue[0].head != NOBODY || IS_LOWERED) || \
	  (ADAPTS && resizing > 0 && (word & WORD_WAITERS))) && \
	 ((word & WORD_LENDERS) != 0) == (lent > 0))
#define ALL_COUNTED		(IN_USE >= holders)
#define POOLS_CLEAN \
	(queue[0].head == NOBODY && queue[0].tail == NOBODY && queue[0].length == 0)

#else

/* Called, when there was a slot of its pool, which somebody has taken since. */
#define CALLED_BEFORE(i) \
	(queue[i].head != NOBODY && called[queue[i].head] && !CAN(i))
#define CALLED \
	(IN_USE >= effective_limit || NEXT == NOBODY || resizing > 0 || settling > 0 || \
	 called[NEXT] || CALLED_BEFORE(0) || CALLED_BEFORE(1))
#define POOL_FLAG_RIGHT(i) \
	(((pool_word[i] & WORD_WAITERS) != 0) == (queue[i].head != NOBODY))
#define FLAGS_RIGHT \
	(POOL_FLAG_RIGHT(0) && POOL_FLAG_RIGHT(1) && \
	 ((word & WORD_WAITERS) == 0 || SOMEBODY_WAITS || IS_LOWERED || (ADAPTS && resizing > 0)) && \
	 ((word & WORD_WAITERS) != 0 || NEXT == NOBODY || resizing > 0 || settling > 0) && \
	 ((word & WORD_LENDERS) != 0) == (lent > 0))
#define POOL_COUNTED(i)	((pool_word[i] & WORD_COUNT) >= pool_holders[i])
#define ALL_COUNTED		(IN_USE >= holders && POOL_COUNTED(0) && POOL_COUNTED(1))
#define POOL_CLEAN(i) \
	(pool_word[i] == 0 && pool_holders[i] == 0 && \
	 queue[i].head == NOBODY && queue[i].tail == NOBODY && queue[i].length == 0)
#define POOLS_CLEAN \
	(POOL_CLEAN(0) && POOL_CLEAN(1) && settling == 0 && NO_PRIORITY_LEFT)

#endif

#if POOLS == 2 && PRIORITY != 0
#define PRIORITY_RIGHT \
	(next_priority >= PRIORITY_OF(NEXT) || resizing > 0 || settling > 0)
#define NO_PRIORITY_LEFT (next_priority == NO_PRIORITY)
#else
#define PRIORITY_RIGHT	true
#define NO_PRIORITY_LEFT true
#endif

#define CLEAN \
	(word == 0 && holders == 0 && lent == 0 && watcher == NOBODY && POOLS_CLEAN && \
	 retained.head == NOBODY && retained.tail == NOBODY && retained.length == 0)
#if REMOVE
#define NOBODY_LEFT		(!removed || pools_lock || queue[1].head == NOBODY)
#else
#define NOBODY_LEFT		true
#endif

#define NOBODY_KEPT \
	(!IS_OFF || resizing > 0 || (!SOMEBODY_WAITS && retained.head == NOBODY))
#if ADAPTS
#define LIMIT_RIGHT		(effective_limit == WHOLE_LIMIT || (word & WORD_WAITERS) != 0)
#else
#define LIMIT_RIGHT		true
#endif

/* Sleeps until something is wrong, or all are done: then it looks about. */
active proctype monitor()
{
	/* Never true: what spin names when it finds something wrong. */
	bool watched, next_is_called, flags_are_right, all_are_counted, nobody_is_left;
	bool nobody_is_kept, priority_is_right, limit_is_right, all_is_clean;

end:
	if
	:: atomic { !mutex && !WATCHED -> assert(watched) }
	:: atomic { !mutex && !CALLED -> assert(next_is_called) }
	:: atomic { !mutex && !FLAGS_RIGHT -> assert(flags_are_right) }
	:: atomic { !mutex && !PRIORITY_RIGHT -> assert(priority_is_right) }
	:: atomic { !mutex && !LIMIT_RIGHT -> assert(limit_is_right) }
	:: atomic { !ALL_COUNTED -> assert(all_are_counted) }
	:: atomic { !mutex && !NOBODY_LEFT -> assert(nobody_is_left) }
#if RESIZERS > 0
	:: atomic { !mutex && !NOBODY_KEPT -> assert(nobody_is_kept) }
#endif
	:: atomic { done == BACKENDS + RESIZERS + (ADAPTS > 0) + REMOVE && !CLEAN -> assert(all_is_clean) }
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

#if defined(HIDDEN) || defined(STUCK)
ltl finish { <> (done == BACKENDS) }
#endif
