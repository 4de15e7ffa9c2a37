/*-------------------------------------------------------------------------
 *
 * cpu_control.c
 *		How many backends work at a time while CPUs are short.
 *
 * If each client allows a statement only so much time, a server that starts
 * all of them at once may end none in time.  There is a limit only while there
 * is evidence of that: statements that were admitted, but ended by a time-out.
 * Patient clients share the CPUs.
 *
 *	 - There is evidence if at least MIN_OVERDUE statements ended so lately, and
 *	   more than one of OVERDUE_PART so, or when its time was nearly used up: its
 *	   client, whose clock started earlier, may have it too late.  It counts
 *	   anew when the limit changes.
 *	 - With evidence, and while more than CROWD processes want each CPU, there
 *	   is a limit: a quarter less, but at most FIRST_LIMIT for each CPU.
 *	 - With evidence against the limit, it falls by a quarter, but not below
 *	   the number of CPUs.
 *	 - It rises by one for each CPU while CPUs are idle beside waiters.
 *	 - It also rises so after BELIEVED without evidence: those that wait may be
 *	   patient.  When evidence comes back, it falls to where it was, which is
 *	   believed twice as long, up to MAX_BELIEVED.
 *	 - It ends when nobody has waited, and no more than the limit have wanted a
 *	   CPU, for OPEN_AFTER.
 *
 * This file knows nothing of shared memory, locks, processes or clocks.
 * test/simulator tries it on loads; each constant has one there that fails if
 * it is clearly wrong.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots.h"

#define MS				INT64CONST(1000)
#define SECOND			(1000 * MS)

#define PERIOD			(300 * MS)	/* from one step to the next */
#define FADE			0.75	/* this part of what was counted remains */

#define MIN_OVERDUE		3
#define OVERDUE_PART	10
#define CROWD			4
#define FIRST_LIMIT		8		/* for each CPU: with fewer, they idle between
								 * two */
#define BUSY			0.9		/* part of the CPUs */

#define OPEN_AFTER		(3 * SECOND)
#define BELIEVED		(10 * SECOND)
#define MAX_BELIEVED	(640 * SECOND)

/* Count evidence anew. */
static void
set_limit(CpuControl *control, uint32 limit)
{
	control->limit = limit;
	control->overdue = control->nearly = control->completed = 0;
}

/* A quarter less, but at least one for each CPU */
static uint32
lower(uint32 limit, uint32 cpus)
{
	return Max(limit - Max(limit / 4, 1), cpus);
}

/*
 * A period has passed, in which so many wanted a CPU on the average, and this
 * part of the CPUs was in use.
 */
static void
step(CpuControl *control, const CpuSample *sample, double wanting, double in_use)
{
	uint32		cpus = sample->cpus;
	bool		evidence = control->overdue >= MIN_OVERDUE &&
	(control->overdue + control->nearly) * OVERDUE_PART > control->completed;

	if (sample->waits || wanting > control->limit)
		control->needed = sample->now;
	if (control->limit == 0)
	{
		if (!evidence || wanting <= CROWD * cpus)
			return;
		set_limit(control, Min(FIRST_LIMIT * cpus, lower((uint32) wanting, cpus)));
		control->kept = 0;
		control->calm_since = sample->now;
		control->believed_for = BELIEVED;
	}
	else if (sample->is_dry)
	{
		set_limit(control, control->limit);
		control->needed = sample->now;
	}
	else if (sample->now - control->needed >= OPEN_AFTER)
		set_limit(control, 0);
	else if (in_use < BUSY)
	{
		if (sample->waits)
			set_limit(control, control->limit + cpus);
	}
	else if (evidence)
	{
		control->believed_for = control->kept > 0 ? Min(2 * control->believed_for, MAX_BELIEVED) : BELIEVED;
		set_limit(control, control->kept > 0 ? control->kept : lower(control->limit, cpus));
		control->kept = 0;
		control->calm_since = sample->now;
	}
	else if (sample->waits && sample->now - control->calm_since >= control->believed_for)
	{
		if (control->kept == 0)
			control->kept = control->limit;
		set_limit(control, control->limit + cpus);
	}
}

/* Has the period passed?  Then all of the sample must be known. */
bool
cpu_control_is_due(const CpuControl *control, int64 now)
{
	return now - control->began >= PERIOD;
}

/* Adapt control->limit to a sample. */
void
cpu_control_sample(CpuControl *control, const CpuSample *sample)
{
	control->wanting += sample->wanting;
	control->in_use += Min(sample->wanting, sample->cpus);
	control->samples++;
	if (!cpu_control_is_due(control, sample->now))
		return;

	control->overdue = FADE * control->overdue + (uint32) (sample->overdue - control->last.overdue);
	control->nearly = FADE * control->nearly + (uint32) (sample->nearly - control->last.nearly);
	control->completed = FADE * control->completed + (sample->completed - control->last.completed);
	if (control->began > 0)
		step(control, sample, (double) control->wanting / control->samples,
			 (double) control->in_use / control->samples / sample->cpus);
	else
		set_limit(control, 0);
	control->last = *sample;
	control->began = sample->now;
	control->wanting = control->in_use = control->samples = 0;
}
