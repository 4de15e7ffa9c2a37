#!/usr/bin/env bash
#
# Everything there is, in hours: what `make lint` and `make test` run, the whole model
# and its mistakes, a longer chaos, neighbours, every major version that can be had (as
# root: see test/matrix), and valgrind.  Ends with a line `N passed, M failed`.
#
# What test/run.sh and test/matrix take from the environment, this takes as well.

set -u -o pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

passed=0 failed=0

# Runs a part and adds what its last line says.  Usage: run_part NAME COMMAND...
run_part() {
    local name=$1 p f
    shift
    printf '==== %s\n' "$name"
    "$@" 2>&1 | tee "$out"
    p='' f=''
    read -r p f < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$out" | tail -n 1)
    # A part that does not say has failed.
    passed=$((passed + ${p:-0}))
    failed=$((failed + ${f:-1}))
}

run_part lint "$top/test/lint.sh"
run_part 'all suites' env TESTS='regress isolation tap simulator model mutants neighbours' MODEL=all \
    GATE_CHAOS_SECONDS="${GATE_CHAOS_SECONDS:-600}" "$top/test/run.sh"
run_part 'every major version' env TESTS='regress isolation tap' "$top/test/matrix"
run_part drivers "$top/test/drivers/run.sh"
run_part valgrind env VALGRIND=1 "$top/test/run.sh"

printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
