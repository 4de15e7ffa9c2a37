/*-------------------------------------------------------------------------
 *
 * query_waits.c
 *		Waits by query id, in a table of bounded size.
 *
 * The key is that of pg_stat_statements, for top-level statements, the only
 * ones that meet the gate.
 *
 * When the table is full, the entries that have waited least make room:
 * EVICT_PERCENT of them at once, as finding them takes a scan of the table.
 *
 * Locking: a backend takes Lock shared to find an entry, and exclusively to
 * add or remove entries.  An entry's mutex guards its counts while Lock is
 * shared.  Backends take them only at the end of a wait in the queue, and to
 * read or reset the table.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/prepare.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "tcop/pquery.h"
#include "utils/backend_status.h"
#include "utils/hsearch.h"

#include "compat.h"
#include "query_waits.h"
#include "settings.h"

#define TRANCHE_NAME	"AdmissionGateQueries"

#define EVICT_PERCENT	5

typedef struct QueryWaitsEntry
{
	QueryWaits	counts;			/* begins with the key */
	slock_t		mutex;
} QueryWaitsEntry;

/* Shared state outside the table */
typedef struct QueryWaitsShared
{
	LWLock	   *lock;
} QueryWaitsShared;

/* NULL if no queries are tracked */
static HTAB *Table = NULL;
static LWLock *Lock = NULL;

/*
 * Request what query_waits_shmem_init() needs.  Call from a
 * shmem_request_hook.
 */
void
query_waits_shmem_request(void)
{
	if (gate_max_tracked_queries == 0)
		return;
	RequestAddinShmemSpace(sizeof(QueryWaitsShared));
	RequestAddinShmemSpace(hash_estimate_size(gate_max_tracked_queries,
											  sizeof(QueryWaitsEntry)));
	RequestNamedLWLockTranche(TRANCHE_NAME, 1);
}

/*
 * Create or attach to the table.  The caller holds AddinShmemInitLock.
 */
void
query_waits_shmem_init(void)
{
	HASHCTL		info = {
		.keysize = sizeof(QueryWaitsKey),
		.entrysize = sizeof(QueryWaitsEntry)
	};
	QueryWaitsShared *shared;
	bool		found;

	if (gate_max_tracked_queries == 0)
		return;
	Table = GATE_SHMEM_INIT_HASH("admission_gate query waits",
								 gate_max_tracked_queries, &info,
								 HASH_ELEM | HASH_BLOBS | HASH_FIXED_SIZE);
	shared = ShmemInitStruct("admission_gate query waits lock",
							 sizeof(QueryWaitsShared), &found);
	if (!found)
		shared->lock = &GetNamedLWLockTranche(TRANCHE_NAME)->lock;
	Lock = shared->lock;
}

/*
 * The query id of a prepared statement, 0 if it has none.
 */
static int64
prepared_query_id(const char *name)
{
	PreparedStatement *prepared = FetchPreparedStatement(name, false);
	ListCell   *cell;

	if (prepared == NULL)
		return 0;
	foreach(cell, prepared->plansource->query_list)
	{
		Query	   *query = lfirst_node(Query, cell);

		if (query->queryId != 0)
			return (int64) query->queryId;
	}
	return 0;
}

/*
 * The EXECUTE that the portal runs, NULL if it runs something else.
 */
static ExecuteStmt *
execute_in_portal(Portal portal)
{
	PlannedStmt *planned;

	if (list_length(portal->stmts) != 1)
		return NULL;
	planned = linitial_node(PlannedStmt, portal->stmts);
	if (planned->utilityStmt == NULL || !IsA(planned->utilityStmt, ExecuteStmt))
		return NULL;
	return (ExecuteStmt *) planned->utilityStmt;
}

/*
 * The query id of the top-level statement at the gate, 0 if it has none.
 *
 * It is that of pg_stat_activity, but for what pg_stat_statements changes:
 * EXECUTE counts as the statement that it executes, and has no id of its own;
 * and a utility command loses its id when it runs, so if it runs again from
 * the same prepared statement, as drivers run BEGIN, only the latter still has
 * it.
 */
int64
query_waits_current_id(void)
{
	Portal		portal = ActivePortal;
	ExecuteStmt *execute = portal ? execute_in_portal(portal) : NULL;
	int64		queryid;

	if (execute != NULL)
		return prepared_query_id(execute->name);
	queryid = (int64) pgstat_get_my_query_id();
	if (queryid == 0 && portal != NULL && portal->prepStmtName != NULL)
		queryid = prepared_query_id(portal->prepStmtName);
	return queryid;
}

