/*-------------------------------------------------------------------------
 *
 * wanted.c
 *		What a statement wants of a hot spot: its key.
 *
 * Before a statement runs, its plan tells which rows it will lock, if it
 * compares columns for equality with known values: constants and parameters.
 * The key is a hash of these columns and values.  If they include the columns
 * of the primary key, only those count: a row has the same key however a
 * statement finds it, and in any partition with the same column numbers.  An
 * INSERT gives values to the columns of ON CONFLICT, or else to these; unless
 * all of them are known, it has no key.  A statement without any condition
 * wants the whole relation, like LOCK TABLE.  A call of pg_advisory_lock() or
 * the like names the lock.
 *
 * Locks that many may hold, like those of foreign keys, are not wanted: a
 * queue would only prevent parallel work.  Neither are locks that nobody waits
 * for, with NOWAIT or SKIP LOCKED, nor rows that are unknown because the
 * values come from another table.
 *
 * While something is hot, or backends wait for transactions for an unknown
 * reason, each statement publishes the relation whose rows it will lock.  Only
 * statements on hot relations go further, and that work is bounded.  It
 * evaluates nothing, and frees what it allocates: the memory context may be
 * that of a whole query.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/plannodes.h"
#include "parser/parsetree.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "gate.h"

#define MAX_RELATIONS	64		/* looked at per statement */
#define MAX_NODES		64		/* of its plan, looked at */
#define MAX_VALUES		32		/* columns with known values */
#define MAX_VALUE_SIZE	1024	/* bytes; larger ones are unknown */

/* What the key of a relation stands for, mixed into its hash */
#define WANTS_ROW		0x524F5721
#define WANTS_RELATION	0x52454C41

/* The columns of a relation that a statement compares with known values */
typedef struct KnownValues
{
	Index		rti;			/* in the range table of the plan */
	ParamListInfo params;
	int			nodes;			/* of the plan, seen so far */
	bool		is_scanned;
	bool		has_conditions; /* or may have; those noted do not count */
	int			n;
	AttrNumber	columns[MAX_VALUES];
	uint32		hashes[MAX_VALUES]; /* of the values */
} KnownValues;

/* ---- Values ---- */

