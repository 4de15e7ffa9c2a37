"""A row that a transaction keeps, and sessions that try again and again to update it."""

import contextlib
import subprocess
import time

from server import SILENT, Failed

UPDATE = "UPDATE hot SET v = v + 1 WHERE id = 1;"
KEEPS = "SELECT count(*) FROM pg_stat_activity WHERE state ~ '^idle in tr' AND backend_xid IS NOT NULL"


def stuck(setting, statements):
    """A context in which an idle transaction keeps the row, and 40 sessions with this setting
    run these statements."""

    @contextlib.contextmanager
    def happens(server):
        with contextlib.ExitStack() as stack:

            def start(command, **more):
                process = subprocess.Popen(command, **{**SILENT, **more})
                stack.callback(process.wait)
                stack.callback(process.kill)
                return process

            psql = [server.options.program("psql"), "-Xq", "-d", "rows"]
            keeper = start(psql, env=server.environment(), stdin=subprocess.PIPE, text=True)
            print("BEGIN;", UPDATE, file=keeper.stdin, flush=True)
            if not server.wait_until(KEEPS, "1", 30):
                raise Failed("no transaction keeps the row")
            pool = f"-c {setting} -c admission_gate.pool=contenders"
            environment = {**server.environment(), "PGUSER": "client", "PGOPTIONS": pool}
            for _ in range(40):
                source = start(["yes", statements], stdout=subprocess.PIPE)
                start(psql, env=environment, stdin=source.stdout)
                source.stdout.close()
            time.sleep(1 if server.options.quick else 4)
            yield

    return happens
