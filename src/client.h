/*-------------------------------------------------------------------------
 *
 * client.h
 *		Whether the client of this backend is still there.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_CLIENT_H
#define ADMISSION_GATE_CLIENT_H

extern void client_check(void);

#endif							/* ADMISSION_GATE_CLIENT_H */
