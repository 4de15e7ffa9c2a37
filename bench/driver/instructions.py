"""How many instructions a select-only transaction takes, counted by callgrind.

A server runs under valgrind, and one pgbench client with prepared statements does many
transactions, then fewer.  Two backends have executed these; the difference of their
instructions, divided by that of the transactions, is the cost of one, without the start of a
backend.  The count may differ from one start of the server to the next, hence rounds, for

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

import loads
import report
from server import LIMIT, SILENT, Failed, Server, processes, run

TITLE = "Instructions per select-only transaction"
HEADER = ("variant", "instructions per transaction", "more than without", "transactions", "rounds")
VARIANTS = ("without", "off", "gate", "auto")
VALGRIND = shutil.which("valgrind")
DATASET = "tpcb_10"


def carry_out(name, options, say):
    if not VALGRIND:
        say(f"{name}: valgrind is missing (sudo apt-get install valgrind)")
        return
    few, many = (200, 1200) if options.quick else (1000, 4000)
    rounds = options.rounds_of()
    say(f"\n{name}: {TITLE}.  About {rounds * (2 if options.quick else 3)} min.")
    each = {variant: [] for variant in VARIANTS}
    with Server(options, 10, settings=[("autovacuum", "off")]) as server:
        loads.make_dataset(server, DATASET)
        for number in range(1, rounds + 1):
            for variant in VARIANTS:
                prepare(server, variant)
                with Callgrind(server, f"{variant}-{number}") as counter:
                    each[variant].append((counter.backend(many) - counter.backend(few)) / (many - few))
                found = f"{each[variant][-1]:.0f} instructions per transaction, {more(each, variant)[-1]:+.2f} %"
                say(f"round {number}, {variant}: {found}")
    rows = [
        (v, with_range(each[v], ".1f"), with_range(more(each, v), "+.3f") + " %", many - few, rounds) for v in VARIANTS
    ]
    with open(options.path("results", name + ".md"), "w") as file:
        text = __doc__.partition("\n\n")[2]
        file.write(report.head(name, TITLE, report.machine(options)) + text + "\n" + report.table(HEADER, rows))


def more(each, variant):
    """Per cent more than without, by round."""
    return [(mine / base - 1) * 100 for mine, base in zip(each[variant], each["without"])]


def with_range(figures, form):
    return f"{statistics.median(figures):{form}} ({min(figures):{form}} to {max(figures):{form}})"


def prepare(server, variant):
    server.preload(variant != "without")
    if variant != "without":
        limits = {"gate": 8, "auto": -1}
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
        tool = ["-q", "--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={self.counts}/%p"]
        command = [VALGRIND, *tool, server.options.program("postgres"), "-D", server.data]
        self.process = subprocess.Popen(command, **SILENT)
        self.wait_until_ready()
        return self

    def __exit__(self, *exception):
        """SIGINT is a fast shutdown."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        self.server.start()

    def children(self):
        return {pid for pid, fields in processes().items() if int(fields[1]) == self.process.pid}

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
        self.own = self.children()

    def backend(self, transactions):
        """The instructions of a backend that lives for that many transactions."""
        old = set(os.listdir(self.counts))
        options = self.server.options
        arguments = f"-n -S -M prepared -c 1 -t {transactions} --random-seed=1 {DATASET}".split()
        run([options.program("pgbench"), *arguments], env={**os.environ, **self.server.address})
        end = time.monotonic() + 120
        while not self.children() <= self.own:
            if time.monotonic() > end:
                raise Failed("a backend under callgrind does not end")
            time.sleep(0.2)
        # pgbench's first connection only asks for the scale.
        return max(self.instructions(name) for name in set(os.listdir(self.counts)) - old)

    def instructions(self, name):
        with open(os.path.join(self.counts, name)) as file:
            return next((int(line.split()[1]) for line in file if line.startswith("totals:")), 0)
