"""The benchmarks: what goes on, on which tables, with how many clients and in which variants.

Those of a pool whose sessions run everything are in shop.py.
"""

import clients
import disturbances as d
import shop
from kinds import ID, Benchmark, Group, Load, Stage, plain
from server import run

# ---------------------------------------------------------------------------
# Tables: one database each, made when first needed
# ---------------------------------------------------------------------------

ROWS = [
    *(f"CREATE TABLE {name} (id int PRIMARY KEY, v bigint NOT NULL DEFAULT 0)" for name in ("hot", "few", "many")),
    "INSERT INTO hot (id) VALUES (1), (2)",
    "INSERT INTO few (id) SELECT generate_series(1, 60)",
    "INSERT INTO many (id) SELECT generate_series(1, {rows})",
]

COUNTERS = [
    "CREATE TABLE counters (id int PRIMARY KEY, cnt int NOT NULL)",
    "INSERT INTO counters SELECT i, 0 FROM generate_series(1, {rows}) i",
]

# About 1.6 kB each, below the size from which values are compressed.
JSON = [
    "CREATE TABLE test (id int PRIMARY KEY, info jsonb NOT NULL)",
    """INSERT INTO test SELECT i, jsonb_build_object('id', i, 'name', md5(i::text),
           'tags', jsonb_build_array('new', 'red', i % 100), 'text', repeat(md5(i::text), 46))
       FROM generate_series(1, {rows}) i""",
]

FACTS = [
    "CREATE TABLE dims (id int PRIMARY KEY, name text NOT NULL)",
    "INSERT INTO dims SELECT i, md5(i::text) FROM generate_series(1, {rows} / 10) i",
    "CREATE TABLE facts (dim int NOT NULL, amount int NOT NULL, note text NOT NULL)",
    """INSERT INTO facts SELECT 1 + i % ({rows} / 10), (i::bigint * 7919 % 1000003)::int, md5(i::text)
       FROM generate_series(1, {rows}) i""",
]

