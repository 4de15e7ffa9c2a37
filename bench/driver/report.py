"""The results of a benchmark: NAME.csv with a line for each run, stage and group of
sessions, and NAME.md with medians over the rounds, their ranges, and ratios.

Ratios are between runs of the same round, which were neighbours in time: the machine may be
slower in another round.  Each run writes both files anew.
"""

import csv
import os
import statistics

import pooler

COLUMNS = (
    *("load", "sessions", "clients", "variant", "round", "tps", "avg_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"),
    *("cpu_us", "deadlocks", "errors", "note"),
)
HEADER = (
    *("load", "sessions", "clients", "variant", "per second", "of off", "avg ms", "p50", "p95", "p99"),
    *("p99 of off", "max", "CPU µs/tx", "deadlocks/s", "errors"),
)


class Results:
    def __init__(self, options, name, title, measured):
        self.path = options.path("results", name)
        self.head = head(name, title, measured)
        self.rows = []

    def add(self, rows):
        self.rows += rows
        with open(self.path + ".csv", "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows({name: short(value) for name, value in row.items()} for row in self.rows)
        with open(self.path + ".md", "w") as file:
            file.write(self.head + table(HEADER, table_rows(self.rows)))


def head(name, title, measured):
    measured = "\n".join(measured).replace("\n", "\n    ")
    return f"# {name}\n\n{title}.  How to read it: bench/README.md.\n\n    {measured}\n\n"


def short(value):
    return f"{value:.6g}" if isinstance(value, float) else value


def table(header, rows):
    cells = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in cells)


def table_rows(rows):
    """One for each load, group of sessions and variant"""
    found = {}
    for row in rows:
        found.setdefault((row["load"], row["clients"], row["sessions"]), {}).setdefault(row["variant"], []).append(row)
    for (load, clients, sessions), variants in found.items():
        for variant, mine in variants.items():
            off = variants.get("off", [])
            yield (
                *(load, sessions, clients, variant),
                with_range(mine, "tps"),
                with_all(ratios(mine, off, "tps")),
                *(median(mine, column) for column in ("avg_ms", "p50_ms", "p95_ms")),
                with_range(mine, "p99_ms"),
                middle(ratios(mine, off, "p99_ms"), "{:.2f}".format),
                *(median(mine, column) for column in ("max_ms", "cpu_us", "deadlocks")),
                sum(row.get("errors") or 0 for row in mine),
            )


def values(rows, column):
    return [row[column] for row in rows if row.get(column) is not None]


def number(value):
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def middle(found, form):
    return form(statistics.median(found)) if found else "–"


def median(rows, column):
    return middle(values(rows, column), number)


def with_range(rows, column):
    found = values(rows, column)
    return f"{median(rows, column)} ({number(min(found))}–{number(max(found))})" if found else "–"


def with_all(found):
    return middle(found, "{:.2f}".format) + (f" ({', '.join(f'{ratio:.2f}' for ratio in found)})" if found else "")


def ratios(mine, off, column):
    """One for each round that has both."""
    base = {row["round"]: row.get(column) for row in off}
    return [row[column] / base[row["round"]] for row in mine if row.get(column) is not None and base.get(row["round"])]


# ---------------------------------------------------------------------------
# What it was measured on and with
# ---------------------------------------------------------------------------


def machine(options, server=None, runs=()):
    """Lines of text."""
    commit = os.environ.get("COMMIT") or "no version known"
    text = [f"Measured {os.environ['MACHINE']}", scheduling(), f"Source: {commit}."]
    if server:
        text.append(f"Settings other than the default: {server.differing_settings()}.")
    if runs:
        rounds, seconds, skipped = (
            spread({getattr(run, name) for run in runs}) for name in ("round", "duration", "skip")
        )
        text.append(f"Round {rounds}; counted {seconds} s, after {skipped} s in which all clients are at work.")
        text += [f"{name}: {load.title}." for name, load in {run.name: run.load for run in runs}.items()]
    if any(run.variant.kind == "pgbouncer" for run in runs):
        keeps = "" if pooler.keeps_statements() else ", without prepared statements"
        text.append("pgbouncer {}.{}{}.".format(*pooler.version(), keeps))
    if options.quick:
        text.append("A quick run: it shows that the benchmark works, the figures mean nothing.")
    return text


def spread(numbers):
    low, high = min(numbers), max(numbers)
    return f"{low} to {high}" if low < high else str(low)


def scheduling():
    path = "/proc/sys/kernel/sched_autogroup_enabled"
    if os.path.exists(path):
        with open(path) as file:
            if file.read().strip() == "1":
                return "The kernel shares the CPU by sessions: each backend counts as much as the whole of pgbench."
    return "The kernel shares the CPU by processes."
