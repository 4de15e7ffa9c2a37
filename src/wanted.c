/*-------------------------------------------------------------------------
 *
 * wanted.c
 *		What a statement wants of a hot spot: its key.
 *
 * Before a statement runs, its plan tells which rows it will lock, if it
 * compares columns for equality with known values.  The key is a hash of the
 * relation and of these columns and values.  If they include the columns of
 * the primary key, only those count: a row has the same key however a
 * statement finds it.  INSERT ... ON CONFLICT names the columns of an index.
 * A plain INSERT wants to insert into the relation.  A statement without any
 * condition wants the whole relation, like LOCK TABLE.  A call of
 * pg_advisory_lock() or the like names the lock.
 *
 * Locks that many may hold, like those of foreign keys, are not wanted: a
 * queue would only prevent parallel work.  Neither are locks that nobody waits
 * for, with NOWAIT or SKIP LOCKED, nor rows that are unknown because the
 * values come from another table: these statements run as without the gate.
 *
 * While something is hot, or backends wait for transactions for an unknown
 * reason, each statement publishes the relation whose rows it will lock, and
 * looks it up in a list of at most MAX_HOT_SPOTS.  Only statements on hot
 * relations go further, and that work is bounded, too.
 *
 * Everything here is local to the backend: no locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "catalog/namespace.h"
#include "catalog/pg_index.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/plannodes.h"
#include "parser/parsetree.h"
#include "storage/lock.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "gate.h"

#define MAX_RELATIONS	64		/* looked at per statement */
#define MAX_NODES		64		/* of its plan, looked at */
#define MAX_VALUES		32		/* columns with known values */

/* What the key of a relation stands for, mixed into its hash */
#define WANTS_ROW		0x524F5721
#define WANTS_INSERT	0x494E5345
#define WANTS_RELATION	0x52454C41

/* The columns of a relation that a statement compares with known values */
typedef struct KnownValues
{
	Index		rti;			/* in the range table of the plan */
	ParamListInfo params;
	int			nodes;			/* of the plan, seen so far */
	bool		has_conditions;
	int			n;
	AttrNumber	columns[MAX_VALUES];
	uint32		hashes[MAX_VALUES]; /* of the values */
} KnownValues;

/* ---- Values ---- */

/* Is this value known and not null?  If so, *value and *type receive it. */
static bool
is_known(Node *node, ParamListInfo params, Datum *value, Oid *type)
{
	while (node != NULL && IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	if (node == NULL)
		return false;
	if (IsA(node, Const))
	{
		*value = ((Const *) node)->constvalue;
		*type = ((Const *) node)->consttype;
		return !((Const *) node)->constisnull;
	}
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXTERN && params != NULL)
	{
		int			id = ((Param *) node)->paramid;
		ParamExternData workspace;
		const ParamExternData *param;

		if (id <= 0 || id > params->numParams)
			return false;
		/* Like the planner: no error if there is no value */
		param = params->paramFetch != NULL ?
			params->paramFetch(params, id, true, &workspace) : &params->params[id - 1];
		*value = param->value;
		*type = param->ptype;
		return OidIsValid(param->ptype) && !param->isnull;
	}
	return false;
}

/* Note the value of that column, if it is known. */
static bool
note_value(KnownValues *known, AttrNumber column, Node *node)
{
	Datum		value;
	Oid			type;
	int16		length;
	bool		by_value;

	if (column <= 0 || known->n == MAX_VALUES || !is_known(node, known->params, &value, &type))
		return false;
	get_typlenbyval(type, &length, &by_value);
	known->columns[known->n] = column;
	known->hashes[known->n++] = datum_image_hash(value, by_value, length);
	return true;
}

