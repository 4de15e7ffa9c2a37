#!/bin/sh
#
# Proves the protocol of the semaphore, src/core: has the model checker spin visit every
# state of slots.pml, for a number of configurations.  What is proved stands at the top
# of slots.pml.
#
# Usage: test/model/run.sh [--quick | --mutants] [NUMBER...]
#   --quick    only the lines of the list with an asterisk: each part of the protocol once
#   --mutants  instead, make the mistakes listed below, one at a time, and see that each
#              is found in its configuration
#   NUMBER     only these lines of the list, one after the other; without one, as many at
#              a time as there are cores and memory for
#
# Prints TAP and, if something is wrong, the end of the path that leads there; the exit
# status is 0 if all is well.  Takes a few minutes, up to a minute and 2 GB for one
# configuration.  Leaves nothing behind.

# Functions are called by name, as $check, and names are words.
# shellcheck disable=SC2317,SC2013,SC2046,SC2086

set -u

here=$(cd "$(dirname "$0")" && pwd)
script=$here/$(basename "$0")

# Name, with an asterisk if quick, what to look for, parameters that differ from these.
# What to look for is "states" for the assertions and dead ends, else the name of a
# temporal formula in slots.pml.
defaults='BACKENDS=3 ROUNDS=1 LIMIT=1 POOL_LIMIT=NO_LIMIT BARGING=1 INTERRUPTS=0 MAX_QUEUE=4
	FORCE=0 RESIZE=0 RESIZE_1=LIMIT RESIZE_2=LIMIT HOT=0 MARK=1 BYSTANDERS=0 WANT=0 SAMPLES=0
	DO=0 ONLY_QUEUE=0 EARLY=0 HOLDER=0 GONE=0 VICTIM=0 IMPATIENT=0'
