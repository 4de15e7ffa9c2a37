/*-------------------------------------------------------------------------
 *
 * compat.h
 *		Every difference between the supported PostgreSQL versions (15 to 19).
 *
 * Other files use the names defined here and never test PG_VERSION_NUM.  Each
 * block has what its version changed.
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
#include "utils/timeout.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000
#error "admission_gate needs PostgreSQL 15 or newer"
#endif

/*
 * 16: Permissions of a statement are in a list of their own. guc_malloc()
 * allocates what GUC code frees.  There is reserved_connections.  The lock
 * manager's lists are dlists: gate_proclock_in() and gate_proclock_after()
 * return the first and the next PROCLOCK, or NULL; the caller holds the
 * partition lock.  PGXS hides all C names that are not PGDLLEXPORT; before,
 * -fvisibility=hidden in the Makefile does, and PGDLLEXPORT, which was empty,
 * must exempt names. fmgr.h declares _PG_init().
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
 * 17: ProcNumber replaces PGPROC.pgprocno.  The local transaction ID moved to
 * PGPROC.vxid.  Extensions can name wait events; before, all are "Extension".
 * There is transaction_timeout; before, statement_timeout alone.
 */
#if PG_VERSION_NUM >= 170000
#define GATE_TRANSACTION_TIMEOUT	TRANSACTION_TIMEOUT
#define MY_PROC_NUMBER			MyProcNumber
#define GATE_PROC_NUMBER(proc)	GetNumberFromPGProc(proc)
#define MY_TRANSACTION			(MyProc->vxid.lxid)
#define GATE_IN_TRANSACTION(proc)	((proc)->vxid.lxid != InvalidLocalTransactionId)
#define GATE_WAIT_EVENT_NEW(name)	WaitEventExtensionNew(name)
#define GATE_ERRCODE_TRANSACTION_TIMEOUT	ERRCODE_TRANSACTION_TIMEOUT
#else
#define GATE_TRANSACTION_TIMEOUT	STATEMENT_TIMEOUT
#define MY_PROC_NUMBER			(MyProc->pgprocno)
#define GATE_PROC_NUMBER(proc)	((proc)->pgprocno)
#define INVALID_PROC_NUMBER		(-1)
#define MY_TRANSACTION			(MyProc->lxid)
#define GATE_IN_TRANSACTION(proc)	((proc)->lxid != InvalidLocalTransactionId)
#define GATE_WAIT_EVENT_NEW(name)	PG_WAIT_EXTENSION
#define GATE_ERRCODE_TRANSACTION_TIMEOUT	ERRCODE_QUERY_CANCELED
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
 * 19: The planner receives the ExplainState.  The relations that a plan changes
 * are a set, not a list: gate_next_result() sets position, which is -1 at first,
 * to the next one and returns its index in the range table, or a negative
 * number.  There is WAIT FOR LSN.  Signal handlers have another type.  Waits for
 * a buffer's content lock moved from class LWLock to the class of waits for a
 * cleanup lock, which had class BufferPin to themselves before.
 */
#if PG_VERSION_NUM >= 190000
#define PLANNER_PARAMS \
	Query *parse, const char *query_string, int cursorOptions, \
	ParamListInfo boundParams, struct ExplainState *es
#define PLANNER_ARGS	parse, query_string, cursorOptions, boundParams, es
#define gate_next_result(statement, position) \
	((position) = bms_next_member((statement)->resultRelationRelids, position))
#define is_wait_for_lsn(stmt)	IsA(stmt, WaitStmt)
#define GATE_SIG_IGN			PG_SIG_IGN
#define GATE_IS_BUFFER_CONTENT_WAIT(event) \
	(((event) & 0xFF000000) == (WAIT_EVENT_BUFFER_CLEANUP & 0xFF000000) && \
	 (event) != WAIT_EVENT_BUFFER_CLEANUP)
#else
#define PLANNER_PARAMS \
	Query *parse, const char *query_string, int cursorOptions, ParamListInfo boundParams
#define PLANNER_ARGS	parse, query_string, cursorOptions, boundParams
#define gate_next_result(statement, position) \
	(++(position) < list_length((statement)->resultRelations) ? \
	 list_nth_int((statement)->resultRelations, position) : -1)
#define is_wait_for_lsn(stmt)	false
#define GATE_SIG_IGN			SIG_IGN
#define GATE_IS_BUFFER_CONTENT_WAIT(event)	false
#endif

/* The same in all versions, but too long to repeat */
#define UTILITY_PARAMS \
	PlannedStmt *pstmt, const char *queryString, bool readOnlyTree, \
	ProcessUtilityContext context, ParamListInfo params, \
	QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc
#define UTILITY_ARGS \
	pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc

#endif							/* ADMISSION_GATE_COMPAT_H */
