#!/usr/bin/env bash
#
# Builds admission_gate and runs its tests, from a bare Debian or Ubuntu to a last line
# `N passed, M failed`.  Nothing is installed into the system's PostgreSQL, and nothing is
# left behind but packages and, where root runs this, the folder of another version: see
# test/setup.sh and below.
#
# The suites run by `make installcheck` of the private installation:
#   regress    sql/*.sql by pg_regress, on a server with default settings
#   isolation  test/isolation/specs/*.spec by pg_isolation_regress, likewise
#   tap        test/t/*.pl by prove, which start their own servers
# without a server:
#   model      test/model/run.sh, which has spin check the protocol of the queue
#   simulator  test/simulator/run.sh, which tries the control of limits on simulated sessions
# and if named in TESTS:
#   mutants    the model with mistakes in the protocol, which have to be found
#   neighbours test/neighbours/*.pl, as tap; many packages (make neighbours)
#   drivers    test/drivers/drivers.pl, as tap; real drivers, from their own registries, one
#              that cannot be had has failed (make drivers)
#
# Then, on one more major version, those that differ most between versions, if root runs
# this and it can be had: by test/matrix, in a folder under ~/.cache that it needs some
# 2 GB and minutes for the first time.  What is not run counts as no test.
#
# From the environment (make test NAME=value):
#   TESTS          suites to run, default "regress isolation tap simulator model"
#   VALGRIND=1     run the servers of regress and isolation, the default then, in valgrind,
#                  and look at what that has found: see test/valgrind.sh
#   REGRESS, ISOLATION        tests to run, by name
#   TAP_FILES, NEIGHBOURS     files to run, such as test/t/name.pl
#   DRIVERS        drivers to test, default "psycopg asyncpg pgjdbc pgx node"
#   MODEL          configurations of the model to check, by number, or all; default those
#                  that take a few seconds each
#   JOBS           TAP files to run at a time, default 6: most of them wait most of the time
#   OTHER_MAJORS   further versions to test, none if empty; default 18, or 17 where 18 is
#                  the first one, but none if any of the above is set
#   SUITE_TIMEOUT  seconds after which a suite counts as stuck, default 1800
#   GATE_CHAOS_SECONDS    how long the chaos test lasts, default 30
#   GATE_SEED             the random numbers of a chaos test to repeat
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# shellcheck source=test/setup.sh
. "$(dirname "$0")/setup.sh"

ALL="regress isolation tap simulator model mutants neighbours drivers"
# What the tests may see of the environment; how the registries of drivers are reached is
# the user's affair.
VARIABLES="TESTS VALGRIND REGRESS ISOLATION TAP_FILES NEIGHBOURS DRIVERS MODEL JOBS SUITE_TIMEOUT GATE_CHAOS_SECONDS
GATE_SEED PG_TEST_TIMEOUT_DEFAULT PG_TEST_EXTRA ${!PIP_*}
${!npm_config_*} ${!NPM_CONFIG_*} GOPROXY GOSUMDB GONOSUMDB GOPRIVATE GOINSECURE JAVA_HOME MAVEN_ARGS http_proxy https_proxy
no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE NODE_EXTRA_CA_CERTS"

# Whether nothing else is asked for, and what further versions are tested with then
DEFAULT=$([ -n "${TESTS:-}${VALGRIND:-}${REGRESS:-}${ISOLATION:-}${TAP_FILES:-}${NEIGHBOURS:-}${MODEL:-}" ] || echo yes)
OTHER_TESTS=${TESTS:-regress isolation tap}
OTHER_TAP_FILES=${TAP_FILES:-$(cd "$ROOT" && echo test/t/{limit,snapshot,endings,at_work,short_cpus}.pl)}

[ -z "${VALGRIND:-}" ] || TESTS=${TESTS:-regress isolation}
TESTS=${TESTS:-regress isolation tap simulator model}
export DRIVERS=${DRIVERS:-psycopg asyncpg pgjdbc pgx node}
SUITE_TIMEOUT=${SUITE_TIMEOUT:-$((1800 + ${GATE_CHAOS_SECONDS:-0}))}
PASSED=0 FAILED=0

# Inner half

