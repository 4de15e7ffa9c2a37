#!/usr/bin/env bash
#
# Shows what the gate changes on this machine: throughput and latency with it off and on,
# many clients, everything else equal.  It starts its own server in a throw-away directory
# and leaves nothing behind but packages: see test/setup.sh.
#
# Three loads, by pgbench over a Unix socket with prepared statements, as a role that is
# not a superuser:
#   hot row    every client updates the same row, one transaction each
#   beside     a third of the clients updates that row, with 1 ms of client time inside
#              the transaction; the others update a random row and read it, with 1 ms
#              after each
#   sorts      100 clients update random rows, beside 4 that sort 200000 rows
#
# Runs with the gate off and on take turns.  Every run starts from a fresh checkpoint and
# a vacuumed hot row.  What counts of each is its steady part: not the first seconds, in
# which hundreds of new backends fill their caches, nor the last one.  Throughput is the
# median over the rounds; latencies are percentiles over the transactions of all rounds.
# While the gate is on, its views tell what it does, and where the hot spot is.
#
# From the environment (make demo NAME=value):
#   CLIENTS    default 300, less where the machine allows fewer
#   LIMIT      admission_gate.max_active_backends when on; default -1: none but those of
#              hot spots
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

# The groups of sessions of each load; each is counted by itself, while the first is steady.
LOADS=("alone" "hot others" "updates sorts")
declare -A TITLE=([alone]="hot row, updated by all" [hot]="hot row beside other work" [others]="other work beside hot row"
    [updates]="updates beside sorts" [sorts]="sorts beside updates")
declare -A SCRIPT=([alone]="-f alone.sql" [hot]="-f hot.sql" [others]="-f others.sql" [updates]="-b simple-update" [sorts]="-f sorts.sql")
declare -A NUMBER

# Lowers CLIENTS to what the machine allows, and divides them.  A backend of these loads
# stays well under 8 MB of its own memory.
fit_clients() {
    most_clients 8192
    if [ "$CLIENTS" -gt "$MOST_CLIENTS" ]; then
        say "$MOST_CLIENTS clients instead of $CLIENTS: limited by $REASON"
        CLIENTS=$MOST_CLIENTS
    fi
    [ "$CLIENTS" -ge 10 ] || die "too few clients to show anything"
    NUMBER=([alone]=$CLIENTS [hot]=$((CLIENTS / 3)) [others]=$((CLIENTS - CLIENTS / 3))
        [updates]=$((CLIENTS < 100 ? CLIENTS : 100)) [sorts]=4)
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
	max_connections = $((CLIENTS + 24))
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
    local update="UPDATE hot SET n = n + 1 WHERE id = 1;"
    sql -c "CREATE EXTENSION admission_gate" \
        -c "CREATE ROLE client LOGIN IN ROLE pg_read_all_data, pg_write_all_data" \
        -c "CREATE ROLE monitor LOGIN IN ROLE pg_monitor" -c "ALTER ROLE monitor SET admission_gate.bypass = on" \
        -c "CREATE TABLE hot (id int PRIMARY KEY, n bigint NOT NULL)" -c "INSERT INTO hot VALUES (1, 0)"
    echo "$update" >"$WORK/alone.sql"
    printf '%s\n' "BEGIN;" "$update" '\sleep 1 ms' "COMMIT;" >"$WORK/hot.sql"
    printf '%s\n' '\set aid random(1, 1000000)' "BEGIN;" \
        "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;" '\sleep 1 ms' \
        "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;" '\sleep 1 ms' "COMMIT;" >"$WORK/others.sql"
    echo "SELECT max(place) FROM (SELECT row_number() OVER (ORDER BY filler, abalance, aid) AS place
        FROM pgbench_accounts WHERE aid <= 200000) a;" \
        >"$WORK/sorts.sql"
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

# Tells in the middle of a run what the gate does.  A hot spot that is not found yet, or has
# no limit yet, gets a few seconds more.
show_gate() {
    local spots
    sleep $((DURATION / 2))
    for _ in {1..3}; do
        spots=$(PGUSER=monitor sql -c "SELECT format('    hot spot: %s, %s contenders, max_active %s, %s in its queue',
                concat_ws(' ', kind, coalesce(relation, lwlock)), contenders, max_active, waiting)
            FROM pg_stat_admission_gate_hot_spots WHERE max_active IS NOT NULL ORDER BY contenders DESC LIMIT 3")
        [ -z "$spots" ] || break
        sleep 1
    done
    say "${spots:-    no hot spot}"
    PGUSER=monitor sql -c "SELECT format('    in all: %s at work, %s waiting',
        running, waiting) FROM pg_stat_admission_gate"
}

# One run of a group.  Usage: run_group GROUP OFF|ON; leaves a transaction log,
# GROUP-OFF|ON.log.*.
run_group() {
    local clients=${NUMBER[$1]}
    # shellcheck disable=SC2086
    (cd "$WORK" && PGUSER=client "$STAGE/pgbench" -n -M prepared -c "$clients" -j $((clients / 25 + 1)) -T "$DURATION" \
        -l --log-prefix="$1-$2.log" ${SCRIPT[$1]}) >"$WORK/$1.out" 2>&1 || fail_with "$WORK/$1.out"
}

