/*-------------------------------------------------------------------------
 *
 * explain.h
 *		EXPLAIN (ANALYZE, ADMISSION)
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_EXPLAIN_H
#define ADMISSION_GATE_EXPLAIN_H

extern void explain_define(void);

#endif							/* ADMISSION_GATE_EXPLAIN_H */
