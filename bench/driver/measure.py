"""One run: a load in one variant, at one number of clients.

The server takes the variant's settings, vacuums its tables, and makes a checkpoint.
In each stage clients come.  When all are connected and at work, some seconds pass uncounted;
then come those that count, and before and after them the CPU is read.
The clients end, and their logs are read.
"""

import contextlib
import time
from dataclasses import dataclass

import loads
import pooler
from clients import CLIENTS_PER_THREAD, Overload, Pgbench, Sysbench
from kinds import Load
from server import LIMIT, Failed
from variants import Variant


@dataclass(frozen=True)
class Run:
    name: str  # of the load
    load: Load
    variant: Variant
    clients: int  # as shown: CLIENTS, or all together where each group has its own number
    round: int
    skip: int
    duration: int

    def clients_of(self, group):
        """CLIENTS are shared by the groups without a number of their own."""
        return group.number or max(self.clients // sum(not each.number for each in self.load.groups), 1)

    @property
    def connections(self):
        return sum(map(self.clients_of, self.load.groups))


@dataclass(frozen=True)
class Taken:
    """What had been used at a time"""

    time: float
    cpu: float
    deadlocks: int


class Measurement:
    """What a run has open while it lasts."""

    def __init__(self, server, run):
        self.server = server
        self.options = server.options
        self.run = run
        self.pooler = None
        self.clients = {}  # by the name of their group

    def carry_out(self):
        """A row of figures for each stage and group."""
        self.prepare()
        stages = []
        with contextlib.ExitStack() as stack:
            if self.run.variant.kind == "pgbouncer":
                self.pooler = pooler.Pgbouncer(self.server, self.run.variant.number, self.run.connections)
                stack.enter_context(self.pooler)
            for stage in self.run.load.stages:
                stages.append(self.pass_stage(stack, stage))
            aborted = {name: clients.aborted() for name, clients in self.clients.items()}
            for clients in self.clients.values():
                clients.finish(self.cut)
            rows = [row for stage in stages for row in self.count(*stage, aborted)]
        self.server.end_sessions()
        return rows

    def prepare(self):
        server, variant = self.server, self.run.variant
        server.preload(variant.kind != "without")
        datasets = {group.dataset for group in self.run.load.groups}
        for dataset in datasets:
            loads.make_dataset(server, dataset)
        server.configure({**dict(variant.settings), LIMIT: variant.number} if variant.kind == "gate" else {})
        for dataset in datasets:
            server.sql("VACUUM", "CHECKPOINT", database=dataset)

    def pass_stage(self, stack, stage):
        for group in stage.groups:
            self.clients[group.name] = self.start(stack, group)
        # Not one after the other: the first would leave the second no CPU to connect.
        for group in stage.groups:
            self.clients[group.name].wait_until_at_work()
        with stage.happens(self.server):
            time.sleep(self.run.skip)
            before = self.take()
            time.sleep(self.run.duration)
            after = self.take()
        for clients in self.clients.values():
            clients.check()
        return stage, before, after, list(self.clients)

    def take(self):
        deadlocks = int(self.server.sql("SELECT sum(deadlocks) FROM pg_stat_database"))
        began = time.time()
        cpu = self.server.cpu(self.pooler.process.pid if self.pooler else None)
        # It takes a while to find out.
        return Taken((began + time.time()) / 2, cpu, deadlocks)

    def start(self, stack, group):
        options, number = self.options, self.run.clients_of(group)
        address = {**(self.pooler or self.server).address, "PGDATABASE": group.dataset}
        if group.pool and not self.pooler:
            address["PGOPTIONS"] = f"-c admission_gate.pool={group.pool}"
        keeps_statements = not self.pooler or pooler.keeps_statements()
        if group.dataset == "sysbench":
            return stack.enter_context(Sysbench(options, group.name, number, address, keeps_statements))
        if group.timeout:
            return stack.enter_context(Overload(options, group, number, address))
        protocol, per_thread = group.protocol, CLIENTS_PER_THREAD
        # A thread of pgbench that prepares a statement does nothing else until it has the
        # answer.  Behind a pooler that may be for ever: another of its clients may be in a
        # transaction, and hold the connection that it waits for.
        if self.pooler and protocol == "prepared":
            if group.scripts or not keeps_statements:
                protocol = "extended"
            elif group.has_blocks:
                per_thread = 1
        arguments = [*self.files(group.dataset, group.weighted), *group.arguments]
        names = [name for name, _, _ in group.scripts]
        clients = Pgbench(options, group.name, number, address, arguments, protocol, per_thread, names)
        return stack.enter_context(clients)

    def files(self, dataset, scripts):
        """The arguments that name these scripts."""
        arguments = []
        for name, weight, text in scripts:
            path = self.options.path("tmp", name + ".sql")
            with open(path, "w") as file:
                file.write(text.replace("{rows}", str(loads.rows(dataset, self.options))))
            arguments += ["-f", f"{path}@{weight}"]
        return arguments

    def cut(self):
        """The pooler first: it would open sessions anew as long as it has clients."""
        if self.pooler:
            self.pooler.stop()
        self.server.end_sessions()

    def count(self, stage, before, after, names, aborted):
        seconds = after.time - before.time
        found = {}
        for name in names:
            figures = self.clients[name].figures(before.time, after.time)
            next(iter(figures.values()))["errors"] += aborted[name]
            found.update(figures)
        together = sum(figures["tps"] for figures in found.values())
        cpu = (after.cpu - before.cpu) / seconds / together * 1e6 if together else None
        for name, figures in found.items():
            yield {
                "load": self.run.name,
                "sessions": f"{name}, {stage.name}" if stage.name else name,
                "clients": self.run.clients,
                "variant": self.run.variant.name,
                "round": self.run.round,
                **figures,
                "cpu_us": cpu,
                "deadlocks": (after.deadlocks - before.deadlocks) / seconds,
            }


def measure(server, run):
    try:
        return Measurement(server, run).carry_out()
    except Failed:
        server.end_sessions()
        raise
