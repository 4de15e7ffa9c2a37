/*-------------------------------------------------------------------------
 *
 * snapshot.c
 *		Releases the snapshot before a wait and takes a fresh one after it.
 *
 * A statement that queues must not hold back the xmin horizon: otherwise
 * vacuum and HOT pruning stop, and the version chain of a hot row grows with
 * the queue.  PostgreSQL may have taken a snapshot for the statement before it
 * must wait.  In READ COMMITTED, nothing that matters has been read with it,
 * so a later one can replace it: as the active snapshot, and where it is
 * referred to.  In ExecutorStart, the query descriptor refers to it; in
 * ProcessUtility, the portal's portalSnapshot; in both, the portal's
 * holdSnapshot, if the portal keeps the result.
 *
 * A statement keeps its snapshot if anything else may refer to it: inside a
 * function, it may be that of the calling statement; in a subtransaction, that
 * of an outer one.  Above READ COMMITTED it does, too: there the first snapshot
 * lives to the end of the transaction.  (A block waits at BEGIN, without one.
 * COMMIT AND CHAIN begins one without BEGIN.)
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

/* The references to the released snapshot, which need a fresh one */
static struct
{
	bool		active_stack;
	QueryDesc  *query;			/* or NULL */
	Portal		portal;			/* its portalSnapshot; or NULL */
	Portal		holding_portal; /* its holdSnapshot; or NULL */
}			users;

/* Do only this query and its portal refer to the snapshot? */
static bool
is_of_query_alone(const QueryDesc *query, Snapshot snapshot)
{
	uint32		references = ActivePortal != NULL && ActivePortal->holdSnapshot == snapshot ? 2 : 1;

	return query != NULL && query->snapshot == snapshot && snapshot->regd_count == references;
}

/*
 * Release the snapshots of a statement that is about to wait, if possible.
 * query: the one to be started, or NULL; is_first: the transaction has run no
 * other one.  Returns true if they were all that the transaction has, but for
 * cursors: no statement or function calls this one.
 */
bool
snapshot_release(QueryDesc *query, bool is_first)
{
	Portal		portal = ActivePortal;
	int			level = GetCurrentTransactionNestLevel();
	Snapshot	snapshot;

	memset(&users, 0, sizeof(users));
	InvalidateCatalogSnapshot();
	if (IsolationUsesXactSnapshot() || !ActiveSnapshotSet() ||
		(!is_first && !is_of_query_alone(query, GetActiveSnapshot())))
		return false;

	/*
	 * A subtransaction of a function must not replace an outer snapshot.  A
	 * statement of the client has a portal of its level, once it is planned.
	 */
	if (level > 1 && (portal == NULL || portal->createLevel != level))
		return false;
	if (portal != NULL && portal->portalSnapshot == GetActiveSnapshot())
		users.portal = portal;

	/* Keep it, to push it again if it is not the only one. */
	snapshot = RegisterSnapshot(GetActiveSnapshot());
	PopActiveSnapshot();
	users.active_stack = !ActiveSnapshotSet();
	if (!users.active_stack)
		PushActiveSnapshot(snapshot);
	UnregisterSnapshot(snapshot);
	if (!users.active_stack)
		return false;

	if (users.portal != NULL)
		users.portal->portalSnapshot = NULL;
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
	return users.portal == NULL;
}

/*
 * Put a fresh snapshot where the released one was.  Not called if the wait
 * ends in an error.
 */
void
snapshot_retake(void)
{
	Snapshot	snapshot;

	if (!users.active_stack)
		return;

	snapshot = GetTransactionSnapshot();
	if (users.holding_portal != NULL)
	{
		snapshot = RegisterSnapshotOnOwner(snapshot, users.holding_portal->resowner);
		users.holding_portal->holdSnapshot = snapshot;
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
