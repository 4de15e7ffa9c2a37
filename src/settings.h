/*-------------------------------------------------------------------------
 *
 * settings.h
 *		The configuration parameters, as this backend sees them.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SETTINGS_H
#define ADMISSION_GATE_SETTINGS_H

#include "postgres.h"

#include "core/types.h"

typedef enum GateScope
{
	SCOPE_TRANSACTION,
	SCOPE_STATEMENT
} GateScope;

typedef enum GateMode
{
	GATE_MODE_ENFORCE,
	GATE_MODE_OBSERVE
} GateMode;

/*
 * This backend's copies, constant while a command runs unless the command
 * itself sets them: a backend rereads the configuration only between two
 * commands.  A backend that waits goes by those in shared memory.
 */
extern int	gate_max_active_backends;	/* backends; 0 = no limit, -1 = finds
										 * itself; also in shared memory */
extern int	gate_scope;			/* GateScope */
extern int	gate_queue_timeout; /* ms; 0 = wait forever */
extern int	gate_max_queue_length;	/* waiters; -1 = unlimited */
extern bool gate_utility;
extern int	gate_handoff_after; /* ms; 0 = strictly first come; also in shared
								 * memory */
extern int	gate_long_after;	/* ms of CPU time; -1 = never; also in shared
								 * memory */
extern int	gate_log_min_wait;	/* ms; -1 = log none */
extern int	gate_mode;			/* GateMode; also in shared memory */
extern const PoolDefinitions *gate_pools;	/* also in shared memory */
extern int	gate_lend_after;	/* ms; -1 = never; also in shared memory */
extern bool gate_hot_spots;		/* also in shared memory */

extern bool xact_predates_gate(void);
extern void settings_define(void);

#endif							/* ADMISSION_GATE_SETTINGS_H */
