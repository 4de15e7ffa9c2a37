"""Carries out the benchmarks that were asked for; started by bench/run.sh.

For each: what will be run and how long that takes, then a server, then the runs,
each with a line of its figures and the time left; then the report and the plots.
Variants take turns, in one order and in the other (A B C, C B A, A B C ...), so that a
machine that gets slower or faster, and tables that grow, meet all alike.
"""

import dataclasses
import importlib.util
import os
import subprocess
import sys
import time

import disturbed
import hotspots
import instructions
import machine
import pooler
import report
import shared_memory
from measure import measure
from options import from_environment
from plan import duration_text, estimate, plan
from results import ResultFiles
from server import Failed, Server
from variants import Variant
from workloads import BENCHMARKS

# Those that count something else than transactions.
SPECIAL = {"disturbed": disturbed, "instructions": instructions, "shared_memory": shared_memory, **hotspots.BENCHMARKS}


def say(text, end="\n"):
    print(text, end=end, flush=True)


class Clock:
    """Time left, from how long runs were expected to take and took."""

    def __init__(self, runs):
        self.left = sum(estimate(run) for run in runs)
        self.expected = 0.0
        self.began = time.monotonic()

    def done(self, run):
        self.left -= estimate(run)
        self.expected += estimate(run)

    def time_left(self):
        factor = (time.monotonic() - self.began) / self.expected if self.expected else 1
        return duration_text(max(self.left * factor, 0))


def warm_up(server, run, options):
    """Once for each workload: files are in memory, WAL files to be recycled exist."""
    say(f"warming up {run.workload.title}")
    measure(
        server,
        dataclasses.replace(
            run,
            variant=Variant("off", "off", alone=True),
            active=min(run.active, 20),
            skip=1,
            duration=1 if options.quick else 4,
        ),
        options,
    )


def carry_out(server, run, files, options):
    """One run; prints and files what came of it.  A failure is a result, too."""
    slots = run.variant.slots or run.variant.pool or None
    more = {"slots": slots, "protocol": run.protocol(options.protocol)}
    try:
        outcome = measure(server, run, options)
    except Failed as failure:
        files.add_failure(run.key, **more, errors=run.active, note=str(failure).splitlines()[0])
        say(f"failed: {failure}", end="")
        return
    figures = outcome.figures
    files.add(
        run.key,
        figures,
        **more,
        cpu_us_per_tx=outcome.cpu_us,
        switches_per_tx=outcome.switches,
        errors=outcome.errors,
        note=outcome.note,
    )
    say(f"{figures.tps:.0f}/s", end="")
    if figures.transactions:
        say(f", p50 {figures.p50:.1f} ms, p99 {figures.p99:.1f} ms, CPU {outcome.cpu_us:.0f} us", end="")
    if outcome.errors:
        say(f", {outcome.errors} errors", end="")
    if outcome.beside:
        beside = outcome.beside
        key = (run.benchmark, f"{run.workload.name}_{run.workload.beside}", *run.key[2:])
        files.add(key, beside, slots=slots, protocol="simple", errors=beside.failed)
        say(f"; {run.workload.beside} {beside.tps:.2f}/s", end="")


def benchmark(name, options):
    chosen = BENCHMARKS[name]
    runs = plan(name, chosen, options)
    if not runs:
        say(f"{name}: nothing to run with these WORKLOADS and VARIANTS")
        return
    clock = Clock(runs)
    files = ResultFiles(options.path("results"), name)
    say(f"\n{name}: {chosen.title}.  {len(runs)} runs, about {clock.time_left()}.")
    with Server(options, max(run.connections for run in runs) + 40) as server:
        machine.write(name, options, server, runs)
        warmed = set()
        clock.began = time.monotonic()
        for number, run in enumerate(runs, 1):
            if run.workload not in warmed:
                warm_up(server, run, options)
                warmed.add(run.workload)
            say(
                f"[{number}/{len(runs)}] {run.workload.name}, {run.clients} clients, {run.variant.name}, "
                f"round {run.round}: ",
                end="",
            )
            carry_out(server, run, files, options)
            clock.done(run)
            say(f" ({clock.time_left()} left)")
    report.write(options.path("results"), name, chosen)
    draw(name, options)


def draw(name, options):
    """In a process of its own: matplotlib may be missing, or fail."""
    if not importlib.util.find_spec("matplotlib"):
        say("no plots: python3-matplotlib is missing (sudo apt-get install python3-matplotlib)")
        return
    plot = os.path.join(os.path.dirname(__file__), "plot.py")
    if subprocess.run([sys.executable, plot, options.path("results"), name], check=False).returncode != 0:
        say("the plots could not be drawn")


def special(name, options):
    module = SPECIAL[name]
    say(f"\n{name}: {module.TITLE}.  About {duration_text(module.estimate(options))}.")
    machine.write(name, options)
    module.carry_out(name, options, say)


def total(options):
    runs = [run for name in options.benchmarks if name in BENCHMARKS for run in plan(name, BENCHMARKS[name], options)]
    return sum(map(estimate, runs)) + sum(
        SPECIAL[name].estimate(options) for name in options.benchmarks if name in SPECIAL
    )


def main():
    options = from_environment()
    if not pooler.PROGRAM:
        say("no pgbouncer, so none of its variants (sudo apt-get install pgbouncer)")
    if options.clients and max(options.clients) > options.most_clients:
        say(f"at most {options.most_clients} clients: limited by {options.reason}")
    say(machine.scheduling())
    if len(options.benchmarks) > 1:
        say(f"{len(options.benchmarks)} benchmarks, about {duration_text(total(options))}")
    for name in options.benchmarks:
        if name in SPECIAL:
            special(name, options)
        else:
            benchmark(name, options)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        raise SystemExit(f"error: {failure}") from None
