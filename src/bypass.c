/*-------------------------------------------------------------------------
 *
 * bypass.c
 *		Which sessions pass the gate without a slot: those with bypass on, and
 *		those that began with certain application names.
 *
 * What counts is the application_name with which the session began; SET does
 * not change that.  So it is looked up once per session, and again whenever
 * the list changes.  A statement tests one flag.
 *
 * Everything here is local to the backend: no locks.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/varlena.h"

#include "gate.h"

bool		bypass_in_force = false;

/* The reasons for bypass_in_force */
static bool by_setting = false;
static bool by_name = false;

/* The names of the list, each zero-terminated, and an empty one */
static const char *names = "";

/* Assign hook of bypass */
void
bypass_assign(bool newval, void *extra)
{
	by_setting = newval;
	bypass_in_force = by_setting || by_name;
}

/* May the list contain this name?  If not, set the error's DETAIL. */
static bool
is_valid_name(const char *name)
{
	const char *asterisk = strchr(name, '*');

	if (name[0] == '\0')
		GUC_check_errdetail("An application name in the list is empty.");
	else if (asterisk && asterisk[1] != '\0')
		GUC_check_errdetail("In \"%s\", \"*\" is not the last character.", name);
	else if (strlen(name) - (asterisk ? 1 : 0) >= NAMEDATALEN)
		GUC_check_errdetail("An application name has at most %d bytes.", NAMEDATALEN - 1);
	else
		return true;
	return false;
}

/*
 * Check hook of bypass_application_names: *extra receives the names, in the
 * format of "names".
 */
bool
bypass_check_names(char **newval, void **extra, GucSource source)
{
	char	   *rawstring = pstrdup(*newval);
	List	   *elements;
	ListCell   *cell;
	char	   *to;
	bool		valid = SplitGUCList(rawstring, ',', &elements);

	if (!valid)
	{
		GUC_check_errdetail("List syntax is invalid.");
		GUC_check_errhint("Put a name that contains spaces or commas in double quotes.");
	}
	foreach(cell, elements)
		valid = valid && is_valid_name((const char *) lfirst(cell));

	/*
	 * Terminators take the place of commas; the last name and the list add
	 * two.
	 */
	to = valid ? GATE_GUC_MALLOC(strlen(*newval) + 2) : NULL;
	if (to)
	{
		*extra = to;
		foreach(cell, elements)
		{
			strcpy(to, (const char *) lfirst(cell));
			to += strlen(to) + 1;
		}
		*to = '\0';
	}

	list_free(elements);
	pfree(rawstring);
	return to != NULL;
}

/* Does this name match one of the list? */
static bool
is_in_list(const char *name)
{
	for (const char *element = names; *element; element += strlen(element) + 1)
	{
		size_t		length = strlen(element);

		if (element[length - 1] == '*' ?
			strncmp(name, element, length - 1) == 0 : strcmp(name, element) == 0)
			return true;
	}
	return false;
}

/*
 * Decide whether the session passes by its name, after it has received its
 * parameters.  (MyProcPort has the original name, too, but reading it takes
 * the headers of the authentication libraries.)
 */
void
bypass_look_at_name(void)
{
	by_name = is_in_list(GetConfigOptionResetString("application_name"));
	bypass_in_force = by_setting || by_name;
}

/* Assign hook of bypass_application_names */
void
bypass_assign_names(const char *newval, void *extra)
{
	names = (const char *) extra;
	bypass_look_at_name();
}
