"""The benchmarks: what goes on, on which tables, with how many clients and in which variants.

Those of a pool whose sessions run everything are in shop.py.
"""

import os

import clients
import shop
from kinds import ID, Benchmark, Group, Load, Stage, plain
from server import run

# ---------------------------------------------------------------------------
# Tables: one database each, made when first needed
# ---------------------------------------------------------------------------

ROWS = [
    *(f"CREATE TABLE {name} (id int PRIMARY KEY, v bigint NOT NULL DEFAULT 0)" for name in ("hot", "few", "many")),
    "INSERT INTO hot (id) VALUES (1)",
    "INSERT INTO few (id) SELECT generate_series(1, 60)",
    "INSERT INTO many (id) SELECT generate_series(1, {rows})",
]

COUNTERS = [
    "CREATE TABLE counters (id int PRIMARY KEY, cnt int NOT NULL)",
    "INSERT INTO counters SELECT i, 0 FROM generate_series(1, {rows}) i",
]

FACTS = [
    "CREATE TABLE dims (id int PRIMARY KEY, name text NOT NULL)",
    "INSERT INTO dims SELECT i, md5(i::text) FROM generate_series(1, {rows} / 10) i",
    "CREATE TABLE facts (dim int NOT NULL, amount int NOT NULL, note text NOT NULL)",
    """INSERT INTO facts SELECT 1 + i % ({rows} / 10), (i::bigint * 7919 % 1000003)::int, md5(i::text)
       FROM generate_series(1, {rows}) i""",
]

# A read of about 6 ms of CPU on this machine
CPUS = len(os.sched_getaffinity(0))
READS_PER_SECOND = CPUS / 0.006  # that it can do
READ = [
    """DO $$ DECLARE start timestamptz; ms float := 'infinity';
       BEGIN
           FOR n IN 1 .. 50 LOOP
               start := clock_timestamp();
               PERFORM sum(i) FROM (SELECT generate_series(1, {rows}) AS i) s;
               ms := least(ms, 1000 * extract(epoch FROM clock_timestamp() - start));
           END LOOP;
           EXECUTE format('CREATE VIEW read AS SELECT sum(i) FROM (SELECT generate_series(1, %s) AS i) s',
               ({rows} * 6 / ms)::int);
       END $$"""
]

# By name: how many rows, and statements, or none for the tables of pgbench or sysbench
DATASETS = {
    "rows": (100000, ROWS),
    "counters": (5000000, COUNTERS),
    "facts": (1000000, FACTS),
    "read": (20000, READ),
    "tpcb_10": (1000000, None),
    "sysbench": (5000, None),
    "shop": (100000, shop.TABLES),
}


def rows(dataset, options):
    return DATASETS[dataset][0] // (10 if options.quick else 1)


