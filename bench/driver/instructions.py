"""How many instructions a select-only transaction takes, counted by callgrind.

A server runs under valgrind, and one pgbench client with prepared statements does
many transactions, then fewer.  The difference of what its two backends have
executed, divided by that of the transactions, is the cost of one, without what
the start of a backend costs.  This is repeated in rounds, as the count may differ from
one start of the server to the next, for

    without  without the library
    off      with it, no limit
    gate     with a limit, so that a slot is always free
    auto     with -1: no limit but those of hot spots

Medians over the rounds, ranges in brackets; ratios within each round.
"""

import os
import shutil
import signal
import statistics
import subprocess
import time

import datasets
import report
import usage
from measure import LIMIT
from plan import default_slots
from server import Failed, Server, run

TITLE = "Instructions per select-only transaction"
HEADER = ("variant", "instructions per transaction", "more than without", "transactions", "rounds")
VARIANTS = ("without", "off", "gate", "auto")
VALGRIND = shutil.which("valgrind")
DATASET = "tpcb_10"


def lengths(options):
    return (200, 1200) if options.quick else (1000, 4000)


def estimate(options):
    return (80 if options.quick else 160) * options.rounds_of()


def carry_out(name, options, say):
    if not VALGRIND:
        say("left out: valgrind is missing (sudo apt-get install valgrind)")
        return
    few, many = lengths(options)
    each = {variant: [] for variant in VARIANTS}
    with Server(options, 10, settings=[("autovacuum", "off")]) as server:
        datasets.load(server, DATASET)
        for number in range(1, options.rounds_of() + 1):
            for variant in VARIANTS:
                prepare(server, variant, options)
                with Callgrind(server, f"{variant}-{number}") as counter:
                    each[variant].append((counter.backend(many) - counter.backend(few)) / (many - few))
                say(
                    f"round {number}, {variant}: {each[variant][-1]:.0f} instructions per transaction, "
                    f"{more(each, variant)[-1]:+.2f} %"
                )
    report.write_table(
        options.path("results"),
        name,
        TITLE,
        __doc__.partition("\n\n")[2].strip(),
        HEADER,
        [
            (
                variant,
                with_range(each[variant], ".1f"),
                with_range(more(each, variant), "+.3f") + " %",
                many - few,
                options.rounds_of(),
            )
            for variant in VARIANTS
        ],
    )


def more(each, variant):
    """Per cent more than without, by round."""
    return [(mine / base - 1) * 100 for mine, base in zip(each[variant], each["without"])]


def with_range(figures, form):
    return f"{statistics.median(figures):{form}} ({min(figures):{form}} to {max(figures):{form}})"


def prepare(server, variant, options):
    server.preload(variant != "without")
    if variant != "without":
        limits = {"gate": default_slots(4, options), "auto": -1}
        server.configure({LIMIT: limits[variant]} if variant in limits else {})


class Callgrind:
    """The server under callgrind, while the context lasts."""

    def __init__(self, server, variant):
        self.server = server
        self.counts = server.options.path("tmp", "callgrind-" + variant)

    def __enter__(self):
        server = self.server
        server.control("-m", "fast", "stop")
        os.mkdir(self.counts)
        self.process = subprocess.Popen(
            [
                VALGRIND,
                "-q",
                "--tool=callgrind",
                "--trace-children=yes",
                f"--callgrind-out-file={self.counts}/%p",
                server.options.program("postgres"),
                "-D",
                server.data,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.wait_until_ready()
        return self

    def __exit__(self, *exception):
        """SIGINT is a fast shutdown."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        self.server.start()

    def wait_until_ready(self):
        """Until it answers, and only its own processes are left."""
        end = time.monotonic() + 120
        while True:
            try:
                self.server.sql("SELECT 1")
                break
            except Failed:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(1)
        time.sleep(5)
        self.own = set(usage.children(self.process.pid))

    def backend(self, transactions):
        """The instructions of a backend that lives for that many transactions."""
        old = set(os.listdir(self.counts))
        options = self.server.options
        run(
            [
                options.program("pgbench"),
                "-n",
                "-S",
                "-M",
                "prepared",
                "-c",
                "1",
                "-t",
                str(transactions),
                "--random-seed=1",
                DATASET,
            ],
            env={**os.environ, **self.server.address},
        )
        end = time.monotonic() + 120
        while not set(usage.children(self.process.pid)) <= self.own:
            if time.monotonic() > end:
                raise Failed("a backend under callgrind does not end")
            time.sleep(0.2)
        # pgbench's first connection only asks for the scale.
        return max(self.instructions(name) for name in set(os.listdir(self.counts)) - old)

    def instructions(self, name):
        with open(os.path.join(self.counts, name)) as file:
            for line in file:
                if line.startswith("totals:"):
                    return int(line.split()[1])
        return 0
