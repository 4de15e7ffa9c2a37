"""From NAME.csv to NAME.md: medians over the rounds, with their ranges, and ratios.

Ratios are taken within a round, between runs that were neighbours in time, and
their median is shown: the machine may be slower in one round than in another.

By hand: report.py DIRECTORY NAME
"""

import csv
import os
import statistics
import sys

from results import read_rows
from workloads import BENCHMARKS

HEADER = (
    "variant",
    "tps (range)",
    "/ off",
    "/ limit",
    "/ best pgbouncer",
    "avg ms",
    "p50",
    "p95",
    "p99 (range)",
    "p99 / off",
    "max",
    "std dev",
    "CPU µs/tx",
    "switches/tx",
    "errors",
)


def write(directory, name, benchmark):
    rows = read_rows(directory, name)
    parts = [head(directory, name, benchmark.title), explanation()]
    titles = {workload.name: workload.title for workload, _ in benchmark.runs}
    for workload in ordered(row.workload for row in rows):
        parts.append(f"## {workload}: {titles[workload]}\n" if workload in titles else f"## {workload}\n")
        for clients in sorted({row.clients for row in rows if row.workload == workload}):
            parts.append(table([row for row in rows if row.workload == workload and row.clients == clients], clients))
    with open(os.path.join(directory, f"{name}.md"), "w") as file:
        file.write("\n".join(parts))


def head(directory, name, title):
    with open(os.path.join(directory, f"{name}-machine.txt")) as file:
        machine = file.read().strip().replace("\n", "\n    ")
    return f"# {name}\n\n{title}.\n\n    {machine}\n"


def write_table(directory, name, title, text, header, rows):
    """NAME.csv and NAME.md of a benchmark that is one small table."""
    with open(os.path.join(directory, f"{name}.csv"), "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
    lines = [line(header), line(["---"] + ["--:"] * (len(header) - 1))]
    lines += [line([str(cell) for cell in row]) for row in rows]
    with open(os.path.join(directory, f"{name}.md"), "w") as file:
        file.write("\n".join([head(directory, name, title), text + "\n", *lines]) + "\n")


def explanation():
    return (
        "Medians over the rounds, ranges in brackets; latencies in milliseconds, as the clients see\n"
        "them. Ratios are of throughput and taken within each round; their median is shown. Beside\n"
        "sleepers or analysts, the limit is the same variant without these. CPU is that of the server\n"
        "and of the pooler. What the variants are: bench/README.md.\n"
    )


def ordered(names):
    """Each once, in the order of their first appearance."""
    return list(dict.fromkeys(names))


def table(rows, clients):
    lines = [f"### {clients} clients\n", line(HEADER), line(["---"] + ["--:"] * (len(HEADER) - 1))]
    best = best_pooler(rows)
    for variant in ordered(row.variant for row in rows):
        lines.append(line(cells(variant, rows, best)))
    return "\n".join(lines) + "\n"


def line(texts):
    return "| " + " | ".join(texts) + " |"


def cells(variant, rows, best):
    mine = [row for row in rows if row.variant == variant]
    protocols = ordered(row.protocol for row in mine)
    usual = next((row.protocol for row in rows if row.variant == "off"), protocols[0])
    name = f"{variant} ({', '.join(protocols)})" if protocols != [usual] else variant
    return [
        name,
        with_range(mine, "tps"),
        ratio(rows, variant, "off"),
        ratio(rows, variant, limit_of(variant, rows)),
        ratio(rows, variant, best),
        median(mine, "avg_ms"),
        median(mine, "p50_ms"),
        median(mine, "p95_ms"),
        with_range(mine, "p99_ms"),
        ratio(rows, variant, "off", "p99_ms"),
        median(mine, "max_ms"),
        median(mine, "stddev_ms"),
        median(mine, "cpu_us_per_tx"),
        median(mine, "switches_per_tx"),
        f"{sum(row.errors or 0 for row in mine):.0f}",
    ]


def limit_of(variant, rows):
    """What a variant is held against: the limit with its own number of slots if
    there is one; beside sleepers or analysts, the same without these."""
    names = {row.variant for row in rows}
    own = "limit:" + variant.partition(":")[2]
    return next((name for name in (variant + "-alone", own) if name in names), "limit")


def values(rows, column):
    return [getattr(row, column) for row in rows if getattr(row, column) is not None]


def median(rows, column):
    found = values(rows, column)
    return number(statistics.median(found)) if found else "–"


def with_range(rows, column):
    found = values(rows, column)
    if not found:
        return "failed"
    return f"{number(statistics.median(found))} ({number(min(found))}–{number(max(found))})"


def number(value):
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratios(rows, variant, base, column="tps"):
    """Of a variant to another, one for each round that has both."""

    def by_round(name):
        return {row.round: getattr(row, column) for row in rows if row.variant == name and getattr(row, column)}

    mine, other = by_round(variant), by_round(base)
    return [mine[n] / other[n] for n in sorted(mine.keys() & other.keys())]


def ratio(rows, variant, base, column="tps"):
    found = ratios(rows, variant, base, column)
    return f"{statistics.median(found):.2f}" if found else "–"


def best_pooler(rows):
    """The pgbouncer configuration with the highest median."""
    names = ordered(row.variant for row in rows if row.variant.startswith("pgbouncer") and row.tps)
    return max(
        names,
        default=None,
        key=lambda name: statistics.median(values([row for row in rows if row.variant == name], "tps")),
    )


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], BENCHMARKS[sys.argv[2]])
