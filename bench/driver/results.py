"""The result files of a benchmark, NAME.csv and NAME-latency.csv, with one line
for each run, and NAME-machine.txt.  A line is written as soon as its run has ended.
"""

import csv
import os
from dataclasses import dataclass

from figures import SHARES

KEY = ("benchmark", "workload", "variant", "clients", "round")
NUMBERS = (
    "slots",
    "seconds",
    "transactions",
    "tps",
    "avg_ms",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "max_ms",
    "stddev_ms",
    "cpu_us_per_tx",
    "switches_per_tx",
    "errors",
)
COLUMNS = (*KEY, "protocol", *NUMBERS, "note")
LATENCY_COLUMNS = (*KEY, *(f"{share:g}" for share in SHARES))


class Writer:
    """Appends lines to a CSV file that begins with the names of its columns."""

    def __init__(self, path, columns):
        self.path = path
        self.columns = columns
        with open(path, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(columns)

    def add(self, values):
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerow(
                {name: short(value) for name, value in values.items()}
            )


def short(value):
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


class ResultFiles:
    def __init__(self, directory, benchmark):
        self.runs = Writer(os.path.join(directory, f"{benchmark}.csv"), COLUMNS)
        self.latencies = Writer(os.path.join(directory, f"{benchmark}-latency.csv"), LATENCY_COLUMNS)

    def add(self, key, figures, **more):
        """key has the values of KEY, more those of the other COLUMNS that are not
        in the figures."""
        key = dict(zip(KEY, key))
        self.runs.add(
            {
                **key,
                "seconds": figures.seconds,
                "transactions": figures.transactions,
                "tps": figures.tps,
                "avg_ms": figures.average,
                "p50_ms": figures.p50,
                "p95_ms": figures.p95,
                "p99_ms": figures.p99,
                "max_ms": figures.longest,
                "stddev_ms": figures.deviation,
                **more,
            }
        )
        if figures.distribution:
            self.latencies.add({**key, **dict(zip(LATENCY_COLUMNS[len(KEY) :], figures.distribution))})

    def add_failure(self, key, **more):
        self.runs.add({**dict(zip(KEY, key)), **more})


@dataclass(frozen=True)
class Row:
    """One line of NAME.csv."""

    workload: str
    variant: str
    clients: int
    round: int
    protocol: str
    note: str
    numbers: dict

    def __getattr__(self, name):
        try:
            return self.numbers[name]
        except KeyError:
            raise AttributeError(name) from None


def read_rows(directory, benchmark):
    with open(os.path.join(directory, f"{benchmark}.csv"), newline="") as file:
        return [
            Row(
                line["workload"],
                line["variant"],
                int(line["clients"]),
                int(line["round"]),
                line["protocol"],
                line["note"],
                {name: float(line[name]) if line[name] else None for name in NUMBERS},
            )
            for line in csv.DictReader(file)
        ]


def read_latencies(directory, benchmark):
    """By (workload, clients, variant), the latencies at SHARES of each round."""
    found = {}
    with open(os.path.join(directory, f"{benchmark}-latency.csv"), newline="") as file:
        for line in csv.DictReader(file):
            key = line["workload"], int(line["clients"]), line["variant"]
            found.setdefault(key, []).append([float(line[name]) for name in LATENCY_COLUMNS[len(KEY) :]])
    return found
