/*-------------------------------------------------------------------------
 *
 * snapshot.h
 *		Releases the snapshot before a wait and takes a fresh one after it.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SNAPSHOT_H
#define ADMISSION_GATE_SNAPSHOT_H

#include "postgres.h"

#include "executor/execdesc.h"
#include "utils/portal.h"

/* The references to the released snapshot, which need the fresh one */
typedef struct SnapshotUsers
{
	bool		active_stack;
	QueryDesc  *query;			/* or NULL */
	Portal		portal;			/* its portalSnapshot; or NULL */
	Portal		holding_portal; /* its holdSnapshot; or NULL */
} SnapshotUsers;

extern void snapshot_release(QueryDesc *query, SnapshotUsers *users);
extern void snapshot_retake(const SnapshotUsers *users);

#endif							/* ADMISSION_GATE_SNAPSHOT_H */
