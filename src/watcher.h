/*-------------------------------------------------------------------------
 *
 * watcher.h
 *		The watcher's look: has holders that do nothing lend their slots.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_WATCHER_H
#define ADMISSION_GATE_WATCHER_H

#include "postgres.h"

extern long watcher_look(void);
extern void watcher_look_at_holders(void);
extern void watcher_recall_lenders(void);

#endif							/* ADMISSION_GATE_WATCHER_H */
