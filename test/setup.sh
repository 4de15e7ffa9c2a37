# shellcheck shell=bash
#
# What the scripts in test/ and bench/ share (sourced, not run): from a bare
# checkout to a private PostgreSQL with the extension in it, without a trace left
# behind.
#
# A script has two halves.  The outer half runs as the caller, possibly root:
# it finds PostgreSQL, installs missing packages, makes a throw-away directory,
# copies the sources into it, and starts the inner half, `SCRIPT --inside`, with
# a clean environment.  The inner half does the work.  PostgreSQL refuses to
# run as root, so root hands the directory and the inner half to "nobody".
# However the outer half ends, it stops what the inner half left running and
# removes the directory.
#
# The system's PostgreSQL is never written to (but apt-get adds packages to it,
# those of `make neighbours` among them).  PostgreSQL finds its share and
# lib directories relative to its executables, so the inner half copies those,
# links the rest under the throw-away directory, and installs there.
#
# From the environment:
#   PG_CONFIG   which PostgreSQL to use; the default is the newest installed
#   TMPDIR      where the throw-away directory goes
#   KEEP=1      keep the throw-away directory

set -u -o pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MAJORS="19 18 17 16 15"

# The package of the exporter that the tests of monitoring/ start, and its program
EXPORTER=prometheus-postgres-exporter

# The extensions that the gate is tested beside, by the ends of Debian's names of
# their packages, each with the file in the extension directory that tells whether
# it is installed
NEIGHBOUR_PACKAGES="pgaudit:pgaudit pg-stat-kcache:pg_stat_kcache pg-wait-sampling:pg_wait_sampling
pg-hint-plan:pg_hint_plan cron:pg_cron partman:pg_partman postgis-3:postgis pgvector:vector
timescaledb:timescaledb"

# Forbids a newly installed PostgreSQL package to create a cluster.
NO_CLUSTER=/etc/postgresql-common/createcluster.d/admission_gate-test.conf

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------------------
# Outer half: packages
# ---------------------------------------------------------------------------

# Sets PRIVILEGED to the command that runs another as root; fails when that
# would need a password.
become_root() {
    PRIVILEGED=(env)
    [ "$(id -u)" = 0 ] && return
    PRIVILEGED=(sudo -n)
    sudo -n true 2>/dev/null
}

APT_GET=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)

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

# The newest supported version whose server and headers are on offer.
offered_major() {
    local n
    for n in $MAJORS; do
        if on_offer "postgresql-$n" && on_offer "postgresql-server-dev-$n"; then
            echo "$n"
            return
        fi
    done
    return 1
}

# Sets BINDIR (where the server's executables are or will be) and MAJOR.
find_postgres() {
    local n
    if [ -n "${PG_CONFIG:-}" ]; then
        BINDIR=$("$PG_CONFIG" --bindir) || die "PG_CONFIG=$PG_CONFIG does not work"
        use_installed
        return
    fi
    for n in $MAJORS; do
        BINDIR=/usr/lib/postgresql/$n/bin
        [ -x "$BINDIR/postgres" ] && { use_installed; return; }
    done
    BINDIR=$(pg_config --bindir 2>/dev/null) && [ -x "$BINDIR/postgres" ] && { use_installed; return; }
    use_offered
}

use_installed() {
    local version
    [ -x "$BINDIR/postgres" ] || die "there is no PostgreSQL server in $BINDIR"
    version=$("$BINDIR/postgres" --version | awk '{ print $3 }')
    MAJOR=${version%%[!0-9]*}
    case " $MAJORS " in
        *" $MAJOR "*) ;;
        *) die "$BINDIR holds PostgreSQL $version; admission_gate needs 15 to 19" ;;
    esac
}

