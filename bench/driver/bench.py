"""Carries out the benchmarks that were asked for; started by bench/run.sh.

For each: what will be run and how long that takes, then a server, then the runs,
each with a line of its figures and the time left.  Variants take turns, in one order and
in the other (A B C, C B A, A B C ...), so that a machine that gets slower or faster, and
tables that grow, meet all alike.
"""

import dataclasses
import time

import instructions
import pooler
import report
import variants
from clients import SYSBENCH
from loads import BENCHMARKS, LOADS
from measure import Run, measure
from options import from_environment
from server import Failed, Server

QUICK_CLIENTS = 20
# Seconds that a run takes beside those skipped and counted, and each connection.
OVERHEAD = 4
PER_CONNECTION = 0.009


def say(text, end="\n"):
    print(text, end=end, flush=True)


def client_counts(benchmark, load, options):
    """Those that the machine carries, in order."""
    if not benchmark.clients:
        return [sum(group.number for group in load.groups)]
    wanted = options.clients or ((QUICK_CLIENTS,) if options.quick else benchmark.clients)
    return sorted({min(number, options.most_clients) for number in wanted})


def chosen_variants(benchmark, load, options):
    names = options.variants or benchmark.variants.split()
    chosen = [variants.parse(name, options.slots(load.slots_per_core)) for name in names]
    return [variant for variant in chosen if variant.kind != "pgbouncer" or pooler.PROGRAM]


def plan(benchmark, options):
    """All runs in order.  Where there are no more clients than slots, the limit is
    the same as no gate."""
    runs = []
    for name in benchmark.loads.split():
        if (options.workloads and name not in options.workloads) or (name == "deadlocks" and not SYSBENCH):
            continue
        load = LOADS[name]
        chosen = chosen_variants(benchmark, load, options)
        for clients in client_counts(benchmark, load, options):
            skip = (options.skip or 5 + clients // 500) * load.patience
            for number in range(1, options.rounds_of(clients) + 1):
                runs += [
                    Run(name, load, variant, clients, number, skip, options.duration or load.duration)
                    for variant in (chosen if number % 2 else reversed(chosen))
                    if not (variant.kind == "limit" and clients <= variant.number)
                ]
    return runs


def estimate(run):
    """Seconds that a run will take."""
    counted = sum(run.duration + (run.skip if stage.groups else 0) for stage in run.load.stages)
    return OVERHEAD + PER_CONNECTION * run.connections + counted


def duration_text(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def warm_up(server, run):
    """Once for each load: files are in memory, WAL files to be recycled exist."""
    say(f"warming up {run.name}")
    load = dataclasses.replace(run.load, stages=run.load.stages[:1])
    seconds = 1 if server.options.quick else 4
    off = variants.parse("off", 0)
    measure(
        server, dataclasses.replace(run, load=load, variant=off, clients=min(run.clients, 20), skip=1, duration=seconds)
    )


def carry_out(server, run, results):
    """One run; prints and files what came of it.  A failure is a result, too."""
    try:
        rows = measure(server, run)
    except Failed as failure:
        key = {"load": run.name, "clients": run.clients, "variant": run.variant.name, "round": run.round}
        results.add([{**key, "sessions": "failed", "note": "failed: " + str(failure).splitlines()[0]}])
        say(f"failed: {failure}", end="")
        return
    results.add(rows)
    texts = []
    for row in rows:
        text = f"{row['sessions']} {report.number(row['tps'])}/s"
        text += f", p50 {row['p50_ms']:.1f}, p99 {row['p99_ms']:.1f} ms" if "p99_ms" in row else ""
        texts.append(text + (f", {row['errors']} errors" if row["errors"] else ""))
    say("; ".join(texts), end="")


def carry_out_all(name, benchmark, options):
    runs = plan(benchmark, options)
    if not runs:
        say(f"{name}: nothing to run with these WORKLOADS and VARIANTS")
        return
    left = sum(map(estimate, runs))
    say(f"\n{name}: {benchmark.title}.  {len(runs)} runs, about {duration_text(left)}.")
    with Server(options, max(run.connections for run in runs)) as server:
        results = report.Results(options, name, benchmark.title, report.machine(options, server, runs))
        warmed = set()
        began, expected = time.monotonic(), 0
        for number, run in enumerate(runs, 1):
            if run.name not in warmed:
                warm_up(server, run)
                warmed.add(run.name)
            what = f"{run.name}, {run.clients} clients, {run.variant.name}, round {run.round}"
            say(f"[{number}/{len(runs)}] {what}: ", end="")
            carry_out(server, run, results)
            left -= estimate(run)
            expected += estimate(run)
            say(f" ({duration_text(max(left, 0) * (time.monotonic() - began) / expected)} left)")


def main():
    options = from_environment()
    if not pooler.PROGRAM:
        say("no pgbouncer, so none of its variants (sudo apt-get install pgbouncer)")
    if options.clients and max(options.clients) > options.most_clients:
        say(f"at most {options.most_clients} clients: limited by {options.reason}")
    say(report.scheduling())
    ordinary = [name for name in options.benchmarks if name in BENCHMARKS]
    if len(ordinary) > 1:
        total = sum(estimate(run) for name in ordinary for run in plan(BENCHMARKS[name], options))
        say(f"{len(ordinary)} benchmarks, about {duration_text(total)}")
    for name in options.benchmarks:
        if name in BENCHMARKS:
            carry_out_all(name, BENCHMARKS[name], options)
        else:
            instructions.carry_out(name, options, say)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        raise SystemExit(f"error: {failure}") from None
