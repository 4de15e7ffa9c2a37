#!/usr/bin/env bash
#
# Has the sources and scripts looked at by other eyes than the compiler's, in a
# throw-away directory, with missing tools installed as by test/run.sh:
#   - the extension built by clang, warnings are errors (clang)
#   - the same by its static analyzer (scan-build)
#   - the C sources by another one (cppcheck)
#   - the shell scripts (shellcheck)
# and ends with a line `N passed, M failed`.
#
# From the environment (make lint NAME=value):
#   LINT        tools to run, default all
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# shellcheck source=test/setup.sh
. "$(dirname "$0")/setup.sh"

LINT=${LINT:-clang scan-build cppcheck shellcheck}

# PostgreSQL's build files and headers are made for the compiler that built it.
CLANG_OPTIONS="-Wno-unknown-warning-option -Wno-ignored-optimization-argument -Wno-ignored-attributes"

# Builds in a directory of its own.  Usage: build_in NAME COMMAND...
build_in() {
    mkdir -p "$WORK/build/$1" && cd "$WORK/build/$1" || return
    shift
    "$@" -f "$WORK/src/Makefile" PG_CONFIG="$BINDIR/pg_config" COPT="$CLANG_OPTIONS"
}

run_clang() { build_in clang make CC=clang WERROR=1; }

# PostgreSQL's build files do not take the compiler from the environment.
run_scan_build() {
    build_in scan-build scan-build --override-compiler --use-cc=clang --status-bugs -o "$WORK/log" make
}

# It does not see through PG_TRY what is set; the others do.
run_cppcheck() {
    local headers
    headers=$("$BINDIR/pg_config" --includedir-server)
    cd "$WORK/src" && cppcheck --quiet --error-exitcode=1 --enable=warning,portability,performance \
        --max-configs=1 -I src -I "$headers" --suppress="*:$headers/*" --suppress=toomanyconfigs \
        --suppress=uninitvar ./*.c src
}

run_shellcheck() { cd "$WORK/src" && shellcheck -x .ci/run debian/tests/installcheck test/matrix bench/*.sh test/*.sh test/*/*.sh; }

inside() {
    local tool passed=0 failed=0
    for tool in $LINT; do
        if "run_${tool//-/_}" >"$WORK/log/$tool.log" 2>&1; then
            passed=$((passed + 1))
            say "ok - $tool"
        else
            failed=$((failed + 1))
            say "not ok - $tool"
            cat "$WORK/log/$tool.log"
        fi
    done
    say "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" != 0 ]
}

if [ "${1:-}" = --inside ]; then
    inside
else
    for tool in $LINT; do
        declare -F "run_${tool//-/_}" >/dev/null || die "unknown tool \"$tool\" in LINT"
    done
    make_workdir
    run_inside test/lint.sh "$LINT" LINT
fi
