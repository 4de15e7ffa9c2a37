"""How much CPU the server has used so far.

What is counted: the time on a CPU, user and system, of the postmaster and all its
children (sessions, parallel workers, the checkpointer, the WAL writer and so on),
and of pgbouncer where there is one; not of pgbench.  The living are added up from
/proc/PID/schedstat, in nanoseconds; those that have ended are in the postmaster's
own account, /proc/PID/stat, in ticks of 10 ms.  The difference between two takings
is what was used between them.

Switches are how often one of these processes was put on a CPU.  The kernel does
not add up those of the dead, so they are told only where no session ends.
"""

import os
import time
from dataclasses import dataclass

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    cpu: float                 # seconds
    switches: int | None       # None where the kernel does not count them
    began: float               # when this was taken, as time.time()
    ended: float

    @property
    def middle(self):
        return (self.began + self.ended) / 2


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        return [p for p in all_processes() if parent(p) == pid]


def all_processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat(pid):
    """The fields of /proc/PID/stat from the third on, as words."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def parent(pid):
    try:
        return int(stat(pid)[1])
    except OSError:
        return 0


def one(pid):
    """CPU seconds and switches of one process; zero of one that has ended."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            ran, _, times = file.read().split()
            return int(ran) / 1e9, int(times)
    except OSError:
        pass
    try:
        return (int(stat(pid)[11]) + int(stat(pid)[12])) / TICK, 0
    except OSError:
        return 0.0, 0


def take(postmaster, others=()):
    began = time.time()
    counted = [one(pid) for pid in (postmaster, *children(postmaster), *others)]
    fields = stat(postmaster)
    reaped = (int(fields[13]) + int(fields[14])) / TICK
    switches = sum(times for _, times in counted)
    return Usage(reaped + sum(cpu for cpu, _ in counted), switches or None, began, time.time())