# Counts the steady part of a run by its log: adds the latencies in microseconds to a file,
# and the transactions per second to another.  Column 5 of the log is the second in which a
# transaction ended, column 3 its latency.  Usage: count_group GROUP OFF|ON FROM TO
count_group() {
    awk -v from="$3" -v to="$4" -v latencies="$WORK/$1-$2.us" \
        '$5 >= from && $5 < to { print $3 >>latencies; n++ } END { print n / (to - from) }' "$WORK/$1-$2".log.* |
        tee -a "$WORK/$1-$2.rate" | awk '{ printf "    %.*f transactions/s", $1 < 10, $1 }'
    say " (${TITLE[$1]})"
    rm -f "$WORK/$1-$2".log.*
}

# Usage: measure LOAD OFF|ON
measure() {
    local groups limit=0 group from to jobs=()
    read -ra groups <<<"$1"
    [ "$2" = off ] || limit=$LIMIT
    set_limit "$limit"
    RUN=$((RUN + 1))
    say "[$RUN/$RUNS] gate $2:$(for group in "${groups[@]}"; do printf ' %s clients, %s;' "${NUMBER[$group]}" "${TITLE[$group]}"; done)" \
        "$(((RUNS - RUN + 1) * (DURATION + 3))) s left"
    sql -c "VACUUM hot" -c "CHECKPOINT"
    for group in "${groups[@]}"; do
        run_group "$group" "$2" &
        jobs+=($!)
    done
    [ "$2" = off ] || { show_gate & jobs+=($!); }
    for group in "${jobs[@]}"; do
        wait "$group" || exit 1
    done
    read -r from to < <(awk '!s || $5 < s { s = $5 } $5 > e { e = $5 } END { print s, e }' "$WORK/${groups[0]}-$2".log.*)
    from=$((from + SKIP))
    [ "$to" -gt "$from" ] || die "a run of $DURATION s is too short: the first $SKIP s do not count"
    for group in "${groups[@]}"; do
        count_group "$group" "$2" "$from" "$to"
    done
}

# Prints the median of the rates of a group, and the 50th and 99th percentile of its
# latencies in ms, if there are any.
figures() {
    sort -n "$WORK/$1-$2.rate" | awk '{ v[NR] = $1 } END { printf "%s ", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
    sort -n "$WORK/$1-$2.us" 2>/dev/null | awk 'function share(s) { return NR ? v[int((NR - 1) * s) + 1] / 1000 : "-" }
        { v[NR] = $1 } END { printf "%s %s ", share(0.5), share(0.99) }'
}

# The figures, and then in words what they say
print_table() {
    local group
    printf '\n%-25s %7s   %-28s   %s\n' "" "" "gate off" "gate on (limit $LIMIT)"
    printf '%-25s %7s   %8s %9s %9s   %8s %9s %9s\n' sessions number per_s p50_ms p99_ms per_s p50_ms p99_ms
    # shellcheck disable=SC2048
    for group in ${LOADS[*]}; do
        say "$(figures "$group" off) $(figures "$group" on) ${NUMBER[$group]} ${TITLE[$group]}"
    done | awk '
        function f(x, least) { return x == "-" ? x : sprintf("%.*f", x < least, x) }
        # Few transactions tell nothing of the last hundredth.
        function compare(what, off, on, more) {
            verdict = on > off * 1.15 ? more : off > on * 1.15 ? -more : 0
            said[verdict] = said[verdict] sprintf("  %s: %s instead of %s\n", title, sprintf(what, on ? f(on, 10) : "no"), f(off, 10))
        }
        function words(heading, verdict) { printf "%s\n%s", heading, verdict in said ? said[verdict] : "  nothing\n" }
        {
            title = $8; for (i = 9; i <= NF; i++) title = title " " $i
            printf "%-25s %7d   %8s %9s %9s   %8s %9s %9s\n", title, $7, f($1, 10), f($2, 100), f($3, 100), f($4, 10), f($5, 100), f($6, 100)
            if ($1 + $4 == 0)
                said[0] = said[0] "  " title ": none ended, with the gate or without\n"
            else
                compare("%s transactions a second", $1, $4, 1)
            if ($1 >= 10 && $4 >= 10) compare("99 of 100 end within %s ms", $3, $6, -1)
        }
        END { print ""; words("Better with the gate", 1); words("Worse", -1); words("The same, give or take 15 %", 0) }'
    say ""
    say "So short a run shows the direction, no more."
    say "To look at a server of your own without making a session wait: docs/tutorial.md, A dry run."
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
    local load state
    RUN=0 RUNS=$((ROUNDS * 2 * ${#LOADS[@]}))
    export LC_ALL=C
    fit_clients
    stage_postgres
    build_extension
    start_server
    load_data
    for load in "${LOADS[@]}"; do
        for state in $(seq "$ROUNDS" | sed 's/.*/off on/'); do
            measure "$load" "$state"
        done
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
