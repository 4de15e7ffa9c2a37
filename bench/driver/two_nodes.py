"""A primary and a physical replica behind HAProxy, a gate on each.

HAProxy has a port for writers, which leads to the primary, and one for readers,
which leads to the replica (to the primary only if that is down).  CLIENTS writers
run pgbench's simple updates at scale 10, and as many readers sum up 5000 of its
accounts, all at the same time.  In each of ROUNDS rounds, the limit of both nodes is first off and
then on, and DURATION seconds are counted.  Five times a second, each node is asked
for what its views show.

Everything is on one machine, over Unix sockets; the nodes share its cores, so each
gets half of the slots.
"""

import os
import re
import shutil
import statistics
import subprocess
import time
from contextlib import ExitStack

import datasets
import figures
import report
from measure import LIMIT, script_file
from pgbench import Load
from plan import default_slots
from server import Failed, Server, run

TITLE = "Two nodes behind HAProxy"
HEADER = ("round", "limit", "node", "clients", "tps", "p50 ms", "p99 ms", "errors",
          "running, most", "at work, mean", "waiting, mean")
CLIENTS = 200
DATASET = "tpcb_10"
PROGRAM = shutil.which("haproxy")
WRITE_PORT, READ_PORT = "6000", "6001"

SETTINGS = [("wal_keep_size", "1GB"), ("hot_standby_feedback", "on"), ("wal_receiver_status_interval", "1s")]

PROXY = """
global
    maxconn {connections}
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout check 30s
    option pgsql-check user health
listen write
    bind unix@{directory}/.s.PGSQL.{write_port} mode 600
    server primary unix@{directory}/.s.PGSQL.{primary} check
listen read
    bind unix@{directory}/.s.PGSQL.{read_port} mode 600
    server replica unix@{directory}/.s.PGSQL.{replica} check
    server primary unix@{directory}/.s.PGSQL.{primary} check backup
"""

SUM = """\\set first random(1, {rows} - 5000)
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :first AND :first + 4999;
"""

# At work is who is active and not in the queue: with the gate off as well, where
# nobody is counted as running.
LOOK = """SELECT g.running, (SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()) - g.waiting, g.waiting
FROM pg_stat_admission_gate g \\watch 0.2
"""


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

    def catch_up(self):
        lsn = self.primary.sql("SELECT pg_current_wal_lsn()")
        if not self.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'", "t", 300):
            raise Failed("the replica does not catch up")


class Proxy:
    def __init__(self, options, primary, replica, connections):
        self.options = options
        self.primary = primary
        self.settings = PROXY.format(
            connections=connections, directory=primary.address["PGHOST"], write_port=WRITE_PORT, read_port=READ_PORT,
            primary=primary.address["PGPORT"], replica=replica.address["PGPORT"])
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
            self.process = subprocess.Popen([program, "-db", "-f", configuration], stdin=subprocess.DEVNULL,
                                            stdout=file, stderr=file)
        try:
            for port in (WRITE_PORT, READ_PORT):
                self.wait_until_ready(port)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()

    def wait_until_ready(self, port):
        """Whether the port leads to the node that it is for."""
        expected = "t" if port == READ_PORT else "f"
        command = [self.options.program("psql"), "-XAtqc", "SELECT pg_is_in_recovery()"]
        for _ in range(100):
            done = subprocess.run(command, env={**os.environ, **self.address(port)}, text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.stdout.strip() == expected:
                return
            time.sleep(0.1)
        raise Failed(f"HAProxy does not lead to the right node: {done.stdout}{done.stderr}")


class Looks:
    """What the views of a node show from time to time."""

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
                env=self.server.environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()

    def rows(self):
        with open(self.file) as file:
            text = file.read()
        found = [tuple(map(int, row)) for row in re.findall(r"^(\d+)\|(-?\d+)\|(\d+)$", text, re.MULTILINE)]
        if not found:
            raise Failed(f"the {self.name} did not show its views: {text[-500:]}")
        return found


def clients(options):
    wanted = max(options.clients) if options.clients else 20 if options.quick else CLIENTS
    return min(wanted, options.most_clients // 2 - 50)


def counted(options):
    return options.duration or 10


def skipped(options):
    return options.skip or 5


def estimate(options):
    return 20 + 2 * options.rounds * (counted(options) + skipped(options) + 6)


def carry_out(name, options, say):
    if not PROGRAM:
        say("no haproxy, so none of this (sudo apt-get install haproxy)")
        return
    number, slots, rows = clients(options), max(default_slots(4, options) // 2, 1), []
    with Server(options, number + 20, SETTINGS) as primary:
        primary.sql("CREATE ROLE health LOGIN")
        datasets.load(primary, DATASET)
        with Replica(primary, options, number + 20) as replica, \
                Proxy(options, primary, replica, 2 * number + 100) as proxy:
            for number_of_round in range(1, options.rounds + 1):
                for limit in (0, slots):
                    for row in one_run(options, (primary, replica), proxy, number, limit):
                        rows.append((number_of_round, limit or "off", *row))
                        say("round {}, limit {}, {}, {} clients: {}/s, p50 {} ms, p99 {} ms, {} errors; "
                            "at most {} running, on average {} at work, {} waiting".format(*rows[-1]))
    report.write_table(options.path("results"), name, TITLE, __doc__.partition("\n\n")[2].strip(), HEADER, rows)


def one_run(options, nodes, proxy, number, limit):
    """Both loads at once; for each node what came of it."""
    primary, replica = nodes
    for node in nodes:
        node.configure({LIMIT: limit})
    primary.sql("VACUUM pgbench_branches", "VACUUM pgbench_tellers", "CHECKPOINT", database=DATASET)
    replica.catch_up()
    loads = [Load(options, "writers", number, ["-b", "simple-update"], proxy.address(WRITE_PORT), options.protocol),
             Load(options, "readers", number, script_file(options, "sum", DATASET, SUM),
                  proxy.address(READ_PORT), options.protocol)]
    with ExitStack() as stack:
        for load in loads:
            stack.enter_context(load)
        for load in loads:
            load.wait_until_at_work()
        time.sleep(skipped(options))
        began = time.time()
        with Looks(primary, "primary") as of_primary, Looks(replica, "replica") as of_replica:
            time.sleep(counted(options))
            ended = time.time()
        outcomes = []
        for load, node in zip(loads, nodes):
            load.check()
            errors = load.aborted()
            load.finish(node.end_sessions)
            outcomes.append((figures.count(load.logs(), began, ended), errors))
    for node in nodes:
        node.end_sessions()
    return [row(node, number, outcome, looks.rows())
            for node, outcome, looks in zip(("primary", "replica"), outcomes, (of_primary, of_replica))]


def row(node, number, outcome, looks):
    found, errors = outcome
    running, at_work, waiting = zip(*looks)
    return (node, number, f"{found.tps:.0f}", *(f"{value:.1f}" if value else "–" for value in (found.p50, found.p99)),
            errors + found.failed, max(running), f"{statistics.mean(at_work):.1f}", f"{statistics.mean(waiting):.1f}")
