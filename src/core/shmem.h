/*-------------------------------------------------------------------------
 *
 * shmem.h
 *		Creates the semaphore.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SHMEM_H
#define ADMISSION_GATE_SHMEM_H

#include "postgres.h"

#include "core/types.h"

/* What is set when the server starts; later each has a function of its own. */
typedef struct SlotsSettings
{
	int			limit;			/* slots, 0 = off, -1 = only those of hot
								 * spots */
	bool		observing;		/* the limit is not enforced */
	const PoolDefinitions *pools;
	int			handoff_after;	/* ms, 0 = strictly first come */
	int			lend_after;		/* ms, -1 = never */
	int			long_after;		/* ms of CPU time, -1 = never */
	bool		hot_spots;
} SlotsSettings;

extern void slots_shmem_request(void);
extern void slots_shmem_init(const SlotsSettings *settings);

#endif							/* ADMISSION_GATE_SHMEM_H */
