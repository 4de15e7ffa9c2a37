"""What happens beside a load, for as long as a context lasts.

Each is given the server and the running clients, by the names of their groups.
"""

import contextlib
import os
import signal
import subprocess
import time

from server import Failed

SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@contextlib.contextmanager
def nothing(_server, _clients):
    yield


@contextlib.contextmanager
def hog(_server, _clients):
    """Two busy loops for each CPU"""
    command = ["sh", "-c", "while :; do :; done"]
    loops = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()


def session(database, *statements):
    """A session that runs these past the gate, and then nothing more."""

    @contextlib.contextmanager
    def happens(server, _clients):
        command = [server.options.program("psql"), "-XAtq", "-d", database]
        environment = {**server.environment(), "PGAPPNAME": "disturbance"}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True, **SILENT)
        process.stdin.write("\n".join(statements) + "\n")
        process.stdin.flush()
        try:
            yield
        finally:
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'disturbance'")
            process.kill()
            process.communicate()

    return happens


def again_and_again(database, statement):
    return session(database, statement, "\\watch 0.01")


@contextlib.contextmanager
def one_core(server, _clients):
    """The server loses all CPUs but one."""
    every = os.sched_getaffinity(0)
    set_affinity(server, {min(every)})
    try:
        yield
    finally:
        set_affinity(server, every)


def set_affinity(server, cpus):
    for pid in [server.pid, *map(int, server.sql("SELECT pid FROM pg_stat_activity").split())]:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(pid, cpus)


def still(name):
    """A group has nothing to do: its pgbench is stopped."""

    @contextlib.contextmanager
    def happens(_server, clients):
        clients[name].process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            clients[name].process.send_signal(signal.SIGCONT)

    return happens


def stuck(setting, statements):
    """An idle transaction keeps a row, and 40 sessions with this setting try to update it."""

    @contextlib.contextmanager
    def happens(server, clients):
        pool = f"-c {setting} -c admission_gate.pool=contenders"
        environment = {**server.environment(), "PGUSER": "client", "PGOPTIONS": pool}
        with contextlib.ExitStack() as stack:
            stack.enter_context(session("rows", "BEGIN;", "UPDATE hot SET v = v + 1 WHERE id = 1;")(server, clients))
            keeps = "SELECT count(*) FROM pg_stat_activity WHERE state ~ '^idle in tr' AND backend_xid IS NOT NULL"
            if not server.wait_until(keeps, "1", 30):
                raise Failed("no transaction keeps the row")
            for _ in range(40):
                source = subprocess.Popen(["yes", statements], stdout=subprocess.PIPE)
                command = [server.options.program("psql"), "-Xq", "-d", "rows"]
                retries = subprocess.Popen(command, env=environment, stdin=source.stdout, **SILENT)
                source.stdout.close()
                for process in (source, retries):
                    stack.callback(process.wait)
                    stack.callback(process.kill)
            time.sleep(1 if server.options.quick else 4)
            yield

    return happens
