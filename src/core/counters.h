/*-------------------------------------------------------------------------
 *
 * counters.h
 *		What the semaphore counts, and what can be seen of it.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_COUNTERS_H
#define ADMISSION_GATE_COUNTERS_H

#include "postgres.h"

#include "core/types.h"

struct SlotEntry;
struct SlotPool;

/* The gauges and totals of a pool; docs/views.md says what each means. */
typedef struct SlotStats
{
	char		pool[NAMEDATALEN];
	int			priority;
	int			limit;			/* slots, its own or else those of all pools;
								 * 0 = the gate is off, -1 = none but those of
								 * hot spots */
	bool		observing;		/* the limit is not enforced */
	int			running;		/* backends */
	int			lent;			/* backends */
	int			long_running;	/* backends */
	int			paused;			/* backends */
	int			waiting;		/* backends */
	uint64		own_totals[OWN_TOTALS];
	uint64		pool_totals[POOL_TOTALS];
	uint64		max_wait_time;	/* us */
	uint64		wait_counts[SLOTS_WAIT_BUCKETS];
	TimestampTz stats_reset;
} SlotStats;

/* How a limit stands */
typedef struct SlotLimit
{
	bool		is_of_queue;	/* of its pool or hot spot, else of all pools
								 * together */
	HotSpotKey	hot_spot;		/* if it is of one */
	char		pool[NAMEDATALEN];
	int			slots;
	int			in_use;			/* slots */
	int			lent;			/* backends */
	int			waiting;		/* backends */
} SlotLimit;

/* What is known of one backend. */
typedef struct SlotBackend
{
	int			pid;
	Oid			roleid;
	char		pool[NAMEDATALEN];
	SlotState	state;
	TimestampTz since;			/* when it came into this state */
	uint64		wait_time;		/* us, of its present or else its last wait */
} SlotBackend;

extern void slots_record_wait(uint64 waited);

extern bool slots_get_backend(int procno, SlotBackend *backend);
extern void slots_get_my_limit(SlotLimit *limit);
extern int	slots_get_stats(SlotStats stats[SLOTS_MAX_POOLS]);
extern void slots_reset_stats(void);

/* For the files of src/core */
extern void slots_keep_totals(struct SlotPool *pool, struct SlotEntry *entry);
extern void slots_start_totals(int pool);

#endif							/* ADMISSION_GATE_COUNTERS_H */
