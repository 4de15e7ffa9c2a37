"""A primary and a physical replica behind HAProxy, a gate on each, and what happens
when the primary is lost.

HAProxy has a port for writers, which leads to the primary, and one for readers,
which leads to the replica; each leads to the other node if its own is down.  CLIENTS
writers run pgbench's simple updates at scale 10, and as many readers sum up 5000 of
its accounts, all at the same time.  Once that has been counted, the primary is stopped
as in a crash, the replica is promoted while the readers go on, the writers come
back, and all are counted again, now on one node.  In each of ROUNDS rounds, this is
done with the limit of both nodes off and then on, with a new replica each time.

Several times a second, each node is asked for what its views show.  "active" are those
that pg_stat_activity calls so and that are not in the queue: with the gate on, this is
who has a slot, who commits, and who is on the way into the queue.  "lends" is how often
a holder lent its slot meanwhile, as its client let it wait: such a one comes back above
the limit.  "held" is how long a transaction had its slot, by running x time / completed;
"queued" how long it waited, by total_wait_time / completed, and "formula" the same by (clients
- limit) x held / limit.

Everything is on one machine, over Unix sockets; the nodes share its cores, so each
gets half of the slots.
"""

import os
import re
import shutil
import statistics
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import datasets
import figures
import machine
import report
from measure import LIMIT, script_file
from pgbench import Load
from plan import default_slots
from server import Failed, Server, run

TITLE = "Two nodes behind HAProxy"
HEADER = (
    "round",
    "limit",
    "nodes",
    "port",
    "clients",
    "tps",
    "p50 ms",
    "p99 ms",
    "errors",
    "leads to",
    "running, most",
    "active, mean",
    "waiting, mean",
    "lends",
    "held ms",
    "queued ms",
    "formula ms",
)
CLIENTS = 100
# A thread of pgbench connects its clients one by one, which takes long beside others at work.
CLIENTS_PER_THREAD = 5
DATASET = "tpcb_10"
PROGRAM = shutil.which("haproxy")
WRITE_PORT, READ_PORT = "6000", "6001"

SETTINGS = [("wal_keep_size", "1GB"), ("hot_standby_feedback", "on"), ("wal_receiver_status_interval", "1s")]

# A check has to find a process and a CPU like everybody else: patience keeps HAProxy
# from giving up a node that is only busy.
PROXY = """
global
    log stdout format raw local0
    maxconn {connections}
defaults
    log global
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout check 30s
    option pgsql-check user health
    default-server check inter 1s fall 2 rise 1
listen write
    bind unix@{directory}/.s.PGSQL.{write_port} mode 600
    server primary unix@{directory}/.s.PGSQL.{primary}
    server replica unix@{directory}/.s.PGSQL.{replica} backup
listen read
    bind unix@{directory}/.s.PGSQL.{read_port} mode 600
    server replica unix@{directory}/.s.PGSQL.{replica}
    server primary unix@{directory}/.s.PGSQL.{primary} backup
"""

SUM = """\\set first random(1, {rows} - 5000)
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :first AND :first + 4999;
"""

# Active: with the gate off as well, where nobody is counted as running.
LOOK = """SELECT g.running, (SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()) - g.waiting,
    g.waiting, g.lends, g.completed, g.total_wait_time, extract(epoch FROM clock_timestamp())
FROM pg_stat_admission_gate g \\watch 0.1
"""


