/*-------------------------------------------------------------------------
 *
 * limit_control.h
 *		How many of the contenders of a hot spot are at work at a time.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LIMIT_CONTROL_H
#define ADMISSION_GATE_LIMIT_CONTROL_H

#include "postgres.h"

#define LIMIT_OPEN		PG_UINT32_MAX	/* the limit while there is none */

/* What one sample of the contenders found */
typedef struct LoadSample
{
	int64		now;			/* us */
	uint32		contenders;		/* all, at work or waiting in the queue */
	uint32		in_use;			/* those that have a place */
	uint32		working;		/* that work, rest or wait for each other */
	uint32		blocked;		/* of these, those that wait */
	uint32		slow;			/* of these, those that have waited for long */
	uint32		waiting;		/* those in the queue */
	uint32		completed;		/* transactions so far, modulo 2^32 */
} LoadSample;

/* What the control remembers; times in us */
typedef struct LimitControl
{
	uint32		limit;			/* places, or LIMIT_OPEN */
	bool		hurries;		/* a blocked crowd is evidence enough soon */
	LoadSample	last;			/* the last sample */
	LoadSample	seen;			/* sums since its now, for the next step */
	int64		contended_for;	/* how long there has been contention; 0 =
								 * completed transactions are not counted */
	int64		moved;			/* when one was completed, or a contender was
								 * not blocked */
	int64		quiet;			/* how long nobody has waited in the queue */
	int64		count_start;	/* since when completed ones are counted */
	uint32		count_completed;	/* how many there were then */
	double		open_rate;		/* per second before the limit; 0 = unknown */
	double		limited_rate;	/* the same since then; 0 = unknown */
	bool		has_settled;	/* few are blocked now: the rate is judged */
	int64		open_until;		/* fewer places are known to be a loss */
	int64		open_for;		/* how long that is believed next time */
	int64		changed;		/* when the limit became what it is */
	int64		halved_until;	/* after a standstill: it is not raised before */
	int64		halved_for;		/* how long it is not next time */
} LimitControl;

extern void limit_control_init(LimitControl *control, bool hurries, int64 now);
extern bool limit_control_is_held_down(const LimitControl *control, int64 now);
extern void limit_control_sample(LimitControl *control, const LoadSample *sample);

#endif							/* ADMISSION_GATE_LIMIT_CONTROL_H */
