/*-------------------------------------------------------------------------
 *
 * query_waits.h
 *		Waits by query id.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_QUERY_WAITS_H
#define ADMISSION_GATE_QUERY_WAITS_H

#include "postgres.h"

/* Hashed as a blob, so it must have no padding */
typedef struct QueryWaitsKey
{
	int64		queryid;
	Oid			dbid;
	Oid			userid;
} QueryWaitsKey;

typedef struct QueryWaits
{
	QueryWaitsKey key;
	uint64		waits;
	uint64		wait_time;		/* us */
	uint64		max_wait_time;	/* us */
} QueryWaits;

extern void query_waits_shmem_request(void);
extern void query_waits_shmem_init(void);
extern int64 query_waits_current_id(void);
extern void query_waits_count(int64 queryid, uint64 waited);
extern QueryWaits *query_waits_read(int *count);
extern void query_waits_reset(void);

#endif							/* ADMISSION_GATE_QUERY_WAITS_H */
