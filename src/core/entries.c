/*-------------------------------------------------------------------------
 *
 * entries.c
 *		The backends' entries: lists of them, and what can be asked of one.
 *
 * Every backend has an entry in shared memory, known by its proc number, since
 * pointers need not mean the same in every process.  An entry is in one list
 * at a time: its queue, or the list of processes that pause.
 *
 * Locking: see shared.h.
 *
 * Copyright (c) 2026, admission_gate authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "core/entries.h"
#include "core/shared.h"

SlotShared *Slots = NULL;
SlotEntry  *MySlotEntry = NULL;
int			my_slot_procno = INVALID_PROC_NUMBER;

/*
 * Is there a semaphore, that is, was the library preloaded?
 */
bool
slots_available(void)
{
	return Slots != NULL;
}

/* How many backends there can be: proc numbers are below this. */
int
slots_backend_count(void)
{
	return Slots->nentries;
}

/*
 * This backend's proc number, or INVALID_PROC_NUMBER if it has not come to the
 * gate.
 */
int
slots_my_procno(void)
{
	return my_slot_procno;
}

/* The state of that backend.  A hint, no lock. */
SlotState
slots_state(int procno)
{
	return state_in(pg_atomic_read_u32(&entry_of(procno)->state));
}

/* Another number whenever that backend meets the gate. */
uint32
slots_progress(int procno)
{
	return *(volatile uint16 *) &entry_of(procno)->statement;
}

/*
 * How many of its transactions, or statements, have failed while it is in its
 * pool.
 */
uint64
slots_failures(int procno)
{
	return pg_atomic_read_u64(&entry_of(procno)->own_totals[TOTAL_FAILED]);
}

/* Put an entry at the end of a list.  Lock held. */
void
slots_list_append(EntryList *list, int procno)
{
	SlotEntry  *entry = entry_of(procno);

	entry->prev = list->tail;
	entry->next = INVALID_PROC_NUMBER;
	if (list->tail == INVALID_PROC_NUMBER)
		list->head = procno;
	else
		entry_of(list->tail)->next = procno;
	list->tail = procno;
	list->length++;
}

/* Take an entry out of its list.  Lock held. */
void
slots_list_remove(EntryList *list, int procno)
{
	SlotEntry  *entry = entry_of(procno);

	if (entry->prev == INVALID_PROC_NUMBER)
		list->head = entry->next;
	else
		entry_of(entry->prev)->next = entry->next;
	if (entry->next == INVALID_PROC_NUMBER)
		list->tail = entry->prev;
	else
		entry_of(entry->next)->prev = entry->prev;
	list->length--;
	Assert((list->length == 0) == (list->head == INVALID_PROC_NUMBER));
}
