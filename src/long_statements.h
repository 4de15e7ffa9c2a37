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

extern void long_statements_begin(const QueryDesc *query);
extern void long_statements_leave(const QueryDesc *query, bool ends_statement);
extern void long_statements_end(bool works);
extern void long_statements_note_write(void);
extern void long_statements_abort_subtransaction(void);
extern void long_statements_end_transaction(void);

#endif							/* ADMISSION_GATE_LONG_STATEMENTS_H */
