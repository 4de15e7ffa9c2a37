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

#include "mb/pg_wchar.h"
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

typedef struct PoolParser
{
	const char *text;
	const char *at;				/* the next character */
	PoolDefinitions *result;
	bool		default_seen;
} PoolParser;

/* The position of the next character in the list, counted from 1 */
static int
position_of(const PoolParser *parser)
{
	return 1 + (int) (parser->at - parser->text);
}

static void
skip_space(PoolParser *parser)
{
	while (scanner_isspace(*parser->at))
		parser->at++;
}

/*
 * Read a name into a buffer of NAMEDATALEN bytes.  what: the kind of name, for
 * errors; *position receives its position.  This and the functions below call
 * GUC_check_errdetail() and return false if the list is invalid.
 */
static bool
read_name(PoolParser *parser, const char *what, char *name, int *position)
{
	size_t		length;

	skip_space(parser);
	*position = position_of(parser);
	length = strspn(parser->at, NAME_CHARS);
	if (length == 0)
		GUC_check_errdetail("A %s is expected at position %d.", what, *position);
	else if (length >= NAMEDATALEN)
		GUC_check_errdetail("The %s at position %d is too long.", what, *position);
	else
	{
		strlcpy(name, parser->at, length + 1);
		parser->at += length;
		skip_space(parser);
		return true;
	}
	return false;
}

/* Read the value of a key into the pool's definition. */
static bool
read_value(PoolParser *parser, const PoolKey *key, PoolDefinition *pool)
{
	char		value[32];		/* longer ones are invalid */
	const char *start;
	size_t		length;
	const char *hint = NULL;
	int			position;
	int			number;

	skip_space(parser);
	position = position_of(parser);
	start = parser->at;
	length = strcspn(start, ",;");
	parser->at += length;
	while (length > 0 && scanner_isspace(start[length - 1]))
		length--;

	strlcpy(value, start, pg_mbcliplen(start, length, sizeof(value) - 1) + 1);
	if (length >= sizeof(value) || !parse_int(value, &number, key->unit, &hint))
	{
		GUC_check_errdetail("Invalid value for \"%s\" at position %d: \"%s\".",
							key->name, position, value);
		if (hint)
			GUC_check_errhint("%s", _(hint));
		return false;
	}
	if (number < key->min || number > key->max)
	{
		GUC_check_errdetail("The value %d at position %d is outside the valid range for \"%s\" (%d .. %d).",
							number, position, key->name, key->min, key->max);
		return false;
	}
	*(int *) ((char *) pool + key->offset) = number;
	return true;
}

/*
 * Read "key = value" into the pool's definition.  *seen has a bit for each key
 * already read for this pool.
 */
static bool
read_setting(PoolParser *parser, PoolDefinition *pool, int *seen)
{
	char		name[NAMEDATALEN];
	int			position;
	int			i = 0;

	if (!read_name(parser, "key word", name, &position))
		return false;

	while (i < lengthof(keys) && pg_strcasecmp(name, keys[i].name) != 0)
		i++;
	if (i == lengthof(keys))
	{
		GUC_check_errdetail("Unrecognized key word \"%s\" at position %d.", name, position);
		if (*parser->at == ':')
			GUC_check_errhint("Pools are separated by \";\".");
		else
			GUC_check_errhint("Valid key words are \"max_active\", \"priority\", \"max_queue_length\" and \"queue_timeout\".");
	}
	else if (*seen & (1 << i))
		GUC_check_errdetail("\"%s\" is set twice for pool \"%s\", again at position %d.",
							keys[i].name, pool->name, position);
	else if (*parser->at != '=')
		GUC_check_errdetail("\"=\" is expected at position %d.", position_of(parser));
	else
	{
		*seen |= 1 << i;
		parser->at++;
		return read_value(parser, &keys[i], pool);
	}
	return false;
}

/* Add a pool with defaults.  The rest of the list is zero. */
static void
add_definition(PoolDefinitions *list, const char *name)
{
	PoolDefinition *pool = &list->pools[list->n++];

	strlcpy(pool->name, name, sizeof(pool->name));
	pool->max_queue_length = POOLS_QUEUE_LENGTH_UNSET;
}

/* Read "name" or "name: setting, setting". */
static bool
read_definition(PoolParser *parser)
{
	PoolDefinitions *result = parser->result;
	char		name[NAMEDATALEN];
	int			position;
	int			i = 0;
	int			seen = 0;

	if (!read_name(parser, "pool name", name, &position))
		return false;
	pools_fold_name(name, name);

	while (i < result->n && strcmp(result->pools[i].name, name) != 0)
		i++;
	if (i == 0 && !parser->default_seen)
		parser->default_seen = true;
	else if (i < result->n)
	{
		GUC_check_errdetail("Pool \"%s\" is defined twice, again at position %d.", name, position);
		return false;
	}
	else if (i == POOLS_MAX)
	{
		GUC_check_errdetail("There are more than %d pools, the next at position %d.",
							POOLS_MAX, position);
		return false;
	}
	else
		add_definition(result, name);

	if (*parser->at != ':')
		return true;
	parser->at++;
	skip_space(parser);
	if (*parser->at == ';' || *parser->at == '\0')
		return true;
	while (read_setting(parser, &result->pools[i], &seen))
	{
		if (*parser->at != ',')
			return true;
		parser->at++;
	}
	return false;
}

/* Check hook of pools: *extra receives the PoolDefinitions. */
bool
pools_check(char **newval, void **extra, GucSource source)
{
	PoolDefinitions definitions = {0};
	PoolParser	parser = {.text = *newval,.at = *newval,.result = &definitions};
	bool		valid = true;

	add_definition(&definitions, POOLS_DEFAULT_NAME);

	for (skip_space(&parser); valid && *parser.at != '\0'; skip_space(&parser))
	{
		valid = read_definition(&parser);
		if (*parser.at == ';')
			parser.at++;
		else if (valid && *parser.at != '\0')
		{
			GUC_check_errdetail("\":\" or \";\" is expected at position %d.", position_of(&parser));
			valid = false;
		}
	}
	if (valid)
		*extra = GATE_GUC_MALLOC(sizeof(definitions));
	if (valid && *extra != NULL)
		memcpy(*extra, &definitions, sizeof(definitions));
	return valid && *extra != NULL;
}
