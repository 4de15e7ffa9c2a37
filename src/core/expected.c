/*-------------------------------------------------------------------------
 *
 * expected.c
 *		How much CPU time a statement will probably use.
 *
 * A table of fixed size remembers what statements have used, by a key that
 * src/long_statements.c makes of them: a moving mean of the logarithm, which
 * one odd run spoils least.  A key has its place in a set of a few entries, and
 * a new one replaces the one of its set that was not looked at for the longest
 * time.
 *
 * What is not known is the planner's cost times what a unit of it has used
 * lately: a mean of the same kind, of statements when they were new, so that
 * one that often runs does not count more than another.
 *
 * Where the cost of a statement promises so little that nobody looks it up, but
 * the worker finds it at work for long, that is a surprise: its query has a bit,
 * and is looked up from then on.  Queries may share a bit.
 *
 * Locking: see slots_internal.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "core/slots_internal.h"

#define SET_SIZE		4		/* entries where a key may be */
#define WEIGHT			(1.0F / 3)	/* of the last run */
#define COST_WEIGHT		(1.0F / 16) /* of one statement for us_per_cost */
#define MOST_OFF		3.3F	/* us_per_cost: log2 of a factor of 10 */

const volatile float *slots_us_per_cost = NULL;
pg_atomic_uint32 *slots_surprises = NULL;

/*
 * The entry with that key, which counts as looked at, or else the oldest of its
 * set.  known.mutex held.
 */
static KnownStatement *
find(uint64 key)
{
	KnownStatement *set = &Slots->known.statements[key % (KNOWN_STATEMENTS / SET_SIZE) * SET_SIZE];
	KnownStatement *oldest = set;

	for (KnownStatement *one = set; one < set + SET_SIZE; one++)
	{
		if (one->key == key)
		{
			one->seen = ++Slots->known.seen;
			return one;
		}
		if ((int32) (one->seen - oldest->seen) < 0 || one->key == 0)
			oldest = one;
	}
	return oldest;
}

/* A statement with this key and cost is about to run.  Returns us. */
uint64
slots_expect(uint64 key, double cost)
{
	KnownStatement known;

	SpinLockAcquire(&Slots->known.mutex);
	known = *find(key);
	SpinLockRelease(&Slots->known.mutex);
	return known.key == key ? exp2(known.used) : Min(cost * *slots_us_per_cost, 1e15);
}

/* It has used so much, us. */
void
slots_learn(uint64 key, double cost, uint64 used)
{
	float		log_used = log2(Max(used, 1));
	float		per_cost = log_used - log2(Max(cost, 1) * FIRST_US_PER_COST);
	KnownStatement *known;
	bool		is_new;

	per_cost = Min(Max(per_cost, -MOST_OFF), MOST_OFF);
	SpinLockAcquire(&Slots->known.mutex);
	known = find(key);
	is_new = known->key != key;
	if (is_new)
	{
		known->key = key;
		known->used = log_used;
		known->seen = ++Slots->known.seen;
		Slots->known.per_cost += (per_cost - Slots->known.per_cost) * COST_WEIGHT;
	}
	else
		known->used += (log_used - known->used) * WEIGHT;
	per_cost = Slots->known.per_cost;
	SpinLockRelease(&Slots->known.mutex);
	/* Another one may set it at the same time: it differs by little. */
	if (is_new)
		Slots->us_per_cost = FIRST_US_PER_COST * exp2(per_cost);
}

/* ---- Surprises ---- */

/*
 * Has a sample found this backend at work for long?  Returns since when it has
 * had its slot, or 0.  From now on, only later samples count.
 */
TimestampTz
slots_seemed_long(void)
{
	SlotEntry  *me = MySlotEntry;

	if (me == NULL || !me->seems_long)
		return 0;
	me->seems_long = false;
	return pg_atomic_read_u64(&me->since);
}

void
slots_note_surprise(uint64 query)
{
	pg_atomic_fetch_or_u32(&Slots->surprises[query / 32 % (SURPRISES / 32)], 1U << query % 32);
}

/* ---- Parallel workers ---- */

/* A process has worked for this backend, which learns by slots_workers_time(). */
void
slots_add_workers_time(int procno, uint64 used)
{
	pg_atomic_fetch_add_u64(&entry_of(procno)->workers_time, used);
}

/* What they have used since this was last called, us */
uint64
slots_workers_time(void)
{
	return pg_atomic_exchange_u64(&MySlotEntry->workers_time, 0);
}
