#!/bin/sh
#
# Tries the law of the limit (src/core/limit_law.c) on loads whose best limit is known: see
# simulate.c.  Prints TAP; takes some seconds, and needs the server's header files only.
# Leaves nothing behind.
#
# Usage: test/simulator/run.sh [LOAD]    the same with a load, by name: its seconds
#
#   PG_CONFIG  default pg_config
#   CC         default cc

set -u

here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

${CC:-cc} -O2 -Wall -Werror -I"$here/../../src" -I"$("${PG_CONFIG:-pg_config}" --includedir-server)" \
    -o "$dir/simulate" "$here/simulate.c" "$here/../../src/core/limit_law.c" -lm || exit 2
"$dir/simulate" "$@"
