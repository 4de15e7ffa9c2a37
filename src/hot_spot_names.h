/*-------------------------------------------------------------------------
 *
 * hot_spot_names.h
 *		Names of what backends contend for.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_HOT_SPOT_NAMES_H
#define ADMISSION_GATE_HOT_SPOT_NAMES_H

#include "postgres.h"

#include "core/types.h"

/* Room for what hot_spot_describe() writes */
#define HOT_SPOT_NAME_LENGTH	(NAMEDATALEN + 64)

extern const char *hot_spot_kind_name(HotSpotKind kind);
extern const char *hot_spot_lock_name(const HotSpotKey *key);
extern void hot_spot_describe(const HotSpotKey *key, bool by_name,
							  char name[HOT_SPOT_NAME_LENGTH]);

#endif							/* ADMISSION_GATE_HOT_SPOT_NAMES_H */
