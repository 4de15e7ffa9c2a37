/*
 * slots.pml
 *		A model of src/slots.c: the semaphore and its queue, in Promela, the
 *		language of the model checker spin.
 *
 * A few backends run one statement after the other through the gate, others
 * cancel them, lend their slots and change the limit, and spin visits every
 * state that any interleaving of their steps leads to.  What it proves, for
 * the sizes that run.sh sets:
 *
 * (a) No slot leaks: when all are done, the word is 0 (no slot in use, both
 *	   flags clear), the queue empty, nobody watcher, no lenders.
 * (b) The limit holds: at the moment of any admission, the backends that hold
 *	   a slot that counts, at work or between transactions, the new one included
 *	   and whatever way each of them came in, are no more than the limit.
 *	   Exempt is only who enters by force finding no slot free, and a lender's
 *	   return; a turn that goes on is no admission.  The moment is the
 *	   compare-and-exchange of the word, and the limit is the one that this
 *	   attempt read before it; for a slot that changes hands, the moment is
 *	   the look at the count under the mutex.  Besides, in every state at all
 *	   the word counts at least as many slots as are held, and no slot is
 *	   given back that is not counted.
 * (c) No wake-up is lost: there is no state that nobody can leave but some
 *	   are not done; and whenever the mutex is free, "a slot is free and
 *	   somebody waits" implies that the first in the queue has been called,
 *	   unless a change of the limit is on its way through the queue.
 * (d) Duty: whenever the mutex is free and somebody waits, the watcher is in
 *	   the queue; and the flags of the word say what the queue and the number
 *	   of lenders say.
 * (e) Nobody starves: with backends that never stop coming (FOREVER), a waiter
 *	   gets a slot in the end, if whoever can go on for ever does so once
 *	   (weak fairness).  With a holder that waits for somebody in the queue
 *	   (HIDDEN), or clients that say no more while slots are retained (IDLE),
 *	   everybody is done in the end.
 *
 * How: names are those of slots.c and admission.c; each inline is the function
 * of its name.  Every atomic instruction on the word, on a state or on the
 * limit is one step, and so is every look at the head or the watcher without
 * the mutex.  A step contains more than that only where the rest is local or
 * guarded by the mutex and looked at by nobody who does not hold it.  Ghosts,
 * variables that the code does not have, change within the step they belong
 * to.  A process "monitor" waits for a state that breaks an invariant.
 *
 * Left out: totals, times and wait ids.  Whether the head is overdue, a wait
 * has lasted for lend_after, a holder is at work, a turn is over or a client
 * late is anybody's guess instead, so all answers are tried; a compare-and-exchange that is bound to fail as
 * the state it wants was not there before is left out as well.  The list of
 * latches to set is a set, emptied in any order.  Memory is sequentially
 * consistent: what weaker hardware does is argued in slots.c, not shown here.
 * Exit while waiting takes the steps of a cancel, exit while working those of
 * a give-back.  The second look for a free slot before queueing is left out: it
 * is as if the backend came later.
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
#ifndef OVERTAKING
#define OVERTAKING	1			/* 0: max_overtake is 0 */
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
#ifndef RESIZERS
#define RESIZERS	0			/* processes that set the limit */
#endif
#ifndef RESIZE_1
#define RESIZE_1	LIMIT		/* to these values; 0: no limit */
#endif
#ifndef RESIZE_2
#define RESIZE_2	LIMIT
#endif
#ifndef TURNS
#define TURNS		0			/* 1: a slot may be retained */
#endif
#ifdef HIDDEN					/* 0 holds a slot and waits for 1 */
#define LENDING		1
#else
#define LENDING		(LOOKS > 0)
#endif

/* ---- Mutants ---- */

#define M_NONE				0
#define M_FLAG_LATE			1	/* the last look before the flag */
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
#define M_NEVER_OVERDUE		15	/* the head may be overtaken for ever */
#define M_FLAG_STAYS		16	/* the flag of an empty queue stays set */
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

#ifndef MUTANT
#define MUTANT		M_NONE
#endif

/* ---- Shared memory ---- */

