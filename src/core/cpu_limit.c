/*-------------------------------------------------------------------------
 *
 * cpu_limit.c
 *		The limit of backends at work while the setting is -1 and CPUs are short.
 *
 * The worker finds it from its samples (cpu_control.c), and logs when it begins
 * and ends.  What began before it is not counted (acquire.c), and is at work
 * beside those that the limit allows until it ends.  If a time-out ends that,
 * it is no evidence against the limit.
 *
 * Locking: see slots_internal.h.  The control is local to the worker.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/slots_internal.h"

/* Let so many work; 0 = any number.  slots_adapt_to_work() is next. */
static void
set_limit(uint32 limit, const CpuSample *sample)
{
	uint32		old = Slots->cpu_limit;

	if (limit == old)
		return;
	slots_lock();
	Slots->cpu_limit = limit;
	if (old == 0)
		Slots->cpu_limit_since = Slots->timestamp;
	slots_set_max_active();
	slots_unlock();
	if (limit == 0)
		slots_grant_free();

	if (Slots->settings.log_min_wait < 0)
		return;
	if (old == 0)
		ereport(LOG,
				(errmsg("admission limit began: %u backends at work, as time-outs end statements, and %u processes want %u CPUs",
						limit, sample->wanting, sample->cpus)));
	else if (limit == 0)
		ereport(LOG,
				(errmsg("admission limit ended after %.1f s",
						(GetCurrentTimestamp() - Slots->cpu_limit_since) / 1e6)));
}

/*
 * A sample is complete, in which that many processes used a CPU or waited for
 * one: adapt the limit.
 */
void
slots_adapt_cpu_limit(int wanting, uint64 now)
{
	static CpuControl control;
	CpuSample	sample = {.now = now,.cpus = Max(Slots->cpus, 1),.wanting = wanting};

	if (Slots->settings.max_active != -1)
	{
		memset(&control, 0, sizeof(control));
		return;
	}
	/* The gate was off meanwhile, and no sample taken. */
	if (control.limit != Slots->cpu_limit)
		memset(&control, 0, sizeof(control));
	sample.waits = waiters_flag_is_set();
	sample.is_dry = Slots->settings.observing && slots_in_use() > control.limit;
	if (cpu_control_is_due(&control, now))
	{
		sample.completed = slots_sum_total(TOTAL_COMPLETED);
		sample.overdue = pg_atomic_read_u32(&Slots->overdue);
		sample.nearly = pg_atomic_read_u32(&Slots->nearly_overdue);
	}
	cpu_control_sample(&control, &sample);
	set_limit(control.limit, &sample);
}
