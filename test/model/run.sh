#!/bin/sh
#
# Proves the protocol of the semaphore, src/core: has the model checker spin visit every
# state of slots.pml, for a number of configurations.  What is proved stands at the top
# of slots.pml.
#
# Usage: test/model/run.sh [--quick | --mutants] [NUMBER...]
#   --quick    only those lines of the list that have an asterisk: each part of the
#              protocol once
#   --mutants  instead, make the mistakes listed below, one at a time, and see
#              that each is found in its configuration
#   NUMBER     only these lines of the list, one after the other
#
# Without a NUMBER, as many at a time as there are cores and memory for.
#
# Prints TAP and, if something is wrong, the end of the path that leads there;
# the exit status is 0 if all is well.  Takes a few minutes, up to a minute and
# 2.5 GB for one configuration.  Leaves nothing behind.

set -u

here=$(cd "$(dirname "$0")" && pwd)
model=$here/slots.pml
script=$here/$(basename "$0")

# Name, with an asterisk if quick, what to look for, parameters.  What to look for is
# "states" for the assertions and dead ends, else the name of a temporal formula in
# slots.pml.
configurations='
*cancels                  |states|-DINTERRUPTS=2
cancels, strict order    |states|-DINTERRUPTS=2 -DBARGING=0
two rounds               |states|-DROUNDS=2
*three rounds             |states|-DBACKENDS=2 -DROUNDS=3 -DINTERRUPTS=1
two rounds, strict order |states|-DROUNDS=2 -DBARGING=0
four backends            |states|-DBACKENDS=4
four backends, limit 2   |states|-DBACKENDS=4 -DLIMIT=2 -DBARGING=0
full queue               |states|-DMAX_QUEUE=1 -DINTERRUPTS=1
no queue                 |states|-DMAX_QUEUE=0 -DROUNDS=2
*forced entry             |states|-DFORCE=1 -DINTERRUPTS=1
limit 1, 2, 1            |states|-DRESIZERS=1 -DRESIZE_1=2 -DRESIZE_2=1
limit 2, 1, 2            |states|-DLIMIT=2 -DRESIZERS=1 -DRESIZE_1=1 -DRESIZE_2=2
limit 1, none, 1, strict |states|-DRESIZERS=1 -DRESIZE_1=0 -DRESIZE_2=1 -DBARGING=0
*limit set by two, off    |states|-DBACKENDS=2 -DRESIZERS=2 -DRESIZE_1=0 -DRESIZE_2=1
limit set by two         |states|-DBACKENDS=2 -DRESIZERS=2 -DRESIZE_1=2 -DRESIZE_2=1 -DINTERRUPTS=1
*lending                  |states|-DLOOKS=1 -DBARGING=0
lending, looks           |states|-DLOOKS=2
lending, strict order    |states|-DLOOKS=2 -DBARGING=0 -DINTERRUPTS=1
lending, cancels         |states|-DLOOKS=1 -DINTERRUPTS=1
lending, forced entry    |states|-DBACKENDS=2 -DLOOKS=2 -DINTERRUPTS=1 -DROUNDS=2 -DFORCE=1
lending, limit 1, 2, 1   |states|-DBACKENDS=2 -DLOOKS=2 -DINTERRUPTS=1 -DRESIZERS=1 -DRESIZE_1=2 -DRESIZE_2=1
*hot spot                 |states|-DHOT=1 -DLIMIT=0
*hot spot, moves, limits  |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=2
hot spot, three samples  |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=3 -DBARGING=0
hot spot, two samplers   |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLERS=2 -DSAMPLES=2 -DDO=17 -DBARGING=0
hot spot, two, crowd     |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLERS=2 -DSAMPLES=2 -DDO=3 -DCROWD
hot spot, two rounds     |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DROUNDS=2 -DSAMPLES=1 -DDO=31
hot spot, three, moves   |states|-DHOT=1 -DLIMIT=0 -DSAMPLES=1 -DDO=1 -DCROWD
hot spot, three, limits  |states|-DHOT=1 -DLIMIT=0 -DSAMPLES=1 -DDO=2 -DCROWD
hot spot, one is let in  |states|-DHOT=1 -DLIMIT=0 -DSAMPLES=1 -DDO=4 -DCROWD
hot spot, bystander      |states|-DHOT=1 -DLIMIT=1 -DBYSTANDERS=1 -DBARGING=0
hot spot, cancel         |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=31 -DINTERRUPTS=1
hot spot, forced entry   |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=31 -DFORCE=1
*hot spot, lending        |states|-DHOT=1 -DLIMIT=1 -DBACKENDS=2 -DSAMPLES=1 -DDO=1 -DLOOKS=1
hot spot, lending, limit |states|-DHOT=1 -DLIMIT=1 -DBACKENDS=2 -DSAMPLES=2 -DDO=1 -DLOOKS=1 -DBARGING=0
hot spot, long statements|states|-DHOT=1 -DLIMIT=1 -DBACKENDS=2 -DSAMPLES=1 -DDO=1 -DLONGS=1
*hot spot, switched off   |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=2 -DSWITCH=1
hot spot, formed anew    |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=2 -DDO=18 -DROUNDS=2 -DBARGING=0
hot spot, pool           |states|-DHOT=1 -DPOOLS=2 -DPOOL_LIMIT=1 -DBACKENDS=2 -DSAMPLES=2
hot spot, pool, higher   |states|-DHOT=1 -DPOOLS=2 -DPOOL_LIMIT=1 -DPRIORITY=1 -DBACKENDS=2 -DSAMPLES=2
hot spot, gate off       |states|-DHOT=1 -DLIMIT=1 -DBACKENDS=2 -DRESIZERS=1 -DRESIZE_1=0 -DRESIZE_2=1 -DINTERRUPTS=1
two hot spots, four      |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=4 -DFIRST_MARK=1+i%2 -DBARGING=0
*two, limit 1, -1, 1      |states|-DHOT=2 -DLIMIT=1 -DBACKENDS=2 -DFIRST_MARK=1+i%2 -DRESIZERS=1 -DRESIZE_1=NO_LIMIT -DRESIZE_2=1
two, limit -1, 1, -1     |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DFIRST_MARK=1+i%2 -DRESIZERS=1 -DRESIZE_1=1 -DRESIZE_2=NO_LIMIT -DINTERRUPTS=1
*two hot spots, merged    |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=8 -DROUNDS=2
two, merged, three       |states|-DHOT=2 -DLIMIT=0 -DSAMPLES=1 -DDO=8 -DFIRST_MARK=2 -DCROWD
two, merged, moves       |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=2 -DDO=9
two, merged, limits      |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=2 -DDO=10 -DBARGING=0
two, merged, forgotten   |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DSAMPLERS=2 -DSAMPLES=2 -DDO=24 -DBARGING=0
two, merged, switched off|states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=2 -DDO=24 -DSWITCH=1 -DBARGING=0
*hot spot, holder waits   |finish|-DHOT=1 -DLIMIT=0 -DHIDDEN
*hot spot, holder stays   |finish|-DHOT=1 -DLIMIT=0 -DSTUCK
*hot spot, none starves   |served|-DHOT=1 -DLIMIT=0 -DFOREVER -DBACKENDS=2
hot spot, strict         |served|-DHOT=1 -DLIMIT=0 -DFOREVER -DBACKENDS=2 -DBARGING=0 -DSAMPLES=1
*long statements          |states|-DBACKENDS=2 -DLONGS=3 -DINTERRUPTS=1
long, three backends     |states|-DLONGS=1
long, pausing, limit 2   |states|-DLONGS=2 -DLIMIT=2 -DWORKERS=0
long, strict order       |states|-DLONGS=2 -DLIMIT=2 -DWORKERS=0 -DBARGING=0
long, pausing, limit 3   |states|-DLONGS=3 -DLIMIT=3 -DWORKERS=0
long, two rounds         |states|-DBACKENDS=2 -DLONGS=2 -DLIMIT=2 -DROUNDS=2
long, lending            |states|-DBACKENDS=2 -DLONGS=2 -DLOOKS=1 -DINTERRUPTS=1
long, limit 1, 2, 1      |states|-DBACKENDS=2 -DLONGS=2 -DRESIZERS=1 -DRESIZE_1=2 -DRESIZE_2=1
long, limit 2, none, 1   |states|-DBACKENDS=2 -DLONGS=2 -DLIMIT=2 -DRESIZERS=1 -DRESIZE_1=0 -DRESIZE_2=1
long, last resort        |states|-DBACKENDS=2 -DLONGS=2 -DRELIEFS=1 -DTAKEOVER=1
long, pools              |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DLONGS=2 -DWORKERS=0
long, pool removed       |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DREMOVE=1 -DBACKENDS=2 -DLONGS=2
*long one never ends      |finish|-DLONG_STUCK -DBACKENDS=2 -DLIMIT=2 -DLONGS=2 -DWORKERS=0
long, never ends, three  |finish|-DLONG_STUCK -DLIMIT=2 -DLONGS=2 -DWORKERS=0
*holder waits for a waiter|finish|-DHIDDEN -DTAKEOVER=1
*last resort              |states|-DBACKENDS=2 -DRELIEFS=1 -DLOOKS=1 -DINTERRUPTS=1 -DTAKEOVER=1
last resort, cancel      |states|-DRELIEFS=1 -DINTERRUPTS=1 -DTAKEOVER=1
last resort, lending     |states|-DBACKENDS=2 -DRELIEFS=1 -DLOOKS=1 -DROUNDS=2 -DINTERRUPTS=1 -DTAKEOVER=1
*holder never ends        |finish|-DSTUCK -DTAKEOVER=1
and the watcher stops    |finish|-DBACKENDS=4 -DSTUCK -DSTOPPED -DTAKEOVER=1
*none starves             |served|-DBACKENDS=2 -DFOREVER
none starves, three      |served|-DFOREVER
none starves, strict     |served|-DFOREVER -DBARGING=0
pools, strict order      |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DBARGING=0
pools, cancels           |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DINTERRUPTS=2
pools, two rounds, strict|states|-DPOOLS=2 -DPOOL_LIMIT=1 -DROUNDS=2 -DBARGING=0
pools, higher, cancel    |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DPRIORITY=1 -DINTERRUPTS=1 -DBARGING=0
pools, lower, cancel     |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DPRIORITY=-1 -DINTERRUPTS=1
*pools, limit 2, cancel   |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DLIMIT=2 -DINTERRUPTS=1
pools, limit 2, higher   |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DLIMIT=2 -DPRIORITY=1
pools, both with a limit |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DDEFAULT_LIMIT=1 -DLIMIT=2 -DPRIORITY=1
pools, three rounds      |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DPRIORITY=1 -DBACKENDS=2 -DROUNDS=3 -DINTERRUPTS=1
pools, full queue        |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DPRIORITY=1 -DMAX_QUEUE=1
pools, forced entry      |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DPRIORITY=1 -DLIMIT=2 -DFORCE=1
pools, forced, cancel    |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DFORCE=1 -DINTERRUPTS=1 -DBARGING=0
pools, lending           |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DLIMIT=2 -DLOOKS=1
pools, lending, lower    |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DPRIORITY=-1 -DBACKENDS=2 -DROUNDS=2 -DLOOKS=2 -DINTERRUPTS=1
pools, holder waits      |finish|-DPOOLS=2 -DPOOL_LIMIT=1 -DHIDDEN -DTAKEOVER=1
pools, last resort       |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DRELIEFS=1 -DTAKEOVER=1
pools, resort, higher    |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DRELIEFS=1 -DPRIORITY=1 -DLIMIT=2
*pools, holder never ends |finish|-DPOOLS=2 -DPOOL_LIMIT=1 -DSTUCK -DTAKEOVER=1
pools, never ends, free  |finish|-DPOOLS=2 -DPOOL_LIMIT=1 -DLIMIT=2 -DSTUCK -DTAKEOVER=1
*full pool, 1, none, 1    |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DONE_POOL -DBACKENDS=2 -DRESIZERS=1 -DRESIZE_1=0 -DRESIZE_2=1
pools, limit 1, none, 1  |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DBACKENDS=2 -DROUNDS=2 -DRESIZERS=1 -DRESIZE_1=0 -DRESIZE_2=1 -DINTERRUPTS=1
*pool removed             |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DREMOVE=1 -DBACKENDS=2 -DROUNDS=2
pool removed, higher     |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DREMOVE=1 -DBACKENDS=2 -DPRIORITY=1 -DINTERRUPTS=1
pool removed, lending    |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DREMOVE=1 -DBACKENDS=2 -DPRIORITY=-1 -DLOOKS=1
pool removed, other limit|states|-DPOOLS=2 -DPOOL_LIMIT=1 -DREMOVE=1 -DBACKENDS=2 -DDEFAULT_LIMIT=1 -DLIMIT=2 -DINTERRUPTS=1
'

