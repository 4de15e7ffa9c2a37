/*-------------------------------------------------------------------------
 *
 * lending.h
 *		Which holder of a slot waits for what, and since when.
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

/* The bit of an event's class in the set that lend_on names. */
#define WAIT_CLASS_BIT(wait_event_info) \
	(((uint32) 1) << (((wait_event_info) >> 24) & 0x1F))

/* What a backend waits for now.  No lock. */
static inline uint32
wait_event_of(const PGPROC *proc)
{
	return *(const volatile uint32 *) &proc->wait_event_info;
}

extern long lending_interval(void);
extern void lending_look(void);
extern void lending_recall(void);

#endif							/* ADMISSION_GATE_LENDING_H */
