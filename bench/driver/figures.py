"""From pgbench's logs to figures.

Counted are the transactions that ended within the steady part.  Those that began
in it and did not end in it are not, however long they took; so latencies of a
variant that keeps some clients waiting for longer than a run lasts look better
than they are.
"""

import math
from array import array
from dataclasses import dataclass

# Where the distribution of latencies is sampled.
SHARES = (0.001, 0.01, 0.02, *(n / 20 for n in range(1, 20)), 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0)


@dataclass(frozen=True)
class Figures:
    """Latencies are in milliseconds, None if nothing has ended."""

    seconds: float
    transactions: int
    failed: int
    tps: float
    average: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    longest: float | None
    deviation: float | None
    distribution: tuple  # latencies at SHARES


def count(logs, start, end):
    latencies, failed = read(logs, start, end)
    n = len(latencies)
    tps = n / (end - start)
    if n == 0:
        return Figures(end - start, 0, failed, 0.0, None, None, None, None, None, None, ())
    latencies = sorted(latencies)
    average = sum(latencies) / n
    deviation = math.sqrt(sum((latency - average) ** 2 for latency in latencies) / n)
    return Figures(
        end - start,
        n,
        failed,
        tps,
        average / 1000,
        percentile(latencies, 0.50),
        percentile(latencies, 0.95),
        percentile(latencies, 0.99),
        latencies[-1] / 1000,
        deviation / 1000,
        tuple(percentile(latencies, share) for share in SHARES),
    )


def read(logs, start, end):
    """The latencies in microseconds of the transactions that ended in that time,
    and how many failed.  A line is: client, number, latency, script, second and
    microsecond of the end."""
    latencies, failed = array("Q"), 0
    for log in logs:
        with open(log) as file:
            for line in file:
                fields = line.split()
                if not start <= int(fields[4]) + int(fields[5]) / 1e6 < end:
                    continue
                if fields[2].isdigit():
                    latencies.append(int(fields[2]))
                else:
                    failed += 1
    return latencies, failed


def percentile(ordered, share):
    """In milliseconds, the nearest rank."""
    return ordered[max(math.ceil(len(ordered) * share) - 1, 0)] / 1000
