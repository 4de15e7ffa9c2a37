#!/usr/bin/env bash
#
# Shows what the gate changes on this machine: throughput and latency with it off and on,
# many clients, everything else equal.  It starts its own server in a throw-away directory
# and leaves nothing behind but packages: see test/setup.sh.
#
# Two loads, by pgbench over a Unix socket with prepared statements, as a role that is not
# a superuser:
#   one row          all sessions update the same row, and do nothing else
#   mixed sessions   every session runs everything: a tenth of its transactions updates
#                    that row and inserts an order, six tenths read another table by key,
#                    three tenths update random rows of a third
#
# Runs with the gate off and on take turns.  Every run starts from a fresh checkpoint and
# a vacuumed hot row.  What counts of each is its steady part: not the first seconds, in
# which hundreds of new backends fill their caches, nor what ends after the last.  In the
# middle of that the demo tells who waits for what; the gate's views tell for which row.
#
# From the environment (make demo NAME=value):
#   CLIENTS    default 300, less where the machine allows fewer
#   LIMIT      admission_gate.max_active_backends when on; default -1: none but those of
#              hot spots
#   ROUNDS     default 1
#   DURATION   seconds per run, default 10
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# shellcheck source=test/setup.sh
. "$(dirname "$0")/../test/setup.sh"
# shellcheck source=bench/common.sh
. "$(dirname "$0")/common.sh"

CLIENTS=${CLIENTS:-300}
LIMIT=${LIMIT:--1}
ROUNDS=${ROUNDS:-1}
DURATION=${DURATION:-10}
SKIP=4

# The scripts of each load, with their weights; each is counted by itself.
LOADS=("alone@1" "hot@1 reads@6 updates@3")
declare -A TITLE=([alone]="one row alone" [hot]="the row in mixed sessions" [reads]="reads in mixed sessions"
    [updates]="updates in mixed sessions")

# Lowers CLIENTS to what the machine allows.  A backend of these loads stays well under
# 8 MB of its own memory.
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
    local sell="UPDATE stock SET n = n - 1 WHERE id = 1;" any='\set id random(1, 200000)'
    sql <<-'END'
	CREATE EXTENSION admission_gate;
	CREATE ROLE client LOGIN IN ROLE pg_read_all_data, pg_write_all_data;
	CREATE ROLE monitor LOGIN IN ROLE pg_read_all_data, pg_monitor;
	ALTER ROLE monitor SET admission_gate.bypass = on;
	CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 50);
	INSERT INTO stock SELECT generate_series(1, 1000), 0;
	CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, stock int NOT NULL);
	CREATE TABLE items (id int PRIMARY KEY, v bigint NOT NULL);
	INSERT INTO items SELECT generate_series(1, 200000), 0;
	CREATE TABLE t (id int PRIMARY KEY, v bigint NOT NULL);
	INSERT INTO t SELECT generate_series(1, 200000), 0;
	END
    echo "$sell" >"$WORK/alone"
    printf '%s\n' BEGIN\; "$sell" "INSERT INTO orders (stock) VALUES (1);" COMMIT\; >"$WORK/hot"
    printf '%s\n' "$any" "SELECT v FROM items WHERE id = :id;" >"$WORK/reads"
    printf '%s\n' "$any" "UPDATE t SET v = v + 1 WHERE id = :id;" >"$WORK/updates"
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

# Tells in the middle of a run which statement most of those run that wait, and where the
# gate sees them.  Each update moves the row: it is looked up until it is where it was seen.
show_waits() {
    local spot=
    local -x PGUSER=monitor
    sleep $(((SKIP + DURATION) / 2))
    sql -c "SELECT format('    %s wait in the queue of the gate, %s for locks, to run: %s',
            count(*) FILTER (WHERE wait_event_type = 'Extension'),
            count(*) FILTER (WHERE wait_event_type LIKE '%Lock'), query)
        FROM pg_stat_activity WHERE usename = 'client' AND wait_event_type IN ('Lock', 'LWLock', 'Extension')
        GROUP BY query ORDER BY count(*) DESC LIMIT 1"
    [ "$1" = on ] || return 0
    for _ in {1..50}; do
        spot=$(sql -c "SELECT format('    hot spot: table %s, hot rows: %s, %s may work, %s queue; row %s has the id %s',
                relation, hot_keys, max_active, waiting, hottest_row, coalesce(id::text, '?'))
            FROM pg_stat_admission_gate_hot_spots LEFT JOIN stock ON relation = 'stock' AND ctid = hottest_row
            WHERE max_active IS NOT NULL ORDER BY waiting DESC LIMIT 1")
        [[ $spot != *[0-9] ]] || break
        sleep 0.01
    done
    say "${spot:-    no hot spot}"
}

