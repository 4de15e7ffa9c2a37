/*-------------------------------------------------------------------------
 *
 * explain.c
 *		EXPLAIN (ANALYZE, ADMISSION): shows how long the transaction has waited
 *		for its slot.
 *
 * Where EXPLAIN takes no options of extensions, explain_define() does nothing.
 *
 * Everything here is local to the backend: no locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "explain.h"

#ifdef HAVE_EXPLAIN_OPTIONS

#include "commands/defrem.h"
#include "commands/explain.h"
#include "commands/explain_format.h"
#include "commands/explain_state.h"

#include "admission.h"

/*
 * The key under which an ExplainState keeps a non-null pointer if the option
 * is on
 */
static int	extension_id;

static explain_validate_options_hook_type prev_explain_validate_options_hook = NULL;
static explain_per_plan_hook_type prev_explain_per_plan_hook = NULL;

static void
handle_admission(ExplainState *es, DefElem *option, ParseState *pstate)
{
	SetExplainExtensionState(es, extension_id,
							 defGetBoolean(option) ? &extension_id : NULL);
}

static bool
has_admission(ExplainState *es)
{
	return GetExplainExtensionState(es, extension_id) != NULL;
}

/*
 * explain_validate_options_hook: the option requires ANALYZE.
 */
static void
gate_explain_validate_options(ExplainState *es, List *options,
							  ParseState *pstate)
{
	if (prev_explain_validate_options_hook)
		prev_explain_validate_options_hook(es, options, pstate);

	if (has_admission(es) && !es->analyze)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("EXPLAIN option %s requires ANALYZE", "ADMISSION")));
}

/*
 * explain_per_plan_hook: shows nothing if the session bypassed the gate.
 */
static void
gate_explain_per_plan(PlannedStmt *plannedstmt, IntoClause *into,
					  ExplainState *es, const char *queryString,
					  ParamListInfo params, QueryEnvironment *queryEnv)
{
	int64		waited;

	if (prev_explain_per_plan_hook)
		prev_explain_per_plan_hook(plannedstmt, into, es, queryString,
								   params, queryEnv);

	if (!has_admission(es))
		return;
	waited = admission_wait();
	if (waited >= 0)
		ExplainPropertyFloat("Admission Wait", "ms", (double) waited / 1000.0,
							 3, es);
}

/*
 * Define the option.  Call from _PG_init() while the server preloads
 * libraries.
 */
void
explain_define(void)
{
	extension_id = GetExplainExtensionId("admission_gate");
	GATE_REGISTER_EXPLAIN_OPTION("admission", handle_admission);
	prev_explain_validate_options_hook = explain_validate_options_hook;
	explain_validate_options_hook = gate_explain_validate_options;
	prev_explain_per_plan_hook = explain_per_plan_hook;
	explain_per_plan_hook = gate_explain_per_plan;
}

#else

void
explain_define(void)
{
}

#endif							/* HAVE_EXPLAIN_OPTIONS */