# Mistake, what it is, what finds it, in which configuration.
mutants='
M_FLAG_LATE         |the flag of all is set after the last look         |states|-DROUNDS=2
M_LEAVE_SILENTLY    |no wake-up after leaving the queue                 |states|-DINTERRUPTS=2
M_REFUSE_AND_KEEP   |a refused grant is not released                    |states|-DINTERRUPTS=2
M_RELEASE_BLINDLY   |a slot is released without a look at the flag      |states|-DROUNDS=2
M_PLAIN_STORE       |the owner leaves by a plain store                  |states|-DLOOKS=2
M_GRANT_ABOVE       |a slot is granted above a lowered limit            |states|-DLIMIT=2 -DRESIZERS=1 -DRESIZE_1=1 -DRESIZE_2=2
M_STATE_FIRST       |a lender is at work before its slot counts         |states|-DLOOKS=2
M_DUTY_LOST         |the watcher leaves without a successor             |states|-DINTERRUPTS=2
M_DUTY_ASLEEP       |the new watcher is not woken                       |finish|-DHIDDEN
M_RAISE_SILENTLY    |no waiter enters when the limit is raised          |states|-DRESIZERS=1 -DRESIZE_1=2 -DRESIZE_2=1
M_STILL_PENDING     |the wake-up of a late waiter remains pending       |states|-DROUNDS=2
M_LEAVE_UNSEEN      |leaves the queue without a look if it is there     |states|-DINTERRUPTS=2
M_RETURN_UNCOUNTED  |the slot of a returned lender does not count       |states|-DLOOKS=2
M_RESET_LATE        |the latch is reset after the look                  |states|-DROUNDS=2
M_NEVER_OVERDUE     |others barge before the next for ever              |served|-DFOREVER
M_FLAG_STAYS        |the flag of all stays when no backend waits        |states|-DMAX_QUEUE=1 -DINTERRUPTS=1
M_LEND_SILENTLY     |no wake-up after a slot was lent                   |states|-DLOOKS=2
M_CLAIM_UNCOUNTED   |a woken waiter enters without counting             |states|-DROUNDS=2
M_CLAIM_SILENTLY    |a woken waiter does not wake the next              |states|-DBACKENDS=4 -DLIMIT=2
M_RELEASE_SILENTLY  |no wake-up after a slot was released               |states|-DROUNDS=2
M_ALWAYS_IN_FLIGHT  |a hand-off counts as in flight when the backend is awake|served|-DFOREVER
M_RELIEF_UNCOUNTED  |a backend let in above the limit does not count    |states|-DRELIEFS=1
M_RELIEF_SILENTLY   |the flag stays after a backend is let in so        |states|-DRELIEFS=1
M_RELIEF_NEVER      |no backend is let in above the limit               |states|-DSTUCK
M_RELIEF_OF_NEXT    |the first of a full pool is not let in above it    |finish|-DPOOLS=2 -DPOOL_LIMIT=1 -DSTUCK
M_RELIEF_OF_NEXT    |the first of a full hot spot is not let in above it|finish|-DHOT=1 -DLIMIT=0 -DSTUCK
M_WATCH_UNSEEN      |takes the watch over without a look if it waits    |states|-DTAKEOVER=1 -DINTERRUPTS=1
M_NO_GUARD          |no waiter looks if the watcher is late             |finish|-DSTUCK -DSTOPPED -DTAKEOVER=1
M_PLAIN_STORE       |leaves by a plain store while it is made long      |states|-DBACKENDS=2 -DLONGS=1
M_LONG_SILENTLY     |no wake-up after a long statement gave its slot up |states|-DBACKENDS=2 -DLONGS=1
M_LONG_UNCOUNTED    |the slot of one that was long does not count again |states|-DBACKENDS=2 -DLONGS=1
M_LONG_RELEASES     |a long statement releases the slot it gave up      |states|-DBACKENDS=2 -DLONGS=1
M_LONG_STAYS        |a long statement that ends stays in its list       |states|-DBACKENDS=2 -DLONGS=1
M_LONG_ENDS_SILENTLY|those that pause are not told when one ends        |states|-DBACKENDS=2 -DLONGS=2 -DLIMIT=2
M_LONG_SLEEPS       |a long one that does nothing goes on for ever      |finish|-DLONG_STUCK -DLIMIT=2 -DLONGS=2 -DWORKERS=0
M_LONG_LOOK_FIRST   |only the first that pauses looks, even if awake    |finish|-DLONG_STUCK -DLIMIT=3 -DLONGS=3 -DINTERRUPTS=1 -DWORKERS=0
M_OFF_KEEPS_QUEUES  |full queues keep their waiters while the gate is off|states|-DPOOLS=2 -DPOOL_LIMIT=1 -DONE_POOL -DBACKENDS=2 -DRESIZERS=1 -DRESIZE_1=0 -DRESIZE_2=1
M_RELEASE_ON        |waiters are let in though there is a limit again   |states|-DBACKENDS=2 -DRESIZERS=2 -DRESIZE_1=0 -DRESIZE_2=1
M_QUEUE_WHILE_OFF   |a backend queues although the gate is off          |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DONE_POOL -DBACKENDS=2 -DRESIZERS=1 -DRESIZE_1=0 -DRESIZE_2=1
M_STEP_BACK_SILENTLY|no wake-up after a step taken back                 |states|-DPOOLS=2 -DPOOL_LIMIT=1
M_QUEUE_FLAG_LATE   |the flag of a queue is set after the last look     |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DLIMIT=2
M_QUEUE_FLAG_LATE   |the flag of a queue is set after the last look     |states|-DHOT=1 -DLIMIT=0
M_PLACE_LAST        |a slot is released to all, then its place          |states|-DHOT=1 -DLIMIT=0
M_FLAG_LEFT_OUT     |the flag of all stays clear as a queue has a place |states|-DPOOLS=2 -DPOOL_LIMIT=1
M_CLAIM_OUT_OF_TURN |a woken waiter enters though another is next       |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DPRIORITY=-1
M_FORGET_WAITERS    |the waiters of a removed pool stay there           |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DREMOVE=1 -DBACKENDS=2
M_FORGET_WAITERS    |the waiters of a merged hot spot stay there        |states|-DHOT=2 -DBACKENDS=2 -DSAMPLES=1 -DDO=8 -DFIRST_MARK=2
M_JOIN_LATE         |a backend enters the queue of a removed pool       |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DREMOVE=1 -DBACKENDS=2
M_QUEUE_EARLY       |a backend enters the queue of a merged hot spot    |states|-DHOT=2 -DBACKENDS=2 -DSAMPLES=1 -DDO=8 -DFIRST_MARK=2
M_GRANT_UNCOUNTED   |a granted slot does not count in its queue         |states|-DPOOLS=2 -DPOOL_LIMIT=1 -DLIMIT=2
M_MOVE_BLINDLY      |a holder is moved though it has left               |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=1
M_MOVE_UNCOUNTED    |a holder is moved before its place counts          |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=1 -DFIRST_MARK=0
M_LEAVE_MARKED      |a place is released where the mark says            |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=1
M_LENDER_KEEPS_BOTH |a lender keeps its place in a pool                 |finish|-DPOOLS=2 -DPOOL_LIMIT=1 -DONE_POOL -DBACKENDS=2 -DHIDDEN
M_LENDER_TWICE      |the place that a lender keeps is counted out       |states|-DHOT=1 -DLIMIT=1 -DBACKENDS=2 -DLOOKS=1
M_LENDER_FORGETS    |a lender that ends keeps its place                 |states|-DHOT=1 -DLIMIT=1 -DBACKENDS=2 -DLOOKS=1
M_CALL_AGAIN        |who was called already keeps others from it       |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=4 -DFIRST_MARK=1+i%2
M_FORGET_SILENTLY   |no wake-up after a hot spot is forgotten           |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSWITCH=1
M_LIMIT_SILENTLY    |no wake-up after a hot spot has a higher limit     |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=2
M_MERGE_SILENTLY    |no wake-up after hot spots are merged              |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=8 -DFIRST_MARK=2
M_MERGE_FLAGLESS    |a waiter is moved to a queue whose flag is clear   |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=8 -DFIRST_MARK=2
M_MERGE_UNSEEN      |hot spots are merged that are gone                 |states|-DHOT=2 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=2 -DDO=24 -DSWITCH=1
M_ADAPT_UNSEEN      |a hot spot that is gone has a limit                |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=2 -DSWITCH=1
M_LET_IN_UNSEEN     |a waiter is let in though it has left              |states|-DHOT=1 -DLIMIT=0 -DBACKENDS=2 -DSAMPLES=1 -DDO=4
M_LET_IN_NEVER      |no waiter is let in for which a holder waits       |finish|-DHOT=1 -DLIMIT=0 -DHIDDEN
'