use_offered() {
    command -v apt-get >/dev/null ||
        die "no PostgreSQL found: install PostgreSQL 15 or later with its headers and set PG_CONFIG"
    become_root && apt_update
    MAJOR=$(offered_major) || die "no PostgreSQL 15 to 19 is installed or on offer here.
Refresh the package lists (sudo apt-get update), or add PostgreSQL's own packages:
  sudo apt-get install -y postgresql-common
  sudo /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y"
    BINDIR=/usr/lib/postgresql/$MAJOR/bin
}

has_headers() {
    [ -x "$BINDIR/pg_config" ] &&
        [ -e "$("$BINDIR/pg_config" --pgxs)" ] &&
        [ -e "$("$BINDIR/pg_config" --includedir-server)/postgres.h" ]
}

compiles() { echo '#include <stdio.h>' | "$1" -E - >/dev/null 2>&1; }

# Lists the missing packages, one per line.
missing_packages() {
    local cc=gcc
    [ -x "$BINDIR/pg_config" ] && cc=$("$BINDIR/pg_config" --cc)
    cc=${cc%% *}
    # Debian may name it with the machine in front, the package without.
    compiles "$cc" || printf '%s\n' "${cc#*-linux-gnu*-}" libc6-dev
    command -v make >/dev/null || echo make
    [ -x "$BINDIR/postgres" ] || echo "postgresql-$MAJOR"
    has_headers || headers_package
    missing_tools "$@" | sort -u
}

# What each suite or tool takes besides.
missing_tools() {
    local name
    for name in "$@"; do
        case $name in
            tap | neighbours) perl -MIPC::Run -MTest::More -MApp::Prove -e 1 2>/dev/null || printf '%s\n' perl libipc-run-perl ;;
            model | mutants) has_program spin || echo spin ;;
            bench) has_python || echo python3 ;;
            clang | cppcheck | perltidy | valgrind) has_program "$name" || echo "$name" ;;
            scan-build) has_program scan-build || echo clang-tools ;;
            shell) has_program shellcheck || echo shellcheck ;;
            ruff | ruff-format) has_python ensurepip || echo python3-venv ;;
        esac
    done
}

# Some are where not everybody's PATH leads.
has_program() { PATH=$PATH:/usr/sbin command -v "$1" >/dev/null; }

# Whether there is a Python 3, or one with a given module.
has_python() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c "import ${1:-sys}" 2>/dev/null && return
    done
    return 1
}

# Lists the missing ones of packages that a script can do without.
missing_extras() {
    local name
    for name in "$@"; do
        case $name in
            pgbouncer | odyssey | sysbench | valgrind | debootstrap) has_program "$name" || echo "$name" ;;
            pgpool) has_program pgpool || echo pgpool2 ;;
            exporter) has_program "$EXPORTER" || echo "$EXPORTER" ;;
            pgindent) has_program pg_bsd_indent || echo pg-bsd-indent ;;
            neighbours) missing_neighbours ;;
            patroni)
                has_program patroni || echo patroni
                has_python etcd || echo python3-etcd
                has_program etcd || echo etcd-server
                ;;
        esac
    done
}

missing_neighbours() {
    local neighbour
    for neighbour in $NEIGHBOUR_PACKAGES; do
        [ -e "$("$BINDIR/pg_config" --sharedir)/extension/${neighbour#*:}.control" ] ||
            echo "postgresql-$MAJOR-${neighbour%:*}"
    done
}

# Headers of exactly the installed server.  When only newer ones are on offer,
# naming the server's own version as well keeps apt from upgrading it, too.
headers_package() {
    local package=postgresql-server-dev-$MAJOR version=
    [ -x "$BINDIR/postgres" ] &&
        version=$(dpkg-query -W -f '${Version}' "postgresql-$MAJOR" 2>/dev/null)
    if [ -z "$version" ]; then
        echo "$package"
    elif on_offer "$package" "$version"; then
        echo "$package=$version"
    else
        printf '%s\n' "$package" "postgresql-$MAJOR=$version"
    fi
}

