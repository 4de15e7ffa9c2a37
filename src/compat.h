/*-------------------------------------------------------------------------
 *
 * compat.h
 *		Every difference between the supported PostgreSQL versions (15 to 19).
 *
 * One source serves all of them: other files use the names defined here and
 * never test PG_VERSION_NUM.  What changed with a version is in its block.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_COMPAT_H
#define ADMISSION_GATE_COMPAT_H

#include "catalog/pg_authid.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "optimizer/planner.h"
#include "postmaster/postmaster.h"
#include "storage/proc.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000
#error "admission_gate needs PostgreSQL 15 or newer"
#endif

/*
 * 16: the privileges that a statement needs are in a list of their own.
 * guc_malloc() allocates what the GUC machinery frees.  Members of a role
 * have a reserve of connections, too.  The lists of the lock manager are
 * dlists: gate_proclock_in() and gate_proclock_after() return the first and
 * the next PROCLOCK of one, NULL after the last; the caller holds the lock of
 * the partition.  And PGXS hides all C names that are not PGDLLEXPORT: all
 * libraries of a server share one name space, so a call might else go to
 * another library's function of that name.  Before, -fvisibility=hidden in the
 * Makefile hides them, and PGDLLEXPORT, which was empty, exempts names from
 * that; and fmgr.h did not declare _PG_init().
 */
#if PG_VERSION_NUM >= 160000
#define GATE_GUC_MALLOC(size)	guc_malloc(LOG, size)
#define GATE_SUPERUSER_RESERVED	SuperuserReservedConnections
#define GATE_RESERVED			ReservedConnections
#define GATE_MAY_USE_RESERVED(roleid) \
	has_privs_of_role(roleid, ROLE_PG_USE_RESERVED_CONNECTIONS)
#define gate_proclock_in(list, link) \
	(dlist_is_empty(list) ? NULL : dlist_head_element(PROCLOCK, link, list))
#define gate_proclock_after(list, link, proclock) \
	(dlist_has_next(list, &(proclock)->link) ? \
	 dlist_container(PROCLOCK, link, dlist_next_node(list, &(proclock)->link)) : NULL)
#define GATE_HAS_PRIVILEGES(statement) \
	ExecCheckPermissions((statement)->rtable, (statement)->permInfos, false)
#define GATE_FUNCTION_INFO_V1(name)	PG_FUNCTION_INFO_V1(name)
#else
#define GATE_GUC_MALLOC(size)	malloc(size)
#define GATE_SUPERUSER_RESERVED	ReservedBackends
#define GATE_RESERVED			0
#define GATE_MAY_USE_RESERVED(roleid) false
#define gate_proclock_in(list, link) \
	((PROCLOCK *) SHMQueueNext(list, list, offsetof(PROCLOCK, link)))
#define gate_proclock_after(list, link, proclock) \
	((PROCLOCK *) SHMQueueNext(list, &(proclock)->link, offsetof(PROCLOCK, link)))
#define GATE_HAS_PRIVILEGES(statement)	ExecCheckRTPerms((statement)->rtable, false)
#undef PGDLLEXPORT
#define PGDLLEXPORT	__attribute__((visibility("default")))
extern PGDLLEXPORT void _PG_init(void);
#define GATE_FUNCTION_INFO_V1(name) \
	extern PGDLLEXPORT Datum name(PG_FUNCTION_ARGS); \
	PG_FUNCTION_INFO_V1(name)
#endif

/*
 * 17: a ProcNumber identifies a process, no longer PGPROC.pgprocno, and the
 * local transaction ID has moved to PGPROC.vxid.  Extensions can name their
 * wait events; before, all are "Extension".
 */
