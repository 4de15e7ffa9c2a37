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
	int			position;		/* of the last name or value */
	char		name[NAMEDATALEN];	/* the last name */
	PoolDefinitions result;
	bool		default_seen;
	PoolDefinition *pool;		/* the last one */
	int			keys_seen;		/* bits, of that pool */
} PoolParser;

/* Skip white space.  Returns the next character. */
static char
skip_space(PoolParser *parser)
{
	while (scanner_isspace(*parser->at))
		parser->at++;
	return *parser->at;
}

/* The position of the next character in the list, counted from 1 */
static int
position_of(const PoolParser *parser)
{
	return 1 + (int) (parser->at - parser->text);
}

/* Read that character, if it is the next one after white space. */
static bool
read_char(PoolParser *parser, char c)
{
	if (skip_space(parser) != c)
		return false;
	parser->at++;
	return true;
}

/*
 * Read a name.  what: the kind of name, for errors.  This and the functions
 * below call GUC_check_errdetail() and return false if the list is invalid.
 */
static bool
read_name(PoolParser *parser, const char *what)
{
	size_t		length;

	(void) skip_space(parser);
	parser->position = position_of(parser);
	length = strspn(parser->at, NAME_CHARS);
	if (length == 0)
		GUC_check_errdetail("A %s is expected at position %d.", what, parser->position);
	else if (length >= NAMEDATALEN)
		GUC_check_errdetail("The %s at position %d is too long.", what, parser->position);
	else
	{
		strlcpy(parser->name, parser->at, length + 1);
		parser->at += length;
		return true;
	}
	return false;
}

/* Read the value of a key. */
static bool
read_value(PoolParser *parser, const PoolKey *key)
{
	char		value[32];		/* longer ones are invalid */
	const char *start;
	size_t		length;
	const char *hint = NULL;
	int			number;

	(void) skip_space(parser);
	parser->position = position_of(parser);
	start = parser->at;
	length = strcspn(start, ",;");
	parser->at += length;
	while (length > 0 && scanner_isspace(start[length - 1]))
		length--;

	strlcpy(value, start, pg_mbcliplen(start, length, sizeof(value) - 1) + 1);
	if (length >= sizeof(value) || !parse_int(value, &number, key->unit, &hint))
	{
		GUC_check_errdetail("Invalid value for \"%s\" at position %d: \"%s\".",
							key->name, parser->position, value);
		if (hint)
			GUC_check_errhint("%s", _(hint));
		return false;
	}
	if (number < key->min || number > key->max)
	{
		GUC_check_errdetail("The value %d at position %d is outside the valid range for \"%s\" (%d .. %d).",
							number, parser->position, key->name, key->min, key->max);
		return false;
	}
	*(int *) ((char *) parser->pool + key->offset) = number;
	return true;
}

/* Read "key = value". */
static bool
read_setting(PoolParser *parser)
{
	int			i = 0;

	if (!read_name(parser, "key word"))
		return false;
	while (i < lengthof(keys) && pg_strcasecmp(parser->name, keys[i].name) != 0)
		i++;
	if (i == lengthof(keys))
	{
		GUC_check_errdetail("Unrecognized key word \"%s\" at position %d.",
							parser->name, parser->position);
		if (skip_space(parser) == ':')
			GUC_check_errhint("Pools are separated by \";\".");
		else
			GUC_check_errhint("Valid key words are \"max_active\", \"priority\", \"max_queue_length\" and \"queue_timeout\".");
	}
	else if (parser->keys_seen & (1 << i))
		GUC_check_errdetail("\"%s\" is set twice for pool \"%s\", again at position %d.",
							keys[i].name, parser->pool->name, parser->position);
	else if (!read_char(parser, '='))
		GUC_check_errdetail("\"=\" is expected at position %d.", position_of(parser));
	else
	{
		parser->keys_seen |= 1 << i;
		return read_value(parser, &keys[i]);
	}
	return false;
}

/* Read "name" or "name: setting, setting". */
static bool
read_definition(PoolParser *parser)
{
	PoolDefinitions *result = &parser->result;
	int			i = 0;

	if (!read_name(parser, "pool name"))
		return false;
	pools_fold_name(parser->name, parser->name);
	while (i < result->n && strcmp(result->pools[i].name, parser->name) != 0)
		i++;
	if (i < result->n && (i > 0 || parser->default_seen))
	{
		GUC_check_errdetail("Pool \"%s\" is defined twice, again at position %d.",
							parser->name, parser->position);
		return false;
	}
	if (i == POOLS_MAX)
	{
		GUC_check_errdetail("There are more than %d pools, the next at position %d.",
							POOLS_MAX, parser->position);
		return false;
	}
	parser->default_seen |= i == 0;
	result->n = Max(result->n, i + 1);
	parser->pool = &result->pools[i];
	strlcpy(parser->pool->name, parser->name, NAMEDATALEN);
	parser->pool->max_queue_length = POOLS_QUEUE_LENGTH_UNSET;
	parser->keys_seen = 0;

	if (!read_char(parser, ':') || skip_space(parser) == ';' || *parser->at == '\0')
		return true;
	do
		if (!read_setting(parser))
			return false;
	while (read_char(parser, ','));
	return true;
}

/* Check hook of pools: *extra receives the PoolDefinitions. */
bool
pools_check(char **newval, void **extra, GucSource source)
{
	PoolParser	parser = {
		.text = *newval,
		.at = *newval,
		.result = {1, {{POOLS_DEFAULT_NAME,.max_queue_length = POOLS_QUEUE_LENGTH_UNSET}}}
	};

	while (skip_space(&parser) != '\0')
	{
		if (!read_definition(&parser))
			return false;
		if (!read_char(&parser, ';') && *parser.at != '\0')
		{
			GUC_check_errdetail("\":\" or \";\" is expected at position %d.", position_of(&parser));
			return false;
		}
	}
	*extra = GATE_GUC_MALLOC(sizeof(PoolDefinitions));
	if (*extra != NULL)
		memcpy(*extra, &parser.result, sizeof(PoolDefinitions));
	return *extra != NULL;
}