configurations='
*names of the C source    |names|
*cancels                  |states|INTERRUPTS=2
cancels, strict order     |states|INTERRUPTS=2 BARGING=0
two rounds                |states|ROUNDS=2
*three rounds             |states|BACKENDS=2 ROUNDS=3 INTERRUPTS=1
four backends, limit 2    |states|BACKENDS=4 LIMIT=2 BARGING=0
full queue                |states|MAX_QUEUE=1 INTERRUPTS=1
*forced entry             |states|FORCE=1 INTERRUPTS=1
pool                      |states|LIMIT=2 POOL_LIMIT=1 INTERRUPTS=1
pool, forced entry        |states|LIMIT=2 POOL_LIMIT=1 FORCE=1
limit 1, 2, 1             |states|RESIZE=1 RESIZE_1=2
limit 2, 1, 2             |states|LIMIT=2 RESIZE=1 RESIZE_1=1
*limit 1, none, 1         |states|BACKENDS=2 RESIZE=1 RESIZE_1=NO_LIMIT ROUNDS=2
none, limit 1, none       |states|LIMIT=NO_LIMIT RESIZE=1 RESIZE_1=1
gate off, strict order    |states|RESIZE=1 RESIZE_1=0 BARGING=0
full pool, gate off       |states|BACKENDS=2 POOL_LIMIT=1 RESIZE=1 RESIZE_1=0 ROUNDS=2
*at work                  |states|BACKENDS=2 SAMPLES=2 DO=1 ROUNDS=2
at work, strict order     |states|SAMPLES=2 DO=1 BARGING=0
at work, cancels          |states|SAMPLES=1 DO=1 INTERRUPTS=1
at work, forced entry     |states|BACKENDS=2 SAMPLES=2 DO=1 INTERRUPTS=1 ROUNDS=2 FORCE=1
at work, limit 1, 2, 1    |states|BACKENDS=2 SAMPLES=2 DO=1 RESIZE=1 RESIZE_1=2
at work, pool             |states|BACKENDS=2 POOL_LIMIT=1 SAMPLES=2 DO=1 ROUNDS=2 INTERRUPTS=1
at work, just a pool      |states|LIMIT=NO_LIMIT POOL_LIMIT=1 BACKENDS=2 ROUNDS=2 SAMPLES=2 DO=1
last resort               |states|SAMPLES=1 DO=2 INTERRUPTS=1
*last resort, at work     |states|BACKENDS=2 SAMPLES=2 DO=3 INTERRUPTS=1
last resort, full pool    |states|LIMIT=2 POOL_LIMIT=1 SAMPLES=1 DO=2 INTERRUPTS=1
*worker gone              |states|BACKENDS=2 GONE=1 INTERRUPTS=1
worker slow               |states|BACKENDS=2 GONE=1 SAMPLES=2 DO=7
worker gone, hot spot     |states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 ROUNDS=2 GONE=1
*hot spot                 |states|HOT=1 LIMIT=NO_LIMIT
*a place is taken         |states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 SAMPLES=1 DO=8
places taken, again       |states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 ROUNDS=2 SAMPLES=1 DO=8
places taken, limit 1     |states|HOT=1 BACKENDS=2 ROUNDS=2 SAMPLES=1 DO=8
places taken, middle      |states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 BYSTANDERS=2 WANT=1 SAMPLES=1 DO=8
hot spot, cancel, force   |states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 SAMPLES=1 DO=28 INTERRUPTS=1 FORCE=1
hot spot, bystander       |states|HOT=1 BYSTANDERS=1 BARGING=0
hot spot, limit 2         |states|HOT=1 LIMIT=2 BYSTANDERS=1
*hot spot, a move, a limit|states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 SAMPLES=1 DO=24
hot spot, moves, limits   |states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 SAMPLES=2 DO=24
hot spot, one is let in   |states|HOT=1 LIMIT=NO_LIMIT SAMPLES=1 DO=12 BACKENDS=2
hot spot, at work         |states|HOT=1 BACKENDS=2 SAMPLES=2 DO=9 BARGING=0
hot spot, formed anew     |states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 SAMPLES=3 DO=24 BARGING=0
*hot spot, gate off       |states|HOT=1 BACKENDS=2 RESIZE=1 RESIZE_1=0
hot spot, limits, gate off|states|HOT=1 BACKENDS=2 RESIZE=1 RESIZE_1=0 SAMPLES=1 DO=16
two hot spots, four       |states|HOT=2 LIMIT=NO_LIMIT BACKENDS=4 MARK=1+i%2 BARGING=0
two, limit 1, none, 1     |states|HOT=2 BACKENDS=2 MARK=1+i%2 RESIZE=1 RESIZE_1=NO_LIMIT
two, moves, limits        |states|HOT=2 LIMIT=NO_LIMIT BACKENDS=2 SAMPLES=2 DO=24 BARGING=0
*in the middle            |states|HOT=1 BYSTANDERS=2 WANT=1 BACKENDS=2 LIMIT=2 INTERRUPTS=1
in the middle, two rounds |states|HOT=1 BYSTANDERS=2 WANT=1 BACKENDS=2 LIMIT=2 INTERRUPTS=1 ROUNDS=2
in the middle, some       |states|HOT=1 BYSTANDERS=2 WANT=1
in the middle, limit 2    |states|HOT=1 BYSTANDERS=2 WANT=1 LIMIT=2
*in the middle, order     |states|ONLY_QUEUE=1 BACKENDS=4
in the middle, strict     |states|HOT=1 BYSTANDERS=3 WANT=1 LIMIT=2 BARGING=0
in the middle, no limit   |states|HOT=1 BYSTANDERS=2 WANT=1 LIMIT=NO_LIMIT INTERRUPTS=1
*in the middle, full queue|states|HOT=1 BYSTANDERS=2 WANT=1 LIMIT=2 MAX_QUEUE=0 BACKENDS=2
in the middle, moves      |states|HOT=1 BYSTANDERS=2 WANT=1 LIMIT=2 BACKENDS=2 SAMPLES=1 DO=29
in the middle, 2, 1, 2    |states|HOT=1 BYSTANDERS=2 WANT=1 LIMIT=2 BACKENDS=2 RESIZE=1 RESIZE_1=1
in the middle, gate off   |states|HOT=1 BYSTANDERS=2 WANT=1 LIMIT=2 BACKENDS=2 RESIZE=1 RESIZE_1=0
*before the start          |states|HOT=1 BYSTANDERS=2 WANT=1 EARLY=1 BACKENDS=2 LIMIT=2 INTERRUPTS=1
before the start, some    |states|HOT=1 BYSTANDERS=2 WANT=1 EARLY=1 LIMIT=2
before the start, no limit|states|HOT=1 BYSTANDERS=2 WANT=1 EARLY=1 LIMIT=NO_LIMIT INTERRUPTS=1
before the start, limits  |states|HOT=1 BYSTANDERS=2 WANT=1 EARLY=1 LIMIT=2 BACKENDS=2 SAMPLES=1 DO=16
two, in the middle        |states|HOT=2 BYSTANDERS=3 WANT=1+i%2 LIMIT=2
two, in the middle, mixed |states|HOT=2 BYSTANDERS=2 WANT=1+i%2 MARK=2
*tickets                  |states|IMPATIENT=3 INTERRUPTS=1
*tickets, order           |states|ONLY_QUEUE=1 BACKENDS=3 IMPATIENT=3
tickets, four backends    |states|IMPATIENT=3 BACKENDS=4 BARGING=0
tickets, hot spot         |states|IMPATIENT=3 HOT=1 LIMIT=NO_LIMIT INTERRUPTS=1
tickets, pool             |states|IMPATIENT=2 LIMIT=2 POOL_LIMIT=1
*tickets, middle          |states|IMPATIENT=2 HOT=1 BYSTANDERS=2 WANT=1 LIMIT=2 BACKENDS=2
tickets, middle, no limit |states|IMPATIENT=2 HOT=1 BYSTANDERS=2 WANT=1 LIMIT=NO_LIMIT
tickets, limit 1, none, 1 |states|IMPATIENT=2 BACKENDS=2 RESIZE=1 RESIZE_1=NO_LIMIT ROUNDS=2
*holder waits for a waiter|finish|HOLDER=WAITS
*holder waits, hot spot   |finish|HOLDER=WAITS HOT=1 LIMIT=NO_LIMIT
*holder waits, middle     |finish|HOLDER=WAITS HOT=1 BYSTANDERS=2 WANT=1 LIMIT=2 BACKENDS=2
holder waits, middle, no  |finish|HOLDER=WAITS HOT=1 BYSTANDERS=2 WANT=1 LIMIT=NO_LIMIT
holder waits, middle, mix |finish|HOLDER=WAITS HOT=1 BYSTANDERS=2 WANT=1
holder waits, full pool   |finish|HOLDER=WAITS LIMIT=2 POOL_LIMIT=1
*holder stays             |finish|HOLDER=STAYS
holder stays, hot spot    |finish|HOLDER=STAYS HOT=1 LIMIT=NO_LIMIT
holder stays, full pool   |finish|HOLDER=STAYS LIMIT=2 POOL_LIMIT=1
*holder waits, no worker  |finish|HOLDER=WAITS GONE=1
holder stays, no worker   |finish|HOLDER=STAYS GONE=1 HOT=1 LIMIT=NO_LIMIT
*none starves             |served|FOREVER BACKENDS=2
none starves, strict      |served|FOREVER BARGING=0
none starves, hot spot    |served|FOREVER HOT=1 LIMIT=NO_LIMIT BACKENDS=2
*none starves, middle     |served|FOREVER HOT=1 LIMIT=NO_LIMIT BYSTANDERS=2 WANT=1 BACKENDS=2
none starves, tickets     |served|FOREVER IMPATIENT=2
none starves, middle, 1   |served|FOREVER HOT=1 LIMIT=1 BYSTANDERS=2 WANT=1 BACKENDS=2
none starves, middle, 2   |served|FOREVER HOT=1 LIMIT=2 BYSTANDERS=2 WANT=1 BACKENDS=2
'

