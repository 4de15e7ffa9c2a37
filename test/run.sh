#!/usr/bin/env bash
#
# Builds admission_gate and runs all its tests, from a bare Debian or Ubuntu to
# a last line `N passed, M failed`.  Nothing is installed into the system's
# PostgreSQL, and nothing is left behind but packages and, where root runs this, the
# folder of another version: see test/setup.sh and below.
#
# The suites run by `make installcheck` of the private installation:
#   regress    sql/*.sql by pg_regress, on a server with default settings
#   isolation  test/isolation/specs/*.spec by pg_isolation_regress, likewise
#   tap        test/t/*.pl by prove, which start their own servers
# and, without a server:
#   model      test/model/run.sh, which has spin check the protocol of the queue
#   simulator  test/simulator/run.sh, which tries the control of limits on simulated sessions
# and, if named in TESTS (make test-full does):
#   mutants    the same with mistakes in the protocol, which have to be found
# and, if named in TESTS (or by make neighbours), as it needs many packages:
#   neighbours test/neighbours/*.pl, as tap
# and, if named in TESTS (or by make soak), as it takes long:
#   soak       test/soak/*.pl, as tap
#
# Then, on one more major version, those that differ most between versions, if root
# runs this and it can be had: by test/matrix, in a folder under ~/.cache that it
# needs some 2 GB and minutes for the first time.  What is not run counts as no test.
#
# VALGRIND=1 (or make valgrind) runs the servers of regress and isolation in
# valgrind, and then looks at what that has found: see test/valgrind.sh.
#
# From the environment (make test NAME=value):
#   TESTS          suites to run, default "regress isolation tap simulator
#                  model", with valgrind the first two
#   REGRESS        regression tests to run, by name
#   ISOLATION      isolation tests to run, by name
#   TAP_FILES      TAP files to run, such as test/t/name.pl
#   NEIGHBOURS     the same for neighbours, such as test/neighbours/name.pl
#   MODEL          configurations of the model to check, by number, or all; default
#                  those that take a few seconds each
#   JOBS           TAP files to run at a time, default 4: most of them wait most of the time
#   OTHER_MAJORS   further versions to test, none if empty; default 18, or 17 where
#                  18 is the first one, but none if any of the above is set
#   SUITE_TIMEOUT  seconds after which a suite counts as stuck, default 1200
#   GATE_CHAOS_SECONDS    how long the chaos test lasts, default 60
#   GATE_SLEEPERS         how many sessions sleep beside others, default 200
#   GATE_TUTORIAL_SECONDS how long pgbench runs in the tutorial, default 1
#   SOAK                  how many minutes the soak test lasts, default 10
#   GATE_SEED             the random numbers of a chaos or soak test to repeat
#   OLD_PG_CONFIG  an older PostgreSQL that pg_upgrade is tested from, default the
#                  oldest installed that is older than the one tested
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# shellcheck source=test/setup.sh
. "$(dirname "$0")/setup.sh"

# What is set by whoever wants only a part
CHOICE=${TESTS:-}${VALGRIND:-}${REGRESS:-}${ISOLATION:-}${TAP_FILES:-}${NEIGHBOURS:-}${MODEL:-}

[ -z "${VALGRIND:-}" ] || TESTS=${TESTS:-regress isolation}

# What further versions are tested with, if nothing else is asked for
OTHER_TESTS=${TESTS:-regress isolation tap}
OTHER_TAP_FILES=${TAP_FILES:-$(cd "$ROOT" && echo test/t/{limit,snapshot,endings,counters,lending,lending_commands,no_way_past,refused_begin,nothing_stuck}.pl)}

TESTS=${TESTS:-regress isolation tap simulator model}
SUITE_TIMEOUT=${SUITE_TIMEOUT:-$((1200 + ${GATE_CHAOS_SECONDS:-0} + ${SOAK:-10} * 60))}

check_suites() {
    local suite
    for suite in $TESTS; do
        case $suite in
            regress | isolation | tap | simulator | model | mutants | neighbours | soak) ;;
            *) die "unknown suite \"$suite\" in TESTS: choose from regress isolation tap simulator model mutants neighbours soak" ;;
        esac
    done
}

