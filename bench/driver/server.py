"""A throw-away server on a private socket, and the CPU that it takes.

Each benchmark has a data directory of its own and finds nothing that another left.
bench.conf has the settings of all variants.  ALTER SYSTEM sets what one variant needs, and
resets it before the next.
"""

import os
import shutil
import subprocess
import time

SETTINGS = {
    "shared_preload_libraries": "admission_gate",
    "listen_addresses": "",
    "shared_buffers": "256MB",
    # No checkpoint in the middle of a run: each starts after one.
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
}
LIMIT = "admission_gate.max_active_backends"
TICK = os.sysconf("SC_CLK_TCK")
SILENT = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
SESSIONS = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


class Failed(Exception):
    """Something outside went wrong; the text says what."""


def run(command, **more):
    """Runs a program and returns what it prints."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, text=True, check=False, **streams, **more)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)[:200]}\n{done.stdout[-3000:]}")
    return done.stdout


class Server:
    def __init__(self, options, connections, settings=()):
        self.options = options
        self.data = options.path("data")
        # Clients are no superusers: those have a reserve.
        self.address = {"PGHOST": options.path("tmp"), "PGPORT": "5432", "PGUSER": "client"}
        self.preloaded = True
        self.databases = {"postgres"}
        self.settings = {
            **SETTINGS,
            "unix_socket_directories": options.path("tmp"),
            "max_connections": str(connections + 60),
            **dict(options.server_settings),
            **dict(settings),
        }

    def __enter__(self):
        run([self.options.program("initdb"), "-D", self.data, "-A", "trust", "-U", "postgres", "-N"])
        with open(os.path.join(self.data, "postgresql.conf"), "a") as file:
            file.write("include 'bench.conf'\n")
        self.write_settings()
        self.start()
        self.sql("CREATE ROLE client LOGIN IN ROLE pg_read_all_data, pg_write_all_data")
        self.sql("CREATE EXTENSION admission_gate", "GRANT SET ON PARAMETER admission_gate.pool TO client")
        return self

    def __exit__(self, *exception):
        self.control("-m", "immediate", "stop")
        shutil.rmtree(self.data)

    def write_settings(self):
        with open(os.path.join(self.data, "bench.conf"), "w") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self.settings.items())

    def control(self, *arguments):
        log = self.options.path("log", "server.log")
        run([self.options.program("pg_ctl"), "-D", self.data, "-w", "-t", "300", "-l", log, *arguments])

    def start(self):
        self.control("start")
        with open(os.path.join(self.data, "postmaster.pid")) as file:
            self.pid = int(file.readline())

    def preload(self, wanted):
        """Restarts the server unless it has the library, or has it not, as wanted."""
        if wanted == self.preloaded:
            return
        self.sql("ALTER SYSTEM RESET ALL", "CHECKPOINT")
        self.control("-m", "fast", "stop")
        self.settings["shared_preload_libraries"] = "admission_gate" if wanted else ""
        self.write_settings()
        self.start()
        self.preloaded = wanted

    def sql(self, *statements, database="postgres"):
        """Runs statements, one transaction each, past the gate."""
        command = [self.options.program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", database]
        for statement in statements:
            command += ["-c", statement]
        return run(command, env=self.environment()).strip()

    def environment(self):
        """For programs that prepare or watch: they pass the gate."""
        return {**os.environ, **self.address, "PGUSER": "postgres", "PGOPTIONS": "-c admission_gate.bypass=on"}

    def wait_until(self, query, expected, seconds):
        """Asks until the answer is as expected; returns whether it came."""
        end = time.monotonic() + seconds
        while self.sql(query) != expected:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def configure(self, settings):
        """Makes these the only settings beside bench.conf; waits until they are in force."""
        before = self.sql("SELECT clock_timestamp()")
        self.sql(
            "ALTER SYSTEM RESET ALL",
            *(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()),
            "SELECT pg_reload_conf()",
        )
        if not self.wait_until(f"SELECT pg_conf_load_time() >= '{before}'", "t", 60):
            raise Failed("the server does not reload its settings")
        limit = str(settings.get(LIMIT, 0))
        seen = "SELECT max_active FROM pg_stat_admission_gate WHERE pool = 'default'"
        if self.preloaded and not self.wait_until(seen, limit, 60):
            raise Failed(f"the server does not take over the limit of {limit}")

    def end_sessions(self):
        """Ends all sessions and waits until they are gone."""
        self.sql(f"SELECT count(pg_terminate_backend(pid)) {SESSIONS}")
        if not self.wait_until(f"SELECT count(*) {SESSIONS}", "0", 300):
            raise Failed("sessions do not end")

    def differing_settings(self):
        return self.sql("""SELECT string_agg(name || ' = ' || current_setting(name), ', ' ORDER BY name)
                           FROM pg_settings WHERE sourcefile LIKE '%/bench.conf'
                           AND name !~ 'listen_addresses|unix_socket'""")

    def cpu(self, other=None):
        """Seconds of CPU, user and system, that the server has used so far, with its
        children, living and ended, and another process (a pooler)."""
        found = processes()
        own = [pid for pid, fields in found.items() if pid in (self.pid, other) or int(fields[1]) == self.pid]
        ended = sum(map(int, found[self.pid][13:15])) / TICK
        return ended + sum(on_cpu(pid, found[pid]) for pid in own)


def on_cpu(pid, fields):
    """To the nanosecond where the kernel tells: thousands of processes may have little each."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9
    except OSError:
        return sum(map(int, fields[11:13])) / TICK


def processes():
    """By number, the fields of /proc/PID/stat from the third on."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                found[int(name)] = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended
            pass
    return found