# Mistake; the inline or macro of slots.pml in which it is made, and the text there that
# is replaced, and by what; what finds it, in which configuration.
mutants='
a released place is handed off as a slot       |GRANTABLE|counted &&|true &&|states|HOT=1 BYSTANDERS=2 WANT=1 LIMIT=2
a place is released without a call             |count_place_out|told = true; calls_owed++|skip|states|HOT=1 LIMIT=NO_LIMIT
the next is not called when a slot is free     |CALL_NEXT|slot_is_free()|false|states|ROUNDS=2
a slot is released without a look at the flag  |release|!told && !waiters_flag_is_set()|true|states|ROUNDS=2
a waiter leaves without a call of the next     |slots_leave_queue|slots_unlock()|d_step { RELEASE_LOCK }|states|INTERRUPTS=2
a step taken back without a call               |slots_return_place|slots_lock(); slots_unlock()|calls_owed = calls_owed - told; told = false|states|HOT=1 BYSTANDERS=1
a queue with waiters does not get its flag     |SET_FLAGS|SET_FLAG(queue_at(MY_QUEUE).usage)|skip|states|HOT=1 LIMIT=NO_LIMIT
the flags come after the last look for a slot  |slots_enqueue|SET_FLAGS; enter_queue(); slots_unlock()|enter_queue(); slots_unlock(); WHEN(queued, SET_FLAGS)|states|HOT=1 LIMIT=NO_LIMIT
the flag of all stays when no backend waits    |wake_next|CLEAR_FLAG(Slots.usage)|skip|states|MAX_QUEUE=1 INTERRUPTS=1
the flag of all stays clear                    |wake_next|CLEAR_FLAG(Slots.usage), SET_FLAG(Slots.usage)|CLEAR_FLAG(Slots.usage), skip|states|HOT=1 BYSTANDERS=1
who was called already keeps others from it    |LOOK_FOR_CALL|!entry_of(HEAD(i)).wakeup_pending|true|states|HOT=2 LIMIT=NO_LIMIT BACKENDS=4 MARK=1+i%2
the wake-up of a late waiter remains pending   |claim_free_slot|wakeup_pending = false|wakeup_pending = true|states|ROUNDS=2
the latch is reset after the look as well      |sleep_in_queue|slots_claim()|slots_claim(); RESET_LATCH(me)|states|ROUNDS=2
a woken waiter enters without counting         |claim_free_slot|count_in(MySlotEntry.queue, COUNT_IF_FREE, me)|ok = slot_is_free()|states|ROUNDS=2
a barging backend enters above the limit       |slots_try_barge|count_me_in(COUNT_IF_FREE)|counted = true; Slots.usage++; ok = true|states|ROUNDS=2
a granted slot does not count in its queue     |slots_hand_off|count_place(entry_of(next_one).queue, COUNT_IF_FREE)|ok = true; place = entry_of(next_one).queue|states|HOT=1 LIMIT=2 BYSTANDERS=1
a slot is handed off above a lowered limit     |GRANTABLE|slots_in_use() <= Slots.limit|true|states|SAMPLES=2 DO=1
a refused grant is not released                |slots_refuse_grant|drop_all()|MySlotEntry.state = SLOT_NONE|states|INTERRUPTS=2
a backend leaves without a look if it waits    |slots_leave_queue|IS_WAITING(me)|true|states|INTERRUPTS=2
a slot that was not counted is counted out     |SET_STATE|counted = counted;|counted = true;|states|LIMIT=NO_LIMIT BACKENDS=2
a place is released where the mark says        |drop_all|take_place(me)|take_place(me); place = my_queue()|states|HOT=2 LIMIT=NO_LIMIT BACKENDS=2 SAMPLES=1 DO=8
the worker that dozes is not called            |slots_queue_append|Slots.worker_dozes = false|skip|finish|HOLDER=STAYS
nobody is let in without a worker              |sleep_in_queue|slots_move_queue_of(me)|skip|finish|HOLDER=WAITS GONE=1
others barge before the next for ever          |may_hand_off|overdue|false|served|FOREVER
a hand-off stays in flight                     |finish_handoff|handoff_pending == me|false|served|FOREVER
no backend is let in above the limit           |FIRST_OF|slots_grant_above_limit(next_one)|skip|finish|HOLDER=STAYS
a backend let in above the limit does not count|slots_grant_above_limit|count_in(entry_of(p).queue, COUNT_ALWAYS, p)|skip|states|SAMPLES=1 DO=2
no call after a waiter goes first              |slots_serve_awaited|slots_unlock()|d_step { RELEASE_LOCK }|states|SAMPLES=1 DO=4
one goes first ahead of who went first before  |slots_queue_first|LAST_AWAITED(p) = p; next_one|next_one|states|ONLY_QUEUE=1 BACKENDS=3
one in the middle passes who goes first        |slots_queue_first|LAST_BEFORE(p) = p|skip|states|ONLY_QUEUE=1 BACKENDS=3
a waiter is let in though it has left          |slots_serve_awaited|IS_WAITING(p)|true|states|SAMPLES=1 DO=4 INTERRUPTS=1
no call after the limit was raised             |slots_set|slots_unlock()|d_step { RELEASE_LOCK }|states|RESIZE=1 RESIZE_1=2
waiters stay in full queues when the gate is off|grant_one|EITHER(Slots.max_active == 0,|EITHER(false,|states|BACKENDS=2 POOL_LIMIT=1 RESIZE=1 RESIZE_1=0
a backend queues although the gate is off      |enter_queue|!ok && Slots.max_active == 0|false|states|BACKENDS=2 POOL_LIMIT=1 RESIZE=1 RESIZE_1=0
no call after a limit rose for one not at work |set_limit|slots_unlock()|d_step { RELEASE_LOCK }|states|SAMPLES=1 DO=1
the limit does not rise for one not at work    |set_limit|more = idle|more = 0|finish|HOLDER=WAITS
the limit of a pool does not                   |slots_adapt_to_work|NOT_AT_WORK(place == DEFAULT_POOL)|0|finish|HOLDER=WAITS LIMIT=2 POOL_LIMIT=1
a place is taken by a look and then a store    |take_place|place = entry_of(p).place;|place = entry_of(p).place }; atomic {|states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 SAMPLES=1 DO=8
a backend does not return its place at the end |drop_all|IS_AT_HOT_SPOT(me)|false|states|HOT=1 LIMIT=NO_LIMIT
no call after a hot spot has a higher limit    |adapt|slots_unlock()|d_step { RELEASE_LOCK }|states|HOT=1 LIMIT=2 BACKENDS=2 SAMPLES=1 DO=16
a hot spot that is gone has a limit            |end_hot_spot|limit = NO_LIMIT|limit = 1|states|HOT=1 LIMIT=NO_LIMIT BACKENDS=2 SAMPLES=2 DO=16
no waiter is let in for which a holder waits   |slots_serve_awaited|IS_WAITING(p)|false|finish|HOLDER=WAITS HOT=1 LIMIT=NO_LIMIT
the same for one in the middle                 |slots_serve_awaited|IS_WAITING(p)|false|finish|HOLDER=WAITS HOT=1 BYSTANDERS=2 WANT=1 BACKENDS=2 LIMIT=2
one is readmitted although no place is free    |MAY_READMIT|CAN(i)|HAS_WAITERS(i)|states|HOT=1 BYSTANDERS=2 WANT=1
none is readmitted unless a slot is free       |Unlocker|readmit()|skip|states|HOT=1 BYSTANDERS=2 WANT=1
no call if a free slot is taken meanwhile      |Unlocker|was_free = true|skip|states|HOT=1 BYSTANDERS=2 WANT=1
the slot is not given up for the wait          |slots_give_up_for|drop_all()|MySlotEntry.state = SLOT_NONE|states|HOT=1 BYSTANDERS=2 WANT=1 BACKENDS=2 LIMIT=2
no slot after a wait that failed               |slots_end_readmission|slots_force()|skip|states|HOT=1 BYSTANDERS=2 WANT=1 BACKENDS=2 LIMIT=2 INTERRUPTS=1
the last of those in the middle leaves unnoted |unlink_entry|LAST_BEFORE(p) = PREV(p)|skip|states|HOT=1 BYSTANDERS=2 WANT=1 BACKENDS=2 LIMIT=2
one in the middle passes another                |slots_queue_append|entry_of(p).holds_locks, LAST|entry_of(p).holds_locks && !ok, LAST|states|ONLY_QUEUE=1 BACKENDS=4
a waiter that may hold locks is passed over    |MAY_EXCHANGE|IS_IMPATIENT(HEAD(i))|true|states|ONLY_QUEUE=1 BACKENDS=3 IMPATIENT=3
a called waiter is passed over                 |MAY_EXCHANGE|!entry_of(HEAD(i)).wakeup_pending|true|states|IMPATIENT=3
an exchange leaves the end of the first as it is|exchange_tickets|queue_at(i).last_before == next_one|false|states|ONLY_QUEUE=1 BACKENDS=3 IMPATIENT=3
those in the middle go last                    |slots_queue_append|entry_of(p).holds_locks && slots_are_limited()|false|states|HOT=1 BYSTANDERS=1 WANT=1 LIMIT=2
a failed subtransaction does not count out     |slots_release_place|take_place(me)|MySlotEntry.place = NO_QUEUE|states|HOT=1 BYSTANDERS=2 WANT=1 BACKENDS=2 LIMIT=2
a failed subtransaction does not call          |slots_release_place|release()|count_place_out(place); calls_owed = calls_owed - told; told = false|states|HOT=1 BYSTANDERS=2 WANT=1
a failed subtransaction does not hand off      |slots_release_place|release()|slots_return_place()|served|FOREVER HOT=1 LIMIT=NO_LIMIT BYSTANDERS=2 WANT=1 BACKENDS=2
'

die() { echo "$0: $*" >&2; exit 2; }

# Run in the background and wait, so that a signal is answered at once.
child=
attend()
{
	"$@" </dev/null >out 2>&1 &
	child=$!
	wait "$child"
	status=$?
	child=
	return "$status"
}

# The options that give the model its parameters: these, else the defaults.
options_for()
{
	for parameter in $1; do
		printf ' -D%s' "$parameter"
	done
	for parameter in $defaults; do
		case " $1" in
			*" ${parameter%%=*}="*) ;;
			*) printf ' -D%s' "$parameter" ;;
		esac
	done
}

