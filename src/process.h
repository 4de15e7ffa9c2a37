/*-------------------------------------------------------------------------
 *
 * process.h
 *		What the kernel and PostgreSQL tell about another process.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_PROCESS_H
#define ADMISSION_GATE_PROCESS_H

#include "postgres.h"

#include "storage/proc.h"
#include "utils/wait_event.h"

/* The class of a wait event in PGPROC.wait_event_info */
#define WAIT_CLASS_MASK		0xFF000000

/* What a backend waits for now, 0 if for nothing.  A hint, no lock. */
static inline uint32
wait_event_of(const PGPROC *proc)
{
	return *(const volatile uint32 *) &proc->wait_event_info;
}

/*
 * Is this a wait for the outside: a client, a timer or whatever an extension
 * waits for?
 */
static inline bool
is_idle_wait(uint32 event)
{
	uint32		wait_class = event & WAIT_CLASS_MASK;

	return wait_class == PG_WAIT_CLIENT || wait_class == PG_WAIT_TIMEOUT ||
		wait_class == PG_WAIT_EXTENSION;
}

/* The same, or for a heavyweight lock? */
static inline bool
is_idle_or_lock_wait(uint32 event)
{
	return is_idle_wait(event) || (event & WAIT_CLASS_MASK) == PG_WAIT_LOCK;
}

/* Is a process at rest? */
typedef enum ProcessRest
{
	PROCESS_RESTS,				/* sleeps or is stopped */
	PROCESS_WORKS,				/* runs, wants a CPU, or waits for a disk */
	PROCESS_REST_UNKNOWN
} ProcessRest;

extern bool process_cpu_time(int pid, uint64 *used);
extern int	usable_cpus(void);
extern ProcessRest process_rest(int pid);

#endif							/* ADMISSION_GATE_PROCESS_H */
