/*-------------------------------------------------------------------------
 *
 * snapshot.c
 *		Letting go of the snapshot before a wait, taking a fresh one after.
 *
 * A statement that queues must not hold back the xmin horizon: otherwise
 * vacuum and HOT pruning stop, and a hot row's chain of versions grows with
 * the queue.  By the time a statement finds that it must wait, PostgreSQL may
 * have taken a snapshot for it.  In READ COMMITTED nothing has been read with
 * it that matters, so it can be exchanged for a later one; the references to
 * it are known for each place in which the gate can be met:
 *
 * planner			the active snapshot of whoever called the planner
 * ExecutorStart	the active snapshot, the query descriptor's, and for
 *					INSERT ... RETURNING and the like the portal's holdSnapshot
 * ProcessUtility	the active snapshot, which is the portal's portalSnapshot,
 *					and for commands with a result the portal's holdSnapshot
 *
 * Above READ COMMITTED the first snapshot lives to the end of transaction by
 * definition; a lone statement then waits with it.  (A transaction block is
 * admitted at its BEGIN, when there is none.)  If there is more than one
 * active snapshot, somebody is at work whom we do not know, and nothing is
 * exchanged.
 *
 * Everything here is the backend's own: no locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "tcop/pquery.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "snapshot.h"

/*
 * Pop the active snapshot, if it is the only one, and drop it unless others
 * refer to it.  Returns whether that was done.
 */
static bool
pop_only_snapshot(void)
{
	Snapshot	snapshot;

	if (!ActiveSnapshotSet())
		return false;

	/* keep it alive, to be able to put it back */
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
 * Let go of all snapshots of a top-level statement that is about to wait.
 * query: the one about to be started, or NULL.  *users receives what
 * snapshot_take_again needs; if the wait ends in an error, it is not called.
 */
void
snapshot_let_go(QueryDesc *query, SnapshotUsers *users)
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
	if (ActiveSnapshotSet())
		return;
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
 * Take a fresh snapshot for all that referred to the one let go.
 */
void
snapshot_take_again(const SnapshotUsers *users)
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
