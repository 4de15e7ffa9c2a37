"""What a limit of -1 does while something else happens.

CLIENTS work with the gate off and with -1, in one order and in the other. Each run has three
parts of 8 s: before, while something goes on beside, after it. The first six disturbances are
no reason to close the gate; the limit should close for none of them. Counted are the
transactions of those that are not themselves the disturbance, per second.

    hog          updates of random rows; as many busy loops as there are CPUs, twice
    disk         the same; two processes write and flush files of their own
    checkpoint   the same; one checkpoint after the other
    analyze      the same; one ANALYZE of the table after the other
    table_lock   half of the clients update random rows, half read a table; that is locked by
                 a transaction that does nothing more, with all its readers behind it
    row_locks    half update random rows, half rows of another table, all of which an idle
                 transaction has locked
    analysts     the same; four clients sort a million rows.  They should pause for the others
    core         one row updated by all; the server loses all CPUs but one
    phases       one row updated by all, and reads, in turn: 15 s each.  Before, while and
                 after are here the last 5 s of a phase of reads, and the second and third
                 5 s of the phase of updates that follows it
"""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass

import datasets
import report
from figures import count
from measure import LIMIT, script_file
from pgbench import Load
from server import Server

TITLE = "A limit of -1, disturbed"
HEADER = (
    "disturbance",
    "clients",
    "round",
    "off: before",
    "while",
    "after",
    "-1: before",
    "while",
    "after",
    "while, of off",
    "after, of off",
    "hot spots",
)
CLIENTS = 300
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
DATASET = "tpcb_10"

UPDATE = "\\set aid random(1, 1000000)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
READ = "\\set aid random(1, 1000000)\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
ONE_ROW = "UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\n"
TELLERS = "\\set tid random(1, 100)\n"
READ_TELLER = TELLERS + "SELECT tbalance FROM pgbench_tellers WHERE tid = :tid;\n"
SORT = "SELECT max(place) FROM (SELECT row_number() OVER (ORDER BY filler, abalance, aid) AS place FROM pgbench_accounts) a"
UPDATE_TELLER = TELLERS + "UPDATE pgbench_tellers SET tbalance = tbalance + 1 WHERE tid = :tid;\n"


@contextlib.contextmanager
def processes(commands):
    running = [subprocess.Popen(command, stdin=subprocess.DEVNULL, **SILENT) for command in commands]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def hog(server):
    return processes([["sh", "-c", "while :; do :; done"]] * 2 * len(os.sched_getaffinity(0)))


def disk(server):
    files = [server.options.path("tmp", f"disk{number}") for number in range(2)]
    return processes(["dd", "if=/dev/zero", f"of={file}", "bs=64k", "count=40000", "oflag=dsync"] for file in files)


@contextlib.contextmanager
def session(server, *statements, user=None, database=DATASET):
    """A session that runs these, and then nothing for as long as this lasts; it passes
    the gate unless it has a user of its own."""
    command = [server.options.program("psql"), "-XAtq", "-d", database]
    environment = {**server.environment(), "PGAPPNAME": "disturbance"}
    if user:
        environment |= {"PGUSER": user, "PGOPTIONS": ""}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True, **SILENT)
    process.stdin.write("\n".join(statements) + "\n")
    process.stdin.flush()
    try:
        yield
    finally:
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'disturbance'")
        process.kill()
        process.communicate()


def again_and_again(server, statement, user=None):
    return session(server, statement, "\\watch 0.01", user=user)


def checkpoint(server):
    return again_and_again(server, "CHECKPOINT")


def analyze(server):
    return again_and_again(server, "ANALYZE pgbench_accounts")


def table_lock(server):
    return session(server, "BEGIN;", "LOCK TABLE pgbench_tellers;")


def row_locks(server):
    return session(server, "BEGIN;", "UPDATE pgbench_tellers SET tbalance = tbalance;")


@contextlib.contextmanager
def analysts(server):
    """Four clients that sort a million rows"""
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(again_and_again(server, SORT, user="client"))
        yield


@contextlib.contextmanager
def core(server):
    every = os.sched_getaffinity(0)
    set_affinity(server, {min(every)})
    try:
        yield
    finally:
        set_affinity(server, every)


def set_affinity(server, cpus):
    pids = server.sql("SELECT pid FROM pg_stat_activity").split()
    for pid in [server.pid, *map(int, pids)]:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(pid, cpus)


@dataclass(frozen=True)
class Disturbance:
    happens: object
    script: str
    beside: str = ""  # the script of the other half of the clients


