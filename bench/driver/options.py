"""What the user asked for: the environment, read once.

bench/run.sh has checked the numbers and says what each variable means.  An
option that was not given is None here, and each benchmark has its own default.
QUICK makes everything small.
"""

import os
from dataclasses import dataclass

# More than these have fewer rounds.
MANY_CLIENTS = 2000


@dataclass(frozen=True)
class Options:
    work: str  # the throw-away directory
    stage: str  # where postgres, pgbench and so on are
    benchmarks: tuple
    clients: tuple | None
    rounds: int | None
    duration: int | None
    skip: int | None
    limit: int | None
    variants: tuple | None
    settings: tuple  # of (name, value), for the variant "tuned"
    workloads: tuple | None
    protocol: str
    rows: int | None
    server_settings: tuple  # of (name, value)
    quick: bool
    most_clients: int
    reason: str  # why not more than most_clients
    machine: str
    commit: str

    def path(self, *names):
        return os.path.join(self.work, *names)

    def rounds_of(self, clients=0):
        """How many rounds of runs with so many clients; many take a minute each."""
        return self.rounds or (1 if self.quick or clients > MANY_CLIENTS else 3)

    def program(self, name):
        return os.path.join(self.stage, name)


def number(name, default=None):
    return int(os.environ.get(name) or 0) or default


def words(name):
    return tuple(os.environ.get(name, "").split()) or None


def pairs(name):
    """The settings in "a = b; c = d"."""
    found = []
    for item in os.environ.get(name, "").split(";"):
        if item.strip():
            key, equals, value = item.partition("=")
            if not equals:
                raise SystemExit(f'error: "{item.strip()}" in {name} is not of the form setting=value')
            found.append((key.strip(), value.strip().strip("'")))
    return tuple(found)


def from_environment():
    quick = bool(os.environ.get("QUICK"))
    clients = words("CLIENTS")
    return Options(
        work=os.environ["WORK"],
        stage=os.environ["STAGE"],
        benchmarks=words("BENCH"),
        clients=tuple(int(c) for c in clients) if clients else None,
        rounds=number("ROUNDS"),
        duration=number("DURATION", 1 if quick else None),
        skip=number("SKIP", 1 if quick else None),
        limit=number("LIMIT"),
        variants=words("VARIANTS"),
        settings=pairs("SETTINGS"),
        workloads=words("WORKLOADS"),
        protocol=os.environ.get("PROTOCOL") or "prepared",
        rows=number("ROWS"),
        server_settings=pairs("SERVER_SETTINGS"),
        quick=quick,
        most_clients=int(os.environ["MOST_CLIENTS"]),
        reason=os.environ["REASON"],
        machine=os.environ["MACHINE"],
        commit=os.environ.get("COMMIT", ""),
    )
