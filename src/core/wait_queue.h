/*-------------------------------------------------------------------------
 *
 * wait_queue.h
 *		The queues, the order in them, and the lock: for the files of src/core
 *		only.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_WAIT_QUEUE_H
#define ADMISSION_GATE_WAIT_QUEUE_H

#include "postgres.h"

#include "core/shared.h"

/*
 * The most latches that one section sets after the lock is released.  More are
 * not expected: those of a waiter that is granted a slot, the next one, a new
 * watcher, and three long statements.
 */
#define MOST_WAKEUPS	6

/*
 * One critical section: the time just before it began, and the latches to set
 * after the lock is released
 */
typedef struct LockedSection
{
	TimestampTz now;
	int			nwakeups;
	int			wakeups[MOST_WAKEUPS];	/* proc numbers */
} LockedSection;

extern void slots_lock(LockedSection *section);
extern void slots_unlock(LockedSection *section);
extern void slots_wake_later(LockedSection *section, int procno);

extern int	slots_next_waiter(TimestampTz now);
extern int	slots_priority_of(int next, TimestampTz now);
extern int	slots_next_waiting_queue(QueueSet *left);
extern int	slots_any_waiter(void);

extern void slots_queue_append(int procno, LockedSection *section);
extern void slots_queue_remove(int procno, LockedSection *section);
extern void slots_queue_move(int procno, int to);
extern void slots_make_holder(int procno, int place, LockedSection *section);
extern void slots_note_moved(TimestampTz now);
extern void slots_grant(int procno, int place, LockedSection *section);
extern void slots_grant_above_limit(int procno, LockedSection *section);
extern bool slots_is_its_turn(int procno, TimestampTz now);
extern void slots_hand_off(int had_place, LockedSection *section);
extern void slots_grant_free(void);

extern void slots_note_passed_over(int priority, TimestampTz since);
extern bool slots_watcher_is_late(TimestampTz now);
extern void slots_appoint_watcher(int procno, TimestampTz now);

#endif							/* ADMISSION_GATE_WAIT_QUEUE_H */