# Installs what is missing.  The arguments name the suites that will run.
require_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} != 0 ] || return 0
    command -v apt-get >/dev/null || die "please install first: ${missing[*]}"
    case $BINDIR in
        /usr/lib/postgresql/*) ;;
        *) has_headers || die "$BINDIR/pg_config leads to no headers: install PostgreSQL's development files" ;;
    esac
    if ! become_root; then
        die "packages are missing and I may not install them. Please run:
  sudo apt-get install -y --no-install-recommends ${missing[*]}"
    fi
    apt_update
    # Asked again: fresh package lists may offer the exact version.
    mapfile -t missing < <(missing_packages "$@")
    install_packages "${missing[@]}"
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} = 0 ] || die "still missing after the installation: ${missing[*]}"
}

install_packages() {
    say "installing $*"
    # An upgraded server package would restart the user's clusters.
    if [ -x "$BINDIR/postgres" ] && apt_get -s install --no-install-recommends "$@" 2>/dev/null |
        grep -q "^Inst postgresql-$MAJOR "; then
        die "installing $* would upgrade PostgreSQL $MAJOR. Upgrade it first, then try again."
    fi
    apt_get install -y -d --no-install-recommends "$@" >>"$WORK/apt.log" 2>&1 || apt_failed
    # A session of its own keeps Ctrl-C, which is heeded afterwards, from dpkg:
    # it would leave the package system in need of repair.
    forbid_cluster
    "${PRIVILEGED[@]}" setsid --wait "${APT_GET[@]}" install -y --no-install-recommends "$@" \
        </dev/null >>"$WORK/apt.log" 2>&1 || apt_failed
    allow_cluster
}

# Installs packages that a script can do without, or says how to.
want_packages() {
    local missing offered
    sort_extras "$@"
    [ ${#missing[@]} != 0 ] || return 0
    if command -v apt-get >/dev/null && become_root; then
        apt_update
        sort_extras "$@"
        if [ ${#offered[@]} != 0 ]; then
            (install_packages "${offered[@]}")
            stop_new_services "${offered[@]}"
            sort_extras "$@"
        fi
    fi
    [ ${#missing[@]} = 0 ] || say "going on without ${missing[*]}" >&2
    [ ${#offered[@]} = 0 ] || say "To have ${offered[*]}:
  sudo apt-get install -y --no-install-recommends ${offered[*]}" >&2
}

# Sets missing, and those among them that are on offer.
sort_extras() {
    local package
    offered=()
    mapfile -t missing < <(missing_extras "$@")
    for package in "${missing[@]}"; do
        ! on_offer "$package" || offered+=("$package")
    done
}

# Debian starts what it installs; nobody asked for services of the system's.
stop_new_services() {
    local package service
    for package in "$@"; do
        case $package in
            odyssey | patroni | pgbouncer | pgpool2 | "$EXPORTER") service=$package ;;
            etcd-server) service=etcd ;;
            *) continue ;;
        esac
        "${PRIVILEGED[@]}" systemctl disable --now "$service" >>"$WORK/apt.log" 2>&1 ||
            "${PRIVILEGED[@]}" service "$service" stop >>"$WORK/apt.log" 2>&1
    done
}

apt_failed() {
    tail -n 20 "$WORK/apt.log" >&2
    die "apt-get install failed"
}

# A newly installed PostgreSQL package would create and start a cluster.
forbid_cluster() {
    [ ! -e "$NO_CLUSTER" ] || return 0
    CLUSTER_FORBIDDEN=yes
    "${PRIVILEGED[@]}" mkdir -p "${NO_CLUSTER%/*}"
    echo 'create_main_cluster = false' | "${PRIVILEGED[@]}" tee "$NO_CLUSTER" >/dev/null
}

allow_cluster() {
    [ -n "${CLUSTER_FORBIDDEN:-}" ] || return 0
    "${PRIVILEGED[@]}" rm -f "$NO_CLUSTER"
    CLUSTER_FORBIDDEN=
}

# ---------------------------------------------------------------------------
# Outer half: throw-away directory
# ---------------------------------------------------------------------------

# Makes WORK, the throw-away directory, and sees to its removal.
make_workdir() {
    local parent=${TMPDIR:-/tmp}
    WORK=$(mktemp -d "$(cd "$parent" && pwd -P)/admission_gate.XXXXXX") || exit 1
    trap clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # The name of a Unix socket has room for about 100 characters.
    [ ${#WORK} -le 60 ] || die "the name of TMPDIR is too long: $parent"
}

clean_up() {
    local status=$?
    # Not even by a Ctrl-C that ended the reader of its output, too.
    trap '' HUP INT TERM PIPE
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

# Stops the inner half: its process group, then the servers it started, which
# have sessions of their own.  It is frozen first, so that nothing starts
# unnoticed in between.
stop_inside() {
    local memory
    [ -n "${INSIDE:-}" ] || return 0
    kill -STOP -- "-$INSIDE" 2>/dev/null
    mapfile -t memory < <(shared_memory)
    kill -TERM -- "-$INSIDE" 2>/dev/null
    kill -CONT -- "-$INSIDE" 2>/dev/null
    stop_servers
    kill -KILL -- "-$INSIDE" 2>/dev/null
    free_shared_memory "${memory[@]}"
}

# Lists the shared memory of the running servers.  They free it when they are
# shut down, but initdb does not when it is killed.
shared_memory() {
    local pid
    for pid in $(server_pids); do
        awk '$6 ~ "^/SYSV" { print $5 } $6 ~ "^/dev/shm/PostgreSQL" { print $6 }' "/proc/$pid/maps" 2>/dev/null
    done | sort -u
}

free_shared_memory() {
    local item
    for item in "$@"; do
        case $item in
            /*) rm -f "$item" ;;
            *) ipcrm -m "$item" 2>/dev/null ;;
        esac
    done
}

# Stops every process whose program lies in the throw-away directory: SIGQUIT
# is an immediate shutdown for a postmaster, SIGKILL for what is still there
# after five seconds.
stop_servers() {
    signal_servers QUIT || return 0
    for _ in {1..50}; do
        sleep 0.1
        signal_servers 0 || return 0
    done
    signal_servers KILL || return 0
}

# Sends a signal to those processes; fails when there are none.
signal_servers() {
    local pid found=1
    for pid in $(server_pids); do
        kill -"$1" "$pid" 2>/dev/null && found=0
    done
    return "$found"
}

# A server in valgrind is known by its working directory.
server_pids() {
    local link program
    # By way of xargs, as thousands may be too many arguments.
    printf '%s\0' /proc/[0-9]*/exe |
    xargs -0 sh -c 'exec find "$@" -maxdepth 0 -printf "%p %l\0"' find 2>/dev/null |
    while read -r -d '' link program; do
        case $program in
            "${WORK:?}"/*) ;;
            */memcheck-*) [[ $(readlink "${link%/exe}/cwd") == "$WORK"/* ]] || continue ;;
            *) continue ;;
        esac
        echo "${link//[!0-9]/}"
    done
    return 0    # whatever find could not read
}

# Sets AS_USER to the command that runs something as the inner half's user.
choose_user() {
    AS_USER=(env)
    [ "$(id -u)" = 0 ] || return 0
    AS_USER=(setpriv --reuid nobody --regid "$(id -gn nobody)" --clear-groups)
    chown nobody "$WORK"
    "${AS_USER[@]}" test -w "$WORK" || die "user nobody cannot reach $WORK: set TMPDIR to another directory"
}

copy_sources() {
    "${AS_USER[@]}" mkdir "$WORK/src" "$WORK/tmp" "$WORK/log"
    tar -C "$ROOT" --exclude=./.git --exclude='*.o' --exclude='*.so' --exclude='*.bc' -cf - . |
        "${AS_USER[@]}" tar -C "$WORK/src" -xf - || die "could not copy the sources"
}

# The outer half as a whole.  Usage: run_inside SCRIPT SUITES VARIABLES [EXTRAS],
# where SCRIPT is relative to the sources, SUITES are those to install packages
# for, VARIABLES name what the inner half may see of the environment, and EXTRAS
# are programs that it can do without.  A script that defines stop_others or
# save_results has them called at the end, before the throw-away directory goes.
run_inside() {
    local script=$1 name keep=()
    for name in PATH TERM PERL5LIB $3; do
        [ -z "${!name+x}" ] || keep+=("$name=${!name}")
    done
    find_postgres
    # shellcheck disable=SC2086
    require_packages $2
    # shellcheck disable=SC2086
    want_packages ${4:-}
    choose_user
    copy_sources
    cd "$WORK" || exit 1
    # Job control gives the inner half a process group of its own.
    set -m
    "${AS_USER[@]}" env -i "${keep[@]}" HOME="$WORK" TMPDIR="$WORK/tmp" WORK="$WORK" BINDIR="$BINDIR" \
        "$BASH" "$WORK/src/$script" --inside </dev/null &
    INSIDE=$!
    set +m
    wait "$INSIDE"
}

# ---------------------------------------------------------------------------
# Inner half: a private PostgreSQL with the extension
# ---------------------------------------------------------------------------

# Sets up $WORK/pg, which mirrors the installation from / downwards, and STAGE,
# its directory of executables.
stage_postgres() {
    local real=$BINDIR/pg_config dir
    STAGE=$WORK/pg$BINDIR
    mkdir -p "$STAGE"
    cp -rL "$BINDIR/." "$STAGE" || die "could not copy $BINDIR"
    "$STAGE/pg_config" --version >/dev/null || die "cannot execute programs in $WORK: set TMPDIR to another directory"
    for dir in $("$real" --sharedir) $("$real" --pkglibdir); do
        mirror "$dir"
    done
    # pg_regress looks for isolationtester beside itself, behind any symlink.
    copy_programs "$("$real" --pkglibdir)/pgxs/src/test"
    for dir in $("$real" --includedir) $("$real" --pkgincludedir) $("$real" --includedir-server) $("$real" --libdir); do
        link_missing "$dir"
    done
    case $("$STAGE/pg_config" --pkglibdir) in
        "$WORK"/*) ;;
        *) die "the private copy of $BINDIR still points to the system's files" ;;
    esac
    find "$WORK/pg" -name 'admission_gate*' -exec rm -rf {} +
}

# The same tree of directories, with links to the files.
mirror() {
    mkdir -p "$WORK/pg$1"
    cp -rs "$1/." "$WORK/pg$1" || die "could not mirror $1"
}

copy_programs() {
    [ ! -d "$1" ] || cp -rL --remove-destination "$1/." "$WORK/pg$1" || die "could not copy $1"
}

# One link for the directory, or for each entry when a mirrored directory lies
# within it.
link_missing() {
    local entry copy=$WORK/pg$1
    if [ ! -e "$copy" ]; then
        mkdir -p "${copy%/*}" && ln -s "$1" "$copy"
        return
    fi
    for entry in "$1"/*; do
        [ -e "$copy/${entry##*/}" ] || [ -L "$copy/${entry##*/}" ] || ln -s "$entry" "$copy"
    done
}

make_inside() { make -C "$WORK/src" --no-print-directory PG_CONFIG="$STAGE/pg_config" "$@"; }

# WERROR set turns warnings into errors.
build_extension() {
    local log=$WORK/log/build.log
    make_inside -j "$(nproc)" install ${WERROR:+WERROR=1} >"$log" 2>&1 && return
    tail -n 40 "$log" >&2
    die "the build failed"
}
