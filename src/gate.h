/*-------------------------------------------------------------------------
 *
 * gate.h
 *		The interfaces of the files in src.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_GATE_H
#define ADMISSION_GATE_GATE_H

#include "postgres.h"

#include "executor/execdesc.h"
#include "nodes/parsenodes.h"
#include "nodes/plannodes.h"

#include "compat.h"
#include "core/slots.h"

/* my_slot.c */
extern bool my_slot_acquire(bool begins_block);
extern void my_slot_wait(QueryDesc *query, bool begins_block);
extern void my_slot_resume(void);
extern bool my_slot_is_held(void);
extern bool my_slot_may_want(void);
extern void my_slot_want(QueryDesc *query, int hot_spot, uint32 key, uint32 shape);
extern void my_slot_want_long(QueryDesc *query, uint64 expected);
extern void my_slot_end_long(void);
extern void my_slot_note_error(const ErrorData *error);
extern void my_slot_begin_commit(void);
extern void my_slot_end_transaction(bool failed);
extern void my_slot_end_inner_transaction(bool failed);
extern void my_slot_end_subtransaction(bool failed);

/* wanted.c */
extern void wanted_begin(QueryDesc *query, int eflags);
extern void wanted_lock_table(const LockStmt *statement);

/* long_statements.c */
extern GATE_HIDDEN bool long_is_open;	/* is a statement measured? */
extern void long_begin(const PlannedStmt *statement, QueryDesc *query, bool is_cursor);
extern void long_end(bool failed);
extern void long_finish(const PlannedStmt *statement);
extern void long_begin_worker(void);

/* sampler.c */
extern long sampler_sample(void);

/* worker.c */
extern void worker_register(void);

/* snapshot.c */
extern bool snapshot_release(QueryDesc *query, bool is_first);
extern void snapshot_retake(void);

/* settings.c */
/*
 * This backend's copies.  A backend rereads the configuration only between
 * commands, so they change during a command only if it sets them itself.
 */
extern int	gate_queue_timeout; /* ms; 0 = wait forever */
extern int	gate_max_queue_length;	/* waiters; -1 = unlimited */
extern int	gate_log_min_wait;	/* ms; -1 = log none */
extern GATE_HIDDEN int gate_long_after; /* ms of CPU time; -1 = never */
extern GATE_HIDDEN int gate_idle_after; /* ms; -1 = never; only the worker
										 * asks */

/* Also in shared memory, where backends that wait read it */
extern GATE_HIDDEN int gate_max_active_backends;	/* as in SlotSettings */

extern GATE_HIDDEN bool bypass_in_force;	/* this session needs no slot */
extern void bypass_look_at_name(void);
extern bool xact_predates_gate(void);
extern void settings_define(void);
extern void settings_publish(void);

/* pool_parser.c */
extern bool pools_check(char **newval, void **extra, GucSource source);

/* process.c */
extern void wait_for_latch(long timeout, uint32 wait_event);
extern uint64 own_cpu_time(void);
extern uint64 process_cpu_time(int pid);
extern int	usable_cpus(void);
extern bool process_rests(int pid);

/* Costs mislead.  A statement is looked at if its cost promises this part. */
#define LONG_LOOK		16

/*
 * Might this statement be long?  All that most statements pay for it: is its
 * cost small, and has no sample found it at work for long before?
 */
static inline bool
long_may_be(const PlannedStmt *statement)
{
	return statement->planTree->total_cost * *slots_us_per_cost >= gate_long_after * (1000.0 / LONG_LOOK) ||
		unlikely(slots_may_surprise((uint64) statement->queryId));
}

/*
 * Is there anything to do when the first statement has ended?  All that most
 * statements pay for it.
 */
static inline bool
long_may_end(void)
{
	return unlikely(long_is_open || *slots_seem_long);
}

#endif							/* ADMISSION_GATE_GATE_H */
