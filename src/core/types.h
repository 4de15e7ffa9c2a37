/*-------------------------------------------------------------------------
 *
 * types.h
 *		What the interfaces of the core are made of.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_TYPES_H
#define ADMISSION_GATE_TYPES_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "port/atomics.h"


/* A variable of the hot path that other files see, but no other library. */
#define GATE_HIDDEN __attribute__((visibility("hidden")))

/* What one backend is to the semaphore. */
typedef enum SlotState
{
	SLOT_NONE,					/* neither holds nor wants a slot */
	SLOT_WAITING,				/* is in a queue */
	SLOT_RUNNING,				/* holds a slot */
	SLOT_LENT,					/* holds a slot on paper; it counts as free */
	SLOT_LONG,					/* runs a long statement, without a slot */
	SLOT_PAUSED					/* the same, while it pauses: for the views */
} SlotState;

/* How many pools can be defined, the default pool included. */
#define POOLS_MAX			32

/*
 * Pools that can be there at the same time: more than can be defined, as a pool
 * that was removed is there as long as backends of it are at work.
 */
#define SLOTS_MAX_POOLS		(2 * POOLS_MAX)

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

/* Totals kept by each backend for itself, without any lock */
typedef enum OwnTotal
{
	TOTAL_ADMITTED,
	TOTAL_COMPLETED,
	TOTAL_FAILED,
	TOTAL_BARGED,
	TOTAL_FORCED,
	TOTAL_WAIT_TIME,			/* us */
	OWN_TOTALS
} OwnTotal;

/* Totals kept in the pool */
typedef enum PoolTotal
{
	TOTAL_QUEUED,
	TOTAL_WOULD_QUEUE,
	TOTAL_LENDS,
	TOTAL_STALLS,
	TOTAL_TIMEOUTS,
	TOTAL_REJECTIONS,
	TOTAL_CANCELS,
	TOTAL_DEMOTIONS,
	POOL_TOTALS
} PoolTotal;

/*
 * The histogram of waits: the first bucket has those of less than 1 ms, each
 * next one ends at twice the time of the one before, the last has no end.
 */
#define SLOTS_WAIT_BUCKETS	24

/*
 * Time of the last look at the holders, and the interval between looks while no backend
 * waits
 */
typedef struct SlotLook
{
	pg_atomic_uint64 seen;		/* TimestampTz; written by the one that looks */
	pg_atomic_uint64 interval;	/* us, and SLOTS_LOOK_SLACK more; the lock to
								 * change */
} SlotLook;

/*
 * Statements that began up to this long (us) before the last look need not take another; a
 * larger difference means that the clock was set back
 */
#define SLOTS_LOOK_SLACK	INT64CONST(1000000)

#endif							/* ADMISSION_GATE_TYPES_H */
