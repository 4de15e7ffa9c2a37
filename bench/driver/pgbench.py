"""pgbench as the load, started and ended when the driver wants it.

pgbench counts the time of opening connections, 40 s for thousands, as part of its
run.  So it is given no end.  Its first progress line says that all its clients
are connected and at work; from there on the driver counts the seconds.  SIGALRM is
how pgbench's own clock tells it to end, and the driver sends it.

Every transaction is written to a log (-l), about 45 bytes each, by all variants
alike: percentiles need them all.
"""

import glob
import os
import signal
import subprocess
import time

from server import Failed

CLIENTS_PER_THREAD = 25


class Load:
    def __init__(self, options, name, clients, arguments, address, protocol="simple", per_thread=CLIENTS_PER_THREAD):
        # A thread that opens a connection does nothing else meanwhile.
        if "-C" in arguments:
            per_thread = 1
        self.prefix = options.path("tmp", name)
        self.clients = clients
        self.errors_file = self.prefix + ".err"
        self.command = [
            options.program("pgbench"),
            "-n",
            "-M",
            protocol,
            "-c",
            str(clients),
            "-j",
            str((clients - 1) // per_thread + 1),
            "-T",
            "1000000",
            "-P",
            "1",
            "-l",
            f"--log-prefix={self.prefix}",
            *arguments,
        ]
        self.address = address
        self.process = None

    def __enter__(self):
        with open(self.errors_file, "w") as file:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.address},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
            )
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()
        for file in self.logs():
            os.unlink(file)

    def logs(self):
        return glob.glob(glob.escape(self.prefix) + ".[0-9]*")

    def messages(self):
        with open(self.errors_file) as file:
            return [line for line in file if not line.startswith("progress:")]

    def aborted(self):
        """How many clients have given up."""
        return sum("aborted" in line for line in self.messages())

    def check(self):
        if self.process.poll() is not None:
            raise Failed("pgbench ended early: " + "".join(self.messages())[-2000:])

    def at_work(self):
        with open(self.errors_file) as file:
            return "progress:" in file.read()

    def wait_until_at_work(self):
        """Waits until all clients are connected and have begun."""
        end = time.monotonic() + 60 + self.clients / 20
        while not self.at_work():
            self.check()
            if time.monotonic() > end:
                raise Failed(f"{self.clients} clients were not connected in time")
            time.sleep(0.05)

    def finish(self, cut):
        """Ends the load, so that its log is complete.  Clients finish the
        transaction they are in; if that takes long, cut() ends their sessions."""
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
