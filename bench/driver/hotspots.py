"""Loads whose sessions wait for each other, and others beside them.

Each group of sessions is counted by itself: transactions per second, as a multiple of the
gate off in the same round (the median over the rounds, and all of them), and the deadlocks
per second of all together.  Counted are 15 s (DURATION), from 5 s (SKIP; of deadlocks and
order four times as long) after the last group has come and is at work.

    bystanders   100 clients update one row, with 1 ms of client time inside the transaction;
                 "alone" is what they do until 200 others come, who update rows of their own
    two_rows     60 clients update one row, 60 another of another table and think for 20 ms
    stuck_row    an idle transaction keeps a row; 40 sessions try to update it, with
                 lock_timeout (the number, in ms), statement_timeout = 2s or, after an
                 error, ROLLBACK TO SAVEPOINT; 4 clients read another table
    deadlocks    sysbench oltp_read_write, 2 tables of 5000 rows, pareto, 100 threads
    order        60 clients update 4 of 60 rows in any order
    tenth        200 clients; every tenth transaction updates one row, the others a row of many
"""

import contextlib
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass

import datasets
import machine
import pooler
import report
import variants
from disturbed import SILENT, session
from figures import count
from measure import LIMIT, script_file
from pgbench import CLIENTS_PER_THREAD, Load
from server import Failed, Server, run

HEADER = ("load", "sessions", "variant", "per second", "of off", "rounds", "of off, rounds", "deadlocks per second")
DATASET = "hotspots"
SYSBENCH = shutil.which("sysbench")
TABLES = ["oltp_read_write", "--db-driver=pgsql", "--tables=2", "--table-size=5000", "--rand-type=pareto"]

HOT = "BEGIN;\nUPDATE hot SET v = v + 1 WHERE id = 1;\n\\sleep 1 ms\nCOMMIT;\n"
ID = "\\set id random(1, {rows})\n"
UPDATE = "UPDATE many SET v = v + 1 WHERE id = :id;\n\\sleep 1 ms\n"
OTHERS = ID + "BEGIN;\n" + UPDATE + "SELECT v FROM many WHERE id = :id;\n\\sleep 1 ms\nCOMMIT;\n"
SHORT = ID + "BEGIN;\n" + UPDATE + "COMMIT;\n"
LONE = "UPDATE few SET v = v + 1 WHERE id = 1;\n"
THINKS = "BEGIN;\nUPDATE hot SET v = v + 1 WHERE id = 2;\n\\sleep 20 ms\nCOMMIT;\n"
READ = ID + "SELECT v FROM many WHERE id = :id;\n\\sleep 5 ms\n"
RETRY = "UPDATE hot SET v = v + 1 WHERE id = 1;"
SAVEPOINT = f"BEGIN; SAVEPOINT s;\n{RETRY}\nROLLBACK TO s; COMMIT;"
ORDER = (
    "".join(f"\\set r{n} random(1, 60)\n" for n in range(4))
    + "BEGIN;\n"
    + "".join(f"UPDATE few SET v = v + 1 WHERE id = :r{n};\n" for n in range(4))
    + "COMMIT;\n"
)


@dataclass(frozen=True)
class Group:
    """Sessions of one kind.  Those that contend are in the pool of the variant "pool"."""

    name: str
    clients: int
    script: str = ""  # none: sysbench
    nine: str = ""  # another script, for nine of ten transactions
    arguments: tuple = ()
    contends: bool = True

    def start(self, options, address, keeps_statements, pooled):
        if self.contends and not pooled:
            address = {**address, "PGOPTIONS": "-c admission_gate.pool=contenders"}
        if not self.script:
            return Sysbench(options, self.name, self.clients, address, keeps_statements)
        arguments = script_file(options, self.name, DATASET, self.script)
        if self.nine:
            nine = script_file(options, self.name + "_nine", DATASET, self.nine)
            arguments = ["-f", arguments[1] + "@1", "-f", nine[1] + "@9"]
        # See measure.py for why.
        threads = 1 if pooled and keeps_statements else CLIENTS_PER_THREAD
        protocol = "prepared" if keeps_statements else "simple"
        return Load(options, self.name, self.clients, [*arguments, *self.arguments], address, protocol, threads)