# Replace one text in that inline or macro; fails if it is not there.
mutate()
{
	awk -v name="$1" -v old="$2" -v new="$3" '
		/^(inline|proctype|#define) / { this = $2; sub(/\(.*/, "", this) }
		this == name && !done && (at = index($0, old)) {
			$0 = substr($0, 1, at - 1) new substr($0, at + length(old))
			done = 1
		}
		{ print }
		END { exit !done }' "$here/slots.pml" >slots.pml
}

# Are the functions of the model functions of the C source?
check_names()
{
	result=none
	for function in $(sed -n 's/^\(inline\|#define\) \([a-z_]*\)(.*/\2/p' slots.pml); do
		grep -rq "^$function(" "$here/../../src" ||
			{ echo "$function() is not in src" && result=error; }
	done >out
}

# Visit all states of slots.pml here.  Leaves spin's words in "out" and sets result to
# "none" (no error, search complete), "error" or "broken" (no answer).
# Usage: search WHAT PARAMETERS
search()
{
	rm -f pan pan.* slots.pml.trail
	case $1 in
		names) check_names && return ;;
		states) options='-DSAFETY -DNOCLAIM' flags= ;;
		served) options='-DNFAIR=3' flags='-a -f -N served' ;;
		*) options='' flags="-a -N $1" ;;
	esac
	result=broken
	attend spin -a $(options_for "$2") slots.pml || return
	# At -O2, the compiler takes longer than the search at -O0.
	attend gcc -O0 -w -DCOLLAPSE -DMEMLIM=4000 $options -o pan pan.c || return
	attend ./pan -m10000000 $flags || return
	if grep -q '^pan:1: ' out && [ -f slots.pml.trail ]; then
		result=error
	elif grep -q 'errors: 0$' out && ! grep -q -e 'max search depth' \
		-e 'Search not completed' -e 'aborted' -e 'out of memory' out; then
		result=none
	fi
}

