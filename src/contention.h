/*-------------------------------------------------------------------------
 *
 * contention.h
 *		How many of the backends at work wait for each other.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_CONTENTION_H
#define ADMISSION_GATE_CONTENTION_H

extern void contention_shmem_request(void);
extern void contention_shmem_init(void);
extern void contention_look(void);
extern bool contention_is_in_line(int procno);

#endif							/* ADMISSION_GATE_CONTENTION_H */
