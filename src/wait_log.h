/*-------------------------------------------------------------------------
 *
 * wait_log.h
 *		A line in the server log for every long wait in the queue.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_WAIT_LOG_H
#define ADMISSION_GATE_WAIT_LOG_H

#include "postgres.h"

/* How a wait ended */
typedef enum WaitEnd
{
	WAIT_END_ADMITTED,
	WAIT_END_TIMEOUT,			/* by queue_timeout */
	WAIT_END_CANCEL				/* by anything else */
} WaitEnd;

extern void wait_log_if_long(WaitEnd end, uint64 waited, int queue_length);

#endif							/* ADMISSION_GATE_WAIT_LOG_H */
