"""pgbouncer in transaction mode, in front of the server, on a Unix socket.

Before 1.21 it keeps no prepared statements in transaction mode.  Then its clients use none.
"""

import os
import re
import shutil
import subprocess
import time

from server import SILENT, Failed, run

PROGRAM = shutil.which("pgbouncer")
PORT = "6432"

CONFIGURATION = """
[databases]
* = host={host} port={port} user=client
[pgbouncer]
listen_addr =
listen_port = {own_port}
unix_socket_dir = {host}
listen_backlog = 4096
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = {clients}
query_wait_timeout = 0
ignore_startup_parameters = extra_float_digits, options
logfile = {log}
log_connections = 0
log_disconnections = 0
"""


def version():
    """Such as (1, 18)."""
    found = re.search(r"([0-9]+)\.([0-9]+)", run([PROGRAM, "--version"]))
    return int(found[1]), int(found[2])


def keeps_statements():
    return version() >= (1, 21)


class Pgbouncer:
    """pool is how many connections to the server it has for each database."""

    def __init__(self, server, pool, clients):
        self.options = server.options
        self.address = {**server.address, "PGPORT": PORT}
        self.configuration = CONFIGURATION.format(
            host=server.address["PGHOST"],
            port=server.address["PGPORT"],
            own_port=PORT,
            pool=pool,
            clients=clients + 100,
            log=self.options.path("log", "pgbouncer.log"),
        )
        if keeps_statements():
            self.configuration += "max_prepared_statements = 200\n"

    def __enter__(self):
        file = self.options.path("tmp", "pgbouncer.conf")
        with open(file, "w") as configuration:
            configuration.write(self.configuration)
        # test/setup.sh ends all programs that lie in the throw-away directory.
        program = self.options.path("pgbouncer")
        if not os.path.exists(program):
            shutil.copy(PROGRAM, program)
        self.process = subprocess.Popen([program, "-q", file], start_new_session=True, **SILENT)
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception):
        self.stop()

    def wait_until_ready(self):
        command = [self.options.program("psql"), "-XAtqc", "SELECT 1", "postgres"]
        for attempt in range(50):
            try:
                run(command, env={**os.environ, **self.address})
                return
            except Failed:
                if attempt == 49 or self.process.poll() is not None:
                    raise
                time.sleep(0.1)

    def stop(self):
        """At once.  On SIGTERM, pgbouncer from 1.23 on waits until its clients go."""
        self.process.kill()
        self.process.wait()
