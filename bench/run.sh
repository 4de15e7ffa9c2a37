#!/usr/bin/env bash
#
# Measures what the gate costs and gains, against its absence and its peers, on throw-away
# servers.  bench/README.md says what is measured and how to read it.  This file prepares a
# private PostgreSQL (test/setup.sh), and starts bench/driver/bench.py, which measures.
#
#   make bench                          everything (hours; it says how many)
#   make bench BENCH=order              one benchmark, or several by name
#   make bench QUICK=1                  proves that it works: figures mean nothing
#   make demo                           BENCH=demo: a minute or two, prints figures only
#
# Results (CSV, Markdown) go to bench/results/, or bench/results/quick/.
#
# From the environment (make bench NAME=value):
#   BENCH      any of the names below; default: all but demo
#   WORKLOADS  only these loads of the benchmark
#   VARIANTS   such as "off auto gate:16 pgbouncer:8 idle_after=-1": see
#              bench/README.md
#   CLIENTS    client counts, such as "64 500", instead of each benchmark's own
#   ROUNDS     default 3, with more than 2000 clients or in the demo 1
#   DURATION   counted seconds of each run, instead of each load's own
#   SKIP       seconds before them, default 5 and one more per 500 clients
#   SERVER_SETTINGS  such as "shared_buffers=1GB; huge_pages=on", for all variants
#   RESULTS    another directory for the results
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# shellcheck source=test/setup.sh
. "$(dirname "$0")/../test/setup.sh"

ALL="auto mixed bystanders deadlocks order mixed_sessions flash_sale overload instructions"
VARIABLES="BENCH WORKLOADS VARIANTS CLIENTS ROUNDS DURATION SKIP SERVER_SETTINGS QUICK COMMIT"

check_options() {
    local name
    for name in $BENCH; do
        [[ " $ALL demo " == *" $name "* ]] || die "unknown benchmark \"$name\" in BENCH: choose from demo $ALL"
    done
    for name in ROUNDS DURATION SKIP; do
        [[ ${!name:-1} =~ ^[1-9][0-9]*$ ]] || die "$name must be a positive number, not \"${!name}\""
    done
    [[ ${CLIENTS:-1} =~ ^[0-9\ ]+$ ]] || die "CLIENTS must be numbers, not \"$CLIENTS\""
}

# What the benchmarks chosen can make use of
extras() {
    case " $BENCH " in *" instructions "*) echo valgrind ;; esac
    case " $BENCH " in *" deadlocks "*) echo sysbench ;; esac
    [[ $BENCH =~ ^(demo|instructions)$ ]] || echo pgbouncer
}

choose_results() {
    RESULTS=${RESULTS:-$ROOT/bench/results${QUICK:+/quick}}
    mkdir -p "$RESULTS" || exit 1
    RESULTS=$(cd "$RESULTS" && pwd)
    [ -w "$RESULTS" ] || die "cannot write to $RESULTS"
}

# Called at the end, however it comes
save_results() {
    [ -n "$(ls -A "$WORK/results" 2>/dev/null)" ] || return 0
    (cd "$WORK/results" && "${AS_USER[@]}" tar -cf - -- *) | tar -C "$RESULTS" --no-same-owner -xf - &&
        say "results are in $RESULTS"
}

# The version measured; "+" means with changes.
source_version() {
    git -C "$ROOT" describe --always --dirty=+ --exclude='*' 2>/dev/null
}

# Prints when and on what a measurement was made: "DATE: VERSION, MACHINE."
describe_machine() {
    local cpu memory huge
    cpu=$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)
    memory=$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)
    huge=$(awk '/^HugePages_Total/ { print $2 }' /proc/meminfo)
    say "$(date -u '+%Y-%m-%d %H:%M UTC'): $("$STAGE/postgres" --version),"
    say "  $(nproc) cores ($cpu), $memory GB memory, $(uname -sr), data on $(stat -f -c %T "$WORK"),"
    say "  huge pages: $huge reserved, transparent $(sed 's/.*\[\(.*\)\].*/\1/' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null)."
}

inside() {
    local cc libraries
    export LC_ALL=C STAGE MACHINE BENCH
    ulimit -S -n "$(ulimit -H -n)"
    stage_postgres
    build_extension
    cc=$("$BINDIR/pg_config" --cc) libraries=$("$BINDIR/pg_config" --libdir)
    $cc -shared -fPIC -o "$WORK/refusal.so" "$WORK/src/bench/driver/refusal.c" -ldl || exit 1
    $cc -O2 -o "$WORK/overload" -I"$("$BINDIR/pg_config" --includedir)" "$WORK/src/bench/driver/overload.c" \
        -L"$libraries" -Wl,-rpath,"$libraries" -lpq -lm || exit 1
    MACHINE=$(describe_machine)
    mkdir "$WORK/results"
    PATH=$PATH:/usr/sbin exec "$(find_python)" "$WORK/src/bench/driver/bench.py"
}

BENCH=${BENCH:-$ALL}
if [ "${1:-}" = --inside ]; then
    inside
else
    check_options
    [ "$BENCH" = demo ] || choose_results
    export COMMIT
    COMMIT=$(source_version)
    make_workdir
    run_inside bench/run.sh bench "$VARIABLES" "$(extras)"
fi
