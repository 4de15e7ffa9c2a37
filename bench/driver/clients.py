"""pgbench, sysbench and overload.c as the clients, and what came of their transactions.

pgbench counts the opening of connections, 40 s for thousands, as part of its run.  So the
driver gives it no end.  Its first progress line says that all clients are connected and at
work; then the driver counts the seconds, and sends SIGALRM, by which pgbench's own clock
would end it.

pgbench writes every transaction to a log, in all variants.  The driver counts those that
ended in its seconds, and misses those that only began in them.

pgbench ends a client at an error that is neither a deadlock nor a failed serialization.
refusal.c makes a refusal by the gate look like the latter: pgbench counts the transaction
as failed and goes on, as applications do.
"""

import glob
import math
import os
import shutil
import signal
import statistics
import subprocess
import time
from array import array
from collections import Counter

from server import Failed

CLIENTS_PER_THREAD = 25
SYSBENCH = shutil.which("sysbench")
TABLES = ["oltp_read_write", "--db-driver=pgsql", "--tables=2", "--table-size=5000", "--rand-type=pareto"]


class Pgbench:
    def __init__(
        self, options, name, number, address, arguments, protocol="simple", per_thread=CLIENTS_PER_THREAD, scripts=()
    ):
        # A thread that opens a connection does nothing else meanwhile.
        if "-C" in arguments:
            per_thread = 1
        self.options = options
        self.number = number
        self.names = scripts or [name]
        self.prefix = options.path("tmp", name)
        self.address = {**address, "LD_PRELOAD": options.path("refusal.so")}
        threads = (number - 1) // per_thread + 1
        how = f"-n -M {protocol} -c {number} -j {threads} -T 1000000 -P 1 -l".split()
        self.command = [options.program("pgbench"), *how, f"--log-prefix={self.prefix}", *arguments]

    def __enter__(self):
        with open(self.prefix + ".err", "w") as errors:
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
            environment = {**os.environ, **self.address}
            self.process = subprocess.Popen(self.command, env=environment, start_new_session=True, **streams)
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()
        for file in self.logs():
            os.unlink(file)

    def logs(self):
        return glob.glob(glob.escape(self.prefix) + ".[0-9]*")

    def messages(self):
        with open(self.prefix + ".err") as file:
            return file.readlines()

    def aborted(self):
        """How many clients have given up."""
        return sum("aborted" in line for line in self.messages())

    def check(self):
        if self.process.poll() is not None:
            errors = [line for line in self.messages() if not line.startswith("progress:")]
            raise Failed("the clients ended early: " + "".join(errors)[-2000:])

    def at_work(self):
        return any(line.startswith("progress:") for line in self.messages())

    def wait_until_at_work(self):
        """Waits until all clients are connected and have begun."""
        end = time.monotonic() + 60 + self.number / 20
        while not self.at_work():
            self.check()
            if time.monotonic() > end:
                raise Failed(f"{self.number} clients were not connected in time")
            time.sleep(0.05)

    def finish(self, cut):
        """Ends it with a complete log.  Clients finish the transaction that they are in.  If
        that takes long, cut() ends their sessions."""
        self.process.send_signal(signal.SIGALRM)
        if not self.ended(2):
            cut()
        if not self.ended(300):
            raise Failed("pgbench does not end")

    def ended(self, seconds):
        try:
            self.process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def figures(self, start, end):
        """By script, of the transactions that ended in that time: how many per second, their
        latencies in milliseconds, and how many failed."""
        found = {}
        for name, latencies, failed in zip(self.names, *self.read(start, end)):
            found[name] = {"tps": len(latencies) / (end - start), "errors": sum(failed.values())}
            if latencies:
                ordered = sorted(latencies)
                found[name]["avg_ms"] = sum(ordered) / len(ordered) / 1000
                for column, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99), ("max_ms", 1)):
                    found[name][column] = ordered[math.ceil(len(ordered) * share) - 1] / 1000
        return found

    def read(self, start, end):
        """A line is: client, number, latency, script, second and microsecond of the end."""
        latencies, failed = [array("Q") for _ in self.names], [Counter() for _ in self.names]
        for log in self.logs():
            with open(log) as file:
                for line in file:
                    fields = line.split()
                    if not start <= int(fields[4]) + int(fields[5]) / 1e6 < end:
                        continue
                    if fields[2].isdigit():
                        latencies[int(fields[3])].append(int(fields[2]))
                    else:
                        failed[int(fields[3])][fields[2]] += 1
        return latencies, failed


class Overload(Pgbench):
    """The same for the sessions of overload.c: only what they have in time is throughput."""

    def __init__(self, options, group, number, address):
        super().__init__(options, group.name, number, address, ())
        self.timeout = group.timeout
        self.address = {**address, "PGOPTIONS": f"-c statement_timeout={group.timeout}"}
        numbers = map(str, (number, group.timeout, group.rate))
        self.command = [options.path("overload"), *numbers, self.prefix + ".1", group.script]

    def figures(self, start, end):
        ((name, figures),) = super().figures(start, end).items()
        ((latencies,), (failed,)) = self.read(start, end)
        late = sum(latency > self.timeout * 1000 for latency in latencies) / (end - start)
        rates = ((how.removeprefix("E"), count / (end - start)) for how, count in failed.most_common())
        note = ", ".join(f"{rate:.0f}/s {how}" for how, rate in rates)
        return {name: {**figures, "tps": figures["tps"] - late, "late": late, "note": note}}


class Sysbench(Pgbench):
    """The same for sysbench, which reports each second."""

    def __init__(self, options, name, number, address, keeps_statements):
        super().__init__(options, name, number, address, ())
        modes = [f"--threads={number}", "--time=100000", "--report-interval=1"]
        modes += [] if keeps_statements else ["--db-ps-mode=disable"]
        self.command = ["sh", "-c", 'exec "$0" "$@" >&2', SYSBENCH, *TABLES, *connection(address), *modes, "run"]

    def at_work(self):
        """Its first report comes a second after the start."""
        self.began = time.time() - 1
        return any(" tps: " in line for line in self.messages())

    def finish(self, cut):
        self.process.kill()
        cut()

    def figures(self, start, end):
        # [ 12s ] thds: 100 tps: 41.00 ...
        reports = [line.split() for line in self.messages() if " tps: " in line]
        rates = [float(words[6]) for words in reports if start <= self.began + int(words[1][:-1]) < end]
        return {self.names[0]: {"tps": statistics.mean(rates) if rates else 0.0, "errors": 0}}


def connection(address):
    names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "db"}
    return [f"--pgsql-{option}={address[name]}" for name, option in names.items()]
