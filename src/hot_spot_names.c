/*-------------------------------------------------------------------------
 *
 * hot_spot_names.c
 *		Names of what backends contend for: for the views and for errors.
 *
 * No locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/wait_event.h"

#include "hot_spot_names.h"

const char *
hot_spot_kind_name(HotSpotKind kind)
{
	switch (kind)
	{
		case HOT_SPOT_RELATION:
			return "relation";
		case HOT_SPOT_ADVISORY:
			return "advisory";
		case HOT_SPOT_OBJECT:
			return "object";
		case HOT_SPOT_LWLOCK:
			return "lwlock";
		case HOT_SPOT_TRANSACTION:
			return "transaction";
		case HOT_SPOT_NONE:
			break;
	}
	pg_unreachable();
}

/* The name of a lock inside the server, as in pg_stat_activity. */
const char *
hot_spot_lock_name(const HotSpotKey *key)
{
	const char *name = pgstat_get_wait_event(key->fields[0]);

	return name != NULL ? name : "unknown";
}

/*
 * Describe what backends contend for, for an error.  by_name: look relations
 * of this database up in the catalog, which may raise errors; no lock is held
 * on them.
 */
void
hot_spot_describe(const HotSpotKey *key, bool by_name, char name[HOT_SPOT_NAME_LENGTH])
{
	char	   *relation = NULL;

	switch (key->kind)
	{
		case HOT_SPOT_RELATION:
			if (by_name && key->database == MyDatabaseId)
				relation = get_rel_name(key->fields[0]);
			if (relation != NULL)
				snprintf(name, HOT_SPOT_NAME_LENGTH, "relation \"%s\"", relation);
			else
				snprintf(name, HOT_SPOT_NAME_LENGTH, "relation %u of database %u",
						 key->fields[0], key->database);
			break;
		case HOT_SPOT_ADVISORY:
			snprintf(name, HOT_SPOT_NAME_LENGTH, "advisory lock (%u, %u, %u)",
					 key->fields[0], key->fields[1], key->fields[2]);
			break;
		case HOT_SPOT_OBJECT:
			snprintf(name, HOT_SPOT_NAME_LENGTH, "object %u of class %u of database %u",
					 key->fields[1], key->fields[0], key->database);
			break;
		case HOT_SPOT_LWLOCK:
			snprintf(name, HOT_SPOT_NAME_LENGTH, "the lock \"%s\" inside the server",
					 hot_spot_lock_name(key));
			break;
		case HOT_SPOT_TRANSACTION:
		case HOT_SPOT_NONE:
			snprintf(name, HOT_SPOT_NAME_LENGTH, "other transactions");
			break;
	}
}
