/*-------------------------------------------------------------------------
 *
 * limit_law.h
 *		The law of the limit: how many slots to give out, by what holders do.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LIMIT_LAW_H
#define ADMISSION_GATE_LIMIT_LAW_H

#include "postgres.h"

/*
 * The limit is never lowered below this: so few holders do not hinder each
 * other, and while a newly admitted one waits for a CPU, the others work.
 */
#define LIMIT_LEAST_SLOTS	4

/* Why the limit is what it is */
typedef enum LimitReason
{
	LIMIT_OPEN,					/* no contention since the limit was set */
	LIMIT_CONTENTION,			/* too many holders wait for each other */
	LIMIT_RELIEF,				/* after that, few of them do */
	LIMIT_NO_WAITER,			/* after that, no waiter could have a free
								 * slot */
	LIMIT_NO_GAIN				/* fewer slots got less done */
} LimitReason;

/* What a look at the holders found */
typedef struct LimitSight
{
	int64		now;			/* us */
	uint32		in_use;			/* slots */
	uint32		working;		/* holders that work or wait for each other */
	uint32		blocked;		/* of these, those that wait */
	uint32		stuck;			/* holders that wait for a lock that does not
								 * move */
	uint32		completed;		/* transactions so far, modulo 2^32 */
} LimitSight;

/* What the law remembers; times in us */
typedef struct LimitLaw
{
	uint32		most;			/* slots: the limit as set, or one per backend
								 * if it finds itself */
	bool		finds_itself;
	uint32		open_limit;		/* slots to give out while there is no
								 * contention */
	LimitSight	seen;			/* working and blocked, added up over the
								 * looks since now, for the next step */
	double		peak;			/* the most slots in use of late without
								 * contention */
	uint32		limit;			/* slots to give out */
	LimitReason reason;
	int64		since;			/* when the reason became this one */
	LimitSight	last;			/* the last look; now = 0: none yet */

	int64		evidence;		/* how long there has been contention */
	bool		is_counting;	/* completed transactions are counted */
	int64		count_start;	/* since then */
	uint32		count_completed;	/* how many there were then */
	double		open_rate;		/* completed per second before the limit was
								 * lowered; 0 = unknown */
	double		closed_rate;	/* the same since then; 0 = unknown */
	bool		on_trial;		/* it is not known yet whether fewer slots get
								 * more done */
	bool		at_bottom;		/* the limit is low enough: completed
								 * transactions are judged */
	int64		trusted_until;	/* until then, fewer slots are known to be a
								 * gain */
	int64		backoff_until;	/* until then, they are known to be a loss */
	int64		backoff;		/* how long that is believed next time */
	int64		patient_until;	/* until then, a crowd is no reason to hurry */
} LimitLaw;

extern void limit_law_init(LimitLaw *state, uint32 most, bool finds_itself, int64 now);
extern bool limit_law_look(LimitLaw *state, const LimitSight *sight);
extern void limit_law_no_waiter(LimitLaw *state, int64 now);

#endif							/* ADMISSION_GATE_LIMIT_LAW_H */