#define WORD_COUNT		15
#define WORD_LENDERS	16
#define WORD_WAITERS	32
#define NO_LIMIT		WORD_COUNT

#define NOBODY			BACKENDS

#define SLOT_NONE		0
#define SLOT_WAITING	1
#define SLOT_RUNNING	2
#define SLOT_LENT		3
#define SLOT_RETAINED	4

byte word;
byte effective_limit = LIMIT;

bool mutex;
typedef EntryList { byte head = NOBODY; byte tail = NOBODY; byte length };
EntryList queue;
EntryList retained;
byte watcher = NOBODY;
bool watcher_dozes;
byte lent;

/* Entries */
byte state[BACKENDS];
byte prev[BACKENDS];
byte next[BACKENDS];
bool called[BACKENDS];

bool latch[BACKENDS];

/* ---- Ghosts and budgets ---- */

byte holders;					/* backends whose slot counts, by their state */
byte resizing;					/* limits changed, the queue not yet told */
byte done;						/* processes at their end */
byte interrupts = INTERRUPTS;
byte looks = LOOKS;
#ifdef FOREVER
bool overdue;					/* 0 has waited for max_overtake */
byte coming = NOBODY;			/* the last heir, until it is awake */
#endif
#ifdef IDLE
byte idle;						/* backends whose clients say no more */
#endif
#ifdef HIDDEN
bool blocked;					/* 0 waits for 1 */
bool finished;					/* 1 is done */
#endif

#define IN_USE			(word & WORD_COUNT)
#define BIT(p)			(1 << (p))

/*
 * What every process needs for itself: an expected word and limit, the wake
 * list, what a function returns, what an exchange found, the heir.
 */
#define LOCALS \
	byte w; byte lim; byte wakes; bool ok; bool swapped; byte found; byte heir

#define WORDS_DONE		w = 0; lim = 0

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

/* ---- Helpers ---- */

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
inline count_up_if_free()
{
	w = word;
	do
	:: TEST_LIMIT(w & WORD_COUNT);
	   COUNT_UP
	od
}

/* become_holder() */
inline become_holder()
{
	state[me] = SLOT_RUNNING
}

/* list_append() */
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

/* list_remove().  Old links are wiped: fewer states. */
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

/* queue_append() */
inline queue_append(p)
{
	called[p] = false;
	list_append(queue, p);
	if
	:: watcher == NOBODY -> watcher = p; watcher_dozes = TURNS
	:: else
	fi
}

