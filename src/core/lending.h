/*-------------------------------------------------------------------------
 *
 * lending.h
 *		Slots that count as free while their holders do nothing.
 *
 * The watcher tells what the holders do.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LENDING_H
#define ADMISSION_GATE_LENDING_H

#include "postgres.h"

struct SlotPool;

extern void slots_set_lend_after(int lend_after);
extern int	slots_lend_after(void);
extern bool slots_claim_look_at_lenders(void);
extern bool slots_claim_look_at_holders(long interval);
extern bool slots_seems_idle(int procno, uint64 cpu);
extern void slots_note_holder(int procno, uint64 cpu, bool busy, bool is_stuck);
extern void slots_note_lender(struct SlotPool *pool);
extern void slots_enter_as_lender(void);
extern void slots_end_lending(void);
extern void slots_relieve_stall(void);
extern void slots_forget_lending(int place);

#endif							/* ADMISSION_GATE_LENDING_H */
