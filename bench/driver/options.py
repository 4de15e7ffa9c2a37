"""What the user asked for: the environment, read once.

bench/run.sh has checked the numbers and says what each variable means.  An
option that was not given is None here, and each load has its own default.
QUICK makes everything small.
"""

import os
from dataclasses import dataclass
from typing import Optional

# More than these have one round.
MANY_CLIENTS = 2000


@dataclass(frozen=True)
class Options:
    work: str  # the throw-away directory
    stage: str  # where postgres, pgbench and so on are
    benchmarks: tuple
    clients: tuple
    rounds: Optional[int]
    duration: Optional[int]
    skip: Optional[int]
    limit: Optional[int]
    variants: tuple
    workloads: tuple
    protocol: str
    server_settings: tuple  # of (name, value)
    quick: bool
    most_clients: int
    reason: str  # why not more than most_clients

    def path(self, *names):
        return os.path.join(self.work, *names)

    def program(self, name):
        return os.path.join(self.stage, name)

    def rounds_of(self, clients=0):
        """How many rounds of runs with so many clients; many take a minute each."""
        return self.rounds or (1 if self.quick or clients > MANY_CLIENTS else 3)

    def slots(self, per_core):
        return self.limit or per_core * len(os.sched_getaffinity(0))


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
        limit=number("LIMIT"),
        variants=words("VARIANTS"),
        workloads=words("WORKLOADS"),
        protocol=os.environ.get("PROTOCOL") or "prepared",
        server_settings=pairs("SERVER_SETTINGS"),
        quick=quick,
        most_clients=int(os.environ["MOST_CLIENTS"]),
        reason=os.environ["REASON"],
    )
