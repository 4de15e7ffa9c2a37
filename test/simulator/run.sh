#!/bin/sh
#
# Tries the control of a hot spot's limit (src/core/limit_control.c) on simulated sessions:
# see simulate.c.  Prints TAP; takes some fifteen seconds, and needs the server's header
# files only (PG_CONFIG).  Leaves nothing behind.

set -u

here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d) || exit 2
trap 'trap "" HUP INT TERM; rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

${CC:-cc} -O2 -Wall -Werror -I"$here/../../src" -I"$("${PG_CONFIG:-pg_config}" --includedir-server)" \
    -o "$dir/simulate" "$here/simulate.c" "$here/../../src/core/limit_control.c" -lm || exit 2
"$dir/simulate"
