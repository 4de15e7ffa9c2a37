/*-------------------------------------------------------------------------
 *
 * wait_log.c
 *		A line in the server log for every long wait in the queue.
 *
 * In an overloaded server every wait is long, so the lines are limited to
 * LINES_PER_SECOND in the whole server; the next line tells how many were left
 * out.  As with log_lock_waits, log_min_error_statement decides whether the
 * statement is added.
 *
 * Locking: none, both members in shared memory are atomics.  Backends touch
 * them only at the end of a wait that is to be logged.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "core/pools.h"
#include "settings.h"
#include "wait_log.h"

#define LINES_PER_SECOND	10

/* The low bits of WaitLogLimiter.second count the lines of that second. */
#define LINES_BITS			8
#define LINES_MASK			((UINT64CONST(1) << LINES_BITS) - 1)

typedef struct WaitLogLimiter
{
	pg_atomic_uint64 second;	/* the latest that has lines; see above */
	pg_atomic_uint32 left_out;	/* waits since the last line */
} WaitLogLimiter;

static WaitLogLimiter *Limiter = NULL;

/*
 * The size of what wait_log_shmem_init() creates, in bytes
 */
Size
wait_log_shmem_size(void)
{
	return sizeof(WaitLogLimiter);
}

/*
 * Create or attach to the limiter.  The caller holds AddinShmemInitLock.
 */
void
wait_log_shmem_init(void)
{
	bool		found;

	Limiter = ShmemInitStruct("admission_gate wait log",
							  wait_log_shmem_size(), &found);
	if (!found)
	{
		pg_atomic_init_u64(&Limiter->second, 0);
		pg_atomic_init_u32(&Limiter->left_out, 0);
	}
}

/*
 * May one more line be written now?  If not, it counts as left out.
 */
static bool
may_write_line(void)
{
	uint64		now = (uint64) (GetCurrentTimestamp() / USECS_PER_SEC);
	uint64		old = pg_atomic_read_u64(&Limiter->second);

	for (;;)
	{
		uint64		second = old >> LINES_BITS;
		uint64		lines = old & LINES_MASK;

		/* Another backend's clock may be a moment ahead. */
		if (second != now && second != now + 1)
		{
			second = now;
			lines = 0;
		}
		if (lines >= LINES_PER_SECOND)
		{
			pg_atomic_fetch_add_u32(&Limiter->left_out, 1);
			return false;
		}
		if (pg_atomic_compare_exchange_u64(&Limiter->second, &old,
										   second << LINES_BITS | (lines + 1)))
			return true;
	}
}

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
	uint32		left_out;

	if (gate_log_min_wait < 0 ||
		waited < (uint64) gate_log_min_wait * 1000 ||
		!may_write_line())
		return;

	left_out = pg_atomic_exchange_u32(&Limiter->left_out, 0);

	HOLD_INTERRUPTS();
	ereport(LOG_SERVER_ONLY,
			(errmsg("admission wait ended after %llu.%03llu ms: %s, pool \"%s\", queue length %d on arrival, position %d",
					(unsigned long long) (waited / 1000),
					(unsigned long long) (waited % 1000),
					name_of_end(end), slots_pool_name(),
					queue_length, queue_length + 1),
			 left_out == 0 ? 0 :
			 errdetail_plural("%u wait before it was not logged, as %d lines a second are the limit.",
							  "%u waits before it were not logged, as %d lines a second are the limit.",
							  left_out, left_out, LINES_PER_SECOND)));
	RESUME_INTERRUPTS();
}
