# shellcheck shell=bash
#
# What bench/demo.sh and bench/run.sh share (sourced, after test/setup.sh): how
# many clients the machine carries, and what the machine is.

# Usage: check_positive NAME...
check_positive() {
    local name
    for name in "$@"; do
        [[ ${!name} =~ ^[1-9][0-9]*$ ]] || die "$name must be a positive number, not \"${!name}\""
    done
}

# Sets MOST_CLIENTS to the number of clients that open files, processes and
# memory allow, and REASON to the one of them that is scarce.  Usage:
# most_clients KB, the memory that one backend takes.
most_clients() {
    local available
    available=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)
    ulimit -S -n "$(ulimit -H -n)"
    export MOST_CLIENTS=100000 REASON=
    lower_clients "open files (ulimit -n)" "$(ulimit -n)" 100
    lower_clients "processes (ulimit -u)" "$(ulimit -u)" 200
    lower_clients "processes (kernel.pid_max)" "$(cat /proc/sys/kernel/pid_max)" 1000
    lower_clients "processes (cgroup)" "$(cat /sys/fs/cgroup/pids.max 2>/dev/null)" 200
    lower_clients "memory" "$((available / $1))" 64
}

# Usage: lower_clients REASON AMOUNT RESERVE
lower_clients() {
    case $2 in "" | *[!0-9]*) return ;; esac
    [ "$MOST_CLIENTS" -gt $(($2 - $3)) ] || return 0
    MOST_CLIENTS=$(($2 - $3))
    REASON=$1
}

# Prints when and on what a measurement was made: "DATE: VERSION, MACHINE."
describe_machine() {
    local cpu memory kernel huge
    cpu=$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)
    memory=$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)
    kernel=$(uname -sr)
    huge=$(awk '/^HugePages_Total/ { print $2 }' /proc/meminfo)
    say "$(date -u '+%Y-%m-%d %H:%M UTC'): $("$STAGE/postgres" --version),"
    say "  $(nproc) cores ($cpu), $memory GB memory, $kernel, data on $(stat -f -c %T "$WORK"),"
    say "  huge pages: $huge reserved, transparent $(sed 's/.*\[\(.*\)\].*/\1/' /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null)."
}
