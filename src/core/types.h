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
#include "portability/instr_time.h"

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
 * Pools that can be there at the same time: more than can be defined, as a
 * pool that was removed is there as long as backends of it are at work.
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

/* How many hot spots there can be */
#define MAX_HOT_SPOTS		32

/* What backends contend for */
typedef enum HotSpotKind
{
	HOT_SPOT_NONE,
	HOT_SPOT_RELATION,			/* its rows, its pages or itself */
	HOT_SPOT_ADVISORY,			/* an advisory lock */
	HOT_SPOT_OBJECT,			/* another object of a database */
	HOT_SPOT_LWLOCK,			/* a lock inside the server */
	HOT_SPOT_TRANSACTION		/* the ends of other transactions */
} HotSpotKind;

/* Fields that a kind does not use are 0. */
typedef struct HotSpotKey
{
	HotSpotKind kind;
	Oid			database;
	uint32		fields[3];		/* as in LOCKTAG, from field2 on; or the wait
								 * event of a lock inside the server */
} HotSpotKey;

/*
 * Time of the last sample of the backends, and the interval between samples
 * while no backend waits
 */
typedef struct SampleTime
{
	pg_atomic_uint64 taken;		/* TimestampTz; written by the one that
								 * samples */
	pg_atomic_uint64 claimed;	/* the same by monotonic_us() */
	pg_atomic_uint64 interval;	/* us, and SAMPLE_SLACK more; the lock to
								 * change */
} SampleTime;

/*
 * Statements that began up to this long (us) before the last sample need not
 * take another; a larger difference means that the clock was set back
 */
#define SAMPLE_SLACK		INT64CONST(1000000)

/*
 * A clock for intervals, us: unlike that of timestamps, nobody sets it.
 */
static inline uint64
monotonic_us(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_MICROSEC(now);
}

#endif							/* ADMISSION_GATE_TYPES_H */