class Sysbench(Load):
    """The same for sysbench, which reports each second."""

    def __init__(self, options, name, clients, address, keeps_statements):
        super().__init__(options, name, clients, (), address)
        modes = [f"--threads={clients}", "--time=100000", "--report-interval=1"]
        modes += [] if keeps_statements else ["--db-ps-mode=disable"]
        self.command = ["sh", "-c", 'exec "$0" "$@" >&2', SYSBENCH, *TABLES, *connection(address), *modes, "run"]

    def at_work(self):
        """Its first report comes a second after the start."""
        self.began = time.time() - 1
        return any("tps:" in line for line in self.messages())

    def finish(self, cut):
        self.process.kill()
        cut()

    def rate(self, start, end):
        reports = [line.split() for line in self.messages() if " tps: " in line]
        # [ 12s ] thds: 100 tps: 41.00 ...
        tps = [float(words[6]) for words in reports if start <= self.began + int(words[1][:-1]) < end]
        return statistics.mean(tps) if tps else 0.0


def connection(address):
    names = {"PGDATABASE": "db"}
    names |= {name: name[2:].lower() for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD")}
    return [f"--pgsql-{option}={address[name]}" for name, option in names.items() if name in address]


@contextlib.contextmanager
def stuck(server, setting, statements):
    """40 sessions that try to update a row which an idle transaction keeps"""
    command = [server.options.program("psql"), "-Xq", "-d", DATASET]
    environment = {
        **server.environment(),
        "PGUSER": "client",
        "PGOPTIONS": f"-c {setting} -c admission_gate.pool=contenders",
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(session(server, "BEGIN;", RETRY, database=DATASET))
        idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND backend_xid IS NOT NULL"
        if not server.wait_until(idle, "1", 30):
            raise Failed("no transaction keeps the row")
        for _ in range(40):
            source = subprocess.Popen(["yes", statements], stdout=subprocess.PIPE)
            retries = subprocess.Popen(command, env=environment, stdin=source.stdout, **SILENT)
            source.stdout.close()
            for process in (source, retries):
                stack.callback(process.wait)
                stack.callback(process.kill)
        time.sleep(1 if server.options.quick else 4)
        yield


@dataclass(frozen=True)
class Contention:
    stages: tuple  # of groups that come together
    variants: str
    patience: int = 1  # times SKIP
    beside: tuple = ()  # arguments of stuck()


def stuck_by(setting, statements=RETRY):
    readers = Group("readers", 4, READ, contends=False)
    return Contention(((readers,),), "off auto gate:4 pool:4", beside=(setting, statements))


HOT_GROUP = Group("hot", 100, HOT)
STORM = "off auto gate:2 gate:8 lend_after=-1:{} lend_after=-1:{} lend_after=-1:8 pgbouncer:{}"

# By the name of the benchmark and of the load
CONTENTIONS = {
    "bystanders": {
        "bystanders": Contention(
            ((HOT_GROUP,), (Group("others", 200, OTHERS, contends=False),)),
            "off auto gate:4 gate:16 pool:8 pgbouncer:8 pgbouncer:32",
        )
    },
    "two_rows": {
        "two_rows": Contention(
            ((Group("lone", 60, LONE), Group("thinking", 60, THINKS)),), "off auto gate:4 gate:16 pool:8 pgbouncer:8"
        )
    },
    "stuck_row": {
        **{f"lock_{ms}": stuck_by(f"lock_timeout={ms}") for ms in (80, 150, 1000)},
        "statement": stuck_by("statement_timeout=2s"),
        "savepoint": stuck_by("lock_timeout=80", SAVEPOINT),
    },
    "deadlocks": {"deadlocks": Contention(((Group("sysbench", 100),),), STORM.format(2, 4, 4), 4)},
    "order": {
        "order": Contention(((Group("order", 60, ORDER, arguments=("--max-tries=1000",)),),), STORM.format(1, 2, 1), 4)
    },
    "tenth": {
        "tenth": Contention(
            ((Group("all", 200, HOT, nine=SHORT),),), "off auto gate:16 pool:8 pgbouncer:8 pgbouncer:32"
        )
    },
}


class Benchmark:
    def __init__(self, name):
        self.contentions = CONTENTIONS[name]
        self.TITLE = "Sessions that wait for each other: " + name

    def plan(self, options):
        """For each load and round: the variants in their order"""
        for name, contention in self.contentions.items():
            if options.workloads and name not in options.workloads:
                continue
            if not SYSBENCH and name == "deadlocks":
                continue
            chosen = [variants.parse(v, 8, options.settings) for v in options.variants or contention.variants.split()]
            chosen = [v for v in chosen if not v.is_pooler or (pooler.PROGRAM and not contention.beside)]
            for number in range(options.rounds_of()):
                yield name, contention, number, chosen[:: -1 if number % 2 else 1]

    def estimate(self, options):
        return 20 + sum(
            len(chosen) * (8 + len(c.stages) * (3 + skip(c, options) + duration(options)))
            for _, c, _, chosen in self.plan(options)
        )

    def carry_out(self, name, options, say):
        found = {}
        with Server(options, 700) as server:
            datasets.load(server, DATASET)
            if name == "deadlocks" and SYSBENCH:
                address = {**server.address, "PGUSER": "postgres", "PGDATABASE": DATASET}
                run([SYSBENCH, *TABLES, *connection(address), "prepare"], env=server.environment())
            for load, contention, number, chosen in self.plan(options):
                for variant in chosen:
                    try:
                        rates = measure(server, options, contention, variant)
                    except Failed as failure:
                        say(f"{load}, {variant.name} failed: {failure}")
                        server.end_sessions()
                        continue
                    say(f"{load}, {variant.name}: " + ", ".join(f"{key} {rate:.1f}/s" for key, rate in rates.items()))
                    deadlocks = rates.pop("deadlocks")
                    for group, rate in rates.items():
                        found.setdefault((load, group, variant.name), {})[number] = rate, deadlocks
                    self.write(name, options, found)

    def write(self, name, options, found):
        text = __doc__.partition("\n\n")[2].strip()
        if any("pgbouncer" in variant for _, _, variant in found):
            text += "\n\n" + machine.pgbouncer()
        report.write_table(options.path("results"), name, self.TITLE, text, HEADER, table(found))


def skip(contention, options):
    return (options.skip or 5) * contention.patience


def duration(options):
    return options.duration or 15


def table(found):
    rows = []
    for (load, group, variant), rounds in found.items():
        rates = [rate for rate, _ in rounds.values()]
        off = found.get((load, group, "off"), {})
        ratios = [rate / off[number][0] for number, (rate, _) in rounds.items() if off.get(number, (0,))[0]]
        rows.append(
            (
                load,
                group,
                variant,
                report.number(statistics.median(rates)),
                f"{statistics.median(ratios):.2f}" if ratios else "-",
                ", ".join(map(report.number, rates)),
                ", ".join(f"{ratio:.2f}" for ratio in ratios),
                report.number(statistics.median(deadlocks for _, deadlocks in rounds.values())),
            )
        )
    groups = report.ordered(row[:2] for row in rows)
    return sorted(rows, key=lambda row: groups.index(row[:2]))


def measure(server, options, contention, variant):
    """Transactions per second of each group, and deadlocks"""
    server.configure({**dict(variant.settings), LIMIT: variant.slots} if variant.kind == "gate" else {})
    server.sql("VACUUM", "CHECKPOINT", database=DATASET)
    rates, loads = {}, {}
    with contextlib.ExitStack() as stack:
        through = server
        if variant.is_pooler:
            clients = sum(group.clients for stage in contention.stages for group in stage)
            through = pooler.Pgbouncer(options, server.address, variant.processes, variant.pool, clients)
            stack.enter_context(through)
        keeps = not variant.is_pooler or pooler.keeps_prepared_statements()
        if contention.beside:
            stack.enter_context(stuck(server, *contention.beside))
        for number, stage in enumerate(contention.stages, 1):
            for group in stage:
                load = group.start(options, {**through.address, "PGDATABASE": DATASET}, keeps, variant.is_pooler)
                loads[group.name] = stack.enter_context(load)
            for group in stage:
                loads[group.name].wait_until_at_work()
            time.sleep(skip(contention, options))
            window = time.time(), time.time() + duration(options)
            deadlocks = dead(server)
            time.sleep(duration(options))
            deadlocks = (dead(server) - deadlocks) / duration(options)
            for name, load in loads.items():
                load.check()
                rates[name if number == len(contention.stages) else f"{name}, alone"] = load, window
        for load in loads.values():
            load.finish(lambda: cut(server, through))
        rates = {name: rate(load, *bounds) for name, (load, bounds) in rates.items()}
    server.end_sessions()
    return {**rates, "deadlocks": deadlocks}


def rate(load, start, end):
    return load.rate(start, end) if isinstance(load, Sysbench) else count(load.logs(), start, end).tps


def cut(server, through):
    if through is not server:
        through.stop()
    server.end_sessions()


def dead(server):
    return int(server.sql(f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{DATASET}'"))


BENCHMARKS = {name: Benchmark(name) for name in CONTENTIONS}
