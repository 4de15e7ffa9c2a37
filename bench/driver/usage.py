"""How much CPU the server has used so far.

What is counted: the time on a CPU, user and system, of the postmaster and all its
children (sessions, parallel workers, the checkpointer, the WAL writer and so on),
and of the threads of a pooler where there is one; not of pgbench.  The living are
added up from /proc/PID/schedstat, in nanoseconds (or stat, in ticks, where there is
none); those that have ended are in the postmaster's own account, /proc/PID/stat, in
ticks of 10 ms.  The difference between two takings
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
    cpu: float  # seconds
    switches: int | None  # None where the kernel does not count them
    began: float  # when this was taken, as time.time()
    ended: float

    @property
    def middle(self):
        return (self.began + self.ended) / 2


class Meter:
    """Takes the usage of a server and of others.  The files stay open from one
    taking to the next: the machine is overloaded, and there may be thousands.  So
    take once before it matters."""

    def __init__(self, postmaster, others=()):
        self.postmaster = postmaster
        self.others = set(others)
        self.files = {}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for file in self.files.values():
            os.close(file)

    def take(self):
        began = time.time()
        self.open_files({self.postmaster, *children(self.postmaster), *self.others})
        counted = [measured(file) for file in self.files.values()]
        fields = stat(self.postmaster)
        reaped = (int(fields[13]) + int(fields[14])) / TICK
        switches = sum(times for _, times in counted)
        return Usage(reaped + sum(cpu for cpu, _ in counted), switches or None, began, time.time())

    def open_files(self, pids):
        """Of the living, and of no other."""
        for pid in self.files.keys() - pids:
            os.close(self.files.pop(pid))
        for pid in pids - self.files.keys():
            for name in ("schedstat", "stat"):
                try:
                    self.files[pid] = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
                    break
                except OSError:
                    pass


def measured(file):
    """CPU seconds and switches of one process; zero of one that has ended."""
    try:
        fields = os.pread(file, 1000, 0).rpartition(b")")[2].split()
    except OSError:
        return 0.0, 0
    if len(fields) == 3:
        return int(fields[0]) / 1e9, int(fields[2])
    return (int(fields[11]) + int(fields[12])) / TICK, 0


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