# One run; adds the latencies of its steady part in microseconds to a file for each script.
# Of pgbench's log, column 3 is the latency, 4 the number of the script, 5 the second in
# which the transaction ended.  Usage: measure LOAD OFF|ON
measure() {
    local limit=0 log=$WORK/log/pgbench waits scripts
    read -ra scripts <<<"$1"
    [ "$2" = off ] || limit=$LIMIT
    set_limit "$limit"
    RUN=$((RUN + 1))
    say "[$RUN/$RUNS] gate $2, $CLIENTS sessions run $1: $(((RUNS - RUN + 1) * (DURATION + 2))) s left"
    sql -c "VACUUM stock" -c "CHECKPOINT"
    show_waits "$2" &
    waits=$!
    (cd "$WORK" && PGUSER=client "$STAGE/pgbench" -n -M prepared -c "$CLIENTS" -j $((CLIENTS / 25 + 1)) -T "$DURATION" \
        -l --log-prefix="$log" "${scripts[@]/#/-f}") >"$log" 2>&1 || fail_with "$log"
    wait "$waits" || exit 1
    cat "$log".* >"$log"
    rm "$log".*
    awk -v skip=$SKIP -v duration="$DURATION" -v names="${1//@[0-9]/}" -v logs="$WORK/log/$2-" '
        BEGIN { scripts = split(names, name) }
        NR == FNR { if (!from || $5 < from) from = $5; next }
        $5 >= from + skip && $5 < from + duration { print $3 >>(logs name[$4 + 1]); n[$4 + 1]++ }
        END { for (i = 1; i <= scripts; i++) printf "    %s: %.0f per second\n", name[i], n[i] / (duration - skip) }' "$log" "$log"
}

# Prints the transactions per second of a script, and the 50th and 99th percentile of its
# latencies in ms, if enough ended to tell.  Usage: figures OFF|ON SCRIPT
figures() {
    sort -n "$WORK/log/$1-$2" 2>/dev/null | awk -v seconds=$((ROUNDS * (DURATION - SKIP))) '
        function part(p) { return NR * (1 - p) < 2 ? "-" : v[int((NR - 1) * p) + 1] / 1000 }
        { v[NR] = $1 }
        END { printf "%s %s %s ", NR / seconds, part(0.5), part(0.99) }'
}

# The figures, and in a sentence what they say
print_table() {
    local script
    printf '\n%-25s   %-28s   %s\n' "" "gate off" "gate on (limit $LIMIT)"
    printf '%-25s   %8s %9s %9s   %8s %9s %9s\n' "" per_s p50_ms p99_ms per_s p50_ms p99_ms
    for script in alone hot reads updates; do
        say "$(figures off "$script") $(figures on "$script") ${TITLE[$script]}"
    done | awk '
        function f(x) { return x == "-" ? x : sprintf("%.*f", (x < 1) + (x < 100), x) }
        # more is 1 where more is better, else -1.
        function compare(what, off, on, more,   times, v) {
            if (off + 0 == 0 || on == "-") return
            times = on / off
            v = times > 1.15 ? more : times < 1 / 1.15 ? -more : 0
            said[v] = said[v] (last[v] == title ? ", " : (last[v] ? "), " : "") title " (") sprintf("%s %.2f", what, times)
            last[v] = title
        }
        function words(v) { return last[v] ? said[v] ")" : "nothing" }
        {
            title = $7; for (i = 8; i <= NF; i++) title = title " " $i
            printf "%-25s   %8s %9s %9s   %8s %9s %9s\n", title, f($1), f($2), f($3), f($4), f($5), f($6)
            compare("throughput", $1, $4, 1); compare("p50", $2, $5, -1); compare("p99", $3, $6, -1)
        }
        END {
            print "\nWith the gate, better (times the figure without): " words(1) "; worse: " words(-1) \
                "; the same, give or take 15 %: " words(0) "."
        }' | fold -s -w 100
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
