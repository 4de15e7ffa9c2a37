/*
 * Preloaded into pgbench, lets it go on after a refusal by the gate, which is an error of
 * class 53 (insufficient resources).  pgbench goes on after deadlocks and failed
 * serializations only, so it is told of one of those.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

char *
PQresultErrorField(const void *result, int field)
{
	char	   *(*next) (const void *, int) = dlsym(RTLD_NEXT, "PQresultErrorField");
	char	   *value = next(result, field);

	return field == 'C' && value && strncmp(value, "53", 2) == 0 ? "40001" : value;
}
