/*-------------------------------------------------------------------------
 *
 * long_statements.h
 *		Which statement of this backend is long, and where it pauses.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LONG_STATEMENTS_H
#define ADMISSION_GATE_LONG_STATEMENTS_H

#include "postgres.h"

#include "executor/execdesc.h"

extern void long_statements_watch(QueryDesc *query);

#endif							/* ADMISSION_GATE_LONG_STATEMENTS_H */
