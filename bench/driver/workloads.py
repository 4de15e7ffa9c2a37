"""The benchmarks: which workloads, at how many clients, in which variants.

A workload is what pgbench runs on one of the datasets; what stands beside it
(sleepers, analysts) is started first and not counted, or counted apart.  Why these,
and what was published of them, is in bench/README.md.
"""

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    name: str  # in WORKLOADS, tables and file names
    title: str
    dataset: str
    script: str = ""  # for pgbench; {rows} as in the dataset
    builtin: str = ""  # or one of its own
    trick: str = ""  # the script of the variant "trick"
    vacuum: tuple = ()  # tables to be vacuumed before each run
    protocol: str = ""  # if the workload prescribes it
    reconnect: bool = False  # a new connection for each transaction
    beside: str = ""  # a key of BESIDE
    slots_per_core: int = 4

    @property
    def has_blocks(self):
        """Whether its transactions are of several statements."""
        return "BEGIN" in self.script or self.builtin in ("tpcb-like", "simple-update")


@dataclass(frozen=True)
class Beside:
    """What else goes on.  If its clients are 0, it has the run's number of clients,
    and the workload the benchmark's foreground.  What sleeps enters before the
    limit is set, and then lends its slots."""

    dataset: str
    script: str
    clients: int
    counted: bool = False
    sleeps: bool = False
    pool: str = ""  # that its sessions belong to, if it is defined
    settings: tuple = ()  # that the gate needs for it, of (name, value)


@dataclass(frozen=True)
class Benchmark:
    title: str
    clients: tuple
    runs: tuple  # of (workload, variants)
    duration: int = 5
    foreground: int = 0  # the fixed number of clients, beside those that vary
    long: bool = False  # a quick run has the first workload only


ANALYST = """\\set which random(1, 2)
\\if :which = 1
SELECT max(place) FROM (SELECT row_number() OVER (ORDER BY note, amount) AS place FROM facts) f;
\\else
SELECT substr(name, 1, 2), sum(amount), count(DISTINCT note) FROM facts JOIN dims ON dim = id GROUP BY 1;
\\endif
"""

# A millisecond or seconds, by what "most" is
COUNT_FILLERS = "SELECT count(DISTINCT filler) FROM pgbench_accounts WHERE aid <= :most;\n"

BESIDE = {
    "sleepers": Beside("tpcb_10", "SELECT pg_sleep(2000);\n", 0, sleeps=True),
    "analysts": Beside("facts", ANALYST, 4, counted=True, pool="analysts"),
    "serial_analysts": Beside(
        "facts", "SET max_parallel_workers_per_gather = 0;\n" + ANALYST, 4, counted=True, pool="analysts"
    ),
    "many_long": Beside(
        "facts",
        """\\set more random(1, 1000000)
SELECT count(DISTINCT amount + :more) FROM facts;
""",
        200,
        counted=True,
        pool="analysts",
    ),
    "same_text": Beside("tpcb_10", "\\set most 1000000\n" + COUNT_FILLERS, 4, counted=True, pool="analysts"),
    "lockers": Beside(
        "tpcb_10",
        """\\set bid random(1, 10)
\\set most 200000
BEGIN;
UPDATE pgbench_branches SET filler = filler WHERE bid = :bid;
"""
        + COUNT_FILLERS
        + "COMMIT;\n",
        4,
        counted=True,
        pool="analysts",
    ),
}

HOT_ROW = Workload(
    "hot_row",
    "one row, updated by all",
    "hot",
    script="UPDATE hot SET n = n + 1 WHERE id = 1;\n",
    trick="SELECT trick();\n",
    vacuum=("hot",),
)

HOT_ROW_BLOCK = Workload(
    "hot_row_block",
    "the same inside BEGIN ... COMMIT",
    "hot",
    script="BEGIN;\nUPDATE hot SET n = n + 1 WHERE id = 1;\nCOMMIT;\n",
    vacuum=("hot",),
)

