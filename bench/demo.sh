#!/usr/bin/env bash
#
# Shows what a limit on working backends changes on this machine: throughput
# and latency with the gate off and on, many clients, everything else equal.
# It starts its own server in a throw-away directory and leaves nothing behind:
# see test/setup.sh.
#
# Workloads, by pgbench over a Unix socket with prepared statements:
#   hot row   every client updates the same row, one transaction each
#   TPC-B     pgbench's own transaction at scale 10
#
# Each workload is warmed up once.  Then runs with the gate off and on take
# turns, so that a machine that gets slower or faster meets both alike.  Every
# run starts from a fresh checkpoint and vacuumed tables.  What counts of each is
# its steady part: not the first seconds, in which hundreds of new backends fill
# their caches, nor the last one.  Throughput is the median over the rounds;
# latencies are percentiles over the transactions of all rounds.
#
# From the environment (make demo NAME=value):
#   CLIENTS    default 300, less where the machine allows fewer
#   LIMIT      admission_gate.max_active_backends when on; default -1: it finds
#              itself
#   ROUNDS     default 3
#   DURATION   seconds per run, default 14
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# shellcheck source=test/setup.sh
. "$(dirname "$0")/../test/setup.sh"
# shellcheck source=bench/common.sh
. "$(dirname "$0")/common.sh"

CLIENTS=${CLIENTS:-300}
LIMIT=${LIMIT:--1}
ROUNDS=${ROUNDS:-3}
DURATION=${DURATION:-14}
WARM_UP=4
SKIP=5

WORKLOADS="hot tpcb"
declare -A TITLE=([hot]="hot row" [tpcb]="TPC-B")
declare -A SCRIPT=([hot]="-f hot.sql" [tpcb]="-b tpcb-like")

# Lowers CLIENTS to what the machine allows.  A backend of these workloads stays
# well under 8 MB of its own memory.
fit_clients() {
    most_clients 8192
    if [ "$CLIENTS" -gt "$MOST_CLIENTS" ]; then
        say "$MOST_CLIENTS clients instead of $CLIENTS: limited by $REASON"
        CLIENTS=$MOST_CLIENTS
    fi
    [ "$CLIENTS" -ge 10 ] || die "too few clients to show anything"
}

sql() { "$STAGE/psql" -XAtq -v ON_ERROR_STOP=1 "$@" || die "psql failed: $*"; }

start_server() {
    local data=$WORK/data
    export PGHOST=$WORK/tmp PGUSER=postgres PGDATABASE=postgres
    "$STAGE/initdb" -D "$data" -A trust -U postgres -N >"$WORK/log/initdb.log" 2>&1 || fail_with "$WORK/log/initdb.log"
    cat >"$data/demo.conf" <<-END
	shared_preload_libraries = 'admission_gate'
	listen_addresses = ''
	unix_socket_directories = '$PGHOST'
	max_connections = $((CLIENTS + 20))
	shared_buffers = 256MB
	END
    echo "include 'demo.conf'" >>"$data/postgresql.conf"
    "$STAGE/pg_ctl" -D "$data" -l "$WORK/log/server.log" -w start >/dev/null || fail_with "$WORK/log/server.log"
}

fail_with() {
    tail -n 30 "$1" >&2
    die "see the log above"
}

load_data() {
    # A role that is no superuser, which would have a reserve
    sql -c "CREATE EXTENSION admission_gate" \
        -c "CREATE ROLE client LOGIN IN ROLE pg_read_all_data, pg_write_all_data" \
        -c "CREATE TABLE hot (id int PRIMARY KEY, n bigint NOT NULL)" -c "INSERT INTO hot VALUES (1, 0)"
    echo "UPDATE hot SET n = n + 1 WHERE id = 1;" >"$WORK/hot.sql"
    "$STAGE/pgbench" -i -q -s 10 >"$WORK/log/load.log" 2>&1 || fail_with "$WORK/log/load.log"
}

# Sets the limit and waits until the server goes by it.
set_limit() {
    local seen
    sql -c "ALTER SYSTEM SET admission_gate.max_active_backends = $1" -c "SELECT pg_reload_conf()" >/dev/null
    for _ in {1..100}; do
        seen=$(sql -c "SELECT max_active FROM pg_stat_admission_gate")
        [ "$seen" != "$1" ] || return 0
        sleep 0.1
    done
    die "the server does not take over admission_gate.max_active_backends = $1 (it has ${seen:-none})"
}

# One pgbench run.  Usage: run_pgbench WORKLOAD NAME SECONDS; leaves
# NAME.out and its transaction log, NAME.log.*.
run_pgbench() {
    local out=$WORK/$2.out
    sql -c "VACUUM hot" -c "VACUUM pgbench_branches" -c "VACUUM pgbench_tellers" -c "CHECKPOINT"
    # shellcheck disable=SC2086
    (cd "$WORK" && PGUSER=client "$STAGE/pgbench" -n -M prepared -c "$CLIENTS" -j $((CLIENTS / 25 + 1)) -T "$3" \
        -l --log-prefix="$2.log" ${SCRIPT[$1]}) >"$out" 2>&1 || fail_with "$out"
}

