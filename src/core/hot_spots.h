/*-------------------------------------------------------------------------
 *
 * hot_spots.h
 *		What backends contend for, and who of them is at work at a time.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_HOT_SPOTS_H
#define ADMISSION_GATE_HOT_SPOTS_H

#include "postgres.h"

#include "core/types.h"

/* What a sample finds an admitted backend doing */
typedef enum Activity
{
	ACTIVITY_WORKS,
	ACTIVITY_CONTENDS,			/* waits for backends that work or contend */
	ACTIVITY_STUCK,				/* waits for one that does nothing */
	ACTIVITY_IDLE,				/* does nothing: its client has been idle */
	ACTIVITY_RESTS				/* waits for its client, a timer or an
								 * extension, for less long */
} Activity;

/* What a sample finds of the contenders of one hot spot */
typedef struct ContenderCounts
{
	uint32		contenders;
	uint32		working;		/* work, rest or wait for each other */
	uint32		blocked;		/* of these, those that wait */
	uint32		slow;			/* of these, those that have waited for long */
} ContenderCounts;

/* The same of all, by index; and of all holders, contenders or not */
typedef struct HotSpotCounts
{
	ContenderCounts of[MAX_HOT_SPOTS];
	uint32		working;
} HotSpotCounts;

/* A hot spot, for the views */
typedef struct HotSpotView
{
	int			index;
	int			part_of;		/* or index */
	HotSpotKey	key;
	TimestampTz since;
	int			limit;			/* places; 0 = no limit */
	int			contenders;
	int			running;
	int			blocked;
	int			waiting;
	uint64		admitted;
	uint64		wait_time;		/* us */
} HotSpotView;

extern GATE_HIDDEN SampleTime *slots_sample_time;

extern void slots_set_hot_spots(bool on);
extern bool slots_have_hot_spots(void);
extern bool slots_claim_sample(bool even_if_few);
extern void slots_note_activity(int procno, Activity activity, const HotSpotKey *key,
								bool is_slow, uint64 now, HotSpotCounts *counts);
extern bool slots_is_marked(int procno, bool what_for);
extern bool slots_is_stuck(int procno);
extern void slots_get_hot_spot_key(int procno, HotSpotKey *key);
extern void slots_let_in(int procno);
extern void slots_adapt_hot_spots(const HotSpotCounts *counts);
extern int	slots_get_hot_spots(HotSpotView views[MAX_HOT_SPOTS]);

/* For the files of src/core */
extern void slots_init_hot_spots(void);
extern void slots_schedule_samples(void);
extern int	slots_hot_spot_queue(int hot_spot);
extern void slots_note_place_taken(int place);
extern void slots_note_place_left(int place);

/*
 * Should a backend whose statement began at since take a sample?  A hint for
 * the hot path; slots_claim_sample() decides.
 */
static inline bool
slots_sample_is_due(TimestampTz since)
{
	return (uint64) since - pg_atomic_read_u64(&slots_sample_time->taken) + SAMPLE_SLACK >=
		pg_atomic_read_u64(&slots_sample_time->interval);
}

#endif							/* ADMISSION_GATE_HOT_SPOTS_H */
