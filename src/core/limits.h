/*-------------------------------------------------------------------------
 *
 * limits.h
 *		Sets what holds for all pools.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LIMITS_H
#define ADMISSION_GATE_LIMITS_H

#include "postgres.h"

/* The most slots a limit can name: PostgreSQL's own bound on backends. */
#define SLOTS_MAX_LIMIT		0x3FFFF

extern void slots_set_limit(int limit);
extern void slots_set_observing(bool observing);
extern void slots_set_handoff_after(int handoff_after);

#endif							/* ADMISSION_GATE_LIMITS_H */
