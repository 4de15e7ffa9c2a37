/*-------------------------------------------------------------------------
 *
 * long_share.h
 *		Long statements give their slots up, and run in turns beside the others.
 *
 * The process that ticks for a long statement tells how many short ones work.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LONG_SHARE_H
#define ADMISSION_GATE_LONG_SHARE_H

#include "postgres.h"

extern void slots_set_long_after(int long_after);
extern bool slots_tick_long(int procno, int working, int cpus);
extern void slots_look_at_long(int working, int cpus);
extern bool slots_long_is_first(int procno);
extern bool slots_long_pauses(int procno);
extern void slots_long_resume(int procno);
extern void slots_forget_long(void);
extern void slots_end_long(void);

#endif							/* ADMISSION_GATE_LONG_SHARE_H */
