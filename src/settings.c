/*-------------------------------------------------------------------------
 *
 * settings.c
 *		The configuration parameters; and which sessions need no slot.
 *
 * Each backend has its own copy of each parameter.  But backends that wait do
 * not reread the configuration.  So the worker (worker.c), which acts on a
 * reload at once, publishes the parameters of the core in shared memory.
 *
 * Locking: none here; the functions of the core take the locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/parallel.h"
#include "utils/varlena.h"

#include "gate.h"

enum
{
	MODE_OFF, MODE_OBSERVE, MODE_ENFORCE
};

int			gate_max_active_backends = 0;
int			gate_queue_timeout = 0;
int			gate_max_queue_length = -1;
int			gate_log_min_wait = -1;
int			gate_long_after = 100;
int			gate_idle_after = 100;
bool		bypass_in_force = false;

static int	max_active_backends = 0;
static int	mode = MODE_ENFORCE;
static bool hot_spots = true;
static bool bypass = false;
static char *bypass_application_names;
static char *pools;
static char *pool;

/* What hooks made of them: bypass_names are strings, then an empty one. */
static const PoolDefinitions *gate_pools = NULL;
static const char *bypass_names = "";
static bool bypass_by_name = false;

static const struct config_enum_entry mode_options[] = {
	{"off", MODE_OFF, false},
	{"observe", MODE_OBSERVE, false},
	{"enforce", MODE_ENFORCE, false},
	{NULL, 0, false}
};

/* The transaction during which this backend learned of a limit, or invalid */
static LocalTransactionId ungated_transaction = InvalidLocalTransactionId;

/* Call when shared memory has been created; in the worker after each reload. */
void
settings_publish(void)
{
	SlotSettings settings = {
		.max_active = gate_max_active_backends,
		.observing = mode == MODE_OBSERVE,
		.hot_spots = hot_spots,
		.log_min_wait = gate_log_min_wait
	};

	slots_set_pools(gate_pools);
	slots_set(&settings);
}

/* Let max_active backends work in this mode. */
static void
set_gate(int max_active, int new_mode)
{
	bool		was_off = gate_max_active_backends == 0;

	gate_max_active_backends = new_mode == MODE_OFF ? 0 : max_active;
	/* A parallel worker gets its leader's settings in a transaction. */
	if (was_off && gate_max_active_backends != 0 && MyProc != NULL && !IsParallelWorker())
		ungated_transaction = MY_TRANSACTION;
}

static void
assign_max_active_backends(int newval, void *extra)
{
	set_gate(newval, mode);
}

static void
assign_mode(int newval, void *extra)
{
	set_gate(max_active_backends, newval);
}

static void
assign_pools(const char *newval, void *extra)
{
	gate_pools = (const PoolDefinitions *) extra;
}

/* The pool need not exist; ALTER ROLE and ALTER DATABASE give a notice then. */
static bool
check_pool(char **newval, void **extra, GucSource source)
{
	if (source == PGC_S_TEST && pools_find(gate_pools, *newval) == NULL)
		ereport(NOTICE,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("pool \"%s\" is not defined in admission_gate.pools", *newval)));
	return true;
}

static void
assign_pool(const char *newval, void *extra)
{
	slots_choose_pool(newval);
}

static void
assign_bypass(bool newval, void *extra)
{
	bypass_in_force = newval || bypass_by_name;
}

static bool
check_bypass_application_names(char **newval, void **extra, GucSource source)
{
	List	   *names;
	ListCell   *cell;
	char	   *to;

	if (!SplitGUCList(pstrdup(*newval), ',', &names))
	{
		GUC_check_errdetail("List syntax is invalid.");
		GUC_check_errhint("Put a name that contains spaces or commas in double quotes.");
		return false;
	}
	foreach(cell, names)
	{
		const char *name = (const char *) lfirst(cell);
		const char *asterisk = strchr(name, '*');

		if (name[0] == '\0')
			GUC_check_errdetail("An application name in the list is empty.");
		else if (asterisk && asterisk[1] != '\0')
			GUC_check_errdetail("In \"%s\", \"*\" is not the last character.", name);
		else if (strcspn(name, "*") >= NAMEDATALEN)
			GUC_check_errdetail("An application name has at most %d bytes.", NAMEDATALEN - 1);
		else
			continue;
		return false;
	}

	/* Terminators replace commas; the last name and the list add two bytes. */
	*extra = to = GATE_GUC_MALLOC(strlen(*newval) + 2);
	if (to == NULL)
		return false;
	foreach(cell, names)
		to = stpcpy(to, (const char *) lfirst(cell)) + 1;
	*to = '\0';
	return true;
}

/*
 * Decide whether the session passes because of the application_name with which
 * it began; SET does not count.  Call this when the session has its parameters
 * and when the list changes.  (MyProcPort has the name, too, but needs headers
 * of authentication libraries.)
 */
