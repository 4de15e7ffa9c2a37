#!/bin/sh
#
# Tries the controls of a hot spot's limit (src/core/limit_control.c), of the CPUs
# (cpu_control.c) and of long statements (long_control.c) on simulated sessions: see simulate.c
# and cpus.c.  Prints TAP; takes some seconds, and needs the server's header files only
# (PG_CONFIG).  Leaves nothing behind.

set -u

here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d) || exit 2
trap 'trap "" HUP INT TERM; rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

${CC:-cc} -O2 -Wall -Werror -I"$here/../../src" -I"$("${PG_CONFIG:-pg_config}" --includedir-server)" \
    -o "$dir/simulate" "$here/simulate.c" "$here/cpus.c" \
    "$here/../../src/core/limit_control.c" "$here/../../src/core/cpu_control.c" \
    "$here/../../src/core/long_control.c" -lm || exit 2
"$dir/simulate"