die()
{
	echo "$0: $*" >&2
	exit 2
}

# Cut the blanks off both ends.
trim()
{
	echo "$1" | sed 's/^ *//; s/ *$//'
}

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

# Visit all states.  Leaves spin's words in "out" and sets result to "none"
# (no error, search complete), "error" or "broken" (no answer).  Where the search is
# short, -O0 is faster: then the compiler takes most of the time.
# Usage: search WHAT PARAMETERS OPTIMIZATION
search()
{
	rm -f pan pan.* slots.pml.trail
	case $1 in
		states) options='-DSAFETY -DNOCLAIM' flags= ;;
		served) options='-DNFAIR=3' flags='-a -f -N served' ;;
		*) options='' flags="-a -N $1" ;;
	esac
	result=broken
	# shellcheck disable=SC2086
	attend spin -a $2 "$model" || return
	# shellcheck disable=SC2086
	attend gcc "$3" -w -DCOLLAPSE -DMEMLIM=4000 $options -o pan pan.c || return
	# shellcheck disable=SC2086
	attend ./pan -m10000000 $flags || return
	if grep -q '^pan:1: ' out && [ -f slots.pml.trail ]; then
		result=error
	elif grep -q 'errors: 0$' out && ! grep -q -e 'max search depth' \
		-e 'Search not completed' -e 'aborted' -e 'out of memory' out; then
		result=none
	fi
}

