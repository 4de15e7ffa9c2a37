"""What test/drivers/drivers.pl has asyncpg do: see there for the commands and answers."""

import asyncio
import sys

import asyncpg

FIRST = "UPDATE t SET v = v + 1 WHERE id = 1"
SECOND = "UPDATE t SET v = v + 1 WHERE id = 2"
RESET = {"reset": lambda pooled: pooled.execute("CLOSE ALL; UNLISTEN *; RESET ALL")}
CHECKS = {"query": {"setup": lambda pooled: pooled.execute("SELECT 1"), **RESET}, "default": {}, "reset": RESET}


async def line():
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def told(error):
    return f"{getattr(error, 'sqlstate', None) or '-'} {type(error).__name__}"


class Client:
    def __init__(self, connection):
        self.connection = connection
        self.pools = {}

    async def sql(self, text):
        return f"00000 {(await self.connection.execute(text)).split()[-1]}"

    async def transaction(self):
        step = "BEGIN"
        try:
            async with self.connection.transaction():
                step = "first statement"
                await self.connection.execute(FIRST)
                step = "second statement"
                await self.connection.execute(SECOND)
                step = "COMMIT"
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            return f"{told(error)} at {step}"
        return "00000"

    async def heedless(self):
        answers = []
        block = self.connection.transaction()
        await block.start()
        execute = self.connection.execute
        for step, *arguments in ((execute, FIRST), (execute, SECOND), (block.commit,)):
            try:
                await step(*arguments)
                answers.append("00000")
            except asyncpg.PostgresError as error:
                answers.append(told(error))
        return ", ".join(answers)

    async def cancel(self):
        task = asyncio.create_task(self.sql(FIRST))
        await line()
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError as error:
            return told(error)

    async def timeout(self):
        await self.connection.execute(FIRST, timeout=2)
        return "00000"

    async def timeout_of_transaction(self):
        return await asyncio.wait_for(self.transaction(), 2)

    async def pipeline(self):
        await self.connection.executemany("UPDATE t SET v = v + 1 WHERE id = $1", [(1,), (2,), (1,)])
        return "00000"

    async def pool(self, check):
        if check not in self.pools:
            self.pools[check] = await asyncpg.create_pool(min_size=1, max_size=1, **CHECKS[check])
        step = "checkout"
        try:
            async with self.pools[check].acquire():
                step = "checkin"
        except asyncpg.PostgresError as error:
            return f"{told(error)} at {step}"
        return "00000"

    async def timeout_of_pool(self, check):
        """A time-out while a transaction of a pool's connection begins"""

        async def work():
            async with self.pools[check].acquire() as pooled, pooled.transaction():
                await pooled.execute(FIRST)

        await asyncio.wait_for(work(), 2)
        return "00000"

    async def usable(self):
        answer = "yes"
        if self.connection.is_in_transaction():
            answer = "after reset"
            await self.connection.reset()
        return answer if await self.transaction() == "00000" else "no"


async def main():
    client = Client(await asyncpg.connect())
    print(asyncpg.__version__, flush=True)
    while text := await line():
        command, *argument = text.rstrip("\n").split(" ", 1)
        try:
            answer = await getattr(client, command)(*argument)
        except Exception as error:
            answer = told(error)
        print(answer, flush=True)


asyncio.run(main())
