/*-------------------------------------------------------------------------
 *
 * lending.h
 *		Which holder of a slot does nothing, and since when.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LENDING_H
#define ADMISSION_GATE_LENDING_H

#include "postgres.h"

extern long lending_interval(void);
extern void lending_watch(void);
extern void lending_recall(void);

#endif							/* ADMISSION_GATE_LENDING_H */
