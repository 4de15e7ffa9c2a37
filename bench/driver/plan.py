"""Which runs a benchmark consists of, in which order, and how long they take."""

import os

import pooler
import variants
from measure import Run
from workloads import QUICK_CLIENTS

# Seconds that a run takes beside those skipped and counted, and each connection.
OVERHEAD = 3.5
PER_CONNECTION = 0.006


def default_slots(per_core, options):
    return options.limit or per_core * len(os.sched_getaffinity(0))


def client_counts(benchmark, options):
    """Those that the machine carries, in order."""
    wanted = options.clients or ((QUICK_CLIENTS,) if options.quick else benchmark.clients)
    most = options.most_clients - benchmark.foreground
    return sorted({min(count, most) for count in wanted})


def chosen_variants(workload, names, options):
    """Those of the benchmark, or the user's as far as the workload has them."""
    names = list(options.variants or names.split())
    if options.settings and "tuned" not in names:
        names.append("tuned")
    slots = default_slots(workload.slots_per_core, options)
    chosen = [variants.parse(name, slots, options.settings) for name in names]
    return [
        variant
        for variant in chosen
        if not (variant.kind == "trick" and not workload.trick)
        and not (variant.is_pooler and not pooler.PROGRAM)
        and not (variant.alone and not workload.beside)
        and not ((variant.is_pooler or variant.kind == "limit") and workload.beside)
    ]


def make_run(name, benchmark, workload, variant, clients, number, options):
    active = clients
    if benchmark.foreground:
        active = QUICK_CLIENTS if options.quick else benchmark.foreground
    connections = active + (clients if benchmark.foreground else 0)
    return Run(
        name,
        workload,
        variant,
        clients,
        active,
        number,
        skip=options.skip or 4 + connections // 500,
        duration=options.duration or benchmark.duration,
    )


def plan(name, benchmark, options):
    """All runs in order.  Where there are no more clients than slots, the limit is
    the same as no gate."""
    runs = []
    for workload, names in benchmark.runs[: 1 if options.quick and benchmark.long else None]:
        if options.workloads and workload.name not in options.workloads:
            continue
        chosen = chosen_variants(workload, names, options)
        for clients in client_counts(benchmark, options):
            for number in range(1, options.rounds_of(clients) + 1):
                # Tables grow, so the first in a round is favoured: not always the same.
                order = chosen if number % 2 else reversed(chosen)
                runs += [
                    make_run(name, benchmark, workload, variant, clients, number, options)
                    for variant in order
                    if not (variant.kind == "limit" and clients <= variant.slots)
                ]
    return runs


def estimate(run):
    """Seconds that a run will take."""
    opening = PER_CONNECTION * run.connections
    closing = opening / 2
    return OVERHEAD + opening + run.skip + run.duration + closing


def duration_text(seconds):
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