# Print why it is not ok, and the last steps to there.
explain()
{
	sed 's/^/# /' out
	if [ -f slots.pml.trail ]; then
		# shellcheck disable=SC2086
		attend spin -k slots.pml.trail -p -g $1 "$model"
		tail -n 100 out | sed 's/^/# /'
	fi
}

# Is that line wanted?
wanted()
{
	[ -z "$numbers" ] && return 0
	case " $numbers " in
		*" $1 "*) return 0 ;;
	esac
	return 1
}

states()
{
	sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' out
}

seconds()
{
	sed -n 's/^pan: elapsed time \([0-9.e+-]*\) seconds/\1/p' out
}

megabytes()
{
	sed -n 's/^ *\([0-9.]*\)	total actual memory usage.*/\1/p' out
}

# Says what the first error is.
error()
{
	sed -n 's/^pan:1: \(.*\) (at depth.*/\1/p' out
}

# Usage: tell OK NUMBER TEXT PARAMETERS
tell()
{
	if [ "$1" = yes ]; then
		echo "ok $2 - $3"
	else
		echo "not ok $2 - $3"
		explain "$4"
		failed=1
	fi
}

check_configurations()
{
	n=0
	while IFS='|' read -r name what parameters; do
		[ -n "$name" ] || continue
		n=$((n + 1))
		wanted "$n" || continue
		search "$what" "$parameters" "$level"
		name=$(trim "${name#\*}")
		[ "$what" = states ] || name="$name: $what"
		if [ "$result" = none ]; then
			tell yes "$n" "$name ($(states) states, $(seconds) s, $(megabytes) MB)" "$parameters"
		else
			tell no "$n" "$name" "$parameters"
		fi
	done
}