# What spin said: the first error, or else the states, the time and the memory
summary()
{
	awk '/^pan:1: / { sub(/^pan:1: /, ""); sub(/ [(]at depth.*/, ""); print; exit }
		/states, stored/ { states = $1 }
		/total actual memory/ { memory = $1 }
		/elapsed time/ { printf "%s states, %s s, %d MB", states, $4, memory }' out
}

# Usage: tell EXPECTED NUMBER NAME PARAMETERS
tell()
{
	if [ "$result" = "$1" ]; then
		echo "ok $2 - $3 ($(summary))"
		return
	fi
	failed=1
	echo "not ok $2 - $3"
	sed 's/^/# /' out
	if [ -f slots.pml.trail ]; then
		attend spin -k slots.pml.trail -p -g $(options_for "$4") slots.pml
		tail -n 100 out | sed 's/^/# /'
	fi
}

check_configurations()
{
	while IFS='|' read -r name what parameters; do
		cp "$here/slots.pml" .
		search "$what" "$parameters"
		tell none "$1" "${name#\*}, $what" "$parameters"
	done
}

check_mutants()
{
	while IFS='|' read -r name where old new what parameters; do
		result=broken
		mutate "$where" "$old" "$new" && search "$what" "$parameters"
		tell error "$1" "$name" "$parameters"
	done
}

