# shellcheck shell=bash
#
# What the scripts in test/ and bench/ share (sourced, not run): from a bare checkout to a
# private PostgreSQL with the extension in it, without a trace left behind.
#
# The outer half of a script runs as the caller, possibly root: it finds PostgreSQL,
# installs missing packages, makes a throw-away directory, copies the sources into it, and
# starts the inner half, `SCRIPT --inside`, with a clean environment, as "nobody" if root
# runs it.  However it ends, it stops what the inner half left running and removes the
# directory.
#
# The system's PostgreSQL is never written to, but apt-get may add packages to it.
# PostgreSQL finds its share and lib directories relative to its executables, so the inner
# half copies those, links the rest under the throw-away directory, and installs there.
#
# From the environment:
#   PG_CONFIG   which PostgreSQL to use; the default is the newest installed
#   TMPDIR      where the throw-away directory goes
#   KEEP=1      keep the throw-away directory

set -u -o pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MAJORS="19 18 17 16 15"

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Outer half: packages

APT_GET=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)

# Sets PRIVILEGED to the command that runs another as root; fails when that would need a
# password.
become_root() {
    PRIVILEGED=(env)
    [ "$(id -u)" = 0 ] && return
    PRIVILEGED=(sudo -n)
    sudo -n true 2>/dev/null
}

apt_get() { "${PRIVILEGED[@]}" "${APT_GET[@]}" "$@" </dev/null; }

# Refreshes the package lists, once.
apt_update() {
    [ -z "${APT_UPDATED:-}" ] || return 0
    APT_UPDATED=yes
    apt_get update >"$WORK/apt.log" 2>&1 || say "apt-get update had errors, going on" >&2
}

# Whether a package, or that version of it, can be had.
on_offer() {
    apt-cache madison "$1" 2>/dev/null |
        awk -v version="${2:-}" 'version == "" || $3 == version { found = 1 } END { exit !found }'
}

