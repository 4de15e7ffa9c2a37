/*-------------------------------------------------------------------------
 *
 * pools.h
 *		Which pools there are, and which one a backend belongs to.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_POOLS_H
#define ADMISSION_GATE_POOLS_H

#include "postgres.h"

#include "core/types.h"

/* What this backend knows of its pool, as of that generation. */
typedef struct MyPool
{
	uint32		generation;
	bool		has_limit;
	int			priority;
} MyPool;

extern GATE_HIDDEN MyPool my_pool;

extern void pools_fold_name(char *name, const char *original);
extern const PoolDefinition *pools_find(const PoolDefinitions *definitions,
										const char *name);

extern void slots_init_pools(const PoolDefinitions *definitions);
extern void slots_set_pools(const PoolDefinitions *definitions);
extern void slots_choose_pool(const char *name);
extern void slots_join_pool(void);
extern const char *slots_pool_name(void);
extern int	slots_pool_queue_timeout(void);
extern bool slots_pool_has_queue_length(void);

#endif							/* ADMISSION_GATE_POOLS_H */
