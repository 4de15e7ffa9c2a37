/*-------------------------------------------------------------------------
 *
 * slots.h
 *		The interface of the core.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef ADMISSION_GATE_SLOTS_H
#define ADMISSION_GATE_SLOTS_H

#include "postgres.h"

#include <time.h>

#include "datatype/timestamp.h"
#include "port/atomics.h"

/* Visible to all files of this library, but to no other library */
#define GATE_HIDDEN __attribute__((visibility("hidden")))

/* State of a backend at the gate */
typedef enum SlotState
{
	SLOT_NONE,					/* neither holds nor wants a slot */
	SLOT_WAITING,				/* is in a queue */
	SLOT_RUNNING,				/* holds a slot */
	SLOT_STATES
} SlotState;

#define POOLS_MAX			32	/* with the default pool */
#define SLOTS_MAX_POOLS		(2 * POOLS_MAX) /* with removed pools still in use */
#define POOLS_DEFAULT_NAME	"default"
#define POOLS_QUEUE_LENGTH_UNSET	(-2)	/* go by the setting for all */

#define SLOTS_MAX_LIMIT		0x3FFFF /* PostgreSQL's own bound on backends */
#define NO_LIMIT			0x7FFFFFFF	/* the limit while there is none */
#define SLOTS_WAIT_BUCKETS	24	/* see slots_record_wait() */
#define MAX_HOT_SPOTS		32
#define MAX_PAST_HOT_SPOTS	100
#define LONG_CLASSES		5	/* of long statements, by expected time */

typedef struct PoolDefinition
{
	char		name[NAMEDATALEN];	/* in lower case */
	int			max_active;		/* backends at work; 0 = no limit of its own */
	int			priority;		/* higher ones first */
	int			max_queue_length;	/* waiters; -1 = unlimited, or unset */
	int			queue_timeout;	/* ms; 0 = none of its own */
} PoolDefinition;

typedef struct PoolDefinitions
{
	int			n;
	PoolDefinition pools[POOLS_MAX];	/* the first is the default pool */
} PoolDefinitions;

/* Totals, in the order of the view */
typedef enum SlotTotal
{
	TOTAL_ADMITTED,
	TOTAL_COMPLETED,
	TOTAL_FAILED,
	TOTAL_QUEUED,
	TOTAL_WOULD_QUEUE,
	TOTAL_BARGED,
	TOTAL_FORCED,
	TOTAL_STALLS,
	TOTAL_TIMEOUTS,
	TOTAL_REJECTIONS,
	TOTAL_CANCELS,
	TOTAL_OVERDUE,
	TOTAL_WAIT_TIME,			/* us */
	SLOT_TOTALS
} SlotTotal;

/* What backends contend for.  Only the first two form queues. */
typedef enum HotSpotKind
{
	HOT_SPOT_NONE,
	HOT_SPOT_RELATION,			/* the relation, its pages or rows */
	HOT_SPOT_ADVISORY,			/* an advisory lock */
	HOT_SPOT_TRANSACTION,		/* another transaction's end */
	HOT_SPOT_LONG				/* CPUs: the queue of statements that take
								 * long */
} HotSpotKind;

/*
 * What a backend contends for.  Unused fields are 0.  The row for which it waits
 * does not count when keys are compared.
 */
typedef struct HotSpotKey
{
	HotSpotKind kind;
	Oid			database;
	uint32		fields[3];		/* LOCKTAG fields 2 to 4 */
	uint16		offset;			/* of the row; 0 = unknown */
	uint32		block;			/* likewise */
} HotSpotKey;

#define WANTS_ALL	0			/* instead of a key: the whole hot spot */
#define NO_SHAPE	0			/* a standstill of others means nothing to it */