# By name: how many rows, and statements, or none for the tables of pgbench or sysbench
DATASETS = {
    "rows": (100000, ROWS),
    "counters": (5000000, COUNTERS),
    "json": (200000, JSON),
    "facts": (1000000, FACTS),
    "tpcb_10": (1000000, None),
    "tpcb_100": (10000000, None),
    "sysbench": (5000, None),
    "postgres": (0, None),
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
THINKING = "BEGIN;\nUPDATE hot SET v = v + 1 WHERE id = 2;\n\\sleep 20 ms\nCOMMIT;\n"
READ_MANY = "SELECT v FROM many WHERE id = :id;\n"
UPDATE_MANY = ID + "BEGIN;\nUPDATE many SET v = v + 1 WHERE id = :id;\n\\sleep 1 ms\n"
TENTH = f"\\set which random(1, 10)\n\\if :which = 1\n{HOT_BLOCK}\\else\n{UPDATE_MANY}COMMIT;\n\\endif\n"
FOUR = range(4)
ORDER = "{}BEGIN;\n{}COMMIT;\n".format(
    "".join(f"\\set r{n} random(1, 60)\n" for n in FOUR),
    "".join(f"UPDATE few SET v = v + 1 WHERE id = :r{n};\n" for n in FOUR),
)
RETRY = HOT_ROW.strip()

UPDATE_TWICE = ID + "".join(f"UPDATE counters SET cnt = cnt + {n} WHERE id = :id;\n" for n in (1, 2))
ANALYST = """\\set which random(1, 2)
\\if :which = 1
SELECT max(place) FROM (SELECT row_number() OVER (ORDER BY note, amount) AS place FROM facts) f;
\\else
SELECT substr(name, 1, 2), sum(amount), count(DISTINCT note) FROM facts JOIN dims ON dim = id GROUP BY 1;
\\endif
"""
ALL_DIFFERENT = "\\set more random(1, 1000000)\nSELECT count(DISTINCT amount + :more) FROM facts;\n"
# A millisecond or seconds, by what "most" is
FILLERS = "SELECT count(DISTINCT filler) FROM pgbench_accounts WHERE aid <= :most;\n"
LOCKER = f"""\\set bid random(1, 10)
\\set most 200000
BEGIN;
UPDATE pgbench_branches SET filler = filler WHERE bid = :bid;
{FILLERS}COMMIT;
"""
TELLER = "\\set tid random(1, 100)\n{} WHERE tid = :tid;\n"

TPCB = Group("all", "tpcb_10", arguments=("-b", "tpcb-like"))
SHORT = Group("updates", "tpcb_10", arguments=("-b", "simple-update"))
ONE_BRANCH = Group("row", "tpcb_10", "UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\n")
ACCOUNTS = Group("updates", "tpcb_10", ID + "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :id;\n")
TELLERS = Group("tellers", "tpcb_10", TELLER.format("UPDATE pgbench_tellers SET tbalance = tbalance + 1"))
READ_TELLERS = Group("readers", "tpcb_10", TELLER.format("SELECT tbalance FROM pgbench_tellers"))
READ_ACCOUNTS = Group("reads", "tpcb_10", ID + "SELECT abalance FROM pgbench_accounts WHERE aid = :id;\n")
READERS = Group("readers", "rows", f"{ID}{READ_MANY}\\sleep 5 ms\n", number=4)
OTHERS = Group("others", "rows", f"{UPDATE_MANY}{READ_MANY}\\sleep 1 ms\nCOMMIT;\n", number=200)


def everybody(dataset, script="", *arguments, protocol=""):
    return Group("all", dataset, script, arguments, protocol=protocol)


def long_ones(name, dataset, script, number=4):
    return Group(name, dataset, script, number=number, pool="analysts", protocol="simple")


def contenders(name, number, script, *arguments):
    return Group(name, "rows" if script else "sysbench", script, arguments, number, "contenders")


def stuck_row(setting, statements):
    stage = Stage("", (READERS,), d.stuck(setting, statements))
    return Load(f"4 clients read a table beside a stuck row, {setting}", (stage,))


def disturbed(title, happens, *groups):
    stages = (Stage("before", groups), Stage("while", (), happens), Stage("after", ()))
    return Load(title, stages, duration=8)


LOADS = {
    "hot_row": plain("one row, updated by all", everybody("rows", HOT_ROW)),
    "hot_row_block": plain("one row, inside BEGIN ... COMMIT", everybody("rows", f"BEGIN;\n{HOT_ROW}COMMIT;\n")),
    "tpcb_10": plain("TPC-B, scale 10", TPCB),
    "tpcb_100": plain("TPC-B, scale 100", everybody("tpcb_100", "", "-b", "tpcb-like")),
    # Commits wait for the disk one by one, so what writes gets more slots than what only needs CPU.
    "update": plain("two updates of a random row", everybody("counters", UPDATE_TWICE), slots_per_core=8),
    # With fewer slots, 500 clients lose a quarter: docs/sizing.md.
    "select_only": plain("pgbench -S, scale 10", everybody("tpcb_10", "", "-b", "select-only"), slots_per_core=16),
    "json": plain(
        "updates of 1.6 kB of jsonb, random rows",
        everybody("json", ID + "UPDATE test SET info = info WHERE id = :id;\n"),
        slots_per_core=8,
    ),
    "connect_new": plain(
        "SELECT 1, a new connection each time", everybody("postgres", "SELECT 1;\n", "-C", protocol="extended")
    ),
    "connect_kept": plain("SELECT 1, lasting connections", everybody("postgres", "SELECT 1;\n", protocol="extended")),
    "mixed": plain("pgbench -N beside 4 analysts", SHORT, long_ones("analysts", "facts", ANALYST), duration=20),
    "many_long": plain(
        "pgbench -N beside 200 long statements, all different",
        SHORT,
        long_ones("long", "facts", ALL_DIFFERENT, 200),
        duration=10,
    ),
    "same_text": plain(
        "a count of 300 rows, beside 4 of a million by the same statement",
        Group("short", "tpcb_10", "\\set most 300\n" + FILLERS),
        long_ones("long", "tpcb_10", "\\set most 1000000\n" + FILLERS),
        duration=10,
    ),
    "lockers": plain(
        "TPC-B beside 4 long statements in transactions that have locked a row of it",
        TPCB,
        long_ones("long", "tpcb_10", LOCKER),
        duration=10,
    ),
    "bystanders": Load(
        "100 clients update one row, for 1 ms of client time; then 200 others come, which update random rows",
        (Stage("alone", (contenders("hot", 100, HOT_BLOCK),)), Stage("", (OTHERS,))),
        duration=15,
    ),
    "two_rows": plain(
        "60 clients update one row, 60 a row of another table, for 20 ms of client time",
        contenders("lone", 60, "UPDATE few SET v = v + 1 WHERE id = 1;\n"),
        contenders("thinking", 60, THINKING),
        duration=15,
    ),
    "tenth": plain(
        "every tenth transaction of 200 clients updates one row, the others random rows",
        contenders("all", 200, TENTH),
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
    **{f"lock_{ms}": stuck_row(f"lock_timeout={ms}", RETRY) for ms in (80, 150, 1000)},
    "statement": stuck_row("statement_timeout=2s", RETRY),
    "savepoint": stuck_row("lock_timeout=80", f"BEGIN; SAVEPOINT s;\n{RETRY}\nROLLBACK TO s; COMMIT;"),
    "hog": disturbed("updates of random rows; two busy loops for each CPU", d.hog, ACCOUNTS),
    "checkpoint": disturbed("the same; checkpoints", d.again_and_again("tpcb_10", "CHECKPOINT"), ACCOUNTS),
    "analyze": disturbed("the same; ANALYZE", d.again_and_again("tpcb_10", "ANALYZE pgbench_accounts"), ACCOUNTS),
    "table_lock": disturbed(
        "half update random rows, half read a table, which an idle transaction locks",
        d.session("tpcb_10", "BEGIN;", "LOCK TABLE pgbench_tellers;"),
        ACCOUNTS,
        READ_TELLERS,
    ),
    "row_locks": disturbed(
        "half update random rows, half those of another table, all of which an idle transaction locks",
        d.session("tpcb_10", "BEGIN;", "UPDATE pgbench_tellers SET tbalance = tbalance;"),
        ACCOUNTS,
        TELLERS,
    ),
    "core": disturbed("one row updated by all; the server loses all CPUs but one", d.one_core, ONE_BRANCH),
    "phases": Load(
        "half update one row, half read, in turn: readers (before), updates (while, after)",
        (
            Stage("before", (ONE_BRANCH, READ_ACCOUNTS), d.still("row")),
            Stage("while", (), d.still("reads")),
            Stage("after", (), d.still("reads")),
        ),
        duration=8,
    ),
    **shop.LOADS,
}

# ---------------------------------------------------------------------------
# Benchmarks
# ---------------------------------------------------------------------------


PEERS = "off auto gate pgbouncer:8 limit"
CONTEND = "off auto gate:4 gate:16 pool:8 pgbouncer:8 pgbouncer:32"
STORM = "off auto gate:2 lend_after=-1:1 lend_after=-1:2 lend_after=-1:4 pgbouncer:2"

BENCHMARKS = {
    "hot_row": Benchmark("Everybody updates one row", "hot_row hot_row_block", (8, 64, 500, 4000), PEERS),
    "tpcb": Benchmark("TPC-B", "tpcb_10 tpcb_100", (4, 64, 500, 1000, 4000), PEERS),
    "update": Benchmark("Updates of random rows", "update", (500, 2000, 8000), "off auto gate pgbouncer:16 limit"),
    "select_only": Benchmark("Short reads", "select_only", (4, 64, 500, 1000, 4000), PEERS),
    "json": Benchmark("Updates of documents", "json", (32, 1000), "off auto gate limit"),
    "connect": Benchmark(
        "The start of a connection", "connect_new connect_kept", (88,), "without off auto gate pgbouncer:8"
    ),
    "mixed": Benchmark("Short transactions beside a few analysts", "mixed", (100,), "off auto gate pools"),
    "long": Benchmark(
        "Long statements step aside",
        "mixed many_long same_text lockers",
        (100,),
        "off auto long_after=-1:-1 pools:-1 gate:16 pools:16",
    ),
    "auto": Benchmark(
        "A limit of -1",
        "hot_row hot_row_block tpcb_10 update select_only json connect_new mixed",
        (64, 500, 1000, 4000),
        "off auto gate:8 gate:32 gate:128",
    ),
    "bystanders": Benchmark("Other work beside a hot row", "bystanders", (), CONTEND),
    "two_rows": Benchmark("Two hot rows", "two_rows", (), CONTEND),
    "tenth": Benchmark("A row that is wanted now and then", "tenth", (), CONTEND),
    "stuck_row": Benchmark(
        "A stuck row", "lock_80 lock_150 lock_1000 statement savepoint", (), "off auto gate:4 pool:4"
    ),
    "deadlocks": Benchmark("Deadlocks", "deadlocks", (), STORM),
    "order": Benchmark("Rows locked in any order", "order", (), STORM),
    "disturbed": Benchmark(
        "A limit of -1, disturbed", "hog checkpoint analyze table_lock row_locks core phases", (300,), "off auto"
    ),
    **shop.BENCHMARKS,
}
