/*-------------------------------------------------------------------------
 *
 * slots.h
 *		The shared semaphore and its queue.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SLOTS_H
#define ADMISSION_GATE_SLOTS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "port/atomics.h"

#include "limit_law.h"
#include "pools.h"

/* The most slots a limit can name: PostgreSQL's own bound on backends. */
#define SLOTS_MAX_LIMIT		0x3FFFF

#define SLOTS_TRANCHE		"admission_gate"

/*
 * Pools that can be there at the same time: more than can be defined, as a pool
 * that was removed is there as long as backends of it are at work.
 */
#define SLOTS_MAX_POOLS		(2 * POOLS_MAX)

/* What one backend is to the semaphore. */
typedef enum SlotState
{
	SLOT_NONE,					/* neither holds nor wants a slot */
	SLOT_WAITING,				/* is in the queue */
	SLOT_RUNNING,				/* holds a slot */
	SLOT_LENT,					/* holds a slot on paper; it counts as free */
	SLOT_RETAINED,				/* between two transactions of its turn */
	SLOT_LONG,					/* runs a long statement, without a slot */
	SLOT_PAUSED					/* the same, while it pauses: for the views */
} SlotState;

/* What became of an attempt to enter the queue. */
typedef enum SlotEnqueued
{
	SLOT_ENQUEUED,				/* the backend is in the queue */
	SLOT_ENQUEUE_TAKEN,			/* a slot was free after all: it has it */
	SLOT_ENQUEUE_OBSERVED,		/* none was, but the limit is only observed:
								 * it has one above the limit */
	SLOT_ENQUEUE_FULL			/* the queue was full */
} SlotEnqueued;

/* Why a backend leaves the queue without a slot. */
typedef enum SlotLeaveReason
{
	SLOT_LEAVE_TIMEOUT,
	SLOT_LEAVE_CANCEL
} SlotLeaveReason;

/*
 * The histogram of waits: the first bucket has those of less than 1 ms, each
 * next one ends at twice the time of the one before, the last has no end.
 */
#define SLOTS_WAIT_BUCKETS	24

/* The gauges and totals of a pool; docs/views.md says what each means. */
typedef struct SlotStats
{
	char		pool[NAMEDATALEN];
	int			priority;
	int			limit;			/* slots, its own or else those of all pools;
								 * 0 = no limit, -1 = it finds itself */
	int			effective_limit;	/* slots, as many are given out now; 0 =
									 * no limit */
	bool		observing;		/* the limit is not enforced */
	int			running;		/* backends */
	int			lent;			/* backends */
	int			retained;		/* backends */
	int			long_running;	/* backends */
	int			paused;			/* backends */
	int			waiting;		/* backends */
	uint64		admitted;
	uint64		completed;
	uint64		failed;
	uint64		queued;
	uint64		would_queue;
	uint64		barged;
	uint64		forced;
	uint64		lends;
	uint64		stalls;
	uint64		demotions;
	uint64		timeouts;
	uint64		rejections;
	uint64		cancels;
	uint64		total_wait_time;	/* us */
	uint64		max_wait_time;	/* us */
	uint64		wait_counts[SLOTS_WAIT_BUCKETS];
	TimestampTz stats_reset;
} SlotStats;

/* How a limit stands */
typedef struct SlotLimit
{
	bool		is_of_pool;		/* else of all pools together */
	bool		finds_itself;
	char		pool[NAMEDATALEN];
	int			slots;
	int			effective;		/* slots; fewer while holders block each other */
	int			in_use;			/* slots */
	int			lent;			/* backends */
	int			waiting;		/* backends */
} SlotLimit;

/* How the limit for all stands, and why */
typedef struct SlotLimitView
{
	int			set;			/* slots, 0 = no limit, -1 = finds itself */
	bool		is_lowered;
	int			long_share;		/* long statements that may go on; 0 = all */
	double		short_working;	/* short ones at work, on average */
	LimitLaw	law;
} SlotLimitView;

/* How many changes of the limit are kept */
#define SLOTS_LIMIT_CHANGES	256

/* A change of the limit: to or from all, or by half or more since the one before */
typedef struct SlotLimitChange
{
	TimestampTz time;
	uint32		from;			/* slots, 0 = all */
	uint32		to;				/* likewise */
	LimitReason reason;
	uint32		working;		/* holders, as in LimitSight */
	uint32		blocked;
} SlotLimitChange;

