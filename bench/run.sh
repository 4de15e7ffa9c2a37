#!/usr/bin/env bash
#
# Measures what the gate costs and gains, against its absence and its peers, on
# throw-away servers: see test/setup.sh for these, bench/README.md for what is
# measured and how to read it.  This file prepares a private PostgreSQL and
# starts bench/driver/bench.py in it, which does the measuring.
#
#   make bench                          everything (hours; it says how many)
#   make bench BENCH=hot_row            one benchmark, or several by name
#   make bench QUICK=1                  proves that it works: figures mean nothing
#
# Results (CSV, Markdown) go to bench/results/, or bench/results/quick/.
#
# From the environment (make bench NAME=value):
#   BENCH      any of the names below, default all
#   CLIENTS    client counts, such as "8 64 500", instead of each benchmark's own
#   ROUNDS     default 3, with more than 2000 clients 1
#   DURATION   counted seconds of each run, instead of each load's own
#   SKIP       seconds before them, default 5 and one more per 500 clients
#   LIMIT      slots, default 4, 8 or 16 per core as each load says
#   VARIANTS   such as "off auto gate:16 limit pgbouncer:8 handoff_after=0": see
#              bench/README.md
#   WORKLOADS  only these loads of the benchmark
#   PROTOCOL   of pgbench: prepared (default), extended or simple
#   SERVER_SETTINGS  such as "shared_buffers=1GB; huge_pages=on", for all variants
#   CPU_GROUP=1  as root: share the CPU by processes, see bench/README.md
#   RESULTS    another directory for the results
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# shellcheck source=test/setup.sh
. "$(dirname "$0")/../test/setup.sh"
# shellcheck source=bench/common.sh
. "$(dirname "$0")/common.sh"

ALL="hot_row tpcb update select_only json connect mixed long auto bystanders two_rows tenth stuck_row"
ALL+=" deadlocks order disturbed mixed_sessions shares flash_sale instructions"
VARIABLES="BENCH CLIENTS ROUNDS DURATION SKIP LIMIT VARIANTS WORKLOADS PROTOCOL SERVER_SETTINGS QUICK COMMIT"

# An idle backend with a few prepared statements, its page table for 256 MB of
# shared buffers, and the client's side of it.
BACKEND_KB=2560

check_options() {
    local name
    for name in $BENCH; do
        [[ " $ALL " == *" $name "* ]] || die "unknown benchmark \"$name\" in BENCH: choose from $ALL"
    done
    for name in ROUNDS DURATION SKIP LIMIT; do
        [ -z "${!name:-}" ] || check_positive "$name"
    done
    [[ ${CLIENTS:-1} =~ ^[0-9\ ]+$ ]] || die "CLIENTS must be numbers, not \"$CLIENTS\""
    [[ ${PROTOCOL:-simple} =~ ^(prepared|extended|simple)$ ]] || die "PROTOCOL must be prepared, extended or simple"
}

# What the benchmarks chosen can make use of.
extras() {
    case " $BENCH " in *" instructions "*) echo valgrind ;; esac
    case " $BENCH " in *" deadlocks "*) echo sysbench ;; esac
    echo pgbouncer
}

choose_results() {
    RESULTS=${RESULTS:-$ROOT/bench/results${QUICK:+/quick}}
    mkdir -p "$RESULTS" || exit 1
    RESULTS=$(cd "$RESULTS" && pwd)
    [ -w "$RESULTS" ] || die "cannot write to $RESULTS"
}

# Puts everything into a control group of its own for the CPU, with a large weight.
# In the group of all processes, the kernel may share the CPU by sessions: then
# each backend gets as much as the whole of pgbench.
enter_cpu_group() {
    local top=/sys/fs/cgroup weight
    [ -n "${CPU_GROUP:-}" ] || return 0
    [ "$(id -u)" = 0 ] || die "CPU_GROUP needs root"
    if [ -e $top/cgroup.controllers ]; then
        grep -qw cpu $top/cgroup.subtree_control || die "CPU_GROUP: there is no control of the CPU in $top"
        FORMER_GROUP=$top$(awk -F: '$1 == 0 { print $3 }' /proc/self/cgroup)
        weight="cpu.weight 10000"
    else
        top=$top/cpu
        FORMER_GROUP=$top$(awk -F: '$2 ~ /(^|,)cpu(,|$)/ { print $3 }' /proc/self/cgroup)
        weight="cpu.shares 100000"
    fi
    mkdir "$top/${WORK##*/}" || die "could not make a control group for the CPU"
    GROUP=$top/${WORK##*/}
    echo "${weight#* }" >"$GROUP/${weight% *}" || exit 1
    echo $$ >"$GROUP/cgroup.procs" || exit 1
}

# It cannot be removed before its last process is gone.
leave_cpu_group() {
    [ -n "${GROUP:-}" ] || return 0
    echo $$ >"$FORMER_GROUP/cgroup.procs"
    for _ in {1..50}; do
        rmdir "$GROUP" 2>/dev/null && return
        sleep 0.1
    done
    say "could not remove $GROUP" >&2
}

# Called at the end, however it comes.
save_results() {
    leave_cpu_group
    [ -n "$(ls -A "$WORK/results" 2>/dev/null)" ] || return 0
    (cd "$WORK/results" && "${AS_USER[@]}" tar -cf - -- *) | tar -C "$RESULTS" --no-same-owner -xf - &&
        say "results are in $RESULTS"
}

# The version measured; "+" means with changes.
source_version() {
    git -C "$ROOT" describe --always --dirty=+ --exclude='*' 2>/dev/null
}

inside() {
    local python
    export LC_ALL=C STAGE MACHINE BENCH
    most_clients $BACKEND_KB
    stage_postgres
    build_extension
    $("$STAGE/pg_config" --cc) -shared -fPIC -o "$WORK/refusal.so" "$WORK/src/bench/driver/refusal.c" -ldl || exit 1
    MACHINE=$(describe_machine)
    mkdir "$WORK/results"
    # The first may belong to a user whose files this one may not read.
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import sys' 2>/dev/null && break
    done
    PATH=$PATH:/usr/sbin exec "$python" "$WORK/src/bench/driver/bench.py"
}

BENCH=${BENCH:-$ALL}
if [ "${1:-}" = --inside ]; then
    inside
else
    check_options
    choose_results
    export COMMIT
    COMMIT=$(source_version)
    make_workdir
    enter_cpu_group
    run_inside bench/run.sh bench "$VARIABLES" "$(extras)"
fi