# Sets BINDIR (where the server's executables are or will be) and MAJOR.
find_postgres() {
    local version n dirs=()
    if [ -n "${PG_CONFIG:-}" ]; then
        BINDIR=$("$PG_CONFIG" --bindir) || die "PG_CONFIG=$PG_CONFIG does not work"
        [ -x "$BINDIR/postgres" ] || die "there is no PostgreSQL server in $BINDIR"
        dirs=("$BINDIR")
    else
        for n in $MAJORS; do dirs+=("/usr/lib/postgresql/$n/bin"); done
        dirs+=("$(pg_config --bindir 2>/dev/null)")
    fi
    for BINDIR in "${dirs[@]}"; do
        [ -x "$BINDIR/postgres" ] || continue
        version=$("$BINDIR/postgres" --version | awk '{ print $3 }')
        MAJOR=${version%%[!0-9]*}
        [[ " $MAJORS " == *" $MAJOR "* ]] || die "$BINDIR holds PostgreSQL $version; admission_gate needs 15 to 19"
        [[ $BINDIR == /usr/lib/postgresql/* ]] || has_headers ||
            die "$BINDIR/pg_config leads to no headers: install PostgreSQL's development files"
        return
    done
    command -v apt-get >/dev/null ||
        die "no PostgreSQL found: install PostgreSQL 15 or later with its headers and set PG_CONFIG"
    become_root && apt_update
    for MAJOR in $MAJORS; do
        BINDIR=/usr/lib/postgresql/$MAJOR/bin
        on_offer "postgresql-$MAJOR" && on_offer "postgresql-server-dev-$MAJOR" && return
    done
    die "no PostgreSQL 15 to 19 is installed or on offer here.
Refresh the package lists (sudo apt-get update), or add PostgreSQL's own packages:
  sudo apt-get install -y postgresql-common
  sudo /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y"
}

has_headers() {
    [ -x "$BINDIR/pg_config" ] && [ -e "$("$BINDIR/pg_config" --pgxs)" ] &&
        [ -e "$("$BINDIR/pg_config" --includedir-server)/postgres.h" ]
}

# Headers of exactly the installed server.  When only newer ones are on offer, naming the
# server's own version as well keeps apt from upgrading it, too.
headers_package() {
    local package=postgresql-server-dev-$MAJOR version=
    [ -x "$BINDIR/postgres" ] && version=$(dpkg-query -W -f '${Version}' "postgresql-$MAJOR" 2>/dev/null)
    if [ -z "$version" ] || on_offer "$package" "$version"; then
        echo "$package${version:+=$version}"
    else
        printf '%s\n' "$package" "postgresql-$MAJOR=$version"
    fi
}

# Whether there is a program; some are where not everybody's PATH leads.
has_program() { PATH=$PATH:/usr/sbin command -v "$1" >/dev/null; }

# Prints a Python 3, or one with a given module.
find_python() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c "import ${1:-sys}" 2>/dev/null && echo "$python" && return
    done
    return 1
}

# Lists the missing packages of these suites and tools, one per line.
missing() {
    local name cc=gcc
    for name in "$@"; do
        case $name in
            build)
                [ -x "$BINDIR/pg_config" ] && cc=$("$BINDIR/pg_config" --cc)
                cc=${cc%% *}
                # Debian may name it with the machine in front, the package without.
                echo '#include <stdio.h>' | "$cc" -E - >/dev/null 2>&1 || printf '%s\n' "${cc#*-linux-gnu*-}" libc6-dev
                has_program make || echo make
                [ -x "$BINDIR/postgres" ] || echo "postgresql-$MAJOR"
                has_headers || headers_package
                ;;
            tap | neighbours | drivers) perl -MIPC::Run -MTest::More -MApp::Prove -e 1 2>/dev/null || printf '%s\n' perl libipc-run-perl ;;
            model | mutants) has_program spin || echo spin ;;
            bench) find_python >/dev/null || echo python3 ;;
            # The inner half of root cannot reach root's own Python.
            ruff | ruff-format | psycopg | asyncpg)
                { [ "$(id -u)" != 0 ] && find_python ensurepip >/dev/null; } ||
                    /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
                ;;
            pgjdbc)
                has_program javac || echo default-jdk-headless
                has_program mvn || echo maven
                ;;
            pgx) has_program go || echo golang-go ;;
            node) has_program npm || echo npm ;;
            scan-build) has_program scan-build || echo clang-tools ;;
            shell) has_program shellcheck || echo shellcheck ;;
            pgindent) has_program pg_bsd_indent || echo pg-bsd-indent ;;
            exporter) has_program prometheus-postgres-exporter || echo prometheus-postgres-exporter ;;
            etcd) has_program etcd || echo etcd-server ;;
            python3-etcd) find_python etcd >/dev/null || echo python3-etcd ;;
            # An extension: the end of its package's name, and of its control file's
            *:*) [ -e "$("$BINDIR/pg_config" --sharedir)/extension/${name#*:}.control" ] || echo "postgresql-$MAJOR-${name%:*}" ;;
            clang | perltidy | valgrind | pgbouncer | patroni | sysbench | mmdebstrap)
                has_program "$name" || echo "$name"
                ;;
        esac
    done | sort -u
}

# Installs what is missing of these suites and tools, as far as it is on offer, and says so.
# Fails if anything is still missing.
provide() {
    local missing offered=() package
    mapfile -t missing < <(missing "$@")
    [ ${#missing[@]} != 0 ] || return 0
    if has_program apt-get && become_root; then
        apt_update
        # Asked again: fresh package lists may offer the exact version.
        mapfile -t missing < <(missing "$@")
        for package in "${missing[@]}"; do
            ! on_offer "${package%=*}" || offered+=("$package")
        done
        [ ${#offered[@]} = 0 ] || install_packages "${offered[@]}"
        mapfile -t missing < <(missing "$@")
        [ ${#missing[@]} != 0 ] || return 0
    fi
    say "missing: ${missing[*]}.  Where they are on offer:
  sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    return 1
}

# A newly installed PostgreSQL package would create and start a cluster, if it were not for
# this file; an upgraded one would restart the user's clusters.
install_packages() {
    local file=/etc/postgresql-common/createcluster.d/admission_gate-test.conf status=0 service
    say "installing $*"
    if [ -x "$BINDIR/postgres" ] && apt_get -s install --no-install-recommends "$@" 2>/dev/null |
        grep -q "^Inst postgresql-$MAJOR "; then
        say "that would upgrade PostgreSQL $MAJOR. Upgrade it first, then try again." >&2
        return 1
    fi
    if [ ! -e "$file" ]; then
        CLUSTER_FORBIDDEN=$file
        "${PRIVILEGED[@]}" mkdir -p "${file%/*}"
        echo 'create_main_cluster = false' | "${PRIVILEGED[@]}" tee "$file" >/dev/null
    fi
    # A session of its own keeps Ctrl-C, which is heeded afterwards, from dpkg: it would
    # leave the package system in need of repair.
    apt_get install -y -d --no-install-recommends "$@" >>"$WORK/apt.log" 2>&1 &&
        "${PRIVILEGED[@]}" setsid --wait "${APT_GET[@]}" install -y --no-install-recommends "$@" \
            </dev/null >>"$WORK/apt.log" 2>&1 || status=1
    allow_cluster
    [ "$status" = 0 ] || tail -n 20 "$WORK/apt.log" >&2
    # Debian starts what it installs; nobody asked for services of the system's.
    for service in $(dpkg -L "${@%=*}" 2>/dev/null | sed -n 's,.*/systemd/system/\([^/@]*\)\.service$,\1,p; s,^/etc/init\.d/,,p' | sort -u); do
        "${PRIVILEGED[@]}" systemctl disable --now "$service" || "${PRIVILEGED[@]}" service "$service" stop
    done >>"$WORK/apt.log" 2>&1
}

allow_cluster() {
    [ -z "${CLUSTER_FORBIDDEN:-}" ] || "${PRIVILEGED[@]}" rm -f "$CLUSTER_FORBIDDEN"
    CLUSTER_FORBIDDEN=
}

# Outer half: throw-away directory

# Makes WORK, the throw-away directory, and sees to its removal.  A script that defines
# stop_others or save_results has them called at the end, before it goes.
make_workdir() {
    local parent=${TMPDIR:-/tmp}
    WORK=$(mktemp -d "$(cd "$parent" && pwd -P)/admission_gate.XXXXXX") || exit 1
    # Not 'exit 143': make passes on a SIGTERM that its whole process group has received, and
    # the second one would end the trap on EXIT.
    trap clean_up EXIT
    trap 'clean_up 129' HUP
    trap 'clean_up 130' INT
    trap 'clean_up 143' TERM
    # The name of a Unix socket has room for about 100 characters.
    [ ${#WORK} -le 60 ] || die "the name of TMPDIR is too long: $parent"
}

# Usage: clean_up [STATUS]; exits with that
clean_up() {
    local status=${1:-$?}
    # Not even by a Ctrl-C that ended the reader of its output, too.
    trap '' HUP INT TERM PIPE
    trap - EXIT
    allow_cluster
    stop_inside
    ! declare -F stop_others >/dev/null || stop_others
    ! declare -F save_results >/dev/null || save_results
    if [ -n "${KEEP:-}" ]; then
        say "kept: $WORK" >&2
    else
        rm -rf "$WORK"
    fi
    exit "$status"
}

# Stops the inner half: its process group, then the servers it started, which have
# sessions of their own.  It is frozen first: nothing starts unnoticed in between.
# A server frees its shared memory when it is shut down, but initdb does not.
stop_inside() {
    local pid memory
    [ -n "${INSIDE:-}" ] || return 0
    kill -STOP -- "-$INSIDE" 2>/dev/null
    mapfile -t memory < <(for pid in $(server_pids); do
        awk '$6 ~ "^/SYSV" { print $5 } $6 ~ "^/dev/shm/PostgreSQL" { print $6 }' "/proc/$pid/maps" 2>/dev/null
    done | sort -u)
    kill -TERM -- "-$INSIDE" 2>/dev/null
    kill -CONT -- "-$INSIDE" 2>/dev/null
    stop_servers
    kill -KILL -- "-$INSIDE" 2>/dev/null
    for pid in "${memory[@]}"; do
        if [[ $pid == /* ]]; then rm -f "$pid"; else ipcrm -m "$pid" 2>/dev/null; fi
    done
}

# Stops every process whose program lies in the throw-away directory, or in SERVERS_IN: SIGQUIT
# is an immediate shutdown for a postmaster, SIGKILL for what is still there after five seconds.
stop_servers() {
    local n pids
    for n in {0..50}; do
        mapfile -t pids < <(server_pids)
        [ ${#pids[@]} != 0 ] || return 0
        [ "$n" != 0 ] || kill -QUIT "${pids[@]}" 2>/dev/null
        sleep 0.1
    done
    kill -KILL "${pids[@]}" 2>/dev/null
}

# A server in valgrind is known by its working directory.
server_pids() {
    local link program
    find /proc -mindepth 2 -maxdepth 2 -path '/proc/[0-9]*/exe' -printf '%p %l\0' 2>/dev/null |
        while read -r -d '' link program; do
            case $program in
                "${SERVERS_IN:-${WORK:?}}"/*) ;;
                */memcheck-*) [[ $(readlink "${link%/exe}/cwd") == "$WORK"/* ]] || continue ;;
                *) continue ;;
            esac
            echo "${link//[!0-9]/}"
        done
    return 0    # whatever find could not read
}

# The outer half as a whole.  Usage: run_inside SCRIPT SUITES VARIABLES [EXTRAS], where
# SCRIPT is relative to the sources, SUITES are those to install packages for, VARIABLES
# name what the inner half may see of the environment, and EXTRAS are programs that it can
# do without.
run_inside() {
    local script=$1 name keep=()
    for name in PATH TERM PERL5LIB $3; do
        [ -z "${!name+x}" ] || keep+=("$name=${!name}")
    done
    find_postgres
    # shellcheck disable=SC2086
    provide build $2 || die "packages are missing"
    # shellcheck disable=SC2086
    provide ${4:-} || say "going on without them" >&2
    AS_USER=(env)
    if [ "$(id -u)" = 0 ]; then
        AS_USER=(setpriv --reuid nobody --regid "$(id -gn nobody)" --clear-groups)
        chown nobody "$WORK"
        "${AS_USER[@]}" test -w "$WORK" || die "user nobody cannot reach $WORK: set TMPDIR to another directory"
    fi
    "${AS_USER[@]}" mkdir "$WORK/src" "$WORK/tmp" "$WORK/log"
    copy_sources "${AS_USER[@]}" tar -C "$WORK/src" -xf -
    cd "$WORK" || exit 1
    # Job control gives the inner half a process group of its own.
    set -m
    "${AS_USER[@]}" env -i "${keep[@]}" HOME="$WORK" TMPDIR="$WORK/tmp" WORK="$WORK" BINDIR="$BINDIR" \
        "$BASH" "$WORK/src/$script" --inside </dev/null &
    INSIDE=$!
    set +m
    wait "$INSIDE"
}

# Gives the sources, without what was built of them, to a command.
copy_sources() {
    tar -C "$ROOT" --exclude=./.git --exclude='*.o' --exclude='*.so' --exclude='*.bc' -cf - . | "$@" ||
        die "could not copy the sources"
}

# Inner half: a private PostgreSQL with the extension

# Sets up $WORK/pg, which mirrors the installation from / downwards, and STAGE, its
# directory of executables.
stage_postgres() {
    local dir
    STAGE=$WORK/pg$BINDIR
    for dir in $("$BINDIR/pg_config" --sharedir --pkglibdir --pkgincludedir --includedir-server); do
        mkdir -p "$WORK/pg$dir"
        cp -rsf "$dir/." "$WORK/pg$dir" || die "could not mirror $dir"
    done
    # pg_regress looks for isolationtester beside itself, behind any symlink.
    for dir in "$BINDIR" "$("$BINDIR/pg_config" --pkglibdir)/pgxs/src/test"; do
        mkdir -p "$WORK/pg$dir"
        [ ! -d "$dir" ] || cp -rL --remove-destination "$dir/." "$WORK/pg$dir" || die "could not copy $dir"
    done
    [[ $("$STAGE/pg_config" --pkglibdir) == "$WORK"/* ]] ||
        die "the private copy of $BINDIR does not run, or still points to the system's files: set TMPDIR to another directory"
    find "$WORK/pg" -name 'admission_gate*' -exec rm -rf {} +
}

# WERROR set turns warnings into errors.
build_extension() {
    local log=$WORK/log/build.log
    make -C "$WORK/src" --no-print-directory PG_CONFIG="$STAGE/pg_config" -j "$(nproc)" install ${WERROR:+WERROR=1} >"$log" 2>&1 && return
    tail -n 40 "$log" >&2
    die "the build failed"
}