DISTURBANCES = {
    "hog": Disturbance(hog, UPDATE),
    "disk": Disturbance(disk, UPDATE),
    "checkpoint": Disturbance(checkpoint, UPDATE),
    "analyze": Disturbance(analyze, UPDATE),
    "table_lock": Disturbance(table_lock, UPDATE, READ_TELLER),
    "row_locks": Disturbance(row_locks, UPDATE, UPDATE_TELLER),
    "analysts": Disturbance(analysts, UPDATE),
    "core": Disturbance(core, ONE_ROW),
    "phases": Disturbance(None, ONE_ROW, READ),
}


def chosen(options):
    return [name for name in DISTURBANCES if not options.workloads or name in options.workloads]


def clients(options):
    wanted = max(options.clients) if options.clients else 20 if options.quick else CLIENTS
    return min(wanted, options.most_clients)


def part(options):
    return options.duration or 8


def estimate(options):
    return 20 + 2 * options.rounds_of() * len(chosen(options)) * (4 * part(options) + 6)


def carry_out(name, options, say):
    rows = []
    with Server(options, clients(options) + 20) as server:
        datasets.load(server, DATASET)
        for disturbance in chosen(options):
            for number in range(1, options.rounds_of() + 1):
                limits = (0, -1) if number % 2 else (-1, 0)
                found = {limit: run(server, options, disturbance, limit) for limit in limits}
                row = row_of(disturbance, clients(options), number, found)
                say(", ".join(f"{title} {value}" for title, value in zip(HEADER, row, strict=True)))
                rows.append(row)
    report.write_table(options.path("results"), name, TITLE, __doc__.partition("\n\n")[2].strip(), HEADER, rows)


def row_of(disturbance, number_of_clients, number, found):
    off, auto = found[0][0], found[-1][0]
    ratios = [f"{auto[i] / off[i]:.2f}" if off[i] else "-" for i in (1, 2)]
    rates = [f"{rate:.0f}" for rate in (*off, *auto)]
    return (disturbance, number_of_clients, number, *rates, *ratios, found[-1][1])


def run(server, options, name, limit):
    """Transactions per second of the three parts, and how many hot spots had a limit at the end."""
    disturbance = DISTURBANCES[name]
    server.configure({LIMIT: limit} if limit else {})
    server.sql("VACUUM pgbench_branches", "VACUUM pgbench_tellers", "CHECKPOINT", database=DATASET)
    number = clients(options) // (2 if disturbance.beside else 1)
    with contextlib.ExitStack() as stack:
        beside = disturbance.beside and start(stack, server, options, "beside", disturbance.beside, number)
        load = start(stack, server, options, "clients", disturbance.script, number)
        # Not one after the other: the first would leave the second no CPU to connect.
        for each in filter(None, (beside, load)):
            each.wait_until_at_work()
        time.sleep(1 if options.quick else 6)
        if disturbance.happens:
            bounds = disturb(server, disturbance, part(options))
            counted = [load, load, load]
        else:
            bounds = alternate(load, beside, 2 if options.quick else 5)
            counted = [beside, load, load]
        limits = server.sql("SELECT count(max_active) FROM pg_stat_admission_gate_hot_spots")
        load.finish(server.end_sessions)
        if beside:
            beside.finish(server.end_sessions)
        rates = [count(each.logs(), *bound).tps for each, bound in zip(counted, bounds, strict=True)]
    server.end_sessions()
    return rates, limits


def start(stack, server, options, name, script, number):
    address = {**server.address, "PGDATABASE": DATASET}
    load = stack.enter_context(
        Load(options, name, number, script_file(options, name, DATASET, script), address, "prepared")
    )
    return load


def disturb(server, disturbance, seconds):
    times = [time.time()]
    time.sleep(seconds)
    times.append(time.time())
    with disturbance.happens(server):
        time.sleep(seconds)
        times.append(time.time())
    began = time.time()
    time.sleep(seconds)
    return [(times[0], times[1]), (times[1], times[2]), (began, time.time())]


def alternate(load, beside, seconds):
    """Let the one and the other work in turn, by stopping pgbench: its sessions then have nothing to do."""
    load.process.send_signal(signal.SIGSTOP)
    time.sleep(2 * seconds)
    reads = (time.time(), time.time() + seconds)
    time.sleep(seconds)
    load.process.send_signal(signal.SIGCONT)
    beside.process.send_signal(signal.SIGSTOP)
    began = time.time()
    time.sleep(3 * seconds)
    beside.process.send_signal(signal.SIGCONT)
    return [reads, (began + seconds, began + 2 * seconds), (began + 2 * seconds, began + 3 * seconds)]
