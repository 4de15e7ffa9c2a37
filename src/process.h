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

/* The class of a wait event in PGPROC.wait_event_info */
#define WAIT_CLASS_MASK		0xFF000000

/* What a backend waits for now, 0 if for nothing.  A hint, no lock. */
static inline uint32
wait_event_of(const PGPROC *proc)
{
	return *(const volatile uint32 *) &proc->wait_event_info;
}

/* Is a process at rest? */
typedef enum ProcessRest
{
	PROCESS_RESTS,				/* sleeps or is stopped */
	PROCESS_WORKS,				/* runs, wants a CPU, or waits for a disk */
	PROCESS_REST_UNKNOWN
} ProcessRest;

extern bool process_cpu_time(int pid, uint64 *used);
extern ProcessRest process_rest(int pid);

#endif							/* ADMISSION_GATE_PROCESS_H */
