"""What the gate changes on this machine, in a minute or two: `make demo`.

Two loads, each with the gate off and then on (or the two VARIANTS).  In the first, sessions
ask for more than the CPUs can do in time.  In the second, each session runs everything, as in
the load "shop", and a tenth of the transactions wants one row.  In the middle of each run, the
server tells who works and who waits, and the gate for what.
"""

import contextlib
import threading
import time

import report
import shop
import variants
from kinds import Load, Stage
from loads import CPUS, LOADS, make_dataset
from measure import Run, measure
from server import Server

SKIP, DURATION = 4, 4
# All of a load take twice as long as its time-out if each CPU has so many sessions.
OVERLOAD = 100 * CPUS
MIXED = 300
# A hot spot has a limit after a second, and the first trial of that takes some more.
PATIENCE = 2
# By the name of the group: what is counted, and what its latencies are called
ROWS = {
    "all": ("overload: answers in time", "overload: answers"),
    "hot": ("mixed: sales of the hot row", "mixed: sales of the hot row"),
    "reads": ("mixed: reads", "mixed: reads"),
    "updates": ("mixed: updates of random rows", "mixed: updates of random rows"),
}
# Give or take so much, two figures are the same.
TOLERANCE = 1.15

# With what most of those wait for that wait
SESSIONS = """SELECT format('%s sessions have or want a CPU, %s wait for locks, %s in the queue of the gate%s',
        count(*) FILTER (WHERE wait_event_type IS NULL), count(*) FILTER (WHERE wait_event_type LIKE '%Lock'),
        count(*) FILTER (WHERE wait_event_type = 'Extension'),
        ', to run: ' || mode() WITHIN GROUP (ORDER BY query)
            FILTER (WHERE wait_event_type IN ('Lock', 'LWLock', 'Extension')))
    FROM pg_stat_activity WHERE usename = 'client' AND state = 'active'"""
CPU_LIMIT = """SELECT format('short CPUs: %s may work at a time', cpu_limit)
    FROM pg_stat_admission_gate_worker WHERE cpu_limit IS NOT NULL"""
HOT_SPOT = """WITH spot AS MATERIALIZED (
        SELECT *, CASE relation WHEN 'stock' THEN currtid2('stock', last_row) END AS place
        FROM pg_stat_admission_gate_hot_spots WHERE max_active IS NOT NULL ORDER BY waiting DESC LIMIT 1)
    SELECT format('hot spot: table %s, hot rows: %s, %s may work, %s queue; row %s has the id %s',
        relation, hot_keys, max_active, waiting, last_row, coalesce(id::text, '?'))
    FROM spot LEFT JOIN stock ON ctid = place"""


def show_sessions(server, say):
    for text in server.sql(SESSIONS, CPU_LIMIT).splitlines():
        say("    " + text)
    # Each update moves the row, and its trail may be cut off.  Looks again.
    end = time.monotonic() + 2
    while (spot := server.sql(HOT_SPOT, database="shop")).endswith("?") and time.monotonic() < end:
        time.sleep(0.05)
    if spot:
        say("    " + spot)


def chosen_loads(options):
    """The two loads, each with its number of sessions and its patience."""
    overload = LOADS["impatient"].stages[0].groups[0]
    mixed = shop.beside(shop.HOT, number=0)
    for title, group, clients, patience in (
        ("each repeats a read of 6 ms, and wants its answer within 300 ms (statement_timeout)", overload, OVERLOAD, 1),
        ("a tenth of the transactions sells one thing, the others read and update random rows", mixed, MIXED, PATIENCE),
    ):
        clients = min(*(options.clients or (clients,)), options.most_clients)
        yield f"{clients} sessions: {title}", group, clients, patience


def carry_out(_name, options, say):
    skip, duration = options.skip or SKIP, options.duration or DURATION
    both = [variants.parse(name) for name in (options.variants[:2] or ("off", "auto"))]
    loads, found, number = list(chosen_loads(options)), {}, 0

    @contextlib.contextmanager
    def watch(server):
        timer = threading.Timer(skip * patience + duration / 2, show_sessions, (server, say))
        timer.start()
        yield
        timer.join()

    say("This takes a minute or two.")
    with Server(options, max(clients for _, _, clients, _ in loads)) as server:
        for dataset in ("read", "shop"):
            make_dataset(server, dataset)
        server.sql("CREATE EXTENSION admission_gate", database="shop")
        for title, group, clients, patience in loads:
            say(f"\n{title}")
            load = Load(title, (Stage("", (group,), watch),))
            for variant in both:
                number += 1
                say(f"[{number}/{len(loads) * len(both)}] {described(variant)}:")
                for row in measure(server, Run(title, load, variant, clients, 1, skip * patience, duration)):
                    say(f"    {result(row)}")
                    found.setdefault(row["sessions"], []).append(row)
        say(table(*map(described, both), found))
        say("\n" + "\n".join(report.machine(options, server)))
    say("To look at a server of your own without making a session wait: docs/tutorial.md, A dry run.")


def described(variant):
    return "gate off" if variant.kind == "off" else f"limit of {variant.number}" if variant.number > 0 else "limit -1"


def result(row):
    text = f"{ROWS[row['sessions']][0]}: {report.number(row['tps'])} per second"
    text += f"; {report.number(row['late'])} per second late" if row.get("late") else ""
    return text + (f"; failed: {row['note'].replace('57014', 'by their time-out')}" if row.get("note") else "")


def table(first, second, found):
    """A line for each figure, with what became of it"""
    lines = [f"\n{'':46}{first:>12}{second:>12}"]
    for sessions, (off, on) in found.items():
        counted, timed = ROWS[sessions]
        for name, column, sign in (
            (f"{counted}, per second", "tps", 1),
            (f"{timed}, median in ms", "p50_ms", -1),
            (f"{timed}, p99 in ms", "p99_ms", -1),
        ):
            values = [row.get(column) for row in (off, on)]
            cells = "".join(f"{'-' if value is None else report.number(value):>12}" for value in values)
            lines.append(f"{name:46}{cells}   {verdict(*values, sign)}".rstrip())
    lines.append(f"better: more per second, or fewer ms, by more than {TOLERANCE - 1:.0%}; worse: the other way round.")
    lines.append("Latencies are of what has ended: what waits for longer than a run lasts is missing.")
    lines.append("So short a run shows a direction, no more.")
    return "\n".join(lines)


def verdict(off, on, sign):
    if off is None or on is None:
        return ""
    low, high = (off, on) if sign > 0 else (on, off)
    return "better" if high > low * TOLERANCE else "worse" if low > high * TOLERANCE else "same"