static Node *
without_relabel(Node *node)
{
	while (IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	return node;
}

/* Is this value known and not null?  If so, *value and *type receive it. */
static bool
is_known(Node *node, ParamListInfo params, Datum *value, Oid *type)
{
	const Param *param;
	const ParamExternData *given;
	ParamExternData workspace;

	node = without_relabel(node);
	if (IsA(node, Const))
	{
		*value = ((Const *) node)->constvalue;
		*type = ((Const *) node)->consttype;
		return !((Const *) node)->constisnull;
	}
	param = (Param *) node;
	if (!IsA(node, Param) || param->paramkind != PARAM_EXTERN || params == NULL ||
		param->paramid <= 0 || param->paramid > params->numParams)
		return false;
	/* Like the planner: no error if there is no value */
	given = params->paramFetch == NULL ? &params->params[param->paramid - 1] :
		params->paramFetch(params, param->paramid, true, &workspace);
	*value = given->value;
	*type = given->ptype;
	return given->ptype == param->paramtype && !given->isnull;
}

/* Note the value of that column, if it is known.  The first one counts. */
static bool
note_value(KnownValues *known, AttrNumber column, Node *node)
{
	Datum		value;
	Oid			type;
	int16		length;
	bool		by_value;

	for (int i = 0; i < known->n; i++)
		if (known->columns[i] == column)
			return true;
	if (column <= 0 || known->n == MAX_VALUES ||
		!is_known(node, known->params, &value, &type))
		return false;
	get_typlenbyval(type, &length, &by_value);
	if (length == -1 && toast_raw_datum_size(value) > MAX_VALUE_SIZE)
		return false;
	known->columns[known->n] = column;
	/* Equal numbers may have more zeros or fewer. */
	known->hashes[known->n++] = type == NUMERICOID ? DatumGetUInt32(DirectFunctionCall1(hash_numeric, value)) :
		datum_image_hash(value, by_value, length);
	return true;
}

/* The column of the relation that this is, or 0 */
static AttrNumber
column_of(Node *node, const KnownValues *known)
{
	const Var  *var = (Var *) without_relabel(node);

	return IsA(var, Var) && var->varno == known->rti ? var->varattno : 0;
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
	bool		is_scan;

	if (plan == NULL || ++known->nodes > MAX_NODES)
		return;
	is_scan = IsA(plan, SeqScan) || IsA(plan, IndexScan) || IsA(plan, BitmapHeapScan);
	if (is_scan && ((Scan *) plan)->scanrelid == known->rti)
	{
		known->is_scanned = true;
		if (IsA(plan, IndexScan))
			note_conditions(known, ((IndexScan *) plan)->indexqualorig);
		if (IsA(plan, BitmapHeapScan))
			note_conditions(known, ((BitmapHeapScan *) plan)->bitmapqualorig);
		note_conditions(known, plan->qual);
	}
	else if (IsA(plan, Append))
		foreach(cell, ((Append *) plan)->appendplans)
			note_scans(known, (Plan *) lfirst(cell));
	else if (!is_scan && !IsA(plan, ModifyTable) && !IsA(plan, LockRows))
		known->has_conditions = true;	/* a join or LIMIT, for instance */
	note_scans(known, outerPlan(plan));
	note_scans(known, innerPlan(plan));
}

/* Note the values of these columns in the row that an INSERT adds. */
static void
note_inserted(KnownValues *known, Plan *source, const Bitmapset *columns)
{
	ListCell   *cell;

	/* Other plans may have more than one row. */
	if (!IsA(source, Result) || outerPlan(source) != NULL)
		return;
	foreach(cell, source->targetlist)
	{
		TargetEntry *entry = (TargetEntry *) lfirst(cell);

		if (bms_is_member(entry->resno, columns))
			(void) note_value(known, entry->resno, (Node *) entry->expr);
	}
}

/* ---- Keys ---- */

/* A key is never 0. */
static uint32
key_of(uint32 wants, uint32 values)
{
	return Max(murmurhash32(wants ^ values), 1);
}

/*
 * The key of the row with the known values of these columns (NULL: of any), or
 * 0 if one of them is unknown
 */
static uint32
key_of_row(const KnownValues *known, const Bitmapset *columns)
{
	uint32		sum = 0;
	int			found = 0;

	for (int i = 0; i < known->n; i++)
	{
		if (columns != NULL && !bms_is_member(known->columns[i], columns))
			continue;
		sum += murmurhash32(known->hashes[i] ^ known->columns[i] * 0x9E3779B9);
		found++;
	}
	return found < Max(bms_num_members(columns), 1) ? 0 : key_of(WANTS_ROW, sum);
}

/*
 * The columns that tell a row: of the first of these indexes, or else of the
 * primary key.  NULL if there is neither; an expression is column 0.
 */
static Bitmapset *
identifying_columns(Oid relid, const List *indexes)
{
	Relation	relation = RelationIdGetRelation(relid);	/* locked by now */
	Bitmapset  *columns = NULL;
	HeapTuple	tuple;
	Form_pg_index form;

	if (relation == NULL)
		return NULL;
	list_free(RelationGetIndexList(relation));	/* it finds rd_pkindex */
	tuple = SearchSysCache1(INDEXRELID,
							ObjectIdGetDatum(indexes != NIL ? linitial_oid(indexes) : relation->rd_pkindex));
	RelationClose(relation);
	if (!HeapTupleIsValid(tuple))
		return NULL;
	form = (Form_pg_index) GETSTRUCT(tuple);
	for (int i = 0; i < form->indnkeyatts; i++)
		columns = bms_add_member(columns, form->indkey.values[i]);
	ReleaseSysCache(tuple);
	return columns;
}

/*
 * How a statement names what it wants: a bit for the columns.  Not an INSERT,
 * which wants no row that others have locked for its values.
 */
static uint32
shape_of(const KnownValues *known, bool inserts)
{
	uint32		columns = 0;

	for (int i = 0; i < known->n; i++)
		columns += murmurhash32(known->columns[i]);
	return inserts ? NO_SHAPE : 1U << columns % 32;
}

/*
 * The key of what a statement wants of this relation, or 0 if unknown; its
 * *shape then, too
 */
static uint32
key_of_statement(const QueryDesc *query, Index rti, Oid relid, uint32 *shape)
{
	const PlannedStmt *statement = query->plannedstmt;
	ModifyTable *plan = (ModifyTable *) statement->planTree;
	KnownValues known = {.rti = rti,.params = query->params};
	Bitmapset  *columns;
	bool		inserts;
	uint32		key;
	ListCell   *cell;

	/* Its WITH queries may do something else. */
	inserts = IsA(plan, ModifyTable) && plan->operation == CMD_INSERT &&
		list_member_int(plan->resultRelations, rti);
	columns = identifying_columns(relid, inserts ? plan->arbiterIndexes : NIL);
	if (inserts)
		note_inserted(&known, outerPlan(plan), columns);
	else
	{
		note_scans(&known, (Plan *) plan);
		foreach(cell, statement->subplans)
			note_scans(&known, (Plan *) lfirst(cell));
	}
	key = key_of_row(&known, columns);
	if (key == 0 && !inserts)
		key = key_of_row(&known, NULL);
	if (key == 0 && known.is_scanned && !known.has_conditions && known.nodes <= MAX_NODES)
		key = key_of(WANTS_RELATION, 0);
	bms_free(columns);
	*shape = shape_of(&known, inserts);
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
 * If this relation is hot, take a place for what the query wants of it.
 * Returns whether the query has a place.  is_first: of its relations.
 */
static bool
want_relation(QueryDesc *query, Index rti, bool is_first)
{
	const RangeTblEntry *entry = rt_fetch(rti, query->plannedstmt->rtable);
	bool		may_want = my_slot_may_want();
	int			hot_spot;
	uint32		key;
	uint32		shape;

	Assert(entry->rtekind == RTE_RELATION);
	slots_want_relation(entry->relid, is_first, !may_want);
	hot_spot = may_want ? hot_relation(entry->relid) : -1;
	if (hot_spot < 0)
		return !may_want;
	key = key_of_statement(query, rti, entry->relid, &shape);
	if (key != 0)
		my_slot_want(query, hot_spot, key, shape);
	else
		slots_want_hidden(hot_spot);
	return !my_slot_may_want();
}

/*
 * If a hot advisory lock is taken here, with known arguments, take a place.
 * Returns true if that is so.
 */
static bool
want_advisory_lock(Node *node, QueryDesc *query)
{
	HotSpotKey	key = {HOT_SPOT_ADVISORY, MyDatabaseId};
	Datum		values[2] = {0};
	Oid			type;
	int			n = 0;
	int			hot_spot;
	ListCell   *cell;

	if (node == NULL)
		return false;
	switch (IsA(node, FuncExpr) ? ((FuncExpr *) node)->funcid : InvalidOid)
	{
		case F_PG_ADVISORY_LOCK_INT8:
		case F_PG_ADVISORY_LOCK_INT4_INT4:
		case F_PG_ADVISORY_XACT_LOCK_INT8:
		case F_PG_ADVISORY_XACT_LOCK_INT4_INT4:
			break;
		default:
			return expression_tree_walker(node, want_advisory_lock, query);
	}
	foreach(cell, ((FuncExpr *) node)->args)
	{
		if (!is_known(lfirst(cell), query->params, &values[n++], &type))
			return false;
	}
	/* As in lockfuncs.c */
	key.fields[0] = n == 1 ? (uint64) DatumGetInt64(values[0]) >> 32 : DatumGetInt32(values[0]);
	key.fields[1] = n == 1 ? DatumGetInt64(values[0]) : DatumGetInt32(values[1]);
	key.fields[2] = n;
	hot_spot = slots_find_hot_spot(&key);
	if (hot_spot >= 0)
		my_slot_want(query, hot_spot, WANTS_ALL, NO_SHAPE);
	return hot_spot >= 0;
}

/*
 * The executor is about to start this query, at any level, while something is
 * hot.  If the query wants that, take a place.  May wait and raise errors.
 */
void
wanted_begin(QueryDesc *query, int eflags)
{
	const PlannedStmt *statement = query->plannedstmt;
	const Plan *plan = statement->planTree;
	int			seen = 0;
	int			position = -1;
	int			rti;
	ListCell   *cell;

	if ((eflags & EXEC_FLAG_EXPLAIN_ONLY) != 0 || !my_slot_is_held())
		return;
	while ((rti = gate_next_result(statement, position)) > 0)
		if (seen++ < MAX_RELATIONS && want_relation(query, rti, seen == 1))
			return;
	foreach(cell, statement->rowMarks)
	{
		const PlanRowMark *mark = (const PlanRowMark *) lfirst(cell);

		if ((mark->markType == ROW_MARK_EXCLUSIVE || mark->markType == ROW_MARK_NOKEYEXCLUSIVE) &&
			mark->waitPolicy == LockWaitBlock && !mark->isParent &&
			seen++ < MAX_RELATIONS && want_relation(query, mark->rti, seen == 1))
			return;
	}
	if (statement->commandType == CMD_SELECT && statement->rowMarks == NIL && my_slot_may_want() &&
		(pg_atomic_read_u32(slots_hot_kinds) & (1 << HOT_SPOT_ADVISORY)) != 0 &&
		!want_advisory_lock((Node *) plan->targetlist, query) && IsA(plan, FunctionScan))
		(void) want_advisory_lock((Node *) ((FunctionScan *) plan)->functions, query);
}

/* The same for LOCK TABLE, in a mode that conflicts with itself */
void
wanted_lock_table(const LockStmt *statement)
{
	ListCell   *cell;

	if (!my_slot_may_want() || statement->nowait ||
		statement->mode < ShareUpdateExclusiveLock || statement->mode == ShareLock)
		return;
	foreach(cell, statement->relations)
	{
		/* A hint: the command itself locks it and checks permissions. */
		Oid			relation = RangeVarGetRelid((RangeVar *) lfirst(cell), NoLock, true);
		int			hot_spot = OidIsValid(relation) ? hot_relation(relation) : -1;
		bool		is_missing;

		if (hot_spot >= 0 &&
			pg_class_aclcheck_ext(relation, GetUserId(), ACL_UPDATE | ACL_DELETE | ACL_TRUNCATE,
								  &is_missing) == ACLCHECK_OK)
		{
			slots_want_relation(relation, true, false);
			my_slot_want(NULL, hot_spot, key_of(WANTS_RELATION, 0), NO_SHAPE);
			return;
		}
	}
}