void
bypass_look_at_name(void)
{
	const char *name = GetConfigOptionResetString("application_name");

	bypass_by_name = false;
	for (const char *element = bypass_names; *element; element += strlen(element) + 1)
	{
		/* Compare up to the asterisk, or to the terminator. */
		size_t		length = strcspn(element, "*");

		if (element[length] == '\0')
			length++;
		bypass_by_name |= strncmp(name, element, length) == 0;
	}
	bypass_in_force = bypass || bypass_by_name;
}

static void
assign_bypass_application_names(const char *newval, void *extra)
{
	bypass_names = (const char *) extra;
	bypass_look_at_name();
}

/*
 * Did the transaction begin before this backend knew of a limit?  Then it may
 * hold locks without being admitted.
 */
bool
xact_predates_gate(void)
{
	return ungated_transaction == MY_TRANSACTION;
}

void
settings_define(void)
{
	DefineCustomIntVariable("admission_gate.max_active_backends",
							"Sets how many client backends may be at work at the same time.",
							"Others wait in a queue. Zero turns the gate off. -1 leaves the limits of pools, and automatic ones: for hot spots, long statements and short CPUs.",
							&max_active_backends, 0, -1, SLOTS_MAX_LIMIT,
							PGC_SIGHUP, 0, NULL, assign_max_active_backends, NULL);

	DefineCustomEnumVariable("admission_gate.mode",
							 "Sets whether backends above the limit wait, or are only counted, or whether the gate is off.",
							 "\"enforce\" makes them wait. \"observe\" lets them enter at once, and counts how often one would have waited. \"off\" lets all pass, and keeps the number in max_active_backends.",
							 &mode, MODE_ENFORCE, mode_options,
							 PGC_SIGHUP, 0, NULL, assign_mode, NULL);

	DefineCustomStringVariable("admission_gate.pools",
							   "Defines pools, which give parts of the slots to parts of the sessions.",
							   "For example, \"web: max_active = 16, priority = 10; batch: max_active = 4, queue_timeout = 30s\". Sessions of no defined pool use \"default\".",
							   &pools, "", PGC_SIGHUP, 0, pools_check, assign_pools, NULL);

	DefineCustomStringVariable("admission_gate.pool",
							   "Sets the pool that the session belongs to.",
							   "Set it by ALTER ROLE or ALTER DATABASE. If there is no such pool, the session uses \"default\".",
							   &pool, POOLS_DEFAULT_NAME,
							   PGC_SUSET, 0, check_pool, assign_pool, NULL);

	DefineCustomBoolVariable("admission_gate.bypass",
							 "Lets the session pass without a slot.",
							 "Set it by ALTER ROLE for monitoring and administration. Without it, superusers wait, but for as many as superuser_reserved_connections and reserved_connections let enter above the limit.",
							 &bypass, false, PGC_SUSET, 0, NULL, assign_bypass, NULL);

	DefineCustomStringVariable("admission_gate.bypass_application_names",
							   "Lets sessions that begin with one of these application names pass without a slot.",
							   "Use it for connections between servers. A \"*\" at the end of a name matches any characters. If the list is empty, no session passes by its name.",
							   &bypass_application_names, "", PGC_SIGHUP, GUC_LIST_INPUT,
							   check_bypass_application_names, assign_bypass_application_names, NULL);

	DefineCustomIntVariable("admission_gate.queue_timeout",
							"Sets the maximum time a statement waits for a slot, or for a place at a hot spot or among long statements.",
							"When it expires, the statement fails, or if it is BEGIN, the next one that needs a slot, or COMMIT. Zero turns this off, but not the time set for the pool: the shorter one counts. statement_timeout includes the wait.",
							&gate_queue_timeout, 0, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("admission_gate.max_queue_length",
							"Sets how many backends may wait in a queue.",
							"Each pool, each hot spot and each range of long statements has a queue. A statement fails if its queue is full. Zero means that none may wait, -1 that any number may. A pool can have its own number.",
							&gate_max_queue_length, -1, -1, INT_MAX,
							PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomBoolVariable("admission_gate.hot_spots",
							 "Makes statements queue for the rows and locks that backends contend for.",
							 "Transactions whose statements name the same hot row, table or advisory lock work a few at a time, unless that gets less done.",
							 &hot_spots, true, PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("admission_gate.log_min_wait",
							"Sets the minimum wait at the gate that is logged.",
							"Hot spots are logged when they end, if their waits add up to this. Zero logs all, -1 turns this off, and the log of limits while CPUs are short.",
							&gate_log_min_wait, -1, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("admission_gate.idle_after",
							"Sets the time with next to no use of a CPU after which a backend is not at work.",
							"It applies where no wait event tells. Zero means at the next sample. -1 means that a backend counts as at work as long as it holds its slot, whatever it waits for.",
							&gate_idle_after, 100, -1, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("admission_gate.long_after",
							"Sets the expected CPU time from which on a statement is long.",
							"While CPUs are short, those that begin a transaction wait before they start, for others that take about as long. Zero means that all are long, -1 that none is.",
							&gate_long_after, 100, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);

	MarkGUCPrefixReserved("admission_gate");
}
