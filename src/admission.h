/*-------------------------------------------------------------------------
 *
 * admission.h
 *		Admission of one backend.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_ADMISSION_H
#define ADMISSION_GATE_ADMISSION_H

#include "postgres.h"

#include "executor/execdesc.h"

extern void admission_enter(QueryDesc *query, bool begins_block);
extern void admission_pass(void);
extern void admission_continue(void);
extern void admission_leave(bool failed);
extern void admission_end_transaction(bool failed);

#endif							/* ADMISSION_GATE_ADMISSION_H */
