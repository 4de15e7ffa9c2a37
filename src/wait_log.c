/*-------------------------------------------------------------------------
 *
 * wait_log.c
 *		A line in the server log for every long wait in the queue.
 *
 * As with log_lock_waits, log_min_error_statement decides whether the
 * statement is added.
 *
 * Everything here is local to the backend: no locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "gate.h"

static const char *
name_of_end(WaitEnd end)
{
	switch (end)
	{
		case WAIT_END_ADMITTED:
			return "admitted";
		case WAIT_END_TIMEOUT:
			return "timed out";
		case WAIT_END_CANCEL:
			return "canceled";
	}
	pg_unreachable();
}

/*
 * Log a wait that has ended if it took log_min_wait or longer.  waited: us;
 * queue_length: waiters when it began.  Serves no interrupts, so that it can
 * be called while an error is handled.
 */
void
wait_log_if_long(WaitEnd end, uint64 waited, int queue_length)
{
	if (gate_log_min_wait < 0 ||
		waited < (uint64) gate_log_min_wait * 1000)
		return;

	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg("admission wait ended after %llu.%03llu ms: %s, pool \"%s\", queue length %d on arrival, position %d",
					(unsigned long long) (waited / 1000),
					(unsigned long long) (waited % 1000),
					name_of_end(end), slots_pool_name(),
					queue_length, queue_length + 1)));
	RESUME_INTERRUPTS();
}
