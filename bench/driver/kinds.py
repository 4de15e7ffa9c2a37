"""What benchmarks are made of: loads of groups of sessions, which come in stages.  Each stage
counts every group that has come by itself, and each of its scripts.
"""

from contextlib import nullcontext
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Sessions of one kind, on one dataset."""

    name: str
    dataset: str
    script: str = ""  # of pgbench; {rows} is how many its dataset has.  Without it and arguments: sysbench
    arguments: tuple = ()  # of pgbench, too
    number: int = 0  # of its clients; 0: as many as CLIENTS says
    pool: str = ""  # in which they are if the variant defines it
    protocol: str = "prepared"
    timeout: int = 0  # statement_timeout, ms: its sessions are of overload.c, and only answers in time count
    rate: float = 0  # of these sessions: statements asked for per second, 0 for a closed loop
    scripts: tuple = ()  # instead of script: a name, a weight and a text each, which all its sessions run in turn

    @property
    def weighted(self):
        """Its scripts, in the form of those that are many."""
        return self.scripts or (((self.name, 1, self.script),) if self.script else ())

    @property
    def has_blocks(self):
        """Whether its transactions are of several statements."""
        return "BEGIN" in self.script or not {"tpcb-like", "simple-update"}.isdisjoint(self.arguments)


@dataclass(frozen=True)
class Stage:
    name: str  # "" for the only or main one
    groups: tuple  # that come now
    happens: object = nullcontext  # while it lasts: a context manager, given the server


@dataclass(frozen=True)
class Load:
    title: str
    stages: tuple
    duration: int = 5  # seconds counted in each stage, and
    patience: int = 1  # how many times longer than usual it takes until they count

    @property
    def groups(self):
        return [group for stage in self.stages for group in stage.groups]


@dataclass(frozen=True)
class Benchmark:
    title: str
    loads: str
    variants: str
    clients: tuple = ()  # CLIENTS, unless each group of the load has its own number


def plain(title, *groups, **more):
    return Load(title, (Stage("", groups),), **more)


# Of a random row
ID = "\\set id random(1, {rows})\n"
