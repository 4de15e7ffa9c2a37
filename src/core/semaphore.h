/*-------------------------------------------------------------------------
 *
 * semaphore.h
 *		The shared semaphore: acquire, wait, release, barge.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SEMAPHORE_H
#define ADMISSION_GATE_SEMAPHORE_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* What became of an attempt to enter the queue. */
typedef enum SlotEnqueued
{
	SLOT_ENQUEUED,				/* the backend is in the queue */
	SLOT_ENQUEUE_ACQUIRED,		/* a slot was free after all: it has it */
	SLOT_ENQUEUE_OBSERVED,		/* none was, but the limit is only observed:
								 * it has one above the limit */
	SLOT_ENQUEUE_FULL			/* the queue was full */
} SlotEnqueued;

/* Why a backend leaves the queue without a slot. */
typedef enum SlotLeaveReason
{
	SLOT_LEAVE_TIMEOUT,
	SLOT_LEAVE_CANCEL
} SlotLeaveReason;

extern bool slots_try_acquire(TimestampTz since);
extern bool slots_try_barge(TimestampTz since);
extern bool slots_force(TimestampTz since);
extern bool slots_acquire_reserved(int size, TimestampTz since);
extern SlotEnqueued slots_enqueue(int max_queue_length, int *queue_length);
extern bool slots_may_claim(void);
extern bool slots_claim(void);
extern bool slots_leave_queue(SlotLeaveReason reason);
extern void slots_refuse_grant(void);
extern void slots_resume(void);
extern void slots_release(bool failed);

#endif							/* ADMISSION_GATE_SEMAPHORE_H */
