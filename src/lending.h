/*-------------------------------------------------------------------------
 *
 * lending.h
 *		Which holder of a slot does nothing, and since when.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LENDING_H
#define ADMISSION_GATE_LENDING_H

#include "storage/proc.h"

/* Wait events as PGPROC.wait_event_info has them. */
#define WAIT_CLASS_MASK		0xFF000000

/* What a backend waits for now.  No lock. */
static inline uint32
wait_event_of(const PGPROC *proc)
{
	return *(const volatile uint32 *) &proc->wait_event_info;
}

extern long lending_interval(void);
extern void lending_watch(void);
extern void lending_recall(void);

#endif							/* ADMISSION_GATE_LENDING_H */
