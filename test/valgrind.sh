#!/bin/sh
#
# What makes test/run.sh run its servers in valgrind (VALGRIND=1).
#
# Usage: test/valgrind.sh server POSTGRES ARGUMENT...
#        test/valgrind.sh errors
#   server  becomes the program POSTGRES, in valgrind if the arguments say that it
#           is to be a server; logs go to $WORK/log/valgrind
#   errors  reads those and prints TAP.  What counts is
#           - an invalid read, write or free, wherever it happens
#           - any other error, such as memory that is lost or used before it was
#             set, with the extension among the three innermost functions
#             outside of malloc.
#           What else is found in PostgreSQL and its libraries is not ours.
#
# A packaged PostgreSQL does not tell valgrind about palloc: errors within
# the blocks of a memory context go unseen.

set -eu

logs=$WORK/log/valgrind

server()
{
	[ "${2:-}" = -D ] || exec "$@"
	mkdir -p "$logs"
	exec valgrind --quiet --trace-children=yes --log-file="$logs/%p" \
		--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
		--num-callers=30 --fullpath-after= --error-markers=BEGIN,END "$@"
}

errors()
{
	[ -d "$logs" ] || { echo "not ok 1 - no server ran in valgrind"; exit 1; }
	cat "$logs"/* | awk -v ours="$WORK/src/" '
		{ sub(/^==[0-9]+== ?/, "") }
		/^BEGIN/ { inside = 1; text = ""; depth = counts = 0; next }
		/^END/ {
			inside = 0
			if (counts) { ours_found++; print text } else others++
			next
		}
		!inside { next }
		{ text = text "# " $0 "\n" }
		/^Invalid|^Mismatched/ { counts = 1 }
		/^ +(at|by) 0x/ && !/: (malloc|calloc|realloc|free) \(/ && ++depth <= 3 && index($0, ours) { counts = 1 }
		END {
			printf "# %d errors elsewhere in PostgreSQL and its libraries\n", others
			printf "%s 1 - %d errors that count\n", ours_found ? "not ok" : "ok", ours_found
			exit ours_found > 0
		}'
}

"$@"
