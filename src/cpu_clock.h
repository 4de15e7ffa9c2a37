/*-------------------------------------------------------------------------
 *
 * cpu_clock.h
 *		How much CPU time another process has used.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_CPU_CLOCK_H
#define ADMISSION_GATE_CPU_CLOCK_H

#include "postgres.h"

extern bool cpu_clock_read(int pid, uint64 *used);

#endif							/* ADMISSION_GATE_CPU_CLOCK_H */
