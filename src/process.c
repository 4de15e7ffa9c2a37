/*-------------------------------------------------------------------------
 *
 * process.c
 *		What the kernel knows about another process: how much CPU time it has
 *		used, and whether it sleeps; and whether our client is still there.
 *
 * POSIX has a CPU-time clock for each process, which others read in well under
 * a microsecond, but not on macOS.  Only Linux tells whether a process sleeps,
 * in a file that takes some microseconds to read.
 *
 * A client that gives up and tries again leaves its first statement behind,
 * which PostgreSQL would run for nobody.  A queue makes this likely, so the
 * kernel watches the socket of a waiting backend, which ends as with
 * client_connection_check_interval.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"

#include "gate.h"

/* The CPU time (us) that this process has used */
uint64
own_cpu_time(void)
{
	return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

/* That of any process, or 0 if it is unknown */
uint64
process_cpu_time(int pid)
{
#if defined(_POSIX_CPUTIME) && _POSIX_CPUTIME >= 0
	clockid_t	clock;

	/* 0 would be the calling process */
	if (pid != 0 && clock_getcpuclockid(pid, &clock) == 0)
		return read_clock(clock);
#endif
	return 0;
}

int
usable_cpus(void)
{
#ifdef __linux__
	cpu_set_t	set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return CPU_COUNT(&set);
#endif
	return Max((int) sysconf(_SC_NPROCESSORS_ONLN), 1);
}

/*
 * Does a process sleep, or is it stopped?  Otherwise it runs, wants a CPU or
 * waits for a disk, or the kernel does not tell.
 */
bool
process_rests(int pid)
{
	char		path[64];
	char		line[256];
	ssize_t		length;
	const char *state;
	int			fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return false;
	length = read(fd, line, sizeof(line) - 1);
	close(fd);
	line[Max(length, 0)] = '\0';

	/* proc(5): it follows the name in parentheses, which may contain some. */
	state = strrchr(line, ')');
	return state != NULL && state[1] == ' ' && state[2] != '\0' && strchr("STt", state[2]) != NULL;
}

/* As in libpq/libpq.h, which needs GSSAPI headers that may be missing */
extern PGDLLIMPORT WaitEventSet *FeBeWaitSet;
#define SOCKET_IN_SET	0		/* FeBeWaitSetSocketPos */

/*
 * Sleep until the latch is set or timeout ms have passed, reset the latch, and
 * serve interrupts.  If there is a client and it hangs up, end this backend by
 * FATAL, where the platform can tell.
 */
void
wait_for_latch(long timeout, uint32 wait_event)
{
	WaitEvent	events[3];
	int			n;

	if (MyProcPort == NULL || FeBeWaitSet == NULL || !WaitEventSetCanReportClosed())
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, wait_event);
	else
	{
		/* Other waits for the socket set their events, too. */
		ModifyWaitEvent(FeBeWaitSet, SOCKET_IN_SET, WL_SOCKET_CLOSED, NULL);
		n = WaitEventSetWait(FeBeWaitSet, timeout, events, lengthof(events), wait_event);
		for (int i = 0; i < n; i++)
		{
			if (events[i].events & WL_POSTMASTER_DEATH)
				proc_exit(1);
			if (events[i].events & WL_SOCKET_CLOSED)
				ClientConnectionLost = InterruptPending = true;
		}
	}
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}
