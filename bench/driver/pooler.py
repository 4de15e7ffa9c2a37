"""A pooler in transaction mode, in front of the server, as people run it.

pgbouncer: one process listens on a Unix socket, which is the fastest.  Several can
share an address only over TCP (so_reuseport), so they listen on a free port of the
loopback interface, with a password of the day.  Each has its own pool of connections
to the server, over the server's Unix socket.  Before 1.21 it keeps no prepared
statements in transaction mode: then clients that would use them use the simple protocol.

Odyssey: one process with a thread for each CPU and one pool, on Unix sockets.
"""

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import time

from server import Failed, run

PROGRAMS = {name: shutil.which(name) for name in ("pgbouncer", "odyssey")}

PGBOUNCER = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = {listen_addr}
listen_port = {listen_port}
unix_socket_dir = {unix_socket_dir}
so_reuseport = {so_reuseport}
listen_backlog = 4096
auth_type = plain
auth_file = {auth_file}
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = {clients}
query_wait_timeout = 0
ignore_startup_parameters = extra_float_digits, options
logfile = {logfile}
log_connections = 0
log_disconnections = 0
"""

# It looks for the server's socket where it makes its own.
ODYSSEY = """
daemonize no
unix_socket_dir "{directory}"
unix_socket_mode "0700"
locks_dir "{directory}"
enable_online_restart no
bindwith_reuseport no
log_to_stdout no
log_format "%l %m\\n"
log_stats no
workers {threads}
listen {{
    port {port}
    backlog 4096
}}
storage "server" {{
    type "remote"
    port {server_port}
}}
database default {{
    user default {{
        authentication "none"
        storage "server"
        pool "transaction"
        pool_size {pool}
    }}
}}
"""


def pgbouncer_version():
    """Such as (1, 18)."""
    found = re.search(r"([0-9]+)\.([0-9]+)", run([PROGRAMS["pgbouncer"], "--version"]))
    return int(found[1]), int(found[2])


def odyssey_version():
    return run([PROGRAMS["odyssey"], "--version"]).splitlines()[0]


def keeps_prepared_statements(name):
    return name == "odyssey" or pgbouncer_version() >= (1, 21)


class Pooler:
    """What both have in common: processes that run a program with a configuration."""

    def __init__(self, options, name, arguments=(), processes=1):
        self.options = options
        self.name = name
        self.arguments = arguments
        self.processes = processes
        self.running = []

    @property
    def threads(self):
        """Their numbers; each has a /proc/NUMBER/schedstat."""
        return [int(thread) for process in self.running for thread in os.listdir(f"/proc/{process.pid}/task")]

    def __enter__(self):
        configuration = self.options.path("tmp", self.name + ".conf")
        write(configuration, self.settings)
        program = self.own_copy()
        try:
            for _ in range(self.processes):
                self.running.append(
                    subprocess.Popen(
                        [program, *self.arguments, configuration],
                        start_new_session=True,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        preexec_fn=self.options.on_server_cpus,
                    )
                )
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception):
        self.stop()

    def own_copy(self):
        """What ends the servers knows them by the place of their program."""
        copy = self.options.path(self.name)
        if not os.path.exists(copy):
            shutil.copy(PROGRAMS[self.name], copy)
        return copy

    def wait_until_ready(self):
        for attempt in range(50):
            try:
                run(
                    [self.options.program("psql"), "-XAtqc", "SELECT 1", "postgres"], env={**os.environ, **self.address}
                )
                if self.processes == 1 or listeners(self.address["PGPORT"]) == self.processes:
                    return
                time.sleep(0.1)
            except Failed:
                if attempt == 49 or any(process.poll() is not None for process in self.running):
                    raise
                time.sleep(0.1)

    def stop(self):
        """At once.  On SIGTERM, pgbouncer would wait for its clients to go, from 1.23 on."""
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait()
        self.running = []
        if self.address["PGHOST"].startswith("/"):
            # What was killed leaves its socket, on which Odyssey would not listen.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.address["PGHOST"], ".s.PGSQL." + self.address["PGPORT"]))


class Pgbouncer(Pooler):
    """processes with a pool of that many connections each"""

    def __init__(self, options, server_address, processes, pool, clients):
        super().__init__(options, "pgbouncer", ["-q"], processes)
        shared = processes > 1
        password = secrets.token_hex(16)
        directory = server_address["PGHOST"]
        port = free_port() if shared else 6432
        self.address = {
            **server_address,
            "PGHOST": "127.0.0.1" if shared else directory,
            "PGPORT": str(port),
            "PGPASSWORD": password,
        }
        users = options.path("tmp", "pgbouncer.users")
        write(users, f'"client" "{password}"\n')
        self.settings = PGBOUNCER.format(
            host=directory,
            port=server_address["PGPORT"],
            pool=pool,
            clients=clients + 100,
            listen_addr="127.0.0.1" if shared else "",
            listen_port=port,
            unix_socket_dir="" if shared else directory,
            so_reuseport=int(shared),
            auth_file=users,
            logfile=options.path("log", "pgbouncer.log"),
        )
        if keeps_prepared_statements("pgbouncer"):
            self.settings += "max_prepared_statements = 200\n"


class Odyssey(Pooler):
    """with a pool of that many connections"""

    def __init__(self, options, server_address, pool):
        super().__init__(options, "odyssey")
        self.address = {**server_address, "PGPORT": "6432"}
        self.settings = ODYSSEY.format(
            directory=server_address["PGHOST"],
            threads=len(options.server_cpus),
            port=6432,
            server_port=server_address["PGPORT"],
            pool=pool,
        )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listeners(port):
    """How many sockets listen on a TCP port."""
    with open("/proc/net/tcp") as file:
        fields = [line.split() for line in file.readlines()[1:]]
    return sum(f[1].endswith(f":{int(port):04X}") and f[3] == "0A" for f in fields)


def write(path, text):
    with open(path, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
