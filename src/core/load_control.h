/*-------------------------------------------------------------------------
 *
 * load_control.h
 *		Fewer slots while holders wait for each other.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_LOAD_CONTROL_H
#define ADMISSION_GATE_LOAD_CONTROL_H

#include "postgres.h"

#include "core/limit_law.h"
#include "core/types.h"

/* How the limit for all stands, and why */
typedef struct SlotLimitView
{
	int			set;			/* slots, 0 = no limit, -1 = finds itself */
	bool		is_lowered;
	LimitLaw	law;
} SlotLimitView;

extern GATE_HIDDEN SlotLook *slots_look;

extern void slots_set_load_control(bool load_control);
extern bool slots_contention_unseen(void);
extern bool slots_limit_has_to_grow(void);
extern void slots_adapt_limit(uint32 working, uint32 blocked, uint32 stuck);
extern void slots_get_limit(SlotLimitView *view);

/*
 * Should a backend whose statement began at since look at the holders?  A hint for the hot
 * path; slots_contention_unseen() decides.
 */
static inline bool
slots_look_is_due(TimestampTz since)
{
	return (uint64) since - pg_atomic_read_u64(&slots_look->seen) + SLOTS_LOOK_SLACK >=
		pg_atomic_read_u64(&slots_look->interval);
}

#endif							/* ADMISSION_GATE_LOAD_CONTROL_H */
