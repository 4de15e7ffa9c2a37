"""The results of a benchmark: NAME.csv with a line for each run, stage and group of sessions,
and NAME.md, where the variants stand side by side: medians over the rounds, their ranges, and
ratios.

Ratios are between runs of the same round, which were neighbours in time: the machine may be
slower in another round.  Each run writes both files anew.
"""

import csv
import os
import statistics

import pooler

COLUMNS = (
    *("load", "sessions", "clients", "variant", "round", "tps", "avg_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"),
    *("late", "cpu_us", "deadlocks", "errors", "note"),
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
            file.write(self.head + comparison(self.rows))


def head(name, title, measured):
    measured = "\n".join(measured).replace("\n", "\n    ")
    return f"# {name}\n\n{title}.  How to read it: bench/README.md.\n\n    {measured}\n\n"


def short(value):
    return f"{value:.6g}" if isinstance(value, float) else value


def table(header, rows):
    cells = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in cells)


def comparison(rows):
    """A line for each load and group of sessions, a column for each variant"""
    names = list(dict.fromkeys(row["variant"] for row in rows))
    lines = {}
    for row in rows:
        line = lines.setdefault((row["load"], row["clients"], row["sessions"]), {})
        line.setdefault(row["variant"], []).append(row)
    header = ("load", "clients", "sessions", *names)
    return table(header, ((*key, *(cell(line, name) for name in names)) for key, line in lines.items()))


def cell(line, name):
    """Such as "1623, of off 2.28 (1.87, 2.49, 2.28); 121 / 142 (141–173)" """
    mine, off = line.get(name, []), {row["round"]: row for row in line.get("off", [])}
    rates, p50, p99 = (
        [row[column] for row in mine if row.get(column) is not None] for column in ("tps", "p50_ms", "p99_ms")
    )
    if not rates:
        return mine[0]["note"] if mine else "–"
    times = [row["tps"] / off[row["round"]]["tps"] for row in mine if off.get(row["round"], {}).get("tps")]
    if times and name != "off":
        text = f"{number(statistics.median(rates))}, of off {statistics.median(times):.2f}"
        text += f" ({', '.join(f'{ratio:.2f}' for ratio in times)})" if len(times) > 1 else ""
    else:
        text = with_range(rates)
    if p99:
        text += f"; {number(statistics.median(p50))} / {with_range(p99)}"
    late, deadlocks, errors = (sum(row.get(column) or 0 for row in mine) for column in ("late", "deadlocks", "errors"))
    text += f"; {number(late / len(mine))}/s late" if late else ""
    text += f"; {number(deadlocks / len(mine))} deadlocks/s" if deadlocks else ""
    notes = " | ".join(row["note"] for row in mine if row.get("note"))
    text += f"; {errors} errors" if errors else ""
    return text + (f" ({notes})" if notes else "")


def number(value):
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def with_range(found):
    more = f" ({number(min(found))}–{number(max(found))})" if len(found) > 1 else ""
    return number(statistics.median(found)) + more


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
                return (
                    "The kernel shares the CPU by sessions, each backend is one; but in a control group by processes."
                )
    return "The kernel shares the CPU by processes."
