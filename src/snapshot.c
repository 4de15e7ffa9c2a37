/*-------------------------------------------------------------------------
 *
 * snapshot.c
 *		Releases the snapshot before a wait and takes a fresh one after it.
 *
 * A statement that queues must not hold back the xmin horizon: else vacuum and
 * HOT pruning stop, and the version chain of a hot row grows with the queue.
 * When a statement finds that it must wait, PostgreSQL may already have taken
 * a snapshot for it.  In READ COMMITTED nothing that matters has been read
 * with it, so a later one can take its place as the active snapshot, and where
 * that is referred to: in ExecutorStart by the query descriptor, in
 * ProcessUtility by the portal's portalSnapshot, and in both, if the portal
 * keeps the result, by its holdSnapshot.
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
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "gate.h"

/* The references to the snapshot released last, which need the fresh one */
static struct
{
	bool		active_stack;
	QueryDesc  *query;			/* or NULL */
	Portal		portal;			/* its portalSnapshot; or NULL */
	Portal		holding_portal; /* its holdSnapshot; or NULL */
}			users;

/*
 * Release all snapshots of a top-level statement that is about to wait, as far
 * as possible.  query: the one about to be started, or NULL.
 */
void
snapshot_release(QueryDesc *query)
{
	Portal		portal = ActivePortal;
	bool		is_of_portal;
	Snapshot	snapshot;

	memset(&users, 0, sizeof(users));
	InvalidateCatalogSnapshot();
	if (IsolationUsesXactSnapshot() || !ActiveSnapshotSet())
		return;

	is_of_portal = portal != NULL && portal->portalSnapshot == GetActiveSnapshot();

	/* Keep it, to be able to push it again if it is not the only one. */
	snapshot = RegisterSnapshot(GetActiveSnapshot());
	PopActiveSnapshot();
	users.active_stack = !ActiveSnapshotSet();
	if (!users.active_stack)
		PushActiveSnapshot(snapshot);
	UnregisterSnapshot(snapshot);
	if (!users.active_stack)
		return;

	if (is_of_portal)
	{
		users.portal = portal;
		portal->portalSnapshot = NULL;
	}
	if (portal != NULL && portal->holdSnapshot != NULL)
	{
		users.holding_portal = portal;
		UnregisterSnapshotFromOwner(portal->holdSnapshot, portal->resowner);
		portal->holdSnapshot = NULL;
	}
	if (query != NULL && query->snapshot != InvalidSnapshot)
	{
		users.query = query;
		UnregisterSnapshot(query->snapshot);
		query->snapshot = InvalidSnapshot;
	}
}

/*
 * Give a fresh snapshot to all references to the one released.  Not called if
 * the wait ends in an error.
 */
void
snapshot_retake(void)
{
	Portal		holding_portal = users.holding_portal;
	Snapshot	snapshot;

	if (!users.active_stack)
		return;

	snapshot = GetTransactionSnapshot();
	if (holding_portal != NULL)
	{
		snapshot = RegisterSnapshotOnOwner(snapshot, holding_portal->resowner);
		holding_portal->holdSnapshot = snapshot;
	}

	if (users.portal != NULL)
	{
		/* see PortalRunUtility */
		PushActiveSnapshotWithLevel(snapshot, users.portal->createLevel);
		users.portal->portalSnapshot = GetActiveSnapshot();
	}
	else
		PushCopiedSnapshot(snapshot);	/* see PortalRunMulti */

	if (users.query != NULL)
		users.query->snapshot = RegisterSnapshot(GetActiveSnapshot());
}
