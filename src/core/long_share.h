/*-------------------------------------------------------------------------
 *
 * long_share.h
 *		Long statements give their slots up, and run in turns beside the others.
 *
 * A sample tells how many processes of either kind work.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LONG_SHARE_H
#define ADMISSION_GATE_LONG_SHARE_H

#include "postgres.h"

extern void slots_set_long_after(int long_after);
extern void slots_share_cpus(int short_working, int long_working, bool others_need, int cpus);
extern bool slots_may_be_long(int procno);
extern void slots_keep_slot(bool keep);
extern bool slots_tick_long(int procno, int holder, int64 used, bool is_first, bool in_the_way);
extern bool slots_long_is_first(int procno);
extern bool slots_any_long_pauses(void);
extern bool slots_long_pauses(int procno);
extern bool slots_long_works(int procno, bool is_seen_to_work, uint64 now);
extern void slots_long_resume(int procno);
extern void slots_forget_long(int procno);
extern void slots_end_long(bool works, uint64 cpu);

#endif							/* ADMISSION_GATE_LONG_SHARE_H */