static int
compare_wait_time(const void *a, const void *b)
{
	uint64		wait_a = (*(QueryWaitsEntry *const *) a)->counts.wait_time;
	uint64		wait_b = (*(QueryWaitsEntry *const *) b)->counts.wait_time;

	return wait_a < wait_b ? -1 : wait_a > wait_b ? 1 : 0;
}

/*
 * Remove the entries that have waited least.  Returns false if there is no
 * memory to find them: the caller holds Lock exclusively, so this raises no
 * error.
 */
static bool
evict_least(void)
{
	int			nentries = hash_get_num_entries(Table);
	int			nvictims = Max(nentries * EVICT_PERCENT / 100, 1);
	QueryWaitsEntry **entries = palloc_extended(nentries * sizeof(QueryWaitsEntry *), MCXT_ALLOC_NO_OOM);
	HASH_SEQ_STATUS scan;
	int			i = 0;

	if (entries == NULL)
		return false;
	hash_seq_init(&scan, Table);
	while (i < nentries)
		entries[i++] = (QueryWaitsEntry *) hash_seq_search(&scan);
	hash_seq_term(&scan);

	qsort(entries, nentries, sizeof(QueryWaitsEntry *), compare_wait_time);
	for (i = 0; i < nvictims; i++)
		hash_search(Table, &entries[i]->counts.key, HASH_REMOVE, NULL);
	pfree(entries);
	return true;
}

/*
 * Find the entry of this key, or add one, in the place of others if need be.
 * Returns NULL if there is no memory to do so.  The caller holds Lock
 * exclusively.
 */
static QueryWaitsEntry *
find_or_add(const QueryWaitsKey *key)
{
	QueryWaitsEntry *entry;

	entry = (QueryWaitsEntry *) hash_search(Table, key, HASH_FIND, NULL);
	if (entry != NULL)
		return entry;

	if (hash_get_num_entries(Table) >= gate_max_tracked_queries && !evict_least())
		return NULL;
	entry = (QueryWaitsEntry *) hash_search(Table, key, HASH_ENTER, NULL);
	entry->counts.waits = 0;
	entry->counts.wait_time = 0;
	entry->counts.max_wait_time = 0;
	SpinLockInit(&entry->mutex);
	return entry;
}

/*
 * Count a wait of this backend that has ended.  queryid: of the statement, 0 =
 * count nothing; waited: us.  Can be called while an error is handled.
 */
void
query_waits_count(int64 queryid, uint64 waited)
{
	QueryWaitsKey key;
	QueryWaitsEntry *entry;

	if (Table == NULL || queryid == 0)
		return;
	key.queryid = queryid;
	key.dbid = MyDatabaseId;
	key.userid = GetUserId();

	LWLockAcquire(Lock, LW_SHARED);
	entry = (QueryWaitsEntry *) hash_search(Table, &key, HASH_FIND, NULL);
	if (entry == NULL)
	{
		LWLockRelease(Lock);
		LWLockAcquire(Lock, LW_EXCLUSIVE);
		entry = find_or_add(&key);
		if (entry == NULL)
		{
			LWLockRelease(Lock);
			return;
		}
	}

	SpinLockAcquire(&entry->mutex);
	entry->counts.waits++;
	entry->counts.wait_time += waited;
	entry->counts.max_wait_time = Max(entry->counts.max_wait_time, waited);
	SpinLockRelease(&entry->mutex);

	LWLockRelease(Lock);
}

/*
 * Return a copy of the table, in no order, NULL if no queries are tracked.
 * *count receives the number of entries.
 */
QueryWaits *
query_waits_read(int *count)
{
	QueryWaits *copy;
	HASH_SEQ_STATUS scan;
	QueryWaitsEntry *entry;
	int			i = 0;

	*count = 0;
	if (Table == NULL)
		return NULL;
	copy = palloc_array(QueryWaits, gate_max_tracked_queries);

	LWLockAcquire(Lock, LW_SHARED);
	hash_seq_init(&scan, Table);
	while ((entry = (QueryWaitsEntry *) hash_seq_search(&scan)) != NULL)
	{
		SpinLockAcquire(&entry->mutex);
		copy[i++] = entry->counts;
		SpinLockRelease(&entry->mutex);
	}
	LWLockRelease(Lock);

	*count = i;
	return copy;
}

void
query_waits_reset(void)
{
	HASH_SEQ_STATUS scan;
	QueryWaitsEntry *entry;

	if (Table == NULL)
		return;
	LWLockAcquire(Lock, LW_EXCLUSIVE);
	hash_seq_init(&scan, Table);
	while ((entry = (QueryWaitsEntry *) hash_seq_search(&scan)) != NULL)
		hash_search(Table, &entry->counts.key, HASH_REMOVE, NULL);
	LWLockRelease(Lock);
}
