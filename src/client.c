/*-------------------------------------------------------------------------
 *
 * client.c
 *		Whether the client of this backend is still there.
 *
 * A client that gives up and tries again leaves its first statement behind,
 * which PostgreSQL would run for nobody: it notices only when it reads or
 * writes.  A queue makes that likely, so a backend that waits looks at its
 * socket.  It ends as with client_connection_check_interval.
 *
 * No locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"

#include "client.h"

/*
 * As in libpq/libpq.h, which includes headers of GSSAPI: these need not be
 * installed where the server was built with it.
 */
extern bool pq_check_connection(void);

/*
 * End this backend, by FATAL, if its client has hung up.  Does nothing in a
 * process without a client, nor where the platform does not tell.  May reset
 * the latch, and so checks for interrupts; look afterwards at whatever else it
 * stands for.
 */
void
client_check(void)
{
	if (MyProcPort == NULL || !WaitEventSetCanReportClosed())
		return;
	if (!pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
}
