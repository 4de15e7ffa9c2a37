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

extern void seed_random(uint64 seed);

/* A number from 0 to 1 */
extern double random_number(void);

/* A time of that mean: half of it is certain. */
extern double random_time(double mean);

extern void try_cpu_loads(void);

#endif							/* SIMULATOR_H */