# The client sleeps for as long as its messages would travel.
HOT_ROW_AWAY = Workload(
    "hot_row_away",
    "the same in BEGIN ... COMMIT, from clients 1 ms away",
    "hot",
    script="BEGIN;\n\\sleep 1 ms\nUPDATE hot SET n = n + 1 WHERE id = 1;\n\\sleep 1 ms\nCOMMIT;\n\\sleep 1 ms\n",
    vacuum=("hot",),
)

SELECT_AWAY = Workload(
    "select_away",
    "pgbench -S, from clients 1 ms away",
    "tpcb_10",
    script="\\set aid random(1, 1000000)\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n\\sleep 1 ms\n",
)

# Each run of the script updates twice.  Its commits wait for the disk, one by one,
# so it gets more slots than what only needs CPU.
UPDATE = Workload(
    "update",
    "two single-row updates, random rows",
    "counters",
    script="""\\set id random(1, {rows})
UPDATE counters SET cnt = cnt + 1 WHERE id = :id;
UPDATE counters SET cnt = cnt + 2 WHERE id = :id;
""",
    trick="\\set id random(1, {rows})\nSELECT trick(:id, 1);\nSELECT trick(:id, 2);\n",
    vacuum=("counters",),
    slots_per_core=8,
)

PGBENCH_TABLES = ("pgbench_branches", "pgbench_tellers", "pgbench_accounts")
TPCB_10 = Workload("tpcb_10", "TPC-B, scale 10", "tpcb_10", builtin="tpcb-like", vacuum=PGBENCH_TABLES)
TPCB_100 = Workload("tpcb_100", "TPC-B, scale 100", "tpcb_100", builtin="tpcb-like", vacuum=PGBENCH_TABLES)

# With fewer slots, 500 clients lose a quarter: docs/sizing.md.
SELECT_ONLY = Workload("select_only", "pgbench -S, scale 10", "tpcb_10", builtin="select-only", slots_per_core=16)

JSON = Workload(
    "json",
    "update of 1.6 kB of jsonb, random rows",
    "json",
    script="\\set id random(1, {rows})\nUPDATE test SET info = info WHERE id = :id;\n",
    vacuum=("test",),
    slots_per_core=8,
)

CONNECT_NEW = Workload(
    "connect_new",
    "SELECT 1, a new connection each time",
    "postgres",
    script="SELECT 1;\n",
    protocol="extended",
    reconnect=True,
)
CONNECT_KEPT = Workload(
    "connect_kept", "SELECT 1, lasting connections", "postgres", script="SELECT 1;\n", protocol="extended"
)

SLEEPERS = Workload(
    "sleepers", "pgbench -S beside statements that sleep", "tpcb_10", builtin="select-only", beside="sleepers"
)
MIXED = Workload(
    "mixed",
    "pgbench -N beside 4 analysts",
    "tpcb_10",
    builtin="simple-update",
    vacuum=PGBENCH_TABLES,
    beside="analysts",
)

MIXED_SERIAL = dataclasses.replace(
    MIXED, name="mixed_serial", title="the same, and no analyst has parallel workers", beside="serial_analysts"
)
MANY_LONG = dataclasses.replace(
    MIXED, name="many_long", title="pgbench -N beside 200 long statements, all different", beside="many_long"
)
SAME_TEXT = Workload(
    "same_text",
    "a count of 300 rows, beside 4 of a million by the same statement",
    "tpcb_10",
    script="\\set most 300\n" + COUNT_FILLERS,
    beside="same_text",
)
LOCKERS = dataclasses.replace(
    TPCB_10,
    name="lockers",
    title="TPC-B beside 4 long statements in transactions that have locked a row of it",
    beside="lockers",
)
ONLY_LONG = Workload("only_long", "analysts only", "facts", script=ANALYST)

