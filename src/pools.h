/*-------------------------------------------------------------------------
 *
 * pools.h
 *		The list of pools, as written in a configuration file.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_POOLS_H
#define ADMISSION_GATE_POOLS_H

#include "postgres.h"

#include "utils/guc.h"

/* How many pools there can be, the default pool included. */
#define POOLS_MAX			32

#define POOLS_DEFAULT_NAME	"default"

/* max_queue_length of a pool that goes by the setting for all. */
#define POOLS_QUEUE_LENGTH_UNSET	(-2)

typedef struct PoolDefinition
{
	char		name[NAMEDATALEN];	/* in lower case */
	int			max_active;		/* slots; 0 = no limit of its own */
	int			priority;		/* higher ones first */
	int			max_queue_length;	/* waiters; -1 = unlimited, or unset */
	int			queue_timeout;	/* ms; 0 = none of its own */
} PoolDefinition;

typedef struct PoolDefinitions
{
	int			n;
	PoolDefinition pools[POOLS_MAX];	/* the first is the default pool */
} PoolDefinitions;

extern bool pools_check(char **newval, void **extra, GucSource source);
extern void pools_fold_name(char *name, const char *original);
extern const PoolDefinition *pools_find(const PoolDefinitions *definitions,
										const char *name);

#endif							/* ADMISSION_GATE_POOLS_H */
