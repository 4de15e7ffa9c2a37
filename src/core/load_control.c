/*-------------------------------------------------------------------------
 *
 * load_control.c
 *		Fewer slots while holders wait for each other.
 *
 * src/contention.c counts the holders that wait for each other; the law of the limit
 * (limit_law.c) derives from that how many slots are given out (effective_limit.c).
 *
 * If the limit finds itself, there may be contention and no waiter to notice it.  So every
 * backend that acquires a slot compares the start of its statement with the time of the
 * last look.
 *
 * Locking: see shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/counters.h"
#include "core/effective_limit.h"
#include "core/load_control.h"
#include "core/shared.h"
#include "core/wait_queue.h"

SlotLook   *slots_look = NULL;

/*
 * Set whether the limit is lowered while too many holders wait for each other.
 */
void
slots_set_load_control(bool load_control)
{
	LockedSection section;

	slots_lock(&section);
	if ((pg_atomic_read_u32(&Slots->load_control) != 0) != load_control)
	{
		pg_atomic_write_u32(&Slots->load_control, load_control);
		slots_reset_law(section.now);
	}
	slots_unlock(&section);
	slots_grant_free(NO_LIMIT);
}

/*
 * Can the limit be adapted?  If one is set, only while a backend waits.  Lock held, or a
 * hint.
 */
static bool
is_adaptable(void)
{
	return pg_atomic_read_u32(&Slots->load_control) != 0 && !Slots->observing &&
		(limit_finds_itself() ||
		 (Slots->limit != 0 && waiters_flag_is_set()));
}

/*
 * Is it time to look at the holders?  Returns true to one caller per interval, and only
 * while the limit can be adapted.
 */
bool
slots_contention_unseen(void)
{
	bool		waiters = waiters_flag_is_set();
	uint64		interval = look_interval() * (waiters ? 1 : OPEN_INTERVALS);

	return is_adaptable() &&
		is_due(&Slots->look.seen, interval, GetCurrentTimestamp()) &&
		(waiters || slots_in_use() > LIMIT_LEAST_SLOTS);
}

/*
 * Adapt the limit to a look at the holders.  working: holders that work or wait for each
 * other; blocked: those of them that wait; stuck: holders that wait for a lock that does
 * not move.  If an open limit has grown, waiters enter.
 */
void
slots_adapt_limit(uint32 working, uint32 blocked, uint32 stuck)
{
	LockedSection section;
	uint32		completed = slots_total_completed();
	uint32		free = 0;

	slots_lock(&section);
	if (is_adaptable())
	{
		LimitSight	sight = {
			.now = section.now,
			.in_use = slots_in_use(),
			.working = working,
			.blocked = blocked,
			.stuck = stuck,
			.completed = completed
		};

		if (limit_law_look(&Slots->law, &sight))
			slots_apply_law();
		if (limit_finds_itself() && !limit_is_lowered() && waiters_flag_is_set())
			free = Slots->law.open_limit - Min(sight.in_use, Slots->law.open_limit);
	}
	slots_unlock(&section);
	slots_grant_free(free);
}

/*
 * Does a backend wait only for a limit that finds itself to grow?  A hint, no lock.
 */
bool
slots_limit_has_to_grow(void)
{
	return limit_finds_itself() && !limit_is_lowered() && !slot_is_free();
}

/* How the limit stands, and why. */
void
slots_get_limit(SlotLimitView *view)
{
	LockedSection section;

	slots_lock(&section);
	view->set = Slots->limit;
	view->is_lowered = limit_is_lowered();
	view->law = Slots->law;
	slots_unlock(&section);
}