#if PG_VERSION_NUM >= 170000
#define MY_PROC_NUMBER			MyProcNumber
#define GATE_PROC_NUMBER(proc)	GetNumberFromPGProc(proc)
#define MY_TRANSACTION			(MyProc->vxid.lxid)
#define GATE_IN_TRANSACTION(proc)	((proc)->vxid.lxid != InvalidLocalTransactionId)
#define GATE_WAIT_EVENT_NEW()	WaitEventExtensionNew("AdmissionGateQueue")
#define GATE_PAUSE_EVENT_NEW()	WaitEventExtensionNew("AdmissionGatePause")
#define GATE_WORKER_EVENT_NEW()	WaitEventExtensionNew("AdmissionGateMain")
#else
#define MY_PROC_NUMBER			(MyProc->pgprocno)
#define GATE_PROC_NUMBER(proc)	((proc)->pgprocno)
#define INVALID_PROC_NUMBER		(-1)
#define MY_TRANSACTION			(MyProc->lxid)
#define GATE_IN_TRANSACTION(proc)	((proc)->lxid != InvalidLocalTransactionId)
#define GATE_WAIT_EVENT_NEW()	PG_WAIT_EXTENSION
#define GATE_PAUSE_EVENT_NEW()	PG_WAIT_EXTENSION
#define GATE_WORKER_EVENT_NEW()	PG_WAIT_EXTENSION
#endif

/* 18: ExecutorRun lost execute_once; a module declares its name and version */
#if PG_VERSION_NUM >= 180000
#define EXECUTOR_RUN_PARAMS \
	QueryDesc *queryDesc, ScanDirection direction, uint64 count
#define EXECUTOR_RUN_ARGS	queryDesc, direction, count
#define GATE_MODULE_MAGIC \
	PG_MODULE_MAGIC_EXT(.name = "admission_gate", .version = "1.0")
#else
#define EXECUTOR_RUN_PARAMS \
	QueryDesc *queryDesc, ScanDirection direction, uint64 count, bool execute_once
#define EXECUTOR_RUN_ARGS	queryDesc, direction, count, execute_once
#define GATE_MODULE_MAGIC	PG_MODULE_MAGIC
#endif

/*
 * 19: the planner receives the ExplainState.  WAIT FOR LSN sleeps until the
 * standby has reached the LSN.  Signal handlers have another type.  A wait for a buffer's content lock is no
 * LWLock wait any more; its class is that of a wait for a cleanup lock, which
 * other sessions may delay for long, and which was the only one of its class,
 * BufferPin, before.
 */
#if PG_VERSION_NUM >= 190000
#define PLANNER_PARAMS \
	Query *parse, const char *query_string, int cursorOptions, \
	ParamListInfo boundParams, struct ExplainState *es
#define PLANNER_ARGS	parse, query_string, cursorOptions, boundParams, es
#define is_wait_for_lsn(stmt)	IsA(stmt, WaitStmt)
#define GATE_SIG_IGN			PG_SIG_IGN
#define GATE_IS_CLEANUP_WAIT(event)	((event) == WAIT_EVENT_BUFFER_CLEANUP)
#define GATE_IS_BUFFER_CONTENT_WAIT(event) \
	(((event) & 0xFF000000) == (WAIT_EVENT_BUFFER_CLEANUP & 0xFF000000) && \
	 (event) != WAIT_EVENT_BUFFER_CLEANUP)
#else
#define PLANNER_PARAMS \
	Query *parse, const char *query_string, int cursorOptions, ParamListInfo boundParams
#define PLANNER_ARGS	parse, query_string, cursorOptions, boundParams
#define is_wait_for_lsn(stmt)	false
#define GATE_SIG_IGN			SIG_IGN
#define GATE_IS_CLEANUP_WAIT(event)	(((event) & 0xFF000000) == 0x04000000U)
#define GATE_IS_BUFFER_CONTENT_WAIT(event)	false
#endif

/* The same in all versions so far, but too long to repeat. */
#define UTILITY_PARAMS \
	PlannedStmt *pstmt, const char *queryString, bool readOnlyTree, \
	ProcessUtilityContext context, ParamListInfo params, \
	QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc
#define UTILITY_ARGS \
	pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc

#endif							/* ADMISSION_GATE_COMPAT_H */