# Prints "passed failed" for the output of pg_regress ("test x ... ok" in PostgreSQL 15,
# TAP from 16 on) or prove.  Indented lines are subtests, whose outcome the line after them
# repeats.
count_results() {
    awk '
        /^ok [0-9]/     { if (toupper($0) !~ /# SKIP/) passed++ }
        /^not ok [0-9]/ { if (toupper($0) !~ /# TODO/) failed++ }
        /^(test| ) .* \.\.\. ok( |$)/     { passed++ }
        /^(test| ) .* \.\.\. FAILED( |$)/ { failed++ }
        END { print passed + 0, failed + 0 }' "$1"
}

# Runs one suite and adds to PASSED and FAILED.  Usage: run_suite SUITE COMMAND...
run_suite() {
    local suite=$1 log=$WORK/log/$1 status=0 passed failed start=$SECONDS
    shift
    timeout --foreground -k 10 "$SUITE_TIMEOUT" "$@" >"$log.out" 2>"$log.err" || status=$?
    read -r passed failed < <(count_results "$log.out")
    # A suite that died, or that ran nothing, has not passed.
    if [ "$failed" = 0 ] && { [ "$status" != 0 ] || [ "$passed" = 0 ]; }; then
        failed=1
    fi
    [ "$status" != 124 ] || say "$suite was stopped after $SUITE_TIMEOUT s"
    printf '%-10s %s passed, %s failed (%s s)\n' "$suite" "$passed" "$failed" $((SECONDS - start))
    [ "$failed" = 0 ] || show_failure "$log"
    PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed))
}

# The ends of the logs of the suite that just ran, and at last, because a CI shows the end
# only, which tests have failed.  Why a TAP file died is only in its own log.
show_failure() {
    local file logs=$WORK/src/tmp_check/log
    for file in "$1".{out,err,log} "$WORK"/src/{,output_iso/}regression.diffs "$logs"/*.log \
        $(sed -n "s,^test/.*/\([^/]*\)\.pl *(Wstat.*,$logs/regress_log_\1,p" "$1.out") \
        $(grep -l 'Bail out!' "$logs"/regress_log_* 2>/dev/null); do
        [ -s "$file" ] && printf -- '---- %s\n' "${file#"$WORK"/}" && tail -n 60 "$file"
    done
    say "---- failed in ${1##*/}"
    {
        sed -n '/^not ok [0-9]/p; /^\(test\| \) .* \.\.\. FAILED/p; /(Wstat/p; /^Bail/p' "$1.out"
        grep -A 8 'Failed test' "$1.err"
    } | cut -c 1-200 | head -n 20
}

# Usage: check SUITE NAME=VALUE..., which say what make installcheck runs
check() {
    local suite=$1
    shift
    run_suite "$suite" make -C "$WORK/src" PG_CONFIG="$STAGE/pg_config" installcheck "$@"
    stop_servers
}

# Usage: check_on_server SUITE NAME=VALUE...; on a server with initdb's settings that
# preloads the library, as make installcheck has to pass there
check_on_server() {
    local data=$WORK/server log=$WORK/log/$1.log
    rm -rf "$data"
    {
        "$STAGE/initdb" -N -D "$data" &&
            echo "shared_preload_libraries = 'admission_gate'" >>"$data/postgresql.conf" &&
            "$STAGE/pg_ctl" -w -D "$data" -l "$log" -o "-c listen_addresses= -k '$WORK'" start
    } >"$WORK/log/start.log" 2>&1 || {
        tail -n 40 "$WORK/log/start.log" "$log" >&2
        die "no server started"
    }
    PGHOST=$WORK check "$@"
}

run_tests() {
    local prove=(REGRESS= ISOLATION= TAP_TESTS=1 "PROVE_FLAGS=--verbose --timer -j${JOBS:-6}")
    # shellcheck disable=SC2086
    case $1 in
        regress) check_on_server regress ISOLATION= ${REGRESS:+"REGRESS=$REGRESS"} ;;
        isolation) check_on_server isolation REGRESS= ${ISOLATION:+"ISOLATION=$ISOLATION"} ;;
        tap)
            # The longest first
            TAP_FILES=${TAP_FILES:-$(cd "$WORK/src" && echo test/t/{chaos,nothing_stuck,hot_spots,wanted}.pl test/t/*.pl)}
            check tap "${prove[@]}" PROVE_TESTS="$(tr ' ' '\n' <<<"$TAP_FILES" | awk '!seen[$0]++' | xargs)"
            ;;
        neighbours) check neighbours "${prove[@]}" PROVE_TESTS="${NEIGHBOURS:-test/neighbours/*.pl}" ;;
        drivers)
            "$WORK/src/test/drivers/fetch.sh" $DRIVERS
            check drivers "${prove[@]}" PROVE_TESTS=test/drivers/drivers.pl
            ;;
        simulator) run_suite simulator env PG_CONFIG="$STAGE/pg_config" "$WORK/src/test/simulator/run.sh" ;;
        model)
            MODEL=${MODEL:---quick}
            run_suite model "$WORK/src/test/model/run.sh" ${MODEL#all}
            ;;
        mutants) run_suite mutants "$WORK/src/test/model/run.sh" --mutants ;;
    esac
}

# Adds the figures in a file.  Without the file, whatever should have written it has failed.
add_figures() {
    local passed=0 failed=1
    [ ! -e "$1" ] || read -r passed failed <"$1"
    PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed))
}

inside() {
    local suite without_server
    stage_postgres
    WERROR=1 build_extension
    say "testing with $("$STAGE/postgres" --version)"
    if [ -n "${VALGRIND:-}" ]; then
        mv "$STAGE/postgres" "$STAGE/postgres-itself"
        printf '#!/bin/sh\nexec "%s" server "%s" "$@"\n' "$WORK/src/test/valgrind.sh" "$STAGE/postgres-itself" >"$STAGE/postgres"
        chmod +x "$STAGE/postgres"
    fi
    # Those without a server run beside the others, which wait most of the time.
    export SERVERS_IN=$WORK/pg
    (
        for suite in $TESTS; do
            [[ $suite != @(simulator|model|mutants) ]] || run_tests "$suite"
        done
        echo "$PASSED $FAILED" >"$WORK/without_server"
    ) &
    without_server=$!
    for suite in $TESTS; do
        [[ $suite == @(simulator|model|mutants) ]] || run_tests "$suite"
    done
    wait "$without_server"
    add_figures "$WORK/without_server"
    [ -z "${VALGRIND:-}" ] || run_suite valgrind "$WORK/src/test/valgrind.sh" errors
    echo "$PASSED $FAILED" >"$WORK/figures"
}

# Outer half

# Programs that the tests can do without
extras() {
    local suite
    for suite in $TESTS; do
        case $suite:${TAP_FILES:-monitoring} in
            tap:*monitoring*) echo exporter ;;
            drivers:*) echo "$DRIVERS" ;;
            neighbours:*)
                echo pgbouncer patroni python3-etcd etcd \
                    pgaudit:pgaudit pg-stat-kcache:pg_stat_kcache pg-wait-sampling:pg_wait_sampling pg-hint-plan:pg_hint_plan \
                    timescaledb:timescaledb
                ;;
        esac
    done
    [ "$(id -u)" != 0 ] || [ -z "${OTHER_MAJORS-$DEFAULT}" ] || echo mmdebstrap
}

# Tests further versions by test/matrix, which cleans up behind itself when it is told to end.
run_others() {
    # What the inner half left running would not be known as its own much later.
    stop_inside
    INSIDE=
    # Job control: see run_inside.  What a build calls ARCH need not be one of Debian's.
    set -m
    ARCH='' MAJORS=$OTHER_MAJORS TESTS=$OTHER_TESTS TAP_FILES=$OTHER_TAP_FILES FIGURES=$WORK/other_figures \
        "$ROOT/test/matrix" </dev/null &
    OTHERS=$!
    set +m
    wait "$OTHERS"
    OTHERS=
}

# Called at the end
stop_others() {
    [ -z "${OTHERS:-}" ] || { kill -TERM "$OTHERS" 2>/dev/null; wait "$OTHERS"; }
}

outside() {
    local suite
    for suite in $TESTS; do
        [[ " $ALL " == *" $suite "* ]] || die "unknown suite \"$suite\" in TESTS: choose from $ALL"
    done
    make_workdir
    run_inside test/run.sh "$TESTS${VALGRIND:+ valgrind}" "$VARIABLES" "$(extras)"
    add_figures "$WORK/figures"
    # Not the version that has just been tested
    [ -n "${OTHER_MAJORS+set}" ] || [ -z "$DEFAULT" ] || OTHER_MAJORS=$([ "$MAJOR" = 18 ] && echo 17 || echo 18)
    if [ -e "$WORK/figures" ] && [ -n "${OTHER_MAJORS:-}" ]; then
        run_others
        add_figures "$WORK/other_figures"
    fi
    say "$PASSED passed, $FAILED failed"
    [ "$FAILED" = 0 ] && [ "$PASSED" != 0 ]
}

if [ "${1:-}" = --inside ]; then
    inside
else
    outside
fi
