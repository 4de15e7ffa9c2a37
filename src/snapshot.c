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
 * A statement that waits in the middle of its transaction may be one inside a
 * function, which runs with the snapshot of the statement that calls it.  So it
 * keeps its snapshot, unless nothing else refers to that.
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

/* Does nothing but this query, and the portal for it, refer to the snapshot? */
static bool
is_of_query_alone(const QueryDesc *query, Snapshot snapshot)
{
	uint32		references = ActivePortal != NULL && ActivePortal->holdSnapshot == snapshot ? 2 : 1;

	return query != NULL && query->snapshot == snapshot && snapshot->regd_count == references;
}

/*
 * Release all snapshots of a statement that is about to wait, as far as
 * possible.  query: the one about to be started, or NULL; is_top_level: it is
 * known to be a statement of the client.
 */
void
snapshot_release(QueryDesc *query, bool is_top_level)
{
	Portal		portal = ActivePortal;
	bool		is_of_portal;
	Snapshot	snapshot;

	memset(&users, 0, sizeof(users));
	InvalidateCatalogSnapshot();
	if (IsolationUsesXactSnapshot() || !ActiveSnapshotSet())
		return;
	if (!is_top_level && !is_of_query_alone(query, GetActiveSnapshot()))
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