/* The column of the relation that this is, or 0 */
static AttrNumber
column_of(Node *node, const KnownValues *known)
{
	while (node != NULL && IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	if (node == NULL || !IsA(node, Var) || ((Var *) node)->varno != known->rti)
		return 0;
	return ((Var *) node)->varattno;
}

/* Note values that these conditions compare columns with for equality. */
static void
note_conditions(KnownValues *known, List *conditions)
{
	ListCell   *cell;

	foreach(cell, conditions)
	{
		OpExpr	   *operation = (OpExpr *) lfirst(cell);
		bool		is_noted = false;

		if (IsA(operation, OpExpr) && list_length(operation->args) == 2)
		{
			Node	   *left = linitial(operation->args);
			Node	   *right = lsecond(operation->args);
			Oid			type = exprType(left);

			if (op_mergejoinable(operation->opno, type) || op_hashjoinable(operation->opno, type))
				is_noted = note_value(known, column_of(left, known), right) ||
					note_value(known, column_of(right, known), left);
		}
		known->has_conditions |= !is_noted;
	}
}

/* Note the conditions of scans of the relation in this part of a plan. */
static void
note_scans(KnownValues *known, Plan *plan)
{
	ListCell   *cell;
	bool		is_scan = false;

	if (plan == NULL || ++known->nodes > MAX_NODES)
		return;
	switch (nodeTag(plan))
	{
		case T_IndexScan:
			is_scan = ((Scan *) plan)->scanrelid == known->rti;
			if (is_scan)
				note_conditions(known, ((IndexScan *) plan)->indexqualorig);
			break;
		case T_BitmapHeapScan:
			is_scan = ((Scan *) plan)->scanrelid == known->rti;
			if (is_scan)
				note_conditions(known, ((BitmapHeapScan *) plan)->bitmapqualorig);
			break;
		case T_SeqScan:
			is_scan = ((Scan *) plan)->scanrelid == known->rti;
			break;
		case T_Append:
			foreach(cell, ((Append *) plan)->appendplans)
				note_scans(known, (Plan *) lfirst(cell));
			break;
		case T_ModifyTable:
		case T_LockRows:
			break;
		default:
			/* A join or LIMIT, for instance, may not want all rows. */
			known->has_conditions = true;
			break;
	}
	if (is_scan)
		note_conditions(known, plan->qual);
	note_scans(known, outerPlan(plan));
	note_scans(known, innerPlan(plan));
}

/* Is it one of these columns?  NULL: of any. */
static inline bool
is_among(AttrNumber column, const Bitmapset *columns)
{
	return columns == NULL ||
		bms_is_member(column - FirstLowInvalidHeapAttributeNumber, columns);
}

/* Note the values that an INSERT gives to these columns. */
static void
note_inserted(KnownValues *known, Plan *source, const Bitmapset *columns)
{
	ListCell   *cell;

	if (source == NULL || !IsA(source, Result) || outerPlan(source) != NULL)
		return;					/* maybe more than one row */
	foreach(cell, source->targetlist)
	{
		TargetEntry *entry = (TargetEntry *) lfirst(cell);

		if (!entry->resjunk && is_among(entry->resno, columns))
			(void) note_value(known, entry->resno, (Node *) entry->expr);
	}
}

/* ---- Keys ---- */

/* A key is never 0. */
static uint32
key_of(Oid relation, uint32 wants, uint32 values)
{
	return Max(murmurhash32(murmurhash32(relation ^ MyDatabaseId) ^ wants ^ values), 1);
}

/*
 * The key of the row with the known values of these columns (NULL: of any), or
 * 0 if one of them is unknown
 */
static uint32
key_of_row(const KnownValues *known, Oid relation, const Bitmapset *columns)
{
	uint32		sum = 0;
	int			found = 0;

	for (int i = 0; i < known->n; i++)
	{
		bool		is_repeated = false;

		for (int j = 0; j < i; j++)
			is_repeated |= known->columns[j] == known->columns[i];
		if (is_repeated || !is_among(known->columns[i], columns))
			continue;
		sum += murmurhash32(known->hashes[i] ^ (uint32) known->columns[i] * 0x9E3779B9);
		found++;
	}
	if (found == 0 || (columns != NULL && found < bms_num_members(columns)))
		return 0;
	return key_of(relation, WANTS_ROW, sum);
}

/* The columns of that index, as in a relation's bitmaps */
static Bitmapset *
columns_of_index(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Bitmapset  *columns = NULL;
	Form_pg_index form;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	form = (Form_pg_index) GETSTRUCT(tuple);
	for (int i = 0; i < form->indnkeyatts; i++)
		columns = bms_add_member(columns, form->indkey.values[i] - FirstLowInvalidHeapAttributeNumber);
	ReleaseSysCache(tuple);
	return columns;
}

/* The columns of the primary key, NULL if there is none */
static Bitmapset *
columns_of_primary_key(Oid relid)
{
	Relation	relation = RelationIdGetRelation(relid);	/* locked by now */
	Bitmapset  *columns;

	if (relation == NULL)
		return NULL;
	columns = RelationGetIndexAttrBitmap(relation, INDEX_ATTR_BITMAP_PRIMARY_KEY);
	RelationClose(relation);
	return columns;
}

static uint32
key_of_insert(const ModifyTable *plan, Oid relid, ParamListInfo params)
{
	Bitmapset  *columns = columns_of_primary_key(relid);
	uint32		key = 0;

	/* First the primary key, then what ON CONFLICT names. */
	for (int i = 0; i < 2 && key == 0; i++)
	{
		KnownValues known = {.params = params};

		if (columns != NULL)
		{
			note_inserted(&known, outerPlan(plan), columns);
			key = key_of_row(&known, relid, columns);
			bms_free(columns);
		}
		columns = i == 0 && key == 0 && plan->arbiterIndexes != NIL ?
			columns_of_index(linitial_oid(plan->arbiterIndexes)) : NULL;
	}
	return key != 0 ? key : key_of(relid, WANTS_INSERT, 0);
}

/* The key of what a statement wants of this relation, or 0 if unknown */
static uint32
key_of_statement(const PlannedStmt *statement, Index rti, Oid relid, ParamListInfo params)
{
	KnownValues known = {.rti = rti,.params = params};
	ModifyTable *plan = (ModifyTable *) statement->planTree;
	Bitmapset  *columns;
	uint32		key = 0;
	ListCell   *cell;

	/* Its WITH queries may do something else. */
	if (IsA(plan, ModifyTable) && plan->operation == CMD_INSERT &&
		list_member_int(plan->resultRelations, rti))
		return key_of_insert(plan, relid, params);

	note_scans(&known, statement->planTree);
	foreach(cell, statement->subplans)
		note_scans(&known, (Plan *) lfirst(cell));

	columns = columns_of_primary_key(relid);
	if (columns != NULL)
		key = key_of_row(&known, relid, columns);
	bms_free(columns);
	if (key == 0)
		key = key_of_row(&known, relid, NULL);
	if (key == 0 && !known.has_conditions && known.nodes <= MAX_NODES)
		key = key_of(relid, WANTS_RELATION, 0);
	return key;
}

/* ---- What is wanted ---- */

/* The hot spot of this relation, or -1 */
static int
hot_relation(Oid relation)
{
	HotSpotKey	key = {HOT_SPOT_RELATION, MyDatabaseId, {relation}};

	return slots_find_hot_spot(&key);
}

/*
 * If this relation is hot, take a place there for the statement.  Returns
 * false if it is not hot.
 */
static bool
want_relation(QueryDesc *query, Index rti)
{
	const PlannedStmt *statement = query->plannedstmt;
	const RangeTblEntry *entry = rt_fetch(rti, statement->rtable);
	int			hot_spot;
	uint32		key;

	if (entry->rtekind != RTE_RELATION)
		return false;
	slots_want_relation(entry->relid, !my_slot_may_want());
	hot_spot = my_slot_may_want() ? hot_relation(entry->relid) : -1;
	if (hot_spot < 0)
		return false;
	key = key_of_statement(statement, rti, entry->relid, query->params);
	if (key != 0)
		my_slot_want(query, hot_spot, key);
	return true;
}

/* A call that takes an advisory lock with known arguments */
typedef struct WantedLock
{
	ParamListInfo params;
	HotSpotKey	key;
} WantedLock;

static bool
find_advisory_lock(Node *node, WantedLock *wanted)
{
	const FuncExpr *call = (const FuncExpr *) node;
	Datum		value;
	Oid			type;
	uint32	   *fields = wanted->key.fields;

	if (node == NULL)
		return false;
	if (!IsA(node, FuncExpr))
		return expression_tree_walker(node, find_advisory_lock, wanted);
	switch (call->funcid)
	{
			/* As in lockfuncs.c */
		case F_PG_ADVISORY_LOCK_INT8:
		case F_PG_ADVISORY_XACT_LOCK_INT8:
			if (!is_known(linitial(call->args), wanted->params, &value, &type) || type != INT8OID)
				return false;
			fields[0] = (uint32) ((uint64) DatumGetInt64(value) >> 32);
			fields[1] = (uint32) DatumGetInt64(value);
			fields[2] = 1;
			return true;
		case F_PG_ADVISORY_LOCK_INT4_INT4:
		case F_PG_ADVISORY_XACT_LOCK_INT4_INT4:
			for (int i = 0; i < 2; i++)
			{
				if (!is_known(list_nth(call->args, i), wanted->params, &value, &type) || type != INT4OID)
					return false;
				fields[i] = (uint32) DatumGetInt32(value);
			}
			fields[2] = 2;
			return true;
		default:
			return expression_tree_walker(node, find_advisory_lock, wanted);
	}
}

static void
want_advisory_lock(QueryDesc *query)
{
	Plan	   *plan = query->plannedstmt->planTree;
	WantedLock	wanted = {query->params, {HOT_SPOT_ADVISORY, MyDatabaseId}};
	int			hot_spot;

	if (!find_advisory_lock((Node *) plan->targetlist, &wanted) &&
		!(IsA(plan, FunctionScan) &&
		  find_advisory_lock((Node *) ((RangeTblFunction *) linitial(((FunctionScan *) plan)->functions))->funcexpr, &wanted)))
		return;
	hot_spot = slots_find_hot_spot(&wanted.key);
	if (hot_spot >= 0)
		my_slot_want(query, hot_spot, WANTS_ALL);
}

/*
 * The executor is about to start this query, at any level, while something is
 * hot.  If the query wants that, take a place.  May wait and raise errors.
 */
void
wanted_begin(QueryDesc *query, int eflags)
{
	const PlannedStmt *statement = query->plannedstmt;
	int			seen = 0;
	ListCell   *cell;

	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0 || !my_slot_is_held())
		return;
	foreach(cell, statement->resultRelations)
		if (seen++ < MAX_RELATIONS && want_relation(query, lfirst_int(cell)))
		return;
	foreach(cell, statement->rowMarks)
	{
		const PlanRowMark *mark = (const PlanRowMark *) lfirst(cell);

		if ((mark->markType == ROW_MARK_EXCLUSIVE || mark->markType == ROW_MARK_NOKEYEXCLUSIVE) &&
			mark->waitPolicy == LockWaitBlock && !mark->isParent &&
			seen++ < MAX_RELATIONS && want_relation(query, mark->rti))
			return;
	}
	if (statement->commandType == CMD_SELECT && statement->rowMarks == NIL && my_slot_may_want() &&
		(pg_atomic_read_u32(slots_hot_kinds) & (1 << HOT_SPOT_ADVISORY)) != 0)
		want_advisory_lock(query);
}

/* The same for LOCK TABLE, in a mode that conflicts with itself */
void
wanted_lock_table(const LockStmt *statement)
{
	ListCell   *cell;

	if (!my_slot_may_want() || statement->nowait || statement->mode < ShareUpdateExclusiveLock || statement->mode == ShareLock)
		return;
	foreach(cell, statement->relations)
	{
		/* A hint: the command itself locks it and checks permissions. */
		Oid			relation = RangeVarGetRelid((RangeVar *) lfirst(cell), NoLock, true);
		int			hot_spot = OidIsValid(relation) ? hot_relation(relation) : -1;

		if (hot_spot >= 0 && SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relation)) &&
			pg_class_aclcheck(relation, GetUserId(), ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE) == ACLCHECK_OK)
		{
			my_slot_want(NULL, hot_spot, key_of(relation, WANTS_RELATION, 0));
			return;
		}
	}
}
