/*-------------------------------------------------------------------------
 *
 * pool_parser.h
 *		The parser of the list of pools.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_POOL_PARSER_H
#define ADMISSION_GATE_POOL_PARSER_H

#include "postgres.h"

#include "utils/guc.h"

extern bool pools_check(char **newval, void **extra, GucSource source);

#endif							/* ADMISSION_GATE_POOL_PARSER_H */
