"""pgbouncer in transaction mode, in front of the server, as people run it.

One process listens on a Unix socket, which is the fastest.  Several can
share an address only over TCP (so_reuseport), so they listen on a free port of the
loopback interface, with a password of the day.  Each has its own pool of connections
to the server, over the server's Unix socket.  Before 1.21 it keeps no prepared
statements in transaction mode: then clients that would use them use the simple protocol.
"""

import os
import re
import secrets
import shutil
import socket
import subprocess
import time

from server import Failed, run

PROGRAM = shutil.which("pgbouncer")

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


def pgbouncer_version():
    """Such as (1, 18)."""
    found = re.search(r"([0-9]+)\.([0-9]+)", run([PROGRAM, "--version"]))
    return int(found[1]), int(found[2])


def keeps_prepared_statements():
    return pgbouncer_version() >= (1, 21)


class Pgbouncer:
    """processes with a pool of that many connections each"""

    def __init__(self, options, server_address, processes, pool, clients):
        self.options = options
        self.processes = processes
        self.running = []
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
        if keeps_prepared_statements():
            self.settings += "max_prepared_statements = 200\n"

    @property
    def threads(self):
        """Their numbers; each has a /proc/NUMBER/schedstat."""
        return [int(thread) for process in self.running for thread in os.listdir(f"/proc/{process.pid}/task")]

    def __enter__(self):
        configuration = self.options.path("tmp", "pgbouncer.conf")
        write(configuration, self.settings)
        program = self.own_copy()
        try:
            for _ in range(self.processes):
                self.running.append(
                    subprocess.Popen(
                        [program, "-q", configuration],
                        start_new_session=True,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
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
        copy = self.options.path("pgbouncer")
        if not os.path.exists(copy):
            shutil.copy(PROGRAM, copy)
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