check_mutants()
{
	n=0
	while IFS='|' read -r mutant name what parameters; do
		[ -n "$mutant" ] || continue
		n=$((n + 1))
		wanted "$n" || continue
		mutant=$(trim "$mutant")
		search "$what" "-DMUTANT=$mutant $parameters" -O0
		name="$mutant: $(trim "$name")"
		if [ "$result" = error ]; then
			tell yes "$n" "$name ($(error))" "$parameters"
		else
			tell no "$n" "$name" "$parameters"
		fi
	done
}

# How many configurations to check at a time.
jobs()
{
	cores=$(nproc 2>/dev/null || echo 1)
	memory=$(awk '/^MemAvailable/ { print int($2 / 3e6) }' /proc/meminfo 2>/dev/null)
	[ "${memory:-1}" -ge "$cores" ] && echo "$cores" || echo "$((memory > 0 ? memory : 1))"
}

list=$configurations
option=
level=-O2
make_mistakes=no
if [ "${1:-}" = --quick ]; then
	list=$(echo "$list" | sed -n 's/^\*/*/p')
	option=--quick
	level=-O0
	shift
elif [ "${1:-}" = --mutants ]; then
	list=$mutants
	make_mistakes=yes
	option=--mutants
	shift
fi
numbers="$*"
case $numbers in
	*[!0-9\ ]*) die "usage: $0 [--quick | --mutants] [NUMBER...]" ;;
esac

for tool in spin gcc; do
	command -v "$tool" >/dev/null ||
		die "$tool is not installed: on Debian and Ubuntu, it is in the package \"$tool\""
done

work=$(mktemp -d) || die "no temporary directory"
# shellcheck disable=SC2317
clean_up()
{
	# shellcheck disable=SC2046
	[ -z "$child" ] || kill "$child" $(ps -o pid= --ppid "$child") 2>/dev/null
	cd / && rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$work" || die "cannot enter $work"

if [ -z "$numbers" ]; then
	total=$(echo "$list" | grep -c '|')
	echo "1..$total"
	# shellcheck disable=SC2086
	seq "$total" | xargs -n 1 -P "$(jobs)" "$script" $option &
	child=$!
	wait "$child"
	exit
fi

failed=0
printf '%s\n' "$list" >list
if [ "$make_mistakes" = yes ]; then
	check_mutants <list
else
	check_configurations <list
fi
exit $failed
