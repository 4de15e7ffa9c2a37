"""What the gate changes on this machine, in a minute and a half: `make demo`.

Two loads, each with the gate off and then on (or the two VARIANTS): all sessions update one
row, and do nothing else; each session runs everything, as in the load "shop".  In the middle
of each run, pg_stat_activity tells who waits for what, and a view of the gate for which row.
"""

import contextlib
import textwrap
import threading
import time

import report
import shop
import variants
from kinds import Group, Load, Stage
from loads import make_dataset
from measure import Run, measure
from server import Server

CLIENTS, SKIP, DURATION = 300, 4, 6
LOADS = {
    "all sessions update one row": Group("alone", "shop", shop.SELL.format(1)),
    "a tenth of the transactions updates that row, the others read and update random rows": shop.beside(
        shop.HOT, number=0
    ),
}
TITLES = {
    "alone": "one row alone",
    "hot": "the row in mixed sessions",
    "reads": "reads in mixed sessions",
    "updates": "updates in mixed sessions",
}
# Those that wait to run the statement that most of them want
WAITS = """SELECT format('%s wait in the queue of the gate, %s for locks, to run: %s',
        count(*) FILTER (WHERE wait_event_type = 'Extension'),
        count(*) FILTER (WHERE wait_event_type LIKE '%Lock'), query)
    FROM pg_stat_activity WHERE usename = 'client' AND wait_event_type IN ('Lock', 'LWLock', 'Extension')
    GROUP BY query ORDER BY count(*) DESC LIMIT 1"""
HOT_SPOT = """WITH spot AS MATERIALIZED (
        SELECT *, CASE relation WHEN 'stock' THEN currtid2('stock', hottest_row) END AS place
        FROM pg_stat_admission_gate_hot_spots WHERE max_active IS NOT NULL ORDER BY waiting DESC LIMIT 1)
    SELECT format('hot spot: table %s, hot rows: %s, %s may work, %s queue; row %s has the id %s',
        relation, hot_keys, max_active, waiting, hottest_row, coalesce(id::text, '?'))
    FROM spot LEFT JOIN stock ON ctid = place"""


def show_waits(server, say):
    say("    " + (server.sql(WAITS) or "nobody waits"))
    # Each update moves the row, and its trail may be cut off.  Looks again.
    end = time.monotonic() + 2
    while (spot := server.sql(HOT_SPOT, database="shop")).endswith("?") and time.monotonic() < end:
        time.sleep(0.05)
    if spot:
        say("    " + spot)


def carry_out(_name, options, say):
    clients = min(*(options.clients or (CLIENTS,)), options.most_clients)
    skip, duration = options.skip or SKIP, options.duration or DURATION
    both = [variants.parse(name) for name in (options.variants[:2] or ("off", "auto"))]
    found = {}

    @contextlib.contextmanager
    def watch(server):
        timer = threading.Timer(skip + duration / 2, show_waits, (server, say))
        timer.start()
        yield
        timer.join()

    with Server(options, clients) as server:
        make_dataset(server, "shop")
        server.sql("CREATE EXTENSION admission_gate", database="shop")
        for number, (title, group) in enumerate(LOADS.items(), 1):
            load = Load(title, (Stage("", (group,), watch),))
            for variant in both:
                say(f"[{number}/{len(LOADS)}] {described(variant)}, {clients} sessions: {title}")
                for row in measure(server, Run(title, load, variant, clients, 1, skip, duration)):
                    say(f"    {TITLES[row['sessions']]}: {row['tps']:.0f} per second")
                    found.setdefault(row["sessions"], []).append(row)
        say(table(*map(described, both), found))
        say(judgement(found))
        say("\n" + "\n".join(report.machine(options, server)))
    say("To look at a server of your own without making a session wait: docs/tutorial.md, A dry run.")


def described(variant):
    return "gate off" if variant.kind == "off" else f"limit of {variant.number}" if variant.number > 0 else "limit -1"


def table(first, second, found):
    figures = ("per_s", "p50_ms", "p99_ms")
    lines = [f"\n{'':25}   {first:28}   {second}"]
    lines.append(" ".join([f"{'':25} ", *(f"{name:>9}" for name in figures * 2)]))
    for sessions, rows in found.items():
        values = [row.get(column) for row in rows for column in ("tps", "p50_ms", "p99_ms")]
        cells = (f"{'-' if value is None else report.number(value):>9}" for value in values)
        lines.append(" ".join([f"{TITLES[sessions]:25} ", *cells]))
    return "\n".join(lines)


def judgement(found):
    """What the figures say, in a sentence"""
    better, worse, same = "Better with the gate (times the figure without)", "worse", "the same, give or take 15 %"
    said = {better: [], worse: [], same: []}
    for sessions, (off, on) in found.items():
        figures = {better: [], worse: [], same: []}
        for name, column, sign in (("throughput", "tps", 1), ("p50", "p50_ms", -1), ("p99", "p99_ms", -1)):
            if off.get(column) and on.get(column):
                times = on[column] / off[column]
                verdict = better if times**sign > 1.15 else worse if times**sign < 1 / 1.15 else same
                figures[verdict].append(f"{name} {times:.2f}")
        for verdict, some in figures.items():
            said[verdict] += [f"{TITLES[sessions]} ({', '.join(some)})"] if some else []
    text = "; ".join(f"{verdict}: {', '.join(what) or 'nothing'}" for verdict, what in said.items())
    return "\n" + textwrap.fill(text + ".  So short a run shows a direction, no more.", 100)
