"""What test/drivers/drivers.pl has psycopg 3 do: see there for the commands and answers."""

import asyncio
import sys
import threading

import psycopg
import psycopg_pool

FIRST = "UPDATE t SET v = v + 1 WHERE id = 1"
SECOND = "UPDATE t SET v = v + 1 WHERE id = 2"

connection = None
connection_async = None
used = None
pools = {}
loop = asyncio.new_event_loop()


def connect():
    global connection
    connection = psycopg.connect("", autocommit=True)


def told(error):
    return f"{getattr(error, 'sqlstate', None) or '-'} {type(error).__name__}"


def sql(text, **options):
    cursor = connection.execute(text, **options)
    return f"00000 {cursor.fetchone()[0] if cursor.description else cursor.rowcount}"


def transaction():
    step = "BEGIN"
    try:
        with connection.transaction():
            step = "first statement"
            connection.execute(FIRST)
            step = "second statement"
            connection.execute(SECOND)
            step = "COMMIT"
    except psycopg.Error as error:
        return f"{told(error)} at {step}"
    return "00000"


def heedless():
    """Goes on after errors, as no application should."""
    answers = []
    connection.autocommit = False
    for step in (lambda: connection.execute(FIRST), lambda: connection.execute(SECOND), connection.commit):
        try:
            step()
            answers.append("00000")
        except psycopg.Error as error:
            answers.append(told(error))
    connection.rollback()
    connection.autocommit = True
    return ", ".join(answers)


def cancel():
    """Cancels its statement when there is a further line."""
    thread = threading.Thread(target=lambda: sys.stdin.readline() and connection.cancel_safe())
    thread.start()
    try:
        return sql(FIRST)
    finally:
        thread.join()


async def within_timeout(work):
    try:
        await asyncio.wait_for(work(), 2)
    except Exception as error:
        return told(error)
    return "00000"


def run_async(work):
    """Has an asynchronous connection do it within a client's time-out."""
    global connection_async, used
    if connection_async is None:
        connection_async = loop.run_until_complete(psycopg.AsyncConnection.connect("", autocommit=True))
    used = connection_async
    return loop.run_until_complete(within_timeout(work))


def timeout():
    return run_async(lambda: connection_async.execute(FIRST))


def timeout_of_transaction():
    async def work():
        async with connection_async.transaction():
            await connection_async.execute(FIRST)

    return run_async(work)


def prepared():
    return sql("SELECT count(*) FROM t WHERE id = %s", params=(1,), prepare=True)


def pipeline():
    return in_pipeline(lambda: [connection.execute(statement) for statement in (FIRST, SECOND, FIRST)])


def pipeline_of_transaction():
    def work():
        with connection.transaction():
            return [connection.execute(statement) for statement in (FIRST, SECOND)]

    return in_pipeline(work)


def in_pipeline(work):
    cursors = []
    try:
        with connection.pipeline():
            cursors = work()
    except psycopg.Error as error:
        return f"{told(error)}"
    return "00000 " + ",".join(str(cursor.rowcount) for cursor in cursors)


CHECKS = {"query": lambda pooled: pooled.execute("SELECT 1"), "default": psycopg_pool.ConnectionPool.check_connection}


def pool(check):
    """Checks a connection out of a pool, and in."""
    if check not in pools:
        pools[check] = psycopg_pool.ConnectionPool(
            "", min_size=1, max_size=1, timeout=2, check=CHECKS[check], open=True
        )
        pools[check].wait()
    with pools[check].connection():
        return "00000"


async def usable_async():
    async with connection_async.transaction():
        await connection_async.execute(FIRST)
        await connection_async.execute(SECOND)


def usable():
    """Whether the connection that was used last still works."""
    if used is connection_async:
        loop.run_until_complete(usable_async())
        return "yes"
    if transaction() == "00000":
        return "yes"
    connect()
    return "no"


def main():
    global used
    connect()
    print(psycopg.__version__, flush=True)
    while line := sys.stdin.readline():
        command, *argument = line.rstrip("\n").split(" ", 1)
        if command != "usable":
            used = connection
        try:
            answer = globals()[command](*argument)
        except Exception as error:
            answer = told(error)
        print(answer, flush=True)


main()
