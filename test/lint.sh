#!/usr/bin/env bash
#
# Has the sources looked at by other eyes than the compiler's, in a throw-away directory,
# with missing tools installed as by test/run.sh:
#   white-space    no white space at the end of a line
#   shell          shellcheck checks the shell scripts
#   ruff           checks the Python files
#   pgindent       lays out the C sources: see format_c
#   perltidy       lays out the Perl files: .perltidyrc
#   ruff-format    lays out the Python files: ruff.toml
#   clang          the extension is built by clang, warnings are errors
#   layers         no arrow upward between its source files: test/layers.pl
#   scan-build     clang's static analyzer checks the C sources, too
# and ends with a line `N passed, M failed`.  It changes no file; `make format`, which is
# FORMAT=1, checks nothing and lays out the C, Perl and Python files anew, in place.
#
# From the environment (make lint NAME=value):
#   LINT        tools to run, default all
#   PG_CONFIG, TMPDIR, KEEP as in test/setup.sh

# What is in single quotes is for perl and sh.
# shellcheck disable=SC2016
# shellcheck source=test/setup.sh
. "$(dirname "$0")/setup.sh"

FORMATTERS="pgindent perltidy ruff-format"
LINT=${LINT:-white-space shell ruff $FORMATTERS clang layers scan-build}
[ -z "${FORMAT:-}" ] || LINT=$FORMATTERS

# Other versions of these two would lay out some lines differently.
INDENT_VERSION=2.1.1
RUFF_VERSION=0.17.6

# What a tool returns that cannot be had here
SKIPPED=77

# Lists the source files whose names match the patterns, each followed by a zero byte.
sources() {
    local pattern names=()
    for pattern in "$@"; do
        names+=(-o -name "$pattern")
    done
    find . \( -name 'tmp_check*' -o -name results -o -name .deps -o -name '*_cache*' \) -prune -o \
        -type f \( "${names[@]:1}" \) -print0 | sort -z
}

# Checkers, in a copy of the sources.  What psql prints has white space after its headings.
run_white_space() {
    local found
    found=$(sources '*' | grep -zvE '^\./((test/isolation/)?expected/|bench/results/)|\.svg$' | xargs -0 grep -nIE '[[:blank:]]+$')
    say "$found"
    [ -z "$found" ]
}

# An archive of make dist has no .ci/run.
run_shell() { sources '*.sh' run matrix | xargs -0 shellcheck -x; }

run_ruff() { has_ruff && sources '*.py' | xargs -0 "$RUFF" check --no-cache; }

# Builds in a directory of its own.  Usage: build_in NAME COMMAND...  PostgreSQL's build
# files and headers are made for the compiler that built it.
build_in() {
    mkdir -p "$WORK/build/$1" && cd "$WORK/build/$1" || return
    shift
    "$@" -j "$(nproc)" -f "$WORK/src/Makefile" PG_CONFIG="$BINDIR/pg_config" \
        COPT="-Wno-unknown-warning-option -Wno-ignored-optimization-argument -Wno-ignored-attributes"
}

run_clang() { build_in clang make CC=clang WERROR=1; }

run_layers() { build_in layers make && perl "$WORK/src/test/layers.pl" "$WORK/build/layers" >&2; }

# PostgreSQL's build files do not take the compiler from the environment.
run_scan_build() { build_in scan-build scan-build --override-compiler --use-cc=clang --status-bugs -o "$WORK/log" make; }

run_pgindent() { formatted format_c '*.[ch]'; }
run_perltidy() { formatted format_perl '*.p[lm]'; }
run_ruff_format() { formatted format_python '*.py'; }

# Formatters: each lays out the files of the current directory in place

# Formats another copy of the sources, and compares.  Usage: formatted FUNCTION PATTERN...
formatted() {
    local function=$1
    shift
    mkdir -p "$WORK/formatted"
    sources "$@" | xargs -0 cp --parents -t "$WORK/formatted" && cd "$WORK/formatted" && "$function" || return
    [ -z "${FORMAT:-}" ] || return 0
    cd "$WORK/src" && sources "$@" | xargs -0 -n 1 sh -c 'diff -u "$1" "$WORK/formatted/$1"' sh && return
    say "Run 'make format'."
    return 1
}

