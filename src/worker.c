/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker, the one process that samples.
 *
 * It runs even on a standby.  By its samples (sampler.c), it adapts limits,
 * counts who is at work, and lets waiters in if a queue stands still.
 * When the configuration is reloaded, it publishes settings in shared memory.
 * While the gate is off, it sleeps.
 *
 * Without it, backends still pass slots and places on.  If a queue stands still,
 * its waiters let one of them in each second (slots_move_queue_of()).
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"

#include "gate.h"

extern PGDLLEXPORT void admission_gate_worker_main(Datum arg);

/*
 * Put the name of this library's file into name.  By "admission_gate" alone,
 * the worker could load another copy, which has no shared memory.
 */
static void
find_library(char *name, size_t size)
{
	size_t		length = strlen(pkglib_path);
	const char *prefix = "";
	Dl_info		info;

	if (dladdr((void *) worker_register, &info) == 0)
		elog(ERROR, "could not find the file of admission_gate");
	/* Before PostgreSQL 17, there is little room. */
	if (strncmp(info.dli_fname, pkglib_path, length) == 0 && info.dli_fname[length] == '/')
	{
		info.dli_fname += length;
		prefix = "$libdir";
	}
	if (snprintf(name, size, "%s%s", prefix, info.dli_fname) >= size)
		ereport(ERROR,
				(errcode(ERRCODE_NAME_TOO_LONG),
				 errmsg("name of library file \"%s%s\" is too long", prefix, info.dli_fname),
				 errdetail("The file of a background worker has a name of at most %d bytes.", (int) size - 1)));
}

/* Make the postmaster start the worker.  Call from _PG_init(). */
void
worker_register(void)
{
	BackgroundWorker worker = {
		.bgw_name = "admission_gate worker",
		.bgw_type = "admission_gate worker",
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_ConsistentState,
		.bgw_restart_time = 1,	/* s */
		.bgw_function_name = "admission_gate_worker_main"
	};

	find_library(worker.bgw_library_name, sizeof(worker.bgw_library_name));
	RegisterBackgroundWorker(&worker);
}

void
admission_gate_worker_main(Datum arg)
{
	uint32		wait_event;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGINT, GATE_SIG_IGN);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	/* Without a database: only pg_stat_activity needs this. */
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	wait_event = GATE_WAIT_EVENT_NEW("AdmissionGateMain");
	slots_begin_sampling(usable_cpus());
	/* A reload may have been signaled before there was a handler. */
	ConfigReloadPending = true;

	for (;;)
	{
		long		timeout;

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			settings_publish();
		}
		timeout = sampler_sample();
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (timeout >= 0 ? WL_TIMEOUT : 0),
						 timeout, wait_event);
		ResetLatch(MyLatch);
		/* The postmaster restarts it after any exit code but 0. */
		if (ShutdownRequestPending)
			proc_exit(1);
		CHECK_FOR_INTERRUPTS();
	}
}