/* When somebody last looked for contention, and is to again though nobody waits */
typedef struct SlotLook
{
	pg_atomic_uint64 seen;		/* TimestampTz; written by who looks */
	pg_atomic_uint64 interval;	/* us, and SLOTS_LOOK_SLACK more; mutex to
								 * change */
} SlotLook;

/*
 * A statement that began so long (us) before the last look has not missed one.  If it
 * is longer, the clock was set back.
 */
#define SLOTS_LOOK_SLACK	INT64CONST(1000000)

/* What is known of one backend. */
typedef struct SlotBackend
{
	int			pid;
	Oid			roleid;
	char		pool[NAMEDATALEN];
	SlotState	state;
	TimestampTz since;			/* when it came into this state */
	uint64		wait_time;		/* us, of its present or else its last wait */
} SlotBackend;

/* Shared memory */
extern void slots_shmem_request(void);
extern void slots_shmem_init(int limit, bool observing,
							 const PoolDefinitions *pools,
							 int lend_after, int long_after,
							 bool load_control);
extern bool slots_available(void);

/* The backend's own slot */
extern bool slots_try_take(TimestampTz since);
extern bool slots_try_barge(TimestampTz since);
extern bool slots_force(TimestampTz since);
extern bool slots_enter_reserved(int size, TimestampTz since);
extern SlotEnqueued slots_enqueue(int max_queue_length, TimestampTz now,
								  int *queue_length);
extern bool slots_claim(void);
extern bool slots_leave_queue(SlotLeaveReason reason);
extern void slots_refuse_grant(void);
extern void slots_record_wait(uint64 waited);
extern void slots_record_pace(uint64 waited, int queue_length);
extern uint64 slots_expected_wait(void);
extern void slots_count_rejection(void);
extern void slots_resume(bool other_statement);
extern void slots_give_back(bool failed);
extern void slots_forget_pool(void);
extern const char *slots_pool_name(void);
extern int	slots_pool_queue_timeout(void);
extern bool slots_pool_has_queue_length(void);

/* All pools */
extern void slots_set_limit(int limit);
extern void slots_set_pools(const PoolDefinitions *definitions);
extern void slots_set_observing(bool observing);
extern void slots_set_lend_after(int lend_after);
extern void slots_set_load_control(bool load_control);
extern void slots_set_long_after(int long_after);
extern int	slots_backend_count(void);
extern bool slots_get_backend(int procno, SlotBackend *backend);
extern void slots_get_my_limit(SlotLimit *limit);
extern int	slots_get_stats(SlotStats stats[SLOTS_MAX_POOLS]);
extern void slots_reset_stats(void);

/* The watcher's duties */
extern bool slots_am_watcher(void);
extern void slots_watch_again_in(long interval);
extern long slots_end_idle_turns(void);
extern void slots_relieve_stall(void);

/* Lending: whoever watches tells what the holders do */
extern bool slots_lenders_unseen(void);
extern bool slots_holders_unseen(long interval);
extern int	slots_lend_after(void);
extern SlotState slots_state(int procno);
extern bool slots_may_lend(int procno, uint64 cpu);
extern void slots_note_holder(int procno, uint64 cpu, bool busy);
extern void slots_holder_works(int procno);

/* Long statements: the process that ticks for one tells how many short ones work */
extern int	slots_my_procno(void);
extern bool slots_long_ticks(int procno, int working, int cpus);
extern void slots_long_look(int working, int cpus);
extern bool slots_long_is_first(int procno);
extern bool slots_long_pauses(int procno);
extern void slots_long_goes_on(int procno);
extern void slots_end_long(void);

/* Contention: whoever looks tells how many holders wait for each other */
extern SlotLook *slots_look;
extern bool slots_limit_is_lowered(void);
extern bool slots_contention_unseen(void);
extern uint64 slots_failures(int procno);
extern void slots_adapt_limit(uint32 working, uint32 blocked);
extern void slots_get_limit(SlotLimitView *view);
extern int	slots_get_limit_changes(SlotLimitChange changes[SLOTS_LIMIT_CHANGES]);

/*
 * Is a backend that has taken a slot, for a statement of that time, to look for
 * contention?  A hint, as the hot path asks; slots_contention_unseen tells for certain.
 */
static inline bool
slots_look_is_due(TimestampTz since)
{
	return (uint64) since - pg_atomic_read_u64(&slots_look->seen) + SLOTS_LOOK_SLACK >=
		pg_atomic_read_u64(&slots_look->interval);
}

#endif							/* ADMISSION_GATE_SLOTS_H */