# What only some of the TAP files need, if they will run
extras() {
    case " $TESTS " in
        *" tap "*) case ${TAP_FILES:-monitoring} in *monitoring*) echo exporter ;; esac ;;
    esac
    case " $TESTS " in
        *" neighbours "*) echo neighbours pgbouncer pgpool odyssey patroni ;;
    esac
    [ "$(id -u)" != 0 ] || ! wants_other_majors || echo debootstrap
}

wants_other_majors() {
    if [ -n "${OTHER_MAJORS+set}" ]; then
        [ -n "$OTHER_MAJORS" ]
    else
        [ -z "$CHOICE" ]
    fi
}

other_majors() {
    if [ -n "${OTHER_MAJORS:-}" ]; then
        echo "$OTHER_MAJORS"
    elif [ "$MAJOR" = 18 ]; then
        echo 17
    else
        echo 18
    fi
}

# Prints "passed failed" for the output of pg_regress ("test x ... ok" in
# PostgreSQL 15, TAP from 16 on) or prove.  Indented lines are subtests, whose
# outcome the line after them repeats.
count_results() {
    awk '
        /^ok [0-9]/     { if (toupper($0) !~ /# SKIP/) passed++ }
        /^not ok [0-9]/ { if (toupper($0) !~ /# TODO/) failed++ }
        /^(test| ) .* \.\.\. ok( |$)/     { passed++ }
        /^(test| ) .* \.\.\. FAILED( |$)/ { failed++ }
        END { print passed + 0, failed + 0 }' "$1"
}

# The names that make would test, without wildcards that match nothing.
chosen() {
    local name=$1 value
    if [ -n "${!2:-}" ]; then
        echo "${!2}"
        return
    fi
    value=$(make_inside -s "print-$name") || die "make print-$name failed"
    # shellcheck disable=SC2086
    (cd "$WORK/src" && shopt -s nullglob && echo $value)
}

# Runs one suite and adds to PASSED and FAILED.  Usage: run_suite SUITE
# "TESTS" COMMAND...; a suite without tests is only mentioned.
run_suite() {
    local suite=$1 tests=$2 log=$WORK/log/$1 status=0 passed failed start=$SECONDS
    shift 2
    if [ -z "$tests" ]; then
        printf '%-10s no tests\n' "$suite"
        return
    fi
    timeout --foreground -k 10 "$SUITE_TIMEOUT" \
        "$@" >"$log.out" 2>"$log.err" || status=$?
    stop_servers
    read -r passed failed < <(count_results "$log.out")
    # A suite that died, or that ran nothing, has not passed.
    if [ "$failed" = 0 ] && { [ "$status" != 0 ] || [ "$passed" = 0 ]; }; then
        failed=1
    fi
    [ "$status" != 124 ] || say "$suite was stopped after $SUITE_TIMEOUT s"
    printf '%-10s %s passed, %s failed (%s s)\n' "$suite" "$passed" "$failed" $((SECONDS - start))
    [ "$failed" = 0 ] || show_failure "$log"
    PASSED=$((PASSED + passed))
    FAILED=$((FAILED + failed))
}

# The differences and the ends of the logs of the suite that just ran, and at last, as
# a CI shows the end only, which tests have failed.
show_failure() {
    local file
    for file in "$1.out" "$1.err"; do
        head_line "$file"
        tail -n 60 "$file"
    done
    for file in "$WORK"/src/regression.diffs "$WORK"/src/output_iso/regression.diffs; do
        [ -s "$file" ] && head_line "$file" && head -n 200 "$file"
    done
    # Why a TAP file died is only in its own log, as is what initdb or pg_ctl said.
    {
        sed -n 's,^test/.*/\([^/]*\)\.pl *(Wstat.*,regress_log_\1,p' "$1.out"
        (cd "$WORK/src/tmp_check/log" && grep -l 'Bail out!' regress_log_*) 2>/dev/null
    } | while read -r file; do
        file=$WORK/src/tmp_check/log/$file
        [ -s "$file" ] && head_line "$file" && tail -n 40 "$file"
    done
    for file in "$1.log" "$WORK"/src/tmp_check/log/*.log; do
        [ -s "$file" ] && head_line "$file" && tail -n 20 "$file"
    done
    head_line "failed in ${1##*/}"
    failed_tests "$1" | cut -c 1-200 | head -n 20
}

# The tests that failed by the output of pg_regress, or what prove says of each.
failed_tests() {
    sed -n '/^not ok [0-9]/p; /^\(test\| \) .* \.\.\. FAILED/p; /(Wstat/p; /^Bail/p' "$1.out"
    grep -A 8 'Failed test' "$1.err"
}

head_line() { printf -- '---- %s\n' "${1#"$WORK"/}"; }

# Starts a server with initdb's settings that preloads the library, as make installcheck
# has to pass there.  Usage: start_server SUITE
start_server() {
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
}

run_regress() {
    local tests
    tests=$(chosen REGRESS REGRESS)
    start_server regress
    run_suite regress "$tests" env PGHOST="$WORK" "${CHECK[@]}" REGRESS="$tests" ISOLATION=
}

run_isolation() {
    local tests
    tests=$(chosen ISOLATION ISOLATION)
    start_server isolation
    run_suite isolation "$tests" env PGHOST="$WORK" "${CHECK[@]}" REGRESS= ISOLATION="$tests"
}

# Usage: run_prove SUITE "TESTS"
run_prove() {
    run_suite "$1" "$2" "${CHECK[@]}" REGRESS= ISOLATION= TAP_TESTS=1 PROVE_TESTS="$2" PROVE_FLAGS="--verbose --timer -j${JOBS:-4}"
}

run_tap() { run_prove tap "$(chosen PROVE_TESTS TAP_FILES)"; }

run_neighbours() { run_prove neighbours "$(chosen NEIGHBOURS NEIGHBOURS)"; }

# What each minute was like is shown even if all went well.
run_soak() {
    run_prove soak test/soak/soak.pl
    sed -n 's/^# \(seed:\|minute\|soak,\)/\1/p' "$WORK/log/soak.out"
}

run_simulator() { PG_CONFIG="$STAGE/pg_config" run_suite simulator test/simulator "$WORK/src/test/simulator/run.sh"; }

run_model() {
    local numbers=${MODEL:---quick}
    # shellcheck disable=SC2086
    run_suite model test/model "$WORK/src/test/model/run.sh" ${numbers#all}
}

run_mutants() { run_suite mutants test/model "$WORK/src/test/model/run.sh" --mutants; }

# Puts a program in the place of postgres that runs it in valgrind.
use_valgrind() {
    mv "$STAGE/postgres" "$STAGE/postgres-itself"
    printf '#!/bin/sh\nexec "%s" server "%s" "$@"\n' "$WORK/src/test/valgrind.sh" "$STAGE/postgres-itself" >"$STAGE/postgres"
    chmod +x "$STAGE/postgres"
}

# Prints the executables' directory of an older PostgreSQL to upgrade from, if any.
old_bindir() {
    local n dir present
    if [ -n "${OLD_PG_CONFIG:-}" ]; then
        "$OLD_PG_CONFIG" --bindir || die "OLD_PG_CONFIG=$OLD_PG_CONFIG does not work"
        return
    fi
    present=$("$BINDIR/postgres" --version | awk '{ print int($3) }')
    # shellcheck disable=SC2086
    for n in $(printf '%s\n' $MAJORS | sort -n); do
        dir=/usr/lib/postgresql/$n/bin
        [ "$n" -lt "$present" ] && [ -x "$dir/postgres" ] && BINDIR=$dir has_headers && echo "$dir" && break
    done
    return 0
}

# Sets up a private copy of it, with the extension, for the test of pg_upgrade.
stage_old_postgres() {
    local old log=$WORK/log/old_build.log
    case "$TESTS:${TAP_FILES:-pg_upgrade}" in
        *tap*:*pg_upgrade*) ;;
        *) return ;;
    esac
    old=$(old_bindir) || exit 1
    if [ -z "$old" ]; then
        say "pg_upgrade is not tested: there is no older PostgreSQL; name one in OLD_PG_CONFIG"
        return
    fi
    BINDIR=$old STAGE=$WORK/pg$old stage_postgres
    mkdir "$WORK/old_build"
    OLD_PG_CONFIG=$WORK/pg$old/pg_config
    make -C "$WORK/old_build" -f "$WORK/src/Makefile" PG_CONFIG="$OLD_PG_CONFIG" WERROR=1 install >"$log" 2>&1 || {
        tail -n 40 "$log" >&2
        die "the build with the older PostgreSQL failed"
    }
    say "testing pg_upgrade from $("$WORK/pg$old/postgres" --version)"
    export OLD_PG_CONFIG
}

inside() {
    local suite
    PASSED=0 FAILED=0
    stage_postgres
    stage_old_postgres
    WERROR=1 build_extension
    say "testing with $("$STAGE/postgres" --version)"
    CHECK=(make -C "$WORK/src" PG_CONFIG="$STAGE/pg_config" installcheck)
    [ -z "${VALGRIND:-}" ] || use_valgrind
    for suite in $TESTS; do
        "run_$suite"
    done
    [ -z "${VALGRIND:-}" ] || run_suite valgrind errors "$WORK/src/test/valgrind.sh" errors
    echo "$PASSED $FAILED" >"$WORK/figures"
}

# ---------------------------------------------------------------------------
# Outer half
# ---------------------------------------------------------------------------

run_other_majors() {
    # What the inner half left running would not be known as its own much later.
    stop_inside
    INSIDE=
    # Job control: see run_inside.
    set -m
    # What a build calls ARCH need not be one of Debian's.
    ARCH='' OLD_MAJOR='' MAJORS=$(other_majors) TESTS=$OTHER_TESTS TAP_FILES=$OTHER_TAP_FILES FIGURES=$WORK/other_figures \
        "$ROOT/test/matrix" </dev/null &
    OTHERS=$!
    set +m
    wait "$OTHERS"
    OTHERS=
}

# Called at the end: they clean up behind themselves.
stop_others() {
    [ -n "${OTHERS:-}" ] || return 0
    kill -TERM "$OTHERS" 2>/dev/null
    wait "$OTHERS"
}

# Adds the figures in a file.  Without the file, whatever should have written it has
# failed.
add_figures() {
    local passed=0 failed=1
    [ ! -e "$1" ] || read -r passed failed <"$1"
    PASSED=$((PASSED + passed))
    FAILED=$((FAILED + failed))
}

outside() {
    PASSED=0 FAILED=0
    make_workdir
    run_inside test/run.sh "${TESTS/soak/tap}${VALGRIND:+ valgrind}" \
        "TESTS VALGRIND OLD_PG_CONFIG REGRESS ISOLATION TAP_FILES NEIGHBOURS MODEL SUITE_TIMEOUT PG_TEST_TIMEOUT_DEFAULT PG_TEST_EXTRA
        JOBS GATE_CHAOS_SECONDS GATE_SLEEPERS SOAK GATE_SEED GATE_TUTORIAL_SECONDS" "$(extras)"
    add_figures "$WORK/figures"
    if [ -e "$WORK/figures" ] && wants_other_majors; then
        run_other_majors
        add_figures "$WORK/other_figures"
    fi
    say "$PASSED passed, $FAILED failed"
    [ "$FAILED" = 0 ] && [ "$PASSED" != 0 ]
}

# Installs what the tests need, and that is all.
install_only() {
    make_workdir
    find_postgres
    # shellcheck disable=SC2086
    require_packages ${TESTS/soak/tap} ${VALGRIND:+valgrind}
    # shellcheck disable=SC2046
    want_packages $(extras)
}

check_suites
case ${1:-} in
    --inside) inside ;;
    --packages) install_only ;;
    *) outside ;;
esac