/* queue_remove(): the links, the flag, the watcher. */
inline queue_remove(p)
{
	d_step {
		assert(state[p] == SLOT_WAITING);
		list_remove(queue, p)
	};
	d_step {
		if
		:: queue.head == NOBODY && MUTANT != M_FLAG_STAYS ->
			word = word & ~WORD_WAITERS
		:: else
		fi
	};
	d_step {
		if
		:: watcher == p && MUTANT != M_DUTY_LOST ->
			watcher = queue.tail;
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

/* grant_to_head() */
inline grant_to_head()
{
	heir = queue.head;
	assert(state[heir] == SLOT_WAITING);
	queue_remove(heir);
	atomic {
		state[heir] = SLOT_RUNNING;
		wake_later(heir);
		heir = 0
	}
}

/* call_head_if_free(): looks at the word once. */
inline call_head_if_free()
{
	d_step {
		if
		:: queue.head != NOBODY && IN_USE < effective_limit && !called[queue.head] ->
			called[queue.head] = true;
			wake_later(queue.head)
		:: else
		fi
	}
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

/* resume_turn(): ok = goes on. */
inline resume_turn()
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

/* retain_slot(): retained_mine = done. */
inline retain_slot()
{
	if
	:: (word & WORD_WAITERS) ->
		SpinLockAcquire();
		if
		:: queue.head != NOBODY && IN_USE <= effective_limit ->
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
		:: queue.head == NOBODY || IN_USE > effective_limit
		fi;
		SpinLockRelease();
		wake_all()
	:: else
	fi
}

/* slots_try_take() */
inline slots_try_take()
{
	ok = false;
	if
	:: TURNS && retained_mine -> resume_turn()
	:: else
	fi;
	if
	:: ok
	:: else ->
		w = word;
		do
		:: TEST_LIMIT(w);
		   COUNT_UP
		od;
		if
		:: ok -> become_holder()
		:: else
		fi
	fi
}

/* slots_try_overtake() */
inline slots_try_overtake()
{
	if
	:: !OVERTAKING && (word & WORD_WAITERS) -> ok = false
	:: else ->
		count_up_if_free();
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
		count_up_if_free();
		if
		:: ok
		:: else -> atomic { word = word + 1; holders++ }
		fi;
		become_holder()
	fi
}

/* slots_enqueue(): ok = taken; else state[me] tells waiting from full. */
inline slots_enqueue()
{
	assert(state[me] == SLOT_NONE);
	SpinLockAcquire();
	if
	:: MUTANT != M_FLAG_LATE -> word = word | WORD_WAITERS
	:: else
	fi;
	if
	:: queue.head == NOBODY -> count_up_if_free()
	:: else -> ok = false
	fi;
	if
	:: MUTANT == M_FLAG_LATE -> word = word | WORD_WAITERS
	:: else
	fi;
	if
	:: ok
	:: !ok && queue.length >= MAX_QUEUE
	:: !ok && queue.length < MAX_QUEUE ->
		d_step {
			state[me] = SLOT_WAITING;
			queue_append(me)
		}
	fi;
	d_step {
		if
		:: queue.head == NOBODY && MUTANT != M_FLAG_STAYS ->
			word = word & ~WORD_WAITERS
		:: else
		fi
	};
	SpinLockRelease();
	if
	:: ok -> become_holder()
	:: else
	fi
}

/* slots_claim(): the look at the state, the look at the head, the mutex. */
inline slots_claim()
{
	if
	:: state[me] != SLOT_WAITING -> ok = true
	:: else ->
		if
		:: queue.head == me ->
			SpinLockAcquire();
			if
			:: state[me] != SLOT_WAITING -> ok = true
			:: else ->
				d_step {
					assert(queue.head == me);
					called[me] = (MUTANT == M_STILL_CALLED && called[me])
				};
				if
				:: MUTANT == M_CLAIM_UNCOUNTED && IN_USE < effective_limit ->
					atomic { ok = true; holders++ }
				:: else -> count_up_if_free()
				fi;
				if
				:: ok ->
					grant_to_head();
					wakes = wakes & ~BIT(me)
				:: else
				fi
			fi;
			if
			:: MUTANT != M_CLAIM_SILENTLY -> call_head_if_free()
			:: else
			fi;
			SpinLockRelease();
			wake_all()
		:: else -> ok = false
		fi
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
		state[me] = SLOT_NONE
	:: else
	fi;
	if
	:: MUTANT != M_LEAVE_SILENTLY -> call_head_if_free()
	:: else
	fi;
	SpinLockRelease();
	wake_all()
}

/*
 * Is it the head's turn to have the slot that is given back?  The one look at
 * the word decides; head and limit are stable under the mutex.  Without a clock,
 * an heir that is on its way is waited for, however long that takes.
 */
#define GRANTABLE \
	(queue.head != NOBODY && \
	 (IN_USE <= effective_limit || MUTANT == M_GRANT_ABOVE))

#ifdef FOREVER
#define IS_OVERDUE \
	(!OVERTAKING || \
	 (MUTANT != M_NEVER_OVERDUE && (queue.head != 0 || overdue) && coming == NOBODY))
#define NOT_OVERDUE		(!IS_OVERDUE)
#define IS_COMING(p)	coming = p
#define HAS_COME(p) \
	if \
	:: MUTANT != M_ALWAYS_COMING && coming == p -> coming = NOBODY \
	:: else \
	fi
#else
#define IS_OVERDUE		true	/* either, if overtaking is allowed */
#define NOT_OVERDUE		OVERTAKING
#define IS_COMING(p)	skip
#define HAS_COME(p)		skip
#endif

/* pass_slot_on() */
inline pass_slot_on(to_head)
{
	if
	:: atomic { GRANTABLE && (to_head || IS_OVERDUE) ->
				admitted(effective_limit); IS_COMING(queue.head) };
		grant_to_head()
	:: !GRANTABLE || (!(to_head) && NOT_OVERDUE) ->
		word = word - 1
	fi;
	if
	:: MUTANT != M_GIVE_BACK_SILENTLY -> call_head_if_free()
	:: else
	fi
}

/* free_slot() */
inline free_slot()
{
	atomic {
		w = word;
		assert((w & WORD_COUNT) > 0)
	};
	do
	:: (w & WORD_WAITERS) == 0 || MUTANT == M_GIVE_BACK_BLINDLY ->
		atomic {
			if
			:: word == w -> word = w - 1; ok = true; break
			:: else -> w = word
			fi
		}
	:: else -> ok = false; break
	od;
	w = 0;
	if
	:: ok
	:: else ->
		SpinLockAcquire();
		pass_slot_on(false);
		SpinLockRelease();
		wake_all()
	fi
}

/* drop_slot() */
inline drop_slot()
{
#if MUTANT == M_PLAIN_STORE
	atomic {
		found = state[me];
		if
		:: found == SLOT_RUNNING -> holders--
		:: else
		fi
	};
	state[me] = SLOT_NONE;
#else
	atomic {
		found = state[me];
		state[me] = SLOT_NONE;
		if
		:: found == SLOT_RUNNING -> holders--
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
	:: TURNS -> retain_slot()	/* the turn is not over */
	:: true
	fi;
	if
	:: retained_mine
	:: else -> drop_slot()
	fi
}

/* end_turn() */
inline end_turn(p)
{
	d_step {
		list_remove(retained, p);
		state[p] = SLOT_NONE;
		holders--
	};
	if
	:: MUTANT != M_TURN_LOST -> pass_slot_on(true)
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
			end_turn(oldest);
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
		:: ok -> end_turn(me)
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

/* ---- The pool ---- */

/* grant_one(): ok = granted. */
inline grant_one()
{
	SpinLockAcquire();
	if
	:: queue.head != NOBODY -> count_up_if_free()
	:: else -> ok = false
	fi;
	if
	:: ok ->
		grant_to_head();
		SpinLockRelease()
	:: else ->
		atomic { mutex = false; resizing-- }
	fi;
	wake_all()
}

/* slots_set_limit() */
inline slots_set_limit(limit)
{
	SpinLockAcquire();
	atomic {
		effective_limit = (limit > 0 -> limit : NO_LIMIT);
		resizing++
	};
	SpinLockRelease();
#if MUTANT == M_RAISE_SILENTLY
	resizing--;
#else
	do
	:: grant_one();
		if
		:: ok
		:: else -> break
		fi
	od
#endif
}

/* ---- Lending ---- */

/* slots_holder_waits(), for a wait that has lasted for lend_after. */
inline slots_holder_waits(p)
{
	SpinLockAcquire();
	atomic {
		swapped = (state[p] == SLOT_RUNNING);
		if
		:: swapped -> state[p] = SLOT_LENT; holders--
		:: else
		fi
	};
	if
	:: swapped ->
		d_step { lent++; word = word | WORD_LENDERS };
		atomic { word = word - 1; swapped = false }
	:: else
	fi;
	if
	:: MUTANT != M_LEND_SILENTLY -> call_head_if_free()
	:: else
	fi;
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
		swapped = false;
		SpinLockRelease()
#else
		if
		:: state[p] == SLOT_LENT ->
			word = word + 1;
			atomic {
				swapped = (state[p] == SLOT_LENT);
				if
				:: swapped -> state[p] = SLOT_RUNNING; holders++
				:: else
				fi
			};
			if
			:: swapped -> forget_lender()
			:: else -> word = word - 1
			fi;
			swapped = false
		:: else
		fi;
		call_head_if_free();
		SpinLockRelease();
		wake_all()
#endif
	fi
}

/* lending_look(), lending_recall(): does p wait?  Anything is possible. */
#ifdef HIDDEN
#define MAY_WAIT(p)		(p == 0 && blocked)
#define MAY_WORK(p)		(p != 0 || !blocked)
#else
#define MAY_WAIT(p)		true
#define MAY_WORK(p)		true
#endif

inline lending_look()
{
	other = 0;
	do
	:: other < BACKENDS ->
		if
		:: state[other] == SLOT_RUNNING && MAY_WAIT(other) ->
			slots_holder_waits(other)
		:: state[other] == SLOT_LENT && MAY_WORK(other) ->
			slots_holder_works(other)
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
			slots_holder_works(other)
		:: state[other] != SLOT_LENT || MAY_WAIT(other)
		fi;
		other++
	:: other == BACKENDS -> other = 0; break
	od
}

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

#define NEVER			0
#define LATER			1
#define NOW				2

/* watch() */
inline watch()
{
	if
	:: TURNS -> slots_end_idle_turns()
	:: else
	fi;
	if
	:: LENDING && next_look == NOW -> lending_look()
	:: else
	fi;
	next_look = (LENDING -> LATER : NEVER)
}

#define CALM			0
#define DISTURBED		1		/* an interrupt, harmless or not */
#define EXPIRED			2		/* queue_timeout, but granted meanwhile */

/* sleep_in_queue() and what wait_for_slot() does about errors: ok = granted. */
inline sleep_in_queue()
{
	do
	:: true ->
		if
		:: (LENDING || TURNS) && watcher == me -> watch()
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
		slots_claim();
		if
		:: MUTANT == M_RESET_LATE -> latch[me] = false
		:: else
		fi;
		if
		:: ok -> HAS_COME(me); break
		:: else
		fi;
		assert(mood != EXPIRED);

		/* CHECK_FOR_INTERRUPTS: an error leaves, and so does an exit */
		if
		:: mood == DISTURBED ->
			slots_leave_queue();
			if
			:: ok -> ok = false
			:: else -> slots_refuse_grant(); ok = false
			fi;
			break
		:: true
		fi
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
		slots_try_overtake();
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
	done++
}

/* Somebody who publishes a new limit: see publish_limit() in settings.c. */
proctype Resizer()
{
	LOCALS;

	slots_set_limit(RESIZE_1);
	slots_set_limit(RESIZE_2);
	done++
}

init
{
	byte i;

	atomic {
		do
		:: i < BACKENDS ->
			prev[i] = NOBODY;
			next[i] = NOBODY;
			run Backend(i);
			i++
		:: i == BACKENDS -> break
		od;
		i = 0;
		do
		:: i < RESIZERS -> run Resizer(); i++
		:: i == RESIZERS -> break
		od
	}
}

/* ---- Properties ---- */

#define WATCHED \
	(queue.head == NOBODY || (watcher != NOBODY && state[watcher] == SLOT_WAITING))
#define CALLED \
	(queue.head == NOBODY || IN_USE >= effective_limit || resizing > 0 || called[queue.head])
#define FLAGS_RIGHT \
	(((word & WORD_WAITERS) != 0) == (queue.head != NOBODY) && \
	 ((word & WORD_LENDERS) != 0) == (lent > 0))
#define ALL_COUNTED		(IN_USE >= holders)
#define CLEAN \
	(word == 0 && holders == 0 && lent == 0 && watcher == NOBODY && \
	 queue.head == NOBODY && queue.tail == NOBODY && queue.length == 0 && \
	 retained.head == NOBODY && retained.tail == NOBODY && retained.length == 0)

/* Sleeps until something is wrong, or all are done: then it looks about. */
active proctype monitor()
{
end:
	if
	:: atomic { !mutex && !WATCHED -> assert(WATCHED) }
	:: atomic { !mutex && !CALLED -> assert(CALLED) }
	:: atomic { !mutex && !FLAGS_RIGHT -> assert(FLAGS_RIGHT) }
	:: atomic { !ALL_COUNTED -> assert(ALL_COUNTED) }
	:: atomic { done == BACKENDS + RESIZERS -> assert(CLEAN) }
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

#ifdef HIDDEN
ltl finish { <> (done == BACKENDS) }
#endif
