/*-------------------------------------------------------------------------
 *
 * snapshot.c
 *		Releases the snapshot before a wait and takes a fresh one after it.
 *
 * A statement that queues must not hold back the xmin horizon: else vacuum and
 * HOT pruning stop, and the version chain of a hot row grows with the queue.
 * When a statement finds that it must wait, PostgreSQL may already have taken
 * a snapshot for it.  In READ COMMITTED nothing that matters has been read
 * with it, so a later one can take its place.  The references to it are known
 * for each place where a statement meets the gate:
 *
 * planner			the active snapshot of the planner's caller
 * ExecutorStart	the active snapshot, that of the query descriptor, and for
 *				INSERT ... RETURNING and the like the portal's holdSnapshot
 * ProcessUtility	the active snapshot, which is the portal's portalSnapshot,
 *				and for commands with a result the portal's holdSnapshot
 *
 * Above READ COMMITTED, the first snapshot lives to the end of the transaction
 * by definition, so a lone statement waits with it.  (In transaction scope, a
 * block is admitted at its BEGIN, when there is none.)  If more than one
 * snapshot is active, the caller is unknown, and nothing is exchanged.
 *
 * Everything here is local to the backend: no locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "tcop/pquery.h"
#include "utils/snapmgr.h"

#include "gate.h"

/*
 * Pop the active snapshot if it is the only one; it is freed unless it has
 * other references.  Returns whether it was popped.
 */
static bool
pop_only_snapshot(void)
{
	Snapshot	snapshot;

	if (!ActiveSnapshotSet())
		return false;

	/* keep it, to be able to push it again */
	snapshot = RegisterSnapshot(GetActiveSnapshot());
	PopActiveSnapshot();
	if (ActiveSnapshotSet())
	{
		PushActiveSnapshot(snapshot);
		UnregisterSnapshot(snapshot);
		return false;
	}
	UnregisterSnapshot(snapshot);
	return true;
}

/*
 * Release all snapshots of a top-level statement that is about to wait, as far
 * as possible.  query: the one about to be started, or NULL.  *users receives
 * what snapshot_retake() needs; if the wait ends in an error, that is not
 * called.
 */
void
snapshot_release(QueryDesc *query, SnapshotUsers *users)
{
	Portal		portal = ActivePortal;
	bool		portal_snapshot_active;

	memset(users, 0, sizeof(*users));

	InvalidateCatalogSnapshot();
	if (IsolationUsesXactSnapshot())
		return;

	portal_snapshot_active = portal != NULL && ActiveSnapshotSet() &&
		portal->portalSnapshot == GetActiveSnapshot();

	users->active_stack = pop_only_snapshot();
	if (!users->active_stack)
		return;

	if (portal_snapshot_active)
	{
		users->portal = portal;
		portal->portalSnapshot = NULL;
	}
	if (portal != NULL && portal->holdSnapshot != NULL)
	{
		users->holding_portal = portal;
		UnregisterSnapshotFromOwner(portal->holdSnapshot, portal->resowner);
		portal->holdSnapshot = NULL;
	}
	if (query != NULL && query->snapshot != InvalidSnapshot)
	{
		users->query = query;
		UnregisterSnapshot(query->snapshot);
		query->snapshot = InvalidSnapshot;
	}
}

/*
 * Give a fresh snapshot to all references to the one released.
 */
void
snapshot_retake(const SnapshotUsers *users)
{
	Snapshot	snapshot;

	if (!users->active_stack)
	{
		Assert(users->query == NULL && users->holding_portal == NULL);
		return;
	}

	snapshot = GetTransactionSnapshot();
	if (users->holding_portal != NULL)
	{
		Portal		portal = users->holding_portal;

		snapshot = RegisterSnapshotOnOwner(snapshot, portal->resowner);
		portal->holdSnapshot = snapshot;
	}

	if (users->portal != NULL)
	{
		/* see PortalRunUtility */
		PushActiveSnapshotWithLevel(snapshot, users->portal->createLevel);
		users->portal->portalSnapshot = GetActiveSnapshot();
	}
	else
		PushCopiedSnapshot(snapshot);	/* see PortalRunMulti */

	if (users->query != NULL)
		users->query->snapshot = RegisterSnapshot(GetActiveSnapshot());
}
