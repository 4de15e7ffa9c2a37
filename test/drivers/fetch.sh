#!/usr/bin/env bash
#
# Fetches drivers for drivers.pl, each from its own registry (pip, Maven, Go modules, npm) in
# the version that its folder here names.  Run by test/run.sh, in its throw-away directory.
# Makes $WORK/drivers/NAME/run, which starts the program of a driver, or .../failure, which
# says why there is none.  pgx takes Go 1.25 or later, which not every Debian has.
#
# Usage: test/drivers/fetch.sh NAME...

# shellcheck source=test/setup.sh
. "$(dirname "$0")/../setup.sh"

# What a user without root could not remove, and what Java leaves in /tmp otherwise
export GOFLAGS='-modcacherw -buildvcs=false -mod=mod' GOTOOLCHAIN=local GOPATH=$WORK/tmp/go GOCACHE=$WORK/tmp/go-build CGO_ENABLED=0
tidy=-XX:-UsePerfData
export MAVEN_OPTS="$tidy -Duser.home=$WORK -Djava.io.tmpdir=$WORK/tmp"

# Fetches a driver to a directory, and compiles what is to be.  Sets COMMAND to what starts
# its program.
fetch() {
    local name=$1 dir=$2 python
    case $name in
        psycopg | asyncpg)
            python=$(find_python ensurepip) || return
            COMMAND="PYTHONPATH='$dir' exec '$python' '$PWD/client.py'"
            [ -d "$WORK/venv" ] || "$python" -m venv "$WORK/venv" || return
            "$WORK/venv/bin/pip" install --quiet --only-binary :all: --target "$dir" -r requirements.txt
            ;;
        pgjdbc)
            COMMAND="exec java $tidy -Xmx128m -cp '$dir:$dir/*' Client"
            mvn -B -q "-Dmaven.repo.local=$WORK/tmp/maven" dependency:copy-dependencies -DincludeScope=runtime \
                "-DoutputDirectory=$dir" && javac "-J$tidy" -cp "$dir/*" -d "$dir" Client.java
            ;;
        pgx)
            COMMAND="exec '$dir/client'"
            go build -trimpath -o "$dir/client" .
            ;;
        node)
            COMMAND="NODE_PATH='$dir/node_modules' exec node '$PWD/client.js'"
            cp package.json "$dir" && npm install --ignore-scripts --no-audit --no-fund --prefix "$dir"
            ;;
    esac
}

for name in "$@"; do
    dir=$WORK/drivers/$name
    mkdir -p "$dir"
    cd "$ROOT/test/drivers/$name" || continue
    say "fetching $name"
    if fetch "$name" "$dir" >"$WORK/log/$name.log" 2>&1; then
        printf '#!/bin/sh\n%s\n' "$COMMAND" >"$dir/run"
        chmod +x "$dir/run"
    else
        tail -n 20 "$WORK/log/$name.log" >"$dir/failure"
    fi
done
