"""What test/drivers/drivers.pl has asyncpg do: see there for the commands and answers."""

import asyncio
import sys

import asyncpg

FIRST = "UPDATE t SET v = v + 1 WHERE id = 1"
SECOND = "UPDATE t SET v = v + 1 WHERE id = 2"

connection = None
statement = None
pools = {}


async def connect():
    global connection
    connection = await asyncpg.connect()


async def line():
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def told(error):
    return f"{getattr(error, 'sqlstate', None) or '-'} {type(error).__name__}"


async def sql(text):
    if text.startswith(("SELECT", "SHOW")):
        return f"00000 {await connection.fetchval(text)}"
    return f"00000 {(await connection.execute(text)).split()[-1]}"


async def transaction():
    step = "BEGIN"
    try:
        async with connection.transaction():
            step = "first statement"
            await connection.execute(FIRST)
            step = "second statement"
            await connection.execute(SECOND)
            step = "COMMIT"
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return f"{told(error)} at {step}"
    return "00000"


async def heedless():
    """Goes on after errors, as no application should."""
    answers = []
    block = connection.transaction()
    await block.start()
    for step in (lambda: connection.execute(FIRST), lambda: connection.execute(SECOND), block.commit):
        try:
            await step()
            answers.append("00000")
        except asyncpg.PostgresError as error:
            answers.append(told(error))
    return ", ".join(answers)


async def cancel():
    """Cancels its statement when there is a further line."""
    task = asyncio.create_task(sql(FIRST))
    await line()
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError as error:
        return told(error)


async def timeout():
    await connection.execute(FIRST, timeout=2)
    return "00000"


async def timeout_of_transaction():
    try:
        await asyncio.wait_for(transaction(), 2)
    except asyncio.TimeoutError as error:
        return told(error)
    return "00000"


async def prepared():
    global statement
    if statement is None:
        statement = await connection.prepare("SELECT count(*) FROM t WHERE id = $1")
    return f"00000 {await statement.fetchval(1)}"


async def pipeline():
    await connection.executemany("UPDATE t SET v = v + 1 WHERE id = $1", [(1,), (2,), (1,)])
    return "00000"


async def pipeline_of_transaction():
    async with connection.transaction():
        return await pipeline()


async def query(pooled):
    await pooled.execute("SELECT 1")


async def reset(pooled):
    await pooled.execute("CLOSE ALL; UNLISTEN *; RESET ALL")


CHECKS = {"query": {"setup": query, "reset": reset}, "default": {}, "reset": {"reset": reset}}


async def pool(check):
    """Checks a connection out of a pool, and in."""
    if check not in pools:
        pools[check] = await asyncpg.create_pool(min_size=1, max_size=1, **CHECKS[check])
    step = "checkout"
    try:
        async with pools[check].acquire():
            step = "checkin"
    except asyncpg.PostgresError as error:
        return f"{told(error)} at {step}"
    return "00000"


async def timeout_of_pool(check):
    """A time-out while a transaction of a pool's connection begins"""

    async def work():
        async with pools[check].acquire() as pooled, pooled.transaction():
            await pooled.execute(FIRST)

    await asyncio.wait_for(work(), 2)
    return "00000"


async def usable():
    """Whether the connection still works."""
    if connection.is_closed():
        await connect()
        return "no"
    answer = "yes"
    if connection.is_in_transaction():
        answer = "after reset"
        await connection.reset()
    return answer if await transaction() == "00000" else "no"


async def main():
    await connect()
    print(asyncpg.__version__, flush=True)
    while text := await line():
        command, *argument = text.rstrip("\n").split(" ", 1)
        try:
            answer = await globals()[command](*argument)
        except Exception as error:
            answer = told(error)
        print(answer, flush=True)


asyncio.run(main())
