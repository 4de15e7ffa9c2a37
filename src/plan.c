/*-------------------------------------------------------------------------
 *
 * plan.c
 *		What a plan tells about the work ahead: its cost, and how many parallel
 *		workers it wants.
 *
 * No locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "plan.h"

static int	workers_in_plan(const Plan *plan);

/*
 * The planner's estimate of a statement's total cost, in its own units.
 */
Cost
plan_cost(const PlannedStmt *statement)
{
	return statement->planTree->total_cost;
}

static int
workers_in_plans(List *plans)
{
	ListCell   *cell;
	int			workers = 0;

	foreach(cell, plans)
		workers += workers_in_plan((const Plan *) lfirst(cell));
	return workers;
}

/*
 * The workers of all nodes that gather from some, at or below this one.  Below
 * such a node there is no other.
 */
static int
workers_in_plan(const Plan *plan)
{
	int			workers;

	if (plan == NULL)
		return 0;
	check_stack_depth();

	workers = workers_in_plan(plan->lefttree) + workers_in_plan(plan->righttree);
	switch (nodeTag(plan))
	{
		case T_Gather:
			return ((const Gather *) plan)->num_workers;
		case T_GatherMerge:
			return ((const GatherMerge *) plan)->num_workers;
		case T_Append:
			return workers + workers_in_plans(((const Append *) plan)->appendplans);
		case T_MergeAppend:
			return workers + workers_in_plans(((const MergeAppend *) plan)->mergeplans);
		case T_SubqueryScan:
			return workers + workers_in_plan(((const SubqueryScan *) plan)->subplan);
		case T_CustomScan:
			return workers + workers_in_plans(((const CustomScan *) plan)->custom_plans);
		default:
			return workers;
	}
}

/*
 * How many parallel workers a statement may have at work at the same time, as
 * far as its plan and max_parallel_workers tell.  At its start, none may be free.
 */
int
plan_workers(const PlannedStmt *statement)
{
	int			workers;

	if (!statement->parallelModeNeeded)
		return 0;
	workers = workers_in_plan(statement->planTree) + workers_in_plans(statement->subplans);
	return Min(workers, max_parallel_workers);
}
