"""Carries out the benchmarks that were asked for; bench/run.sh starts it.

For each it says what it will run and how long that takes, starts a server, and does the
runs; it prints their figures and the time left.  Variants take turns, in one order and in
the other (A B C, C B A, A B C ...): a machine that gets slower or faster, and tables that
grow, meet all alike.
"""

import dataclasses

import demo
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
    if all(group.number for group in load.groups):
        return [sum(group.number for group in load.groups)]
    wanted = options.clients or ((QUICK_CLIENTS,) if options.quick else benchmark.clients)
    return sorted({min(number, options.most_clients) for number in wanted})


def plan(benchmark, options):
    """All runs in order"""
    runs = []
    chosen = map(variants.parse, options.variants or benchmark.variants.split())
    chosen = [variant for variant in chosen if variant.kind != "pgbouncer" or pooler.PROGRAM]
    for name in benchmark.loads.split():
        if (options.workloads and name not in options.workloads) or (name == "deadlocks" and not SYSBENCH):
            continue
        load = LOADS[name]
        for clients in client_counts(benchmark, load, options):
            skip = (options.skip or 5 + clients // 500) * load.patience
            for number in range(1, options.rounds_of(clients) + 1):
                runs += [
                    Run(name, load, variant, clients, number, skip, options.duration or load.duration)
                    for variant in (chosen if number % 2 else reversed(chosen))
                ]
    return runs


def estimate(run):
    """Seconds that a run will take."""
    return OVERHEAD + PER_CONNECTION * run.connections + len(run.load.stages) * (run.skip + run.duration)


def duration_text(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def warm_up(server, run):
    """Once for each load: files are in memory, WAL files to be recycled exist."""
    say(f"warming up {run.name}")
    load = dataclasses.replace(run.load, stages=run.load.stages[:1])
    clients, seconds = min(run.clients, QUICK_CLIENTS), 1 if server.options.quick else 4
    measure(server, Run(run.name, load, variants.parse("off"), clients, 0, 1, seconds))


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
        text += f", {report.number(row['late'])}/s late" if row.get("late") else ""
        text += f", {row['errors']} errors" if row["errors"] else ""
        texts.append(text + (f" ({row['note']})" if row.get("note") else ""))
    say("; ".join(texts), end="")


def carry_out_all(name, benchmark, options):
    runs = plan(benchmark, options)
    if not runs:
        say(f"{name}: nothing to run with these WORKLOADS and VARIANTS")
        return
    left, warmed = sum(map(estimate, runs)), set()
    say(f"\n{name}: {benchmark.title}.  {len(runs)} runs, about {duration_text(left)}.")
    with Server(options, max(run.connections for run in runs)) as server:
        results = report.Results(options, name, benchmark.title, report.machine(options, server, runs))
        for number, run in enumerate(runs, 1):
            if run.name not in warmed:
                warm_up(server, run)
                warmed.add(run.name)
            what = f"{run.name}, {run.clients} clients, {run.variant.name}, round {run.round}"
            say(f"[{number}/{len(runs)}] {what}: ", end="")
            carry_out(server, run, results)
            left -= estimate(run)
            say(f" ({duration_text(max(left, 0))} left)")


def main():
    options = from_environment()
    ordinary = [name for name in options.benchmarks if name in BENCHMARKS]
    if ordinary and not pooler.PROGRAM:
        say("no pgbouncer, so none of its variants (sudo apt-get install pgbouncer)")
    if options.clients and max(options.clients) > options.most_clients:
        say(f"{options.most_clients} clients: open files, processes (ulimit) and memory allow no more")
    say(report.scheduling())
    if len(ordinary) > 1:
        total = sum(estimate(run) for name in ordinary for run in plan(BENCHMARKS[name], options))
        say(f"{len(ordinary)} benchmarks, about {duration_text(total)}")
    for name in options.benchmarks:
        if name in BENCHMARKS:
            carry_out_all(name, BENCHMARKS[name], options)
        else:
            {"demo": demo, "instructions": instructions}[name].carry_out(name, options, say)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        raise SystemExit(f"error: {failure}") from None