# Lists the types, without which pg_bsd_indent takes some declarations for expressions:
# those of the server's headers and those of the sources, but not the names that pgindent
# excludes, because variables have them, too.
list_types() {
    {
        find "$("$BINDIR/pg_config" --includedir-server)" -name '*.h' -print0
        sources '*.[ch]'
    } | xargs -0 perl -0777 -ne '
        s{/\*.*?\*/}{}gs;
        while (/\btypedef\b([^;{]*)(\{(?:[^{}]|(?2))*\})?([^;{]*);/g)
        {
            my $names = defined $2 ? $3 : $1;
            print "$1\n" if $names =~ /\(\s*\*\s*(\w+)\s*\)/ || $names =~ /(\w+)\s*(?:\[[^]]*\]\s*|pg_attribute\w*\(.*\))*$/;
        }' | grep -vxE 'ANY|FD_SET|U|abs|allocfunc|boolean|date|digit|ilist|interval|iterator|other|pointer|printfunc|reference|string|timestamp|type|wrap'
    printf '%s\n' bool FILE clockid_t off_t pid_t sig_atomic_t sigset_t size_t ssize_t time_t \
        int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t
}

# What PostgreSQL's src/tools/pgindent does, which is in no package: the program that it
# starts, with the same options, and the same repairs of what that does to function types.
format_c() {
    [ "$(pg_bsd_indent --version 2>/dev/null | awk '{ print $2 }')" = $INDENT_VERSION ] || {
        say "pg_bsd_indent $INDENT_VERSION cannot be had here"
        return $SKIPPED
    }
    list_types | sort -u >"$WORK/tmp/types" && sources '*.[ch]' >"$WORK/tmp/c" || return
    # It leaves a copy of each file in the current directory.
    (
        mkdir -p "$WORK/tmp/backup" && cd "$WORK/tmp/backup" || exit
        while IFS= read -r -d '' file; do
            file=$WORK/formatted/$file
            out=$(pg_bsd_indent -bad -bap -bbb -bc -bl -cli1 -cp33 -cdb -nce -d0 -di12 -nfc1 -i4 -l79 -lp -lpl -nip \
                -npro -sac -tpg -ts4 -U"$WORK/tmp/types" "$file" 2>&1) && [ -z "$out" ] || { say "$file: $out"; exit 1; }
        done <"$WORK/tmp/c"
    ) || return
    # A single space before "*" in the type of a function
    xargs -0 perl -i -pe 's!^([A-Za-z_]\S*)[ \t]+\*$!$1 *!' <"$WORK/tmp/c"
}

format_perl() {
    sources '*.p[lm]' | xargs -0 -n 2 -P "$(nproc)" perltidy --profile="$WORK/src/.perltidyrc" \
        --backup-and-modify-in-place --backup-file-extension=/ --standard-error-output
}

format_python() {
    has_ruff || return
    sources '*.py' | xargs -0 "$RUFF" check --no-cache --quiet --config="$WORK/src/ruff.toml" --select I --fix &&
        sources '*.py' | xargs -0 "$RUFF" format --no-cache --quiet --config="$WORK/src/ruff.toml"
}

# Installs ruff, which Debian 12 does not have, from PyPI into the throw-away directory.
has_ruff() {
    RUFF=$WORK/venv/bin/ruff
    [ -x "$RUFF" ] || { "$(find_python ensurepip)" -m venv "$WORK/venv" && "$WORK/venv/bin/pip" install --quiet "ruff==$RUFF_VERSION"; } && return
    say "ruff $RUFF_VERSION cannot be had here"
    return $SKIPPED
}

inside() {
    local tool passed=0 failed=0
    export WORK
    for tool in $LINT; do
        (cd "$WORK/src" && "run_${tool//-/_}") >"$WORK/log/$tool.log" 2>&1
        case $? in
            0)
                passed=$((passed + 1))
                say "ok - $tool"
                ;;
            "$SKIPPED")
                say "skipped - $tool: $(tail -n 1 "$WORK/log/$tool.log")"
                ;;
            *)
                failed=$((failed + 1))
                say "not ok - $tool"
                cat "$WORK/log/$tool.log"
                ;;
        esac
    done
    [ -n "${FORMAT:-}" ] || say "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" != 0 ]
}

# Takes over what the formatters have made of the files.
put_back() {
    local file
    cd "$WORK/formatted" || return
    while IFS= read -r -d '' file; do
        cmp -s "$WORK/src/$file" "$file" || { cat "$file" >"$ROOT/$file" && say "${file#./}"; }
    done < <(sources '*')
}

if [ "${1:-}" = --inside ]; then
    inside
else
    for tool in $LINT; do
        declare -F "run_${tool//-/_}" >/dev/null || die "unknown tool \"$tool\" in LINT"
    done
    make_workdir
    # How pip finds its packages is the user's affair.
    [[ $LINT != *pgindent* ]] || extras=pgindent
    run_inside test/lint.sh "${LINT/pgindent/}" "LINT FORMAT ${!PIP_*} http_proxy https_proxy no_proxy" "${extras:-}" || exit
    [ -z "${FORMAT:-}" ] || put_back
fi
