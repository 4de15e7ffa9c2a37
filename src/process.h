/*-------------------------------------------------------------------------
 *
 * process.h
 *		What the kernel tells of another process.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_PROCESS_H
#define ADMISSION_GATE_PROCESS_H

#include "postgres.h"

/* Is a process at rest? */
typedef enum ProcessRest
{
	PROCESS_RESTS,				/* sleeps, or is stopped */
	PROCESS_WORKS,				/* runs, wants a CPU, or waits for a disk */
	PROCESS_REST_UNKNOWN
} ProcessRest;

extern bool process_cpu_time(int pid, uint64 *used);
extern ProcessRest process_rest(int pid);

#endif							/* ADMISSION_GATE_PROCESS_H */
