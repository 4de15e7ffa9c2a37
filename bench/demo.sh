#!/usr/bin/env bash
#
# Shows what a limit on working backends changes on this machine: throughput
# and latency with the gate off and on, many clients, everything else equal.
# It starts its own server in a throw-away directory and leaves nothing behind:
# see test/setup.sh.
#
# Workloads, by pgbench over a Unix socket with prepared statements, as a role that is
# not a superuser:
#   hot row   every client updates the same row, one transaction each
#   TPC-B     pgbench's own transaction at scale 10
#   mixed     100 clients that update random rows, beside 4 that sort a million rows
#
# Runs with the gate off and on take turns.  Every run starts from a fresh checkpoint
# and vacuumed tables.  What counts of each is its steady part: not the first seconds,
# in which hundreds of new backends fill their caches, nor the last one.  Throughput is
# the median over the rounds; latencies are percentiles over the transactions of all
# rounds.  While the gate is on, the view for one screen shows what it does.
#
# From the environment (make demo NAME=value):
#   CLIENTS    default 300, less where the machine allows fewer
#   LIMIT      admission_gate.max_active_backends when on; default -1: it finds
#              itself
#   ROUNDS     default 1
#   DURATION   seconds per run, default 9
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# shellcheck source=test/setup.sh
. "$(dirname "$0")/../test/setup.sh"
# shellcheck source=bench/common.sh
. "$(dirname "$0")/common.sh"

CLIENTS=${CLIENTS:-300}
LIMIT=${LIMIT:--1}
ROUNDS=${ROUNDS:-1}
DURATION=${DURATION:-9}
SKIP=4

WORKLOADS="hot tpcb mixed"
declare -A TITLE=([hot]="hot row" [tpcb]="TPC-B" [mixed]="mixed")
declare -A SCRIPT=([hot]="-f hot.sql" [tpcb]="-b tpcb-like" [mixed]="-b simple-update")
MIXED_CLIENTS=100
ANALYSTS=4

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
	max_connections = $((CLIENTS + ANALYSTS + 20))
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
    sql -c "CREATE EXTENSION admission_gate" \
        -c "CREATE ROLE client LOGIN IN ROLE pg_read_all_data, pg_write_all_data" \
        -c "CREATE ROLE monitor LOGIN IN ROLE pg_monitor" -c "ALTER ROLE monitor SET admission_gate.bypass = on" \
        -c "CREATE TABLE hot (id int PRIMARY KEY, n bigint NOT NULL)" -c "INSERT INTO hot VALUES (1, 0)"
    echo "UPDATE hot SET n = n + 1 WHERE id = 1;" >"$WORK/hot.sql"
    echo "SELECT max(place) FROM (SELECT row_number() OVER (ORDER BY filler, abalance, aid) AS place FROM pgbench_accounts) a;" \
        >"$WORK/analyst.sql"
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

clients_of() { if [ "$1" = mixed ] && [ "$CLIENTS" -gt $MIXED_CLIENTS ]; then echo $MIXED_CLIENTS; else echo "$CLIENTS"; fi; }

# Usage: pgbench NAME CLIENTS SECONDS ARGUMENT...; leaves NAME.out.
pgbench() {
    local out=$WORK/$1.out clients=$2 seconds=$3
    shift 3
    (cd "$WORK" && PGUSER=client "$STAGE/pgbench" -n -M prepared -c "$clients" -j $((clients / 25 + 1)) -T "$seconds" "$@") \
        >"$out" 2>&1 || fail_with "$out"
}

# Shows the gate at work: the second look, which has rates, of the view for one screen.
show_gate() {
    sleep $((DURATION / 2))
    PGUSER=monitor timeout 3 "$STAGE/psql" -X -v every=2 -v waiters=3 -f "$ROOT/monitoring/gate.sql" 2>&1 |
        awk '/\033\[2J/ { n++; sub(/.*\033\[2J/, "") } n == 2 { print "    " $0 }'
}

# One run of a workload.  Usage: run_workload WORKLOAD NAME; leaves NAME.out and its
# transaction log, NAME.log.*.
run_workload() {
    local clients analysts=
    clients=$(clients_of "$1")
    sql -c "VACUUM hot" -c "VACUUM pgbench_branches" -c "VACUUM pgbench_tellers" -c "CHECKPOINT"
    if [ "$1" = mixed ]; then
        pgbench analysts $ANALYSTS "$DURATION" -f analyst.sql &
        analysts=$!
    fi
    # shellcheck disable=SC2086
    pgbench "$2" "$clients" "$DURATION" -l --log-prefix="$2.log" ${SCRIPT[$1]}
    [ -n "$analysts" ] || return 0
    wait "$analysts" || exit 1
    awk '/^tps/ { print $3 }' "$WORK/analysts.out" >>"$WORK/$2.analysts"
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
    local name=$1-$2 limit=0 tps show=
    [ "$2" = off ] || limit=$LIMIT
    set_limit "$limit"
    RUN=$((RUN + 1))
    say "[$RUN/$RUNS] ${TITLE[$1]}, $(clients_of "$1") clients, gate $2"
    if [ "$2" = on ] && [ "$3" = 1 ]; then
        show_gate &
        show=$!
    fi
    run_workload "$1" "$name"
    [ -z "$show" ] || wait "$show"
    tps=$(count_run "$name" "$WORK/$name.us")
    echo "$tps" >>"$WORK/$name.tps"
    say "    $tps transactions/s ($(((RUNS - RUN) * (DURATION + 2))) s left)"
}

measure_workload() {
    local round state
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

# How many sorts a second there were beside.
sorts() { median "$WORK/mixed-$1.analysts" | awk '{ printf "%.2f", $1 }'; }

print_table() {
    local workload
    printf '\n%-8s %7s   %-28s   %-28s\n' "" "" "gate off" "gate on (limit $LIMIT)"
    printf '%-8s %7s   %8s %9s %9s   %8s %9s %9s   %s\n' workload clients \
        "tps" "p50 ms" "p99 ms" "tps" "p50 ms" "p99 ms" "with the gate"
    for workload in $WORKLOADS; do
        echo "$(figures "$workload" off) $(figures "$workload" on)" |
            awk -v title="${TITLE[$workload]}" -v clients="$(clients_of "$workload")" '
                function change(r, more, less) {
                    if (r >= 2) return sprintf("%.1f times the %s", r, more)
                    if (r > 1.05) return sprintf("%.0f %% %s", (r - 1) * 100, less ? "longer " more : "more " more)
                    if (r < 0.95) return sprintf("%.0f %% %s", (1 - r) * 100, less ? "shorter " more : "fewer " more)
                    return "about the same " more
                }
                { printf "%-8s %7d   %8d %9.1f %9.1f   %8d %9.1f %9.1f   %s, %s\n",
                    title, clients, $1, $2, $3, $4, $5, $6, change($4 / $1, "transactions", 0), change($6 / $3, "p99", 1) }'
    done
    say ""
    say "Beside mixed, $ANALYSTS sessions sort a million rows: $(sorts off) sorts a second with the gate off, $(sorts on) with it,"
    say "as long statements pause for short ones.  So short a run shows the direction, no more."
}

print_machine() {
    say ""
    say "Measured $(describe_machine)"
    say "Settings other than the default: $(sql -c "SELECT string_agg(name || ' = ' || current_setting(name), ', ' ORDER BY name)
        FROM pg_settings WHERE sourcefile LIKE '%/demo.conf' AND name !~ 'listen_addresses|unix_socket'")."
    say "Rounds: $ROUNDS, of $DURATION s a run, the first $SKIP s not counted."
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
