"""What test/drivers/drivers.pl has psycopg 3 do: see there for the commands and answers."""

import asyncio
import sys
import threading

import psycopg
import psycopg_pool

FIRST = "UPDATE t SET v = v + 1 WHERE id = 1"
SECOND = "UPDATE t SET v = v + 1 WHERE id = 2"
CHECKS = {"query": lambda pooled: pooled.execute("SELECT 1"), "default": psycopg_pool.ConnectionPool.check_connection}


def told(error):
    return f"{getattr(error, 'sqlstate', None) or '-'} {type(error).__name__}"


class Client:
    def __init__(self):
        self.connection = psycopg.connect("", autocommit=True)
        self.loop = asyncio.new_event_loop()
        self.other = None  # the asynchronous connection, for time-outs
        self.used_other = False
        self.pools = {}

    def sql(self, text):
        return f"00000 {self.connection.execute(text).rowcount}"

    def transaction(self):
        step = "BEGIN"
        try:
            with self.connection.transaction():
                step = "first statement"
                self.connection.execute(FIRST)
                step = "second statement"
                self.connection.execute(SECOND)
                step = "COMMIT"
        except psycopg.Error as error:
            return f"{told(error)} at {step}"
        return "00000"

    def heedless(self):
        answers = []
        self.connection.autocommit = False
        for step in (lambda: self.sql(FIRST), lambda: self.sql(SECOND), self.connection.commit):
            try:
                step()
                answers.append("00000")
            except psycopg.Error as error:
                answers.append(told(error))
        self.connection.autocommit = True
        return ", ".join(answers)

    def cancel(self):
        thread = threading.Thread(target=lambda: sys.stdin.readline() and self.connection.cancel_safe())
        thread.start()
        try:
            return self.sql(FIRST)
        finally:
            thread.join()

    async def work(self, *statements, in_block=True, seconds=None):
        """Executes statements on the asynchronous connection, within a client's time-out."""

        async def execute():
            if in_block:
                async with self.other.transaction():
                    for statement in statements:
                        await self.other.execute(statement)
            else:
                await self.other.execute(*statements)

        self.other = self.other or await psycopg.AsyncConnection.connect("", autocommit=True)
        self.used_other = True
        await asyncio.wait_for(execute(), seconds)
        return "00000"

    def timeout(self):
        return self.loop.run_until_complete(self.work(FIRST, in_block=False, seconds=2))

    def timeout_of_transaction(self):
        return self.loop.run_until_complete(self.work(FIRST, seconds=2))

    def pipeline(self):
        with self.connection.pipeline():
            cursors = [self.connection.execute(statement) for statement in (FIRST, SECOND, FIRST)]
        return "00000 " + ",".join(str(cursor.rowcount) for cursor in cursors)

    def pool(self, check):
        if check not in self.pools:
            options = {"min_size": 1, "max_size": 1, "timeout": 2, "check": CHECKS[check], "open": True}
            self.pools[check] = psycopg_pool.ConnectionPool("", **options)
            self.pools[check].wait()
        with self.pools[check].connection():
            return "00000"

    def usable(self):
        if self.used_other:
            self.loop.run_until_complete(self.work(FIRST, SECOND))
            return "yes"
        return "yes" if self.transaction() == "00000" else "no"


def main():
    client = Client()
    print(psycopg.__version__, flush=True)
    while line := sys.stdin.readline():
        command, *argument = line.rstrip("\n").split(" ", 1)
        if command != "usable":
            client.used_other = False
        try:
            answer = getattr(client, command)(*argument)
        except Exception as error:
            answer = told(error)
        print(answer, flush=True)


main()
