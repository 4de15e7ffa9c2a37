#!/usr/bin/env bash
#
# Tests real drivers in front of a full gate: drivers.pl says what is tried, and
# docs/applications.md what came of it.  Each driver comes from its own registry (pip, Maven,
# Go modules, npm) in the version that its folder here names, into a throw-away directory
# with a server of its own: see test/setup.sh.  Missing tools are installed as by
# test/run.sh; pgx takes Go 1.25 or later, which not every Debian has.  Ends with a line
# `N passed, M failed`; a driver that cannot be had has failed.
#
# What was fetched is kept in ${XDG_CACHE_HOME:-~/.cache}/admission_gate/drivers for the
# next time, until its version or that of its tool changes.
#
# From the environment (make drivers NAME=value):
#   DRIVERS     which ones, default "psycopg asyncpg pgjdbc pgx node"
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# shellcheck source=test/setup.sh
. "$(dirname "$0")/../setup.sh"

ALL="psycopg asyncpg pgjdbc pgx node"
DRIVERS=${DRIVERS:-$ALL}
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/admission_gate/drivers

# How the registries are reached is the user's affair.
NETWORK="${!PIP_*} ${!npm_config_*} ${!NPM_CONFIG_*} GOPROXY GOSUMDB GONOSUMDB GOPRIVATE GOINSECURE JAVA_HOME MAVEN_ARGS
http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE NODE_EXTRA_CA_CERTS"

# Seconds after which the tests count as stuck
PATIENCE=1800

# ---------------------------------------------------------------------------
# Inner half
# ---------------------------------------------------------------------------

# Java leaves files in /tmp otherwise.
TIDY=-XX:-UsePerfData

# Sets PYTHON to one that can make a virtual environment.
find_python() {
    for PYTHON in python3 /usr/bin/python3; do
        "$PYTHON" -c 'import ensurepip' 2>/dev/null && return
    done
    say "there is no python3 with venv"
    return 1
}

