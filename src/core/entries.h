/*-------------------------------------------------------------------------
 *
 * entries.h
 *		What one backend is to the semaphore.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_ENTRIES_H
#define ADMISSION_GATE_ENTRIES_H

#include "postgres.h"

#include "core/types.h"

extern bool slots_available(void);
extern int	slots_backend_count(void);
extern int	slots_my_procno(void);
extern SlotState slots_state(int procno);
extern uint32 slots_progress(int procno);
extern uint64 slots_failures(int procno);

#endif							/* ADMISSION_GATE_ENTRIES_H */
