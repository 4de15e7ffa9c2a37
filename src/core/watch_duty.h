/*-------------------------------------------------------------------------
 *
 * watch_duty.h
 *		Which of the waiters is the watcher.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_WATCH_DUTY_H
#define ADMISSION_GATE_WATCH_DUTY_H

#include "postgres.h"

extern bool slots_am_watcher(void);
extern void slots_watch_again_in(long ms);
extern void slots_wake_watcher(void);

#endif							/* ADMISSION_GATE_WATCH_DUTY_H */