class Primary(Server):
    @contextmanager
    def lost(self):
        """Is down as after a crash, until the end of the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()


class Replica(Server):
    def __init__(self, primary, options, connections):
        super().__init__(options, connections, SETTINGS)
        self.primary = primary
        self.data = options.path("replica")
        self.address = {**primary.address, "PGPORT": "5433"}
        host, port = primary.address["PGHOST"], primary.address["PGPORT"]
        self.settings.update(port="5433", primary_conninfo=f"host={host} port={port} user=postgres")

    def __enter__(self):
        self.create()
        self.start()
        return self

    def create(self):
        run([self.options.program("pg_basebackup"), "-D", self.data, "-c", "fast"], env=self.primary.environment())
        with open(os.path.join(self.data, "standby.signal"), "w"):
            pass
        self.write_settings()

    def promote(self):
        self.control("promote")

    def catch_up(self):
        lsn = self.primary.sql("SELECT pg_current_wal_lsn()")
        if not self.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'", "t", 300):
            raise Failed("the replica does not catch up")


class Proxy:
    def __init__(self, options, primary, replica, connections):
        self.options = options
        self.primary = primary
        self.settings = PROXY.format(
            connections=connections,
            directory=primary.address["PGHOST"],
            write_port=WRITE_PORT,
            read_port=READ_PORT,
            primary=primary.address["PGPORT"],
            replica=replica.address["PGPORT"],
        )
        self.process = None

    def address(self, port):
        return {**self.primary.address, "PGPORT": port, "PGDATABASE": DATASET}

    def __enter__(self):
        configuration, log = self.options.path("tmp", "haproxy.cfg"), self.options.path("log", "haproxy.log")
        with open(configuration, "w") as file:
            file.write(self.settings)
        # What ends the servers knows it by the place of its program.
        program = shutil.copy(PROGRAM, self.options.path("haproxy"))
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [program, "-db", "-f", configuration], stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        try:
            self.wait_until_leading(WRITE_PORT, recovering=False)
            self.wait_until_leading(READ_PORT, recovering=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()

    def wait_until_leading(self, port, recovering):
        """Waits until the port leads to a node that is in recovery, or one that is not."""
        command = [self.options.program("psql"), "-XAtqc", "SELECT pg_is_in_recovery()"]
        environment = {**self.primary.environment(), "PGPORT": port, "PGDATABASE": DATASET}
        end = time.monotonic() + 60
        while True:
            done = subprocess.run(
                command, env=environment, text=True, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
            if done.stdout.strip() == ("t" if recovering else "f"):
                return
            if time.monotonic() > end:
                raise Failed(f"HAProxy does not lead to the right node: {done.stdout}{done.stderr}")
            time.sleep(0.1)


@dataclass(frozen=True)
class Look:
    """What the views of a node showed at one moment."""

    running: int
    active: int
    waiting: int
    lends: int
    completed: int
    wait_time: float
    at: float


class Looks:
    """Looks at a node, from time to time."""

    def __init__(self, server, name):
        self.server = server
        self.script = server.options.path("tmp", name + ".look.sql")
        self.file = server.options.path("tmp", name + ".looks")
        self.name = name
        self.process = None

    def __enter__(self):
        with open(self.script, "w") as file:
            file.write(LOOK)
        with open(self.file, "w") as file:
            self.process = subprocess.Popen(
                [self.server.options.program("psql"), "-XAtq", "-d", "postgres", "-f", self.script],
                env=self.server.environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()

    def read(self):
        with open(self.file) as file:
            text = file.read()
        looks = [
            Look(*(float(value) if "." in value else int(value) for value in row.split("|")))
            for row in re.findall(r"^(?:-?[0-9.e+]+\|){6}[0-9.]+$", text, re.MULTILINE)
        ]
        if len(looks) < 2:
            raise Failed(f"the {self.name} did not show its views: {text[-500:]}")
        return looks


def gate_cells(looks, number, limit):
    """The last columns of the table; number: of clients that the node has."""
    first, last = looks[0], looks[-1]
    mean = {name: statistics.mean(getattr(look, name) for look in looks) for name in ("running", "active", "waiting")}
    shown = [
        max(look.running for look in looks),
        f"{mean['active']:.1f}",
        f"{mean['waiting']:.1f}",
        last.lends - first.lends,
    ]
    completed = last.completed - first.completed
    if not limit or not completed:
        return [*shown, "–", "–", "–"]
    held = mean["running"] * (last.at - first.at) * 1000 / completed
    return [
        *shown,
        f"{held:.2f}",
        f"{(last.wait_time - first.wait_time) / completed:.1f}",
        f"{(number - limit) * held / limit:.1f}",
    ]


def load_cells(found, aborted):
    return [
        f"{found.tps:.0f}",
        *(f"{value:.1f}" if value else "–" for value in (found.p50, found.p99)),
        aborted + found.failed,
    ]


def clients(options):
    wanted = max(options.clients) if options.clients else 20 if options.quick else CLIENTS
    return min(wanted, options.most_clients // 2 - 50)


def counted(options):
    return options.duration or 8


def skipped(options):
    return options.skip or 4


def estimate(options):
    return 20 + 2 * options.rounds_of() * (2 * (counted(options) + skipped(options)) + 12)


def carry_out(name, options, say):
    if not PROGRAM:
        say("no haproxy, so none of this (sudo apt-get install haproxy)")
        return
    number, slots, rows = clients(options), max(default_slots(4, options) // 2, 1), []
    with Primary(options, 2 * number + 20, SETTINGS) as primary:
        machine.write(name, options, primary)
        primary.sql("CREATE ROLE health LOGIN")
        datasets.load(primary, DATASET)
        for number_of_round in range(1, options.rounds_of() + 1):
            for limit in (0, slots):
                for row in one_run(options, primary, number, limit):
                    rows.append((number_of_round, limit or "off", *row))
                    say(
                        "round {}, limit {}, nodes: {}, port: {}, {} clients: {}/s, p50 {} ms, p99 {} ms, {} errors; "
                        "{}: at most {} running, {} active, {} waiting".format(*rows[-1])
                    )
            write(name, options, rows)


def write(name, options, rows):
    times = f"ROUNDS is {rows[-1][0]}; counted are {counted(options)} s, {skipped(options)} s after all are at work."
    report.write_table(options.path("results"), name, TITLE, __doc__.partition("\n\n")[2] + times, HEADER, rows)


def one_run(options, primary, number, limit):
    """Both loads on two nodes, then on the one that is left; rows of the table."""
    with (
        Replica(primary, options, 2 * number + 20) as replica,
        Proxy(options, primary, replica, 4 * number + 100) as proxy,
        ExitStack() as stack,
    ):
        nodes = {"primary": primary, "replica": replica}
        for node in nodes.values():
            node.configure({LIMIT: limit})
        primary.sql("VACUUM pgbench_branches", "VACUUM pgbench_tellers", "CHECKPOINT", database=DATASET)
        replica.catch_up()

        readers = stack.enter_context(load_of(options, "readers", number, proxy.address(READ_PORT)))
        writers = stack.enter_context(load_of(options, "writers", number, proxy.address(WRITE_PORT)))
        both = Stretch(options, nodes, (writers, readers))
        stack.enter_context(primary.lost())
        replica.promote()
        proxy.wait_until_leading(WRITE_PORT, recovering=False)
        again = stack.enter_context(load_of(options, "writers_again", number, proxy.address(WRITE_PORT)))
        one = Stretch(options, {"replica": replica}, (again, readers))

        for load in (writers, readers, again):
            load.finish(replica.end_sessions)
        return [*both.rows("both", ("primary", "replica"), limit), *one.rows("one", ("replica", "replica"), limit)]


def load_of(options, name, number, address):
    chosen = ["-b", "simple-update"] if name.startswith("writers") else script_file(options, "sum", DATASET, SUM)
    return Load(options, name, number, chosen, address, options.protocol, CLIENTS_PER_THREAD)


class Stretch:
    """Seconds that are counted, of writers and readers at work."""

    def __init__(self, options, nodes, loads):
        self.loads = loads
        for load in loads:
            load.wait_until_at_work()
        time.sleep(skipped(options))
        with ExitStack() as stack:
            watched = {name: stack.enter_context(Looks(node, name)) for name, node in nodes.items()}
            self.began = time.time()
            time.sleep(counted(options))
            self.ended = time.time()
            self.looks = {name: looks.read() for name, looks in watched.items()}
        for load in loads:
            load.check()
        self.aborted = [load.aborted() for load in loads]

    def rows(self, state, leads_to, limit):
        """Of the table, once the loads have ended and their logs are complete."""
        rows = []
        for port, load, aborted, node in zip(("write", "read"), self.loads, self.aborted, leads_to):
            number = sum(other.clients for other, its_node in zip(self.loads, leads_to) if its_node == node)
            found = figures.count(load.logs(), self.began, self.ended)
            rows.append(
                [
                    state,
                    port,
                    load.clients,
                    *load_cells(found, aborted),
                    node,
                    *gate_cells(self.looks[node], number, limit),
                ]
            )
        return rows
