/*-------------------------------------------------------------------------
 *
 * sampler.h
 *		Samples what the backends do.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SAMPLER_H
#define ADMISSION_GATE_SAMPLER_H

#include "postgres.h"

extern void sampler_shmem_request(void);
extern void sampler_shmem_init(void);
extern void sampler_sample(void);
extern long sampler_watch(void);
extern void sampler_sample_holders(void);
extern void sampler_recall_lenders(void);
extern void sampler_sample_long(void);

#endif							/* ADMISSION_GATE_SAMPLER_H */
