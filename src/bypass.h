/*-------------------------------------------------------------------------
 *
 * bypass.h
 *		Which sessions pass the gate without a slot.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_BYPASS_H
#define ADMISSION_GATE_BYPASS_H

#include "postgres.h"

#include "utils/guc.h"

/* Does this session pass? */
extern bool bypass_in_force;

extern void bypass_assign(bool newval, void *extra);
extern bool bypass_check_names(char **newval, void **extra, GucSource source);
extern void bypass_assign_names(const char *newval, void *extra);
extern void bypass_look_at_name(void);

#endif							/* ADMISSION_GATE_BYPASS_H */