# How many to check at a time
jobs()
{
	awk -v cores="$(nproc)" '/^MemAvailable/ { most = int($2 / 3e6) }
		END { print most < 1 ? 1 : most < cores ? most : cores }' /proc/meminfo
}

lines() { echo "$1" | sed -n 's/ *|/|/p'; }
list=$(lines "$configurations")
check=check_configurations
option=
case ${1:-} in
	--quick) option=$1 list=$(echo "$list" | grep '^\*') ;;
	--mutants) option=$1 list=$(lines "$mutants") check=check_mutants ;;
esac
[ -z "$option" ] || shift
case $* in
	*[!0-9\ ]*) die "usage: $0 [--quick | --mutants] [NUMBER...]" ;;
esac

for tool in spin gcc; do
	command -v "$tool" >/dev/null ||
		die "$tool is not installed: on Debian and Ubuntu, it is in the package \"$tool\""
done

work=$(mktemp -d) || die "no temporary directory"
clean_up()
{
	trap '' HUP INT TERM
	[ -z "$child" ] || kill "$child" $(ps -o pid= --ppid "$child") 2>/dev/null
	cd / && rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$work" || die "cannot enter $work"

if [ $# = 0 ]; then
	total=$(echo "$list" | wc -l)
	echo "1..$total"
	seq "$total" | xargs -n 1 -P "$(jobs)" "$script" $option &
	child=$!
	wait "$child"
	exit
fi

failed=0
for number in "$@"; do
	echo "$list" | sed -n "${number}p" >line
	$check "$number" <line
done
exit $failed