def make_dataset(server, dataset):
    """Makes the database unless the server has it."""
    if dataset in server.databases:
        return
    options, number, statements = server.options, rows(dataset, server.options), DATASETS[dataset][1]
    server.sql(f"CREATE DATABASE {dataset}")
    if statements:
        filled = (statement.replace("{rows}", str(number)) for statement in statements)
        server.sql(*filled, "VACUUM ANALYZE", database=dataset)
    elif dataset == "sysbench":
        address = {**server.address, "PGUSER": "postgres", "PGDATABASE": dataset}
        run([clients.SYSBENCH, *clients.TABLES, *clients.connection(address), "prepare"], env=server.environment())
    else:
        scale = str(number // 100000)
        run([options.program("pgbench"), "-i", "-q", "-s", scale, dataset], env=server.environment())
    server.databases.add(dataset)


# ---------------------------------------------------------------------------
# Loads
# ---------------------------------------------------------------------------


HOT_ROW = "UPDATE hot SET v = v + 1 WHERE id = 1;\n"
HOT_BLOCK = f"BEGIN;\n{HOT_ROW}\\sleep 1 ms\nCOMMIT;\n"
READ_MANY = "SELECT v FROM many WHERE id = :id;\n"
UPDATE_MANY = ID + "BEGIN;\nUPDATE many SET v = v + 1 WHERE id = :id;\n\\sleep 1 ms\n"
ORDER = "{}BEGIN;\n{}COMMIT;\n".format(
    "".join(f"\\set r{n} random(1, 60)\n" for n in range(4)),
    "".join(f"UPDATE few SET v = v + 1 WHERE id = :r{n};\n" for n in range(4)),
)
UPDATE_TWICE = ID + "".join(f"UPDATE counters SET cnt = cnt + {n} WHERE id = :id;\n" for n in (1, 2))
ANALYST = """\\set which random(1, 2)
\\if :which = 1
SELECT max(place) FROM (SELECT row_number() OVER (ORDER BY note, amount) AS place FROM facts) f;
\\else
SELECT substr(name, 1, 2), sum(amount), count(DISTINCT note) FROM facts JOIN dims ON dim = id GROUP BY 1;
\\endif
"""


def everybody(title, dataset, script="", *arguments):
    return plain(title, Group("all", dataset, script, arguments))


def contenders(name, number, script, *arguments):
    return Group(name, "rows" if script else "sysbench", script, arguments, number, "contenders")


def reads(name, timeout, number=0, rate=0):
    return Group(name, "read", "SELECT * FROM read", number=number, timeout=timeout, rate=rate)


def reads_open(demand):
    title = f"reads of 6 ms, {demand} times as many asked for as CPUs can do, statement_timeout=300ms"
    return plain(title, reads("all", 300, 200 * CPUS, demand * READS_PER_SECOND))


LOADS = {
    "hot_row": everybody("one row, updated by all", "rows", HOT_ROW),
    "tpcb_10": everybody("TPC-B, scale 10", "tpcb_10", "", "-b", "tpcb-like"),
    "update": everybody("two updates of a random row", "counters", UPDATE_TWICE),
    "select_only": everybody("pgbench -S, scale 10", "tpcb_10", "", "-b", "select-only"),
    "mixed": plain(
        "pgbench -N beside 4 analysts",
        Group("updates", "tpcb_10", arguments=("-b", "simple-update")),
        Group("analysts", "facts", ANALYST, number=4, protocol="simple"),
        duration=20,
    ),
    "bystanders": Load(
        "100 clients update one row, for 1 ms of client time; then 200 others come, which update random rows",
        (
            Stage("alone", (contenders("hot", 100, HOT_BLOCK),)),
            Stage("", (Group("others", "rows", f"{UPDATE_MANY}{READ_MANY}\\sleep 1 ms\nCOMMIT;\n", number=200),)),
        ),
        duration=15,
    ),
    "deadlocks": plain(
        "sysbench oltp_read_write, 2 tables of 5000 rows, pareto",
        contenders("sysbench", 100, ""),
        duration=15,
        patience=4,
    ),
    "order": plain(
        "60 clients update 4 of 60 rows in any order",
        contenders("order", 60, ORDER, "--max-tries=1000"),
        duration=15,
        patience=4,
    ),
    "impatient": plain("all clients repeat a read of 6 ms, statement_timeout=300ms", reads("all", 300)),
    "one_second": plain("the same, statement_timeout=1s", reads("all", 1000, 125 * CPUS)),
    "two_timeouts": plain(
        "half of the clients with statement_timeout=100ms, half with 5s",
        reads("short", 100, 100 * CPUS),
        reads("long", 5000, 100 * CPUS),
    ),
    "patient": plain(
        "50 clients without a timeout beside 200 with 300 ms",
        Group("patient", "read", "SELECT * FROM read;\n", number=50, protocol="simple"),
        reads("impatient", 300, 200),
    ),
    "open_1.5": reads_open(1.5),
    "open_3": reads_open(3),
    **shop.LOADS,
}

# ---------------------------------------------------------------------------
# Benchmarks
# ---------------------------------------------------------------------------

STORM = "off auto gate:2 idle_after=-1:1 idle_after=-1:2 idle_after=-1:4 pgbouncer:2"

BENCHMARKS = {
    "auto": Benchmark(
        "A limit of -1",
        "hot_row tpcb_10 update select_only",
        "off auto gate:8 gate:32 gate:128 pgbouncer:8",
        (64, 500, 1000, 4000),
    ),
    "mixed": Benchmark("Short transactions beside a few analysts", "mixed", "off auto gate:16", (100,)),
    "bystanders": Benchmark(
        "Other work beside a hot row", "bystanders", "off auto gate:4 gate:16 pool:8 pgbouncer:8 pgbouncer:32"
    ),
    "deadlocks": Benchmark("Deadlocks", "deadlocks", STORM),
    "order": Benchmark("Rows locked in any order", "order", STORM),
    "overload": Benchmark(
        "Answers in time per second, when more is asked for than CPUs can do",
        "impatient one_second two_timeouts patient open_1.5 open_3",
        "off auto gate:4 gate:16 pgbouncer:4 pgbouncer:16",
        tuple(CPUS * number for number in (2, 8, 25, 50, 100, 200, 400)),
    ),
    **shop.BENCHMARKS,
}
