/*-------------------------------------------------------------------------
 *
 * cpu_clock.c
 *		How much CPU time another process has used.
 *
 * POSIX has a clock for each process, which others may read; it costs two system
 * calls and well under a microsecond.  Where there is none, as on macOS, nobody
 * knows.
 *
 * No locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>
#include <unistd.h>

#include "cpu_clock.h"

#if defined(_POSIX_CPUTIME) && _POSIX_CPUTIME >= 0
#define HAVE_CPU_CLOCK
#endif

/*
 * Read the CPU time (us) that a process has used in its life.  Returns false if it
 * cannot be known: there are no such clocks, or no such process.
 */
bool
cpu_clock_read(int pid, uint64 *used)
{
#ifdef HAVE_CPU_CLOCK
	clockid_t	clock;
	struct timespec time;

	/* 0 would be the process that asks */
	if (pid != 0 &&
		clock_getcpuclockid(pid, &clock) == 0 &&
		clock_gettime(clock, &time) == 0)
	{
		*used = (uint64) time.tv_sec * 1000000 + time.tv_nsec / 1000;
		return true;
	}
#endif
	return false;
}
