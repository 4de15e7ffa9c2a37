/*-------------------------------------------------------------------------
 *
 * pool_parser.c
 *		Parses the list of pools in a configuration file:
 *
 *		web: max_active = 16, priority = 10; batch: max_active = 4; default
 *
 * A definition is a name and its settings; the others have their defaults.
 * The default pool exists even if the list does not name it.  Names are ASCII,
 * because the list has no particular encoding, and case-insensitive.  The list
 * may end with a semicolon.
 *
 * This file handles only text; core/pools.c puts pools into shared memory.  No
 * locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "parser/scansup.h"

#include "gate.h"

#define NAME_CHARS	"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

/* What can be set for a pool */
typedef struct PoolKey
{
	const char *name;
	size_t		offset;			/* of an int in PoolDefinition */
	int			unit;			/* GUC_UNIT_... or 0 */
	int			min;
	int			max;
} PoolKey;

static const PoolKey keys[] = {
	{"max_active", offsetof(PoolDefinition, max_active), 0, 0, SLOTS_MAX_LIMIT},
	{"priority", offsetof(PoolDefinition, priority), 0, -1000, 1000},
	{"max_queue_length", offsetof(PoolDefinition, max_queue_length), 0, -1, INT_MAX},
	{"queue_timeout", offsetof(PoolDefinition, queue_timeout), GUC_UNIT_MS, 0, INT_MAX}
};

/*
 * Cut the next part off: up to a separator, without white space around it.
 * *rest, which must not be NULL, becomes what follows, or NULL if nothing does.
 */
static char *
next_part(char **rest, const char *separator)
{
	char	   *part = strsep(rest, separator);
	size_t		length;

	while (scanner_isspace(*part))
		part++;
	length = strlen(part);
	while (length > 0 && scanner_isspace(part[length - 1]))
		length--;
	part[length] = '\0';
	return part;
}

/*
 * Read "key = value".  seen: bits of the keys that the pool has so far.  This
 * and the function below call GUC_check_errdetail() and return false if the
 * text is invalid.  Both change the text.
 */
static bool
read_setting(char *text, PoolDefinition *pool, int *seen)
{
	const char *name = next_part(&text, "=");
	const char *value = text !=NULL ? next_part(&text, "") : "";
	const char *hint = NULL;
	int			i = 0;
	int			number;

	while (i < lengthof(keys) && pg_strcasecmp(name, keys[i].name) != 0)
		i++;
	if (i == lengthof(keys))
	{
		GUC_check_errdetail("Unrecognized key word \"%s\" for pool \"%s\".", name, pool->name);
		GUC_check_errhint("Valid key words are \"max_active\", \"priority\", \"max_queue_length\" and \"queue_timeout\". Pools are separated by \";\".");
	}
	else if (*seen & (1 << i))
		GUC_check_errdetail("\"%s\" is set twice for pool \"%s\".", keys[i].name, pool->name);
	else if (!parse_int(value, &number, keys[i].unit, &hint) ||
			 number < keys[i].min || number > keys[i].max)
	{
		GUC_check_errdetail("Invalid value for \"%s\" of pool \"%s\": \"%s\".",
							keys[i].name, pool->name, value);
		if (hint != NULL)
			GUC_check_errhint("%s", _(hint));
		else
			GUC_check_errhint("Valid values are between %d and %d.", keys[i].min, keys[i].max);
	}
	else
	{
		*seen |= 1 << i;
		*(int *) ((char *) pool + keys[i].offset) = number;
		return true;
	}
	return false;
}

/* Read "name" or "name: setting, setting". */
static bool
read_definition(char *text, PoolDefinitions *result)
{
	char	   *name = next_part(&text, ":");
	size_t		length = strspn(name, NAME_CHARS);
	bool		is_default = pg_strcasecmp(name, POOLS_DEFAULT_NAME) == 0;
	PoolDefinition *pool;
	int			seen = 0;

	if (length == 0 || length >= NAMEDATALEN || name[length] != '\0')
	{
		GUC_check_errdetail("\"%s\" is not a valid name of a pool.", name);
		GUC_check_errhint("Names consist of letters, digits, \"_\" and \"-\", and have at most %d characters. Pools are separated by \";\".",
						  NAMEDATALEN - 1);
		return false;
	}
	if (pools_find(result, name) != NULL)
	{
		GUC_check_errdetail("Pool \"%s\" is defined twice.", name);
		return false;
	}
	if (result->n == POOLS_MAX && !is_default)
	{
		GUC_check_errdetail("There are more than %d pools.", POOLS_MAX);
		return false;
	}
	pool = &result->pools[is_default ? 0 : result->n++];
	for (int i = 0; i < length; i++)
		pool->name[i] = pg_ascii_tolower((unsigned char) name[i]);
	pool->max_queue_length = POOLS_QUEUE_LENGTH_UNSET;

	if (text == NULL || *text == '\0')
		return true;
	do
		if (!read_setting(next_part(&text, ","), pool, &seen))
			return false;
	while (text !=NULL);
	return true;
}

/* Check hook of pools: *extra receives the PoolDefinitions. */
bool
pools_check(char **newval, void **extra, GucSource source)
{
	/* The default pool has a name when it has been defined. */
	PoolDefinitions result = {1, {{.max_queue_length = POOLS_QUEUE_LENGTH_UNSET}}};
	char	   *rest = pstrdup(*newval);

	do
	{
		char	   *definition = next_part(&rest, ";");

		/* What follows the last semicolon may be empty. */
		if ((rest != NULL || *definition != '\0') && !read_definition(definition, &result))
			return false;
	} while (rest != NULL);
	strlcpy(result.pools[0].name, POOLS_DEFAULT_NAME, NAMEDATALEN);

	*extra = GATE_GUC_MALLOC(sizeof(PoolDefinitions));
	if (*extra != NULL)
		memcpy(*extra, &result, sizeof(PoolDefinitions));
	return *extra != NULL;
}
