/*-------------------------------------------------------------------------
 *
 * last_resort.h
 *		A queue that stands still moves all the same.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LAST_RESORT_H
#define ADMISSION_GATE_LAST_RESORT_H

#include "postgres.h"

extern void slots_relieve_stall(void);

#endif							/* ADMISSION_GATE_LAST_RESORT_H */
