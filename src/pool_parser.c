/*-------------------------------------------------------------------------
 *
 * pool_parser.c
 *		The parser of the list of pools, as written in a configuration file:
 *
 *		web: max_active = 16, priority = 10; batch: max_active = 4; default
 *
 * A definition is a name and its settings; what is not set has its default.
 * The default pool exists whether the list names it or not.  Names are ASCII
 * and compared without regard to case.
 *
 * This file handles text only; core/pools.c puts the pools into shared memory.
 * No locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "mb/pg_wchar.h"
#include "parser/scansup.h"
#include "utils/guc.h"

#include "gate.h"

/* Size of the buffer for a value; longer ones are invalid */
#define VALUE_SIZE	32

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

/* State of the parser */
typedef struct PoolParser
{
	const char *text;
	const char *at;				/* the next character */
	PoolDefinitions *result;
	bool		default_seen;
} PoolParser;

/* The position of a byte in the list, counted from 1 */
static int
position_of(const PoolParser *parser, const char *at)
{
	return 1 + (int) (at - parser->text);
}

static void
skip_space(PoolParser *parser)
{
	while (scanner_isspace(*parser->at))
		parser->at++;
}

/* ASCII only: the list is read in no particular encoding. */
static bool
is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
		(c >= '0' && c <= '9') || c == '_' || c == '-';
}

/*
 * Read a name into a buffer of NAMEDATALEN bytes.  what: the kind of name, for
 * errors.  This and the functions below return false, or NULL, after
 * GUC_check_errdetail() if the list is invalid.
 */
static bool
read_name(PoolParser *parser, const char *what, char *name)
{
	const char *start;

	skip_space(parser);
	start = parser->at;
	while (is_name_char(*parser->at))
		parser->at++;

	if (parser->at == start)
	{
		GUC_check_errdetail("A %s is expected at position %d.",
							what, position_of(parser, start));
		return false;
	}
	if (parser->at - start >= NAMEDATALEN)
	{
		GUC_check_errdetail("The %s at position %d is too long.",
							what, position_of(parser, start));
		return false;
	}
	strlcpy(name, start, parser->at - start + 1);
	skip_space(parser);
	return true;
}

/*
 * Read the value of this key into the pool's definition.
 */
static bool
read_value(PoolParser *parser, const PoolKey *key, PoolDefinition *pool)
{
	char		value[VALUE_SIZE];
	const char *start;
	size_t		length;
	const char *hint = NULL;
	int			number;

	skip_space(parser);
	start = parser->at;
	length = strcspn(start, ",;");
	parser->at += length;
	while (length > 0 && scanner_isspace(start[length - 1]))
		length--;

	strlcpy(value, start, pg_mbcliplen(start, length, sizeof(value) - 1) + 1);
	if (length >= sizeof(value) || !parse_int(value, &number, key->unit, &hint))
	{
		GUC_check_errdetail("Invalid value for \"%s\" at position %d: \"%s\".",
							key->name, position_of(parser, start), value);
		if (hint)
			GUC_check_errhint("%s", _(hint));
		return false;
	}
	if (number < key->min || number > key->max)
	{
		GUC_check_errdetail("The value %d at position %d is outside the valid range for \"%s\" (%d .. %d).",
							number, position_of(parser, start), key->name,
							key->min, key->max);
		return false;
	}
	*(int *) ((char *) pool + key->offset) = number;
	return true;
}

/*
 * Read "key = value" into the pool's definition.  *seen has a bit for every
 * key that was read for this pool.
 */