/* What a clock shows, us; 0 if it cannot be read */
static inline uint64
read_clock(clockid_t clock)
{
	struct timespec time;

	/* Not instr_time.h: from 19 on, each session may choose its clock. */
	return clock_gettime(clock, &time) != 0 ? 0 : (uint64) time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

/* The clock for intervals */
static inline uint64
monotonic_us(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

/* Shared memory */
extern void slots_shmem_request(void);
extern bool slots_shmem_init(void);

/* Settings */
typedef struct SlotSettings
{
	int			max_active;		/* backends at work; 0 = off, even for pools;
								 * -1 = only the limits that the gate finds */
	bool		observing;		/* no backend queues */
	bool		hot_spots;
	int			log_min_wait;	/* ms; -1 = log no hot spot */
} SlotSettings;

extern void slots_set(const SlotSettings *settings);
extern void slots_set_pools(const PoolDefinitions *definitions);

/* Backends. my_slot_procno is invalid until this one meets the gate. */
extern GATE_HIDDEN int my_slot_procno;
extern GATE_HIDDEN pg_atomic_uint32 *my_slot_state; /* or that of none */
extern GATE_HIDDEN const volatile bool *slots_seem_long;	/* SlotEntry.seems_long */
extern uint32 slots_attached(void);

/* What a sample sees of a backend at the gate: a hint */
typedef struct SlotLook
{
	SlotState	state;
	bool		is_awake;		/* has noticed it if it was granted a slot */
	bool		has_long_place;
	uint16		progress;		/* changes whenever it begins a statement */
	uint64		failures;		/* of its transactions, in its pool */
} SlotLook;

extern SlotLook slots_look_at(int procno);

/*
 * Does this backend work without being counted?  If so, no other process
 * changes its state.
 */
static inline bool
slots_is_uncounted(void)
{
	return pg_atomic_read_u32(my_slot_state) == SLOT_RUNNING;
}

/* Acquire, wait, release */
extern bool slots_try_acquire(TimestampTz since, bool begins_block);
extern bool slots_try_barge(TimestampTz since);
extern bool slots_force(TimestampTz since);
extern bool slots_acquire_reserved(int size, TimestampTz since);
extern SlotState slots_enqueue(int max_queue_length, bool holds_locks, uint64 patience,
							   int *queue_length);
extern bool slots_claim(void);
extern bool slots_leave_queue(SlotTotal reason, bool client_left);
extern void slots_refuse_grant(void);
extern void slots_resume(void);
extern void slots_release(void);
extern void slots_count_overdue(uint64 client_left_after);
extern void slots_count_nearly_overdue(void);
extern void slots_end_transaction(bool failed);
extern void slots_end(bool failed, bool was_admitted);

/* Places at hot spots, in the middle of a transaction */
extern bool slots_has_place(void);
extern bool slots_take_place(int hot_spot);
extern void slots_give_up_for(int hot_spot, bool has_begun);
extern void slots_end_readmission(TimestampTz since);
extern void slots_release_place(void);

/* The worker */
extern void slots_begin_sampling(int cpus);
extern bool slots_any_waits(void);
extern void slots_note_sample(uint64 took);
extern bool slots_try_to_doze(void);
extern long slots_look_after(int procno);
extern void slots_move_queue_of(int procno);

/* Pools */
extern const PoolDefinition *pools_find(const PoolDefinitions *definitions, const char *name);
extern void slots_choose_pool(const char *name);
extern const PoolDefinition *slots_my_pool(void);

/* limit_control.c */

/* What one sample of the contenders found */
typedef struct LoadSample
{
	int64		now;			/* us */
	uint32		contenders;		/* at work or in the queue */
	uint32		in_use;			/* these have a place */
	uint32		working;		/* these work, rest or wait for each other */
	uint32		blocked;		/* of these, the ones that wait */
	uint32		waiting;
	uint32		completed;		/* transactions so far, modulo 2^32 */
	uint32		admitted;		/* places taken so far, likewise */
	uint32		passed;			/* contenders that did not queue, likewise */
} LoadSample;

/* What the control remembers; times in us */
typedef struct LimitControl
{
	uint32		limit;			/* places, or NO_LIMIT */
	uint32		kept;			/* the limit during a trial; 0 = no trial */
	bool		is_better;		/* the last trial favored the limit */
	LoadSample	last;			/* the last sample */
	LoadSample	seen;			/* sums since seen.now, for the next step */
	LoadSample	counted;		/* where the present count began */
	double		limited_rate;	/* completed per us, with the limit */
	double		open_rate;		/* the same without it; 0 = do not compare */
	int64		contended_for;	/* contention, less the time without it */
	int64		stalled_for;	/* all blocked, and nothing completed */
	int64		quiet_for;		/* nobody in the queue */
	int64		no_effect_for;	/* more at work than it, not getting fewer */
	uint32		fewest;			/* of these since the limit began */
	int64		believed_until; /* until then, believe the last result */
	int64		believed_for;	/* length of that time */
	int64		halved_until;	/* after a standstill: no step up */
	int64		halved_for;		/* length of that time */
	int64		passed_by;		/* more that did not queue than that did */
} LimitControl;

extern void limit_control_init(LimitControl *control, int64 now);
extern bool limit_control_stood_still(const LimitControl *control);
extern void limit_control_sample(LimitControl *control, const LoadSample *sample);

/* cpu_control.c */

/* What one sample of all processes found */
typedef struct CpuSample
{
	int64		now;			/* us */
	uint32		cpus;
	uint32		wanting;		/* processes that use a CPU, or would */
	bool		waits;			/* any backend does, for a slot */
	bool		is_dry;			/* more are at work: it is not enforced */
	int64		completed;		/* transactions so far */
	uint32		overdue;		/* statements that a time-out ended so far,
								 * but not those that the present limit did
								 * not count; modulo 2^32 */
	uint32		nearly;			/* likewise, that had nearly used up their
								 * time */
} CpuSample;

/* What the control remembers; times in us.  Begin with zeros. */
typedef struct CpuControl
{
	uint32		limit;			/* backends at work; 0 = no limit */
	uint32		kept;			/* while it rises without evidence: from here;
								 * 0 = it does not */
	CpuSample	last;			/* at the end of the last period */
	int64		began;			/* when this period did */
	uint64		wanting;		/* sums of its samples */
	uint64		in_use;			/* of these, at most all CPUs */
	uint32		samples;		/* so many */
	double		overdue;		/* since the limit changed, fading, */
	double		nearly;
	double		completed;		/* likewise */
	int64		needed;			/* when any waited, or many wanted a CPU */
	int64		calm_since;		/* the last evidence */
	int64		believed_for;	/* it rises after that time without */
} CpuControl;

extern bool cpu_control_is_due(const CpuControl *control, int64 now);
extern void cpu_control_sample(CpuControl *control, const CpuSample *sample);

/* long_control.c */

/* One decade of expected time, as a sample finds it, and what follows */
typedef struct LongClass
{
	int			in_use;
	uint64		queued;			/* when its first waiter came; 0 = none waits */
	int			wanted;			/* places that it should have */
	int			places;			/* that it gets */
} LongClass;

/* What the control remembers; times in us.  Begin with zeros. */
typedef struct LongControl
{
	LongClass	classes[LONG_CLASSES];
	double		wanting;		/* processes that want a CPU: a moving mean */
	uint64		sampled;		/* the last sample */
	uint64		stepped;		/* the last step */
} LongControl;

extern int	long_control_class(uint64 expected);
extern uint64 long_control_shortest(int class);
extern void long_control_sample(LongControl *control, int wanting, int limit, int cpus, uint64 now);

/* What a backend is doing, by a sample */
typedef enum Activity
{
	ACTIVITY_WORKS,
	ACTIVITY_CONTENDS,			/* waits for backends that work or contend */
	ACTIVITY_IDLE,				/* long wait for client, timer or extension,
								 * or for a backend in one */
	ACTIVITY_RESTS				/* a shorter one, or for a shared lock */
} Activity;

/* Hot spots */
extern GATE_HIDDEN pg_atomic_uint32 *slots_hot_kinds;	/* bits by HotSpotKind */
extern bool slots_have_hot_spots(void);
extern int	slots_find_hot_spot(const HotSpotKey *key);
extern void slots_want_relation(Oid relation, bool is_first, bool has_place);
extern bool slots_want(int hot_spot, uint32 key, uint32 shape);
extern bool slots_is_jammed(int hot_spot, uint32 shape);
extern void slots_want_hidden(int hot_spot);
extern void slots_note_activity(int procno, Activity activity, HotSpotKey key, uint64 now);
extern bool slots_adapt_hot_spots(void);
extern char *slots_describe_hot_spot(const HotSpotKey *key);

/* expected.c: how much CPU time a statement will probably use */
#define SURPRISES	4096
extern GATE_HIDDEN const volatile float *slots_us_per_cost;
extern GATE_HIDDEN pg_atomic_uint32 *slots_surprises;	/* bits */
extern uint64 slots_expect(uint64 key, double cost);
extern void slots_learn(uint64 key, double cost, uint64 used);
extern void slots_note_surprise(uint64 query);
extern TimestampTz slots_seemed_long(void);
extern void slots_add_workers_time(int procno, uint64 used);
extern uint64 slots_workers_time(void);

/* Was a query with this ID, which may be 0 for none, a surprise? */
static inline bool
slots_may_surprise(uint64 query)
{
	return query != 0 &&
		(pg_atomic_read_u32(&slots_surprises[query / 32 % (SURPRISES / 32)]) & 1U << query % 32) != 0;
}

/* long_queues.c: places of long statements */
extern int	slots_expect_long(uint64 expected);
extern bool slots_end_long(void);
extern void slots_withdraw_long_place(int procno);
extern void slots_adapt_long(int wanting, uint64 now);

/* Who is at work */
extern void slots_note_holder(int procno, bool at_work, TimestampTz long_ago);
extern void slots_adapt_cpu_limit(int wanting, uint64 now);
extern void slots_adapt_to_work(uint64 now);
extern void slots_relieve_stall(void);
extern void slots_serve_awaited(int procno, uint64 now);

/* The limit that a backend has met */
typedef struct SlotLimit
{
	bool		is_of_queue;	/* of its pool or hot spot, not of all */
	HotSpotKey	hot_spot;		/* HOT_SPOT_NONE = of its pool, or of all */
	int			max_active;		/* backends at work */
	int			in_use;			/* slots or places */
	int			waiting;		/* backends */
} SlotLimit;

/* Statistics */
extern void slots_report_not_preloaded(int elevel);
extern void slots_record_wait(uint64 waited);
extern void slots_get_my_limit(SlotLimit *limit);

#endif							/* ADMISSION_GATE_SLOTS_H */
