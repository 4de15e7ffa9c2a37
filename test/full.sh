#!/usr/bin/env bash
#
# Everything there is, in hours: what `make lint` and `make test` run, the whole model and
# its mistakes, a longer chaos, neighbours, every major version that can be had (as root:
# see test/matrix), drivers, and valgrind.  Ends with a line `N passed, M failed`.
#
# Takes from the environment what test/run.sh and test/matrix take.

set -u -o pipefail
shopt -s lastpipe
trap 'exit 130' INT

top=$(cd "$(dirname "$0")" && pwd)
passed=0 failed=0

# Runs a part, shows what it prints, and adds what its last line says; a part that does not
# say has failed.  Usage: run_part COMMAND...
run_part() {
    local line p=0 f=1
    printf '==== %s\n' "$*"
    "$@" 2>&1 | while IFS= read -r line; do
        printf '%s\n' "$line"
        [[ ! $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]] || p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]}
    done
    passed=$((passed + p)) failed=$((failed + f))
}

run_part "$top/lint.sh"
run_part env TESTS='regress isolation tap simulator model mutants neighbours drivers' MODEL=all \
    GATE_CHAOS_SECONDS="${GATE_CHAOS_SECONDS:-600}" "$top/run.sh"
run_part env TESTS='regress isolation tap' "$top/matrix"
run_part env VALGRIND=1 "$top/run.sh"

printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
