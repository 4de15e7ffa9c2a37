/*-------------------------------------------------------------------------
 *
 * limit_law.h
 *		How many slots to give out, by what the holders are seen to do.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LIMIT_LAW_H
#define ADMISSION_GATE_LIMIT_LAW_H

#include "postgres.h"

/*
 * As many slots are given out in any case: so few are not in each other's way, and the
 * next are there already while one that is let in has yet to be given a CPU.
 */
#define LIMIT_LEAST_SLOTS	4

/* Why as many slots are given out as are. */
typedef enum LimitReason
{
	LIMIT_OPEN,					/* nothing speaks against giving out all */
	LIMIT_CONTENTION,			/* most holders wait for each other */
	LIMIT_RELIEF,				/* fewer did, after that */
	LIMIT_NO_WAITER,			/* the queue was empty, after that */
	LIMIT_NO_GAIN				/* less work was done with fewer slots */
} LimitReason;

/* What a look at the holders found. */
typedef struct LimitSight
{
	int64		now;			/* us */
	uint32		most;			/* slots: the limit as set, or one for each
								 * backend there can be */
	uint32		in_use;			/* slots */
	uint32		working;		/* holders that do something, or wait for each
								 * other */
	uint32		blocked;		/* those of them that wait for each other */
	uint32		completed;		/* transactions so far, modulo 2^32 */
} LimitSight;

/* What the law remembers.  All times in us. */
typedef struct LimitLaw
{
	uint32		limit;			/* slots to give out */
	LimitReason reason;
	int64		since;			/* when the reason became so */
	LimitSight	last;			/* the last look */

	int64		evidence;		/* for how long there has been contention */
	bool		is_counting;	/* completed ones: */
	int64		count_start;	/* since then */
	uint32		count_completed;	/* and were that many at that time */
	double		open_rate;		/* completed per second before the limit was
								 * lowered, 0 if not known */
	double		closed_rate;	/* and while it was, 0 likewise */
	bool		on_trial;		/* it has yet to be seen whether fewer slots
								 * get more done */
	bool		at_bottom;		/* the limit has come down as far as it goes:
								 * what is completed is counted */
	int64		trusted_until;	/* until then it is known that they do */
	int64		barred_until;	/* until then, that they do not */
	int64		bar;			/* for how long that is believed next time */
} LimitLaw;

extern void limit_law_init(LimitLaw *state, uint32 most, int64 now);
extern bool limit_law_look(LimitLaw *state, const LimitSight *sight);
extern void limit_law_no_waiter(LimitLaw *state, uint32 most, int64 now);

#endif							/* ADMISSION_GATE_LIMIT_LAW_H */