POOLERS = "pgbouncer:4 pgbouncer:8 pgbouncer:16 pgbouncer2:4 pgbouncer2:8 pgbouncer2:16"
LIMITS = "off gate:2 gate:4 gate:8 gate:16 gate:32 gate:64 hot_spots=off:8 hot_spots=off:32"
AUTO = "off auto gate:8 gate:32 gate:128"
LONG = "off auto long_after=-1:-1 pools:-1 gate:16 long_after=-1:16 pools:16"
KNOBS = "off handoff_after=0 handoff_after=5 handoff_after=20 handoff_after=100"

BENCHMARKS = {
    "hot_row": Benchmark(
        "Flash sale: everybody updates one row",
        (8, 64, 500, 4000),
        ((HOT_ROW, "off gate trick pgbouncer:8 limit"), (HOT_ROW_BLOCK, "off gate pgbouncer:8 limit")),
    ),
    "update8000": Benchmark(
        "Up to 8000 clients update random rows", (500, 2000, 8000), ((UPDATE, "off gate trick pgbouncer:16 limit"),)
    ),
    "tpcb_sweep": Benchmark(
        "TPC-B and select-only, from few clients to many",
        (4, 16, 64, 500, 1000, 4000),
        (
            (TPCB_10, "off gate pgbouncer:8 pgbouncer2:8 limit"),
            (TPCB_100, "off gate limit"),
            (SELECT_ONLY, "off gate pgbouncer:8 pgbouncer2:8 limit"),
        ),
    ),
    "json": Benchmark("Updates of documents", (32, 1000), ((JSON, "off gate limit"),)),
    "connect": Benchmark(
        "The start of a connection",
        (88,),
        ((CONNECT_NEW, "without off gate pgbouncer:8"), (CONNECT_KEPT, "without off gate pgbouncer:8")),
    ),
    "sleepers": Benchmark(
        "128 clients beside thousands of sleeping statements",
        (8000,),
        ((SLEEPERS, "off gate off-alone gate-alone"),),
        foreground=128,
    ),
    "mixed": Benchmark(
        "Short transactions beside a few analysts",
        (100,),
        ((MIXED, "off gate pools off-alone gate-alone"),),
        duration=20,
    ),
    "peers": Benchmark(
        "Every pgbouncer configuration",
        (500, 1000),
        tuple(
            (workload, f"off gate {POOLERS} limit")
            for workload in (HOT_ROW, HOT_ROW_BLOCK, UPDATE, TPCB_10, SELECT_ONLY)
        ),
        long=True,
    ),
    "away": Benchmark(
        "Clients on another machine", (64, 500), ((HOT_ROW_AWAY, "off gate limit"), (SELECT_AWAY, "off gate limit"))
    ),
    "knee": Benchmark(
        "Which limit",
        (500,),
        tuple((workload, LIMITS) for workload in (HOT_ROW, TPCB_10, UPDATE, SELECT_ONLY)),
        long=True,
    ),
    "auto": Benchmark(
        "A limit of -1",
        (64, 500, 1000, 4000),
        tuple(
            (workload, AUTO) for workload in (HOT_ROW, HOT_ROW_BLOCK, TPCB_10, UPDATE, SELECT_ONLY, JSON, CONNECT_NEW)
        )
        + ((MIXED, "off auto gate:16 pools"),),
        duration=10,
        long=True,
    ),
    "long": Benchmark(
        "Long statements step aside",
        (100,),
        tuple((workload, LONG) for workload in (MIXED, MIXED_SERIAL, MANY_LONG, SAME_TEXT, LOCKERS))
        + ((SELECT_ONLY, "auto long_after=-1:-1"), (TPCB_10, "auto long_after=-1:-1")),
        duration=10,
        long=True,
    ),
    "only_long": Benchmark(
        "Nothing but long statements", (4, 16), ((ONLY_LONG, "off auto long_after=-1:-1"),), duration=20
    ),
    "knobs": Benchmark(
        "What the settings trade",
        (500,),
        tuple((workload, KNOBS) for workload in (HOT_ROW, TPCB_10, UPDATE, SELECT_ONLY)),
        long=True,
    ),
}

# Of every benchmark in a quick run, and its foreground.
QUICK_CLIENTS = 20