# What the fetched packages of a driver depend on
basis() {
    case $1 in
        psycopg | asyncpg) find_python && "$PYTHON" -VV && uname -m && cat requirements.txt ;;
        pgjdbc) javac "-J$TIDY" -version && mvn --version && cat pom.xml Client.java ;;
        pgx) go version && cat ./* ;;
        node) node --version && npm --version && cat package.json package-lock.json ;;
    esac
}

# Fetches the packages of a driver to a new directory, and compiles what is to be.
fetch() {
    local name=$1 dir=$2
    mkdir -p "$dir"
    case $name in
        psycopg | asyncpg)
            [ -d "$WORK/venv" ] || "$PYTHON" -m venv "$WORK/venv" || return
            "$WORK/venv/bin/pip" install --quiet --only-binary :all: --target "$dir" -r requirements.txt
            ;;
        pgjdbc)
            mvn -B -q "-Dmaven.repo.local=$WORK/tmp/maven" dependency:copy-dependencies -DincludeScope=runtime \
                "-DoutputDirectory=$dir" && javac "-J$TIDY" -cp "$dir/*" -d "$dir" Client.java
            ;;
        pgx) go build -trimpath -o "$dir/client" . ;;
        node) cp package.json package-lock.json "$dir" && npm ci --ignore-scripts --no-audit --no-fund --prefix "$dir" ;;
    esac
}

# What starts its program
command_of() {
    local name=$1 dir=$2
    case $name in
        psycopg | asyncpg) echo "PYTHONPATH='$dir' exec '$PYTHON' '$PWD/client.py'" ;;
        pgjdbc) echo "exec java $TIDY -Xmx128m -cp '$dir:$dir/*' Client" ;;
        pgx) echo "exec '$dir/client'" ;;
        node) echo "NODE_PATH='$dir/node_modules' exec node '$PWD/client.js'" ;;
    esac
}

# Makes $WORK/drivers/NAME/run, which starts the program of a driver, or .../failure,
# which says why there is none.
prepare() {
    local name=$1 home=$WORK/drivers/$1 log=$WORK/log/$1 key dir
    mkdir -p "$home"
    cd "$WORK/src/test/drivers/$name" || exit
    if ! basis "$name" >"$log.basis" 2>"$log.err"; then
        cat "$log.basis" "$log.err" >"$home/failure"
        return
    fi
    key=$name-$(sha256sum <"$log.basis" | cut -c 1-16)
    dir=$WORK/cache/$key
    if [ ! -d "$dir" ]; then
        say "fetching $name"
        dir=$WORK/fetched/$key
        if ! fetch "$name" "$dir.part" >"$log.out" 2>&1; then
            tail -n 20 "$log.out" >"$home/failure"
            return
        fi
        mv "$dir.part" "$dir"
    fi
    printf '#!/bin/sh\n%s\n' "$(command_of "$name" "$dir")" >"$home/run"
    chmod +x "$home/run"
}

# Runs drivers.pl and prints the figures of each driver.
run_tests() {
    local log=$WORK/log/drivers status=0 name passed failed all_passed=0 all_failed=0
    timeout --foreground -k 10 "$PATIENCE" make -C "$WORK/src" PG_CONFIG="$STAGE/pg_config" installcheck REGRESS= ISOLATION= \
        TAP_TESTS=1 PROVE_TESTS=test/drivers/drivers.pl PROVE_FLAGS=--verbose >"$log.out" 2>"$log.err" || status=$?
    stop_servers
    for name in $DRIVERS; do
        passed=$(grep -cE "^ok [0-9]+ - (after )?$name\b" "$log.out")
        failed=$(grep -cE "^not ok [0-9]+ - (after )?$name\b" "$log.out")
        # What nobody has tried has not passed.
        [ "$passed" != 0 ] || [ "$failed" != 0 ] || failed=1
        printf '%-10s %s passed, %s failed\n' "$name" "$passed" "$failed"
        all_passed=$((all_passed + passed)) all_failed=$((all_failed + failed))
    done
    [ "$status" != 124 ] || say "the tests were stopped after $PATIENCE s"
    [ "$status" = 0 ] || [ "$all_failed" != 0 ] || all_failed=1
    if [ "$all_failed" != 0 ]; then
        grep '^not ok' "$log.out" || tail -n 40 "$log.out"
        tail -n 200 "$log.err"
    fi
    say "$all_passed passed, $all_failed failed"
    [ "$all_failed" = 0 ]
}

inside() {
    local name
    # What a user without root could not remove
    export GOFLAGS='-modcacherw -buildvcs=false' GOTOOLCHAIN=local GOPATH=$WORK/tmp/go GOCACHE=$WORK/tmp/go-build CGO_ENABLED=0
    export MAVEN_OPTS="$TIDY -Duser.home=$WORK -Djava.io.tmpdir=$WORK/tmp" DRIVERS
    mkdir -p "$WORK/fetched"
    for name in $DRIVERS; do
        (prepare "$name")
    done
    stage_postgres
    build_extension
    say "testing with $("$STAGE/postgres" --version)"
    run_tests
}

# ---------------------------------------------------------------------------
# Outer half
# ---------------------------------------------------------------------------

# Takes the place of that in setup.sh.  The inner half of root cannot reach root's own
# Python.
missing_extras() {
    local name
    for name in "$@"; do
        case $name in
            psycopg | asyncpg)
                { [ "$(id -u)" != 0 ] && has_python ensurepip; } || /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
                ;;
            pgjdbc)
                has_program javac || echo default-jdk-headless
                has_program mvn || echo maven
                ;;
            pgx) has_program go || echo golang-go ;;
            node) has_program npm || echo npm ;;
        esac
    done | sort -u
}

check_drivers() {
    local name
    for name in $DRIVERS; do
        case " $ALL " in
            *" $name "*) ;;
            *) die "unknown driver \"$name\" in DRIVERS: choose from $ALL" ;;
        esac
    done
}

take_from_cache() {
    [ ! -d "$CACHE" ] || cp -r "$CACHE" "$WORK/cache" || exit 1
    mkdir -p "$WORK/cache"
    chmod -R a+rX "$WORK/cache"
}

# Keeps what has been fetched, in the place of what was there before.
save_results() {
    local dir name
    for dir in "$WORK"/fetched/*; do
        name=${dir##*/}
        case $name in '*' | *.part) continue ;; esac
        rm -rf "${CACHE:?}/${name%-*}"-* && mkdir -p "$CACHE" && cp -r "$dir" "$CACHE/$name.part" && mv -T "$CACHE/$name.part" "$CACHE/$name"
    done
}

if [ "${1:-}" = --inside ]; then
    inside
else
    check_drivers
    make_workdir
    take_from_cache
    run_inside test/drivers/run.sh tap "DRIVERS PG_TEST_TIMEOUT_DEFAULT $NETWORK" "$DRIVERS"
fi