# Counts the steady part of a run, by its log: adds the latencies in microseconds
# to a file and prints the transactions per second.  Column 5 of the log is the
# second in which a transaction ended, column 3 its latency.
count_run() {
    local from to
    read -r from to < <(awk '!s || $5 < s { s = $5 } $5 > e { e = $5 } END { print s, e }' "$WORK/$1".log.*)
    from=$((from + SKIP))
    [ "$to" -gt "$from" ] || die "a run of $DURATION s is too short: the first $SKIP s do not count"
    awk -v from="$from" -v to="$to" -v latencies="$2" \
        '$5 >= from && $5 < to { print $3 >>latencies; n++ } END { printf "%.0f\n", n / (to - from) }' \
        "$WORK/$1".log.*
    rm -f "$WORK/$1".log.*
}

# Usage: measure WORKLOAD off|on ROUND
measure() {
    local name=$1-$2 limit=0 tps
    [ "$2" = off ] || limit=$LIMIT
    set_limit "$limit"
    RUN=$((RUN + 1))
    printf '[%d/%d] %s, gate %s, round %d: ' "$RUN" "$RUNS" "${TITLE[$1]}" "$2" "$3"
    run_pgbench "$1" "$name" "$DURATION"
    tps=$(count_run "$name" "$WORK/$name.us")
    echo "$tps" >>"$WORK/$name.tps"
    printf '%d transactions/s (%d s left)\n' "$tps" $(((RUNS - RUN) * (DURATION + 2)))
}

measure_workload() {
    local round state
    say "warming up ${TITLE[$1]} with the gate off"
    set_limit 0
    run_pgbench "$1" warm-up $WARM_UP
    rm -f "$WORK"/warm-up.log.*
    for round in $(seq "$ROUNDS"); do
        for state in off on; do
            measure "$1" "$state" "$round"
        done
    done
}

# The value below which a share of the numbers in a file lies.
percentile() {
    sort -n "$1" | awk -v share="$2" '{ v[NR] = $1 } END { i = int(NR * share); print v[i < 1 ? 1 : i] }'
}

median() {
    sort -n "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}

# Prints "tps p50 p99" of a workload and state, latencies in milliseconds.
figures() {
    local file=$WORK/$1-$2
    echo "$(median "$file.tps") $(percentile "$file.us" 0.50) $(percentile "$file.us" 0.99)" |
        awk '{ printf "%d %.1f %.1f\n", $1, $2 / 1000, $3 / 1000 }'
}

print_table() {
    local workload
    printf '\n%-8s %7s   %-28s   %-28s   %s\n' "" "" "gate off" "gate on (limit $LIMIT)" "on / off"
    printf '%-8s %7s   %8s %9s %9s   %8s %9s %9s   %6s %6s %6s\n' workload clients \
        "tps" "p50 ms" "p99 ms" "tps" "p50 ms" "p99 ms" "tps" "p50" "p99"
    for workload in $WORKLOADS; do
        echo "$(figures "$workload" off) $(figures "$workload" on)" |
            awk -v title="${TITLE[$workload]}" -v clients="$CLIENTS" '{
                printf "%-8s %7d   %8d %9.1f %9.1f   %8d %9.1f %9.1f   %6.2f %6.2f %6.2f\n",
                    title, clients, $1, $2, $3, $4, $5, $6, $4 / $1, $5 / $2, $6 / $3 }'
    done
}

print_machine() {
    say ""
    say "Measured $(describe_machine)"
    say "Settings other than the default: $(sql -c "SELECT string_agg(name || ' = ' || current_setting(name), ', ' ORDER BY name)
        FROM pg_settings WHERE sourcefile LIKE '%/demo.conf' AND name !~ 'listen_addresses|unix_socket'")."
    say "$ROUNDS rounds of $DURATION s each, the first $SKIP s not counted; median tps, latencies over all rounds."
    say "Again: make demo CLIENTS=$CLIENTS LIMIT=$LIMIT ROUNDS=$ROUNDS DURATION=$DURATION"
}

inside() {
    local workload
    RUN=0 RUNS=$((ROUNDS * 2 * $(wc -w <<<"$WORKLOADS")))
    export LC_ALL=C
    fit_clients
    stage_postgres
    build_extension
    start_server
    load_data
    say "$RUNS runs of $DURATION s with $CLIENTS clients, limit $LIMIT when on: about $((RUNS * (DURATION + 2) + 20)) s"
    for workload in $WORKLOADS; do
        measure_workload "$workload"
    done
    print_table
    print_machine
}

check_positive CLIENTS ROUNDS DURATION
[ "$LIMIT" = -1 ] || check_positive LIMIT
[ "$DURATION" -gt $SKIP ] || die "DURATION must be more than $SKIP: the first $SKIP seconds do not count"
if [ "${1:-}" = --inside ]; then
    inside
else
    make_workdir
    run_inside bench/demo.sh "" "CLIENTS LIMIT ROUNDS DURATION"
fi
