/*-------------------------------------------------------------------------
 *
 * plan.h
 *		What a plan tells about the work ahead.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_PLAN_H
#define ADMISSION_GATE_PLAN_H

#include "postgres.h"

#include "nodes/plannodes.h"

extern Cost plan_cost(const PlannedStmt *statement);
extern int	plan_workers(const PlannedStmt *statement);

#endif							/* ADMISSION_GATE_PLAN_H */
