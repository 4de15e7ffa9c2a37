"""One run: a workload in one variant at one number of clients.

the server is told the variant's settings, its tables are vacuumed, checkpoint
what stands beside is started, the idle connections, then the clients
all are connected and at work; the first seconds pass uncounted
CPU taken --- the steady part --- CPU taken
the clients are told to end, their logs are read
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass

import datasets
import figures
import pooler
from pgbench import CLIENTS_PER_THREAD, Load
from server import Failed
from usage import Meter
from variants import Variant
from workloads import BESIDE, Workload

# An idle client: a warm connection that does nothing more.
IDLE = "SELECT 1;\n\\sleep 2000 s\n"
LIMIT = "admission_gate.max_active_backends"


@dataclass(frozen=True)
class Run:
    benchmark: str
    workload: Workload
    variant: Variant
    clients: int  # as shown
    active: int  # clients of the workload, idle ones included
    round: int
    skip: int
    duration: int

    @property
    def key(self):
        return self.benchmark, self.workload.name, self.variant.name, self.clients, self.round

    @property
    def beside(self):
        return None if self.variant.alone else BESIDE.get(self.workload.beside)

    @property
    def beside_clients(self):
        return (self.beside.clients or self.clients) if self.beside else 0

    @property
    def connections(self):
        return self.active + self.beside_clients

    def settings(self, slots=None):
        """Of the server; slots instead of the variant's."""
        if self.variant.kind != "gate":
            return {}
        extra = self.beside.settings if self.beside else ()
        return {**dict(extra), **dict(self.variant.settings), LIMIT: slots or self.variant.slots}

    def protocol(self, wanted):
        """pgbench's, where the user wants another for those that can."""
        wanted = self.workload.protocol or wanted
        if wanted == "prepared" and self.variant.is_pooler and not pooler.keeps_prepared_statements():
            return "simple"
        return wanted

    def clients_per_thread(self, protocol):
        """A thread of pgbench that prepares a statement does nothing else until it has
        the answer.  Behind a pooler that may wait for a connection which another of its
        clients holds, in the middle of a transaction: for ever."""
        blocks = self.variant.is_pooler and protocol == "prepared" and self.workload.has_blocks
        return 1 if blocks else CLIENTS_PER_THREAD


@dataclass(frozen=True)
class Outcome:
    figures: figures.Figures
    errors: int
    cpu_us: float | None
    switches: float | None
    beside: figures.Figures | None
    note: str


def script_file(options, name, dataset, text):
    if "{rows}" in text:
        text = text.replace("{rows}", str(datasets.rows(dataset, options)))
    path = options.path("tmp", name + ".sql")
    with open(path, "w") as file:
        file.write(text)
    return ["-f", path]


def arguments(options, run):
    workload = run.workload
    if run.variant.kind == "trick":
        chosen = script_file(options, "trick", workload.dataset, workload.trick)
    elif workload.builtin:
        chosen = ["-b", workload.builtin]
    else:
        chosen = script_file(options, workload.name, workload.dataset, workload.script)
    return chosen + (["-C"] if workload.reconnect else [])


class Measurement:
    """What a run has open while it lasts."""

    def __init__(self, server, run, options):
        self.server = server
        self.run = run
        self.options = options
        self.pooler = None
        self.beside = None
        self.note = ""

    def address(self, dataset, pool):
        through = self.pooler or self.server
        options = {"PGOPTIONS": f"-c admission_gate.pool={pool}"} if pool and not self.pooler else {}
        return {**through.address, "PGDATABASE": dataset, **options}

    def prepare(self):
        server, workload = self.server, self.run.workload
        server.preload(self.run.variant.kind != "without")
        datasets.load(server, workload.dataset)
        if self.run.beside:
            datasets.load(server, self.run.beside.dataset)
        server.configure(self.run.settings())
        server.sql(*(f"VACUUM {table}" for table in workload.vacuum), "CHECKPOINT", database=workload.dataset)

    def open_pooler(self, stack):
        variant, address = self.run.variant, self.server.address
        if variant.kind == "pgbouncer":
            self.pooler = pooler.Pgbouncer(self.options, address, variant.processes, variant.pool, self.run.connections)
            stack.enter_context(self.pooler)

    def open_beside(self, stack):
        beside = self.run.beside
        if not beside:
            return
        if beside.sleeps and self.run.variant.kind == "gate":
            self.server.configure(self.run.settings(slots=self.run.connections))
        self.beside = self.start(
            stack,
            "beside",
            self.run.beside_clients,
            beside.dataset,
            script_file(self.options, "beside", beside.dataset, beside.script),
            "simple",
            beside.pool,
        )
        if beside.sleeps:
            asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            if not self.server.wait_until(asleep, str(self.run.beside_clients), 60):
                raise Failed("not all sleepers sleep")
            self.server.configure(self.run.settings())

    def open_clients(self, stack):
        """All but those of the variant "limit" work; its others have nothing to do."""
        run, dataset = self.run, self.run.workload.dataset
        working = run.active
        if run.variant.kind == "limit" and working > run.variant.slots:
            working = run.variant.slots
            self.start(
                stack, "idle", run.active - working, dataset, script_file(self.options, "idle", dataset, IDLE), "simple"
            )
        return self.start(
            stack, "clients", working, dataset, arguments(self.options, run), run.protocol(self.options.protocol)
        )

    def start(self, stack, name, clients, dataset, more, protocol, pool=""):
        load = stack.enter_context(
            Load(
                self.options,
                name,
                clients,
                more,
                self.address(dataset, pool),
                protocol,
                self.run.clients_per_thread(protocol),
            )
        )
        load.wait_until_at_work()
        return load

    def wait_until_lent(self):
        if self.run.beside and self.run.beside.sleeps and self.run.variant.kind == "gate":
            lent = f"SELECT lent >= {self.run.beside_clients} FROM pg_stat_admission_gate"
            if not self.server.wait_until(lent, "t", 60):
                self.note = "not all sleepers have lent their slots"

    def cut(self):
        """The pooler first: it would open sessions anew as long as it has clients."""
        if self.pooler:
            self.pooler.stop()
        self.server.end_sessions()

    def carry_out(self):
        self.prepare()
        with ExitStack() as stack:
            self.open_pooler(stack)
            self.open_beside(stack)
            load = self.open_clients(stack)
            self.wait_until_lent()
            meter = stack.enter_context(Meter(self.server.pid, self.pooler.threads if self.pooler else ()))
            meter.take()
            time.sleep(self.run.skip)
            before = meter.take()
            time.sleep(self.run.duration)
            after = meter.take()
            load.check()
            errors = load.aborted()
            load.finish(self.cut)
            counted = figures.count(load.logs(), before.ended, after.began)
            beside = self.count_beside(before, after)
        self.server.end_sessions()
        return self.outcome(counted, errors, before, after, beside)

    def count_beside(self, before, after):
        if self.beside and self.run.beside.counted:
            self.beside.finish(self.cut)
            return figures.count(self.beside.logs(), before.ended, after.began)
        return None

    def outcome(self, counted, errors, before, after, beside):
        cpu = switches = None
        if counted.tps:
            seconds = after.middle - before.middle
            cpu = (after.cpu - before.cpu) / seconds / counted.tps * 1e6
            if before.switches and not self.run.workload.reconnect:
                switches = (after.switches - before.switches) / seconds / counted.tps
        return Outcome(counted, errors + counted.failed, cpu, switches, beside, self.note)


def measure(server, run, options):
    try:
        return Measurement(server, run, options).carry_out()
    except Failed:
        server.end_sessions()
        raise
