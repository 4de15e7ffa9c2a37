/*-------------------------------------------------------------------------
 *
 * simulator.h
 *		What the simulations share.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef SIMULATOR_H
#define SIMULATOR_H

/* A line of TAP */
extern void assert_true(bool ok, const char *what,...) pg_attribute_printf(2, 3);

extern void try_cpu_loads(void);

#endif							/* SIMULATOR_H */