static bool
read_setting(PoolParser *parser, PoolDefinition *pool, int *seen)
{
	char		name[NAMEDATALEN];
	const char *start;

	skip_space(parser);
	start = parser->at;
	if (!read_name(parser, "key word", name))
		return false;

	for (int i = 0; i < (int) lengthof(keys); i++)
	{
		if (pg_strcasecmp(name, keys[i].name) != 0)
			continue;
		if (*seen & (1 << i))
		{
			GUC_check_errdetail("\"%s\" is set twice for pool \"%s\", again at position %d.",
								keys[i].name, pool->name, position_of(parser, start));
			return false;
		}
		*seen |= 1 << i;
		if (*parser->at != '=')
		{
			GUC_check_errdetail("\"=\" is expected at position %d.",
								position_of(parser, parser->at));
			return false;
		}
		parser->at++;
		return read_value(parser, &keys[i], pool);
	}

	GUC_check_errdetail("Unrecognized key word \"%s\" at position %d.",
						name, position_of(parser, start));
	if (*parser->at == ':')
		GUC_check_errhint("Pools are separated by \";\".");
	else
		GUC_check_errhint("Valid key words are \"max_active\", \"priority\", \"max_queue_length\" and \"queue_timeout\".");
	return false;
}

/* A pool for which nothing is set */
static void
init_definition(PoolDefinition *pool, const char *name)
{
	memset(pool, 0, sizeof(*pool));
	strlcpy(pool->name, name, sizeof(pool->name));
	pool->max_queue_length = POOLS_QUEUE_LENGTH_UNSET;
}

/*
 * Add a pool that is named at this position, or find the default pool.  NULL
 * if the pool has been named before, or if there are too many.
 */
static PoolDefinition *
new_definition(PoolParser *parser, const char *name, const char *at)
{
	PoolDefinitions *result = parser->result;

	for (int i = 0; i < result->n; i++)
	{
		if (strcmp(result->pools[i].name, name) != 0)
			continue;
		if (i == 0 && !parser->default_seen)
		{
			parser->default_seen = true;
			return &result->pools[0];
		}
		GUC_check_errdetail("Pool \"%s\" is defined twice, again at position %d.",
							name, position_of(parser, at));
		return NULL;
	}
	if (result->n == POOLS_MAX)
	{
		GUC_check_errdetail("There are more than %d pools, the next at position %d.",
							POOLS_MAX, position_of(parser, at));
		return NULL;
	}
	init_definition(&result->pools[result->n], name);
	return &result->pools[result->n++];
}

/*
 * Read "name" or "name: setting, setting".
 */
static bool
read_definition(PoolParser *parser)
{
	char		original[NAMEDATALEN];
	char		name[NAMEDATALEN];
	const char *start;
	PoolDefinition *pool;
	int			seen = 0;

	skip_space(parser);
	start = parser->at;
	if (!read_name(parser, "pool name", original))
		return false;
	pools_fold_name(name, original);
	pool = new_definition(parser, name, start);
	if (pool == NULL)
		return false;

	if (*parser->at == ':')
	{
		parser->at++;
		skip_space(parser);
		if (*parser->at == ';' || *parser->at == '\0')
			return true;
		for (;;)
		{
			if (!read_setting(parser, pool, &seen))
				return false;
			if (*parser->at != ',')
				break;
			parser->at++;
		}
	}
	return true;
}

/*
 * Read the whole list.  It may end with a semicolon.
 */
static bool
read_definitions(PoolParser *parser)
{
	parser->result->n = 1;
	init_definition(&parser->result->pools[0], POOLS_DEFAULT_NAME);

	for (;;)
	{
		skip_space(parser);
		if (*parser->at == '\0')
			return true;
		if (!read_definition(parser))
			return false;
		if (*parser->at == ';')
			parser->at++;
		else if (*parser->at != '\0')
		{
			GUC_check_errdetail("\":\" or \";\" is expected at position %d.",
								position_of(parser, parser->at));
			return false;
		}
	}
}

/*
 * Check hook of pools: *extra receives the PoolDefinitions.
 */
bool
pools_check(char **newval, void **extra, GucSource source)
{
	PoolParser	parser = {0};

	parser.text = parser.at = *newval;
	parser.result = GATE_GUC_MALLOC(sizeof(PoolDefinitions));
	if (parser.result == NULL)
		return false;
	if (!read_definitions(&parser))
	{
		GATE_GUC_FREE(parser.result);
		return false;
	}
	*extra = parser.result;
	return true;
}
