"""What the user asked for: the environment, read once.

bench/run.sh has checked the numbers and says what each variable means.  An option that was
not given is None or empty here, and each load has its own default.
"""

import os
import resource
from dataclasses import dataclass
from typing import Optional

# More than these have one round.
MANY_CLIENTS = 2000
# An idle backend with a few prepared statements, its page table for 256 MB of shared
# buffers, and the client's side of it
BACKEND_KB = 2560


@dataclass(frozen=True)
class Options:
    work: str  # the throw-away directory
    stage: str  # where postgres, pgbench and so on are
    benchmarks: tuple
    clients: tuple
    rounds: Optional[int]
    duration: Optional[int]
    skip: Optional[int]
    variants: tuple
    workloads: tuple
    server_settings: tuple  # of (name, value)
    quick: bool  # makes everything small
    most_clients: int

    def path(self, *names):
        return os.path.join(self.work, *names)

    def program(self, name):
        return os.path.join(self.stage, name)

    def rounds_of(self, clients=0):
        """How many rounds of runs with so many clients; many take a minute each."""
        return self.rounds or (1 if self.quick or clients > MANY_CLIENTS else 3)


def number(name, default=None):
    return int(os.environ.get(name) or 0) or default


def words(name):
    return tuple(os.environ.get(name, "").split())


def pairs(name):
    """The settings in "a = b; c = d"."""
    found = []
    for item in filter(str.strip, os.environ.get(name, "").split(";")):
        key, equals, value = item.partition("=")
        if not equals:
            raise SystemExit(f'error: "{item.strip()}" in {name} is not of the form setting=value')
        found.append((key.strip(), value.strip().strip("'")))
    return tuple(found)


def most_clients():
    """How many clients open files, processes and memory allow."""
    files, processes = (resource.getrlimit(what)[0] for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    most = min(files - 100, available // BACKEND_KB - 64)
    return most if processes == resource.RLIM_INFINITY else min(most, processes - 200)


def from_environment():
    quick = bool(os.environ.get("QUICK"))
    return Options(
        work=os.environ["WORK"],
        stage=os.environ["STAGE"],
        benchmarks=words("BENCH"),
        clients=tuple(map(int, words("CLIENTS"))),
        rounds=number("ROUNDS"),
        duration=number("DURATION", 1 if quick else None),
        skip=number("SKIP", 1 if quick else None),
        variants=words("VARIANTS"),
        workloads=words("WORKLOADS"),
        server_settings=pairs("SERVER_SETTINGS"),
        quick=quick,
        most_clients=most_clients(),
    )
