"""Sessions of a pool that run everything: now and then something that many want, mostly what
nobody else does.

This is a shop.  Many want one row of its stock, while most requests read items or update rows of t.
Each script is counted by itself.  In an open loop (-R) latencies count from when a transaction was
due; one that was not done when the run ended is missing.
"""

from kinds import ID, Benchmark, Group, plain

NUMBERED = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
# The inner transaction of a dblink is in another session of the server, which lasts as long as the outer one.
INNER = """CREATE FUNCTION sell_inside(item int) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    IF dblink_get_connections() IS NULL THEN
        PERFORM dblink_connect('inner', format('host=%s port=%s dbname=%s user=client',
            current_setting('unix_socket_directories'), current_setting('port'), current_database()));
    END IF;
    PERFORM dblink_exec('inner', format('UPDATE stock SET n = n - 1 WHERE id = %s', item));
    END $$"""
TABLES = [
    "CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 50)",
    "INSERT INTO stock SELECT generate_series(1, 1000), 0",
    *(f"CREATE TABLE {name} ({NUMBERED}, stock int NOT NULL)" for name in ("orders", "mutations")),
    *(f"CREATE TABLE {name} (id int PRIMARY KEY, v bigint NOT NULL)" for name in ("items", "t", "parents")),
    *(f"INSERT INTO {name} SELECT generate_series(1, {{rows}}), 0" for name in ("items", "t", "parents")),
    f"CREATE TABLE children ({NUMBERED}, parent int NOT NULL REFERENCES parents)",
    """DO $$ BEGIN IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'dblink') THEN
           CREATE EXTENSION dblink;
       END IF; END $$""",
    INNER,
]


def block(*lines):
    return "\n".join(["BEGIN;", *lines, "COMMIT;", ""])


SELL = "UPDATE stock SET n = n - 1 WHERE id = {};"
ORDER = "INSERT INTO orders (stock) VALUES (1);"
CHILD = "INSERT INTO children (parent) VALUES ({});"
LOCK_PARENT = "SELECT v FROM parents WHERE id = 1 FOR UPDATE;"
UPDATE = "UPDATE t SET v = v + 1 WHERE id = :id;"
THINK = "\\sleep {} ms"

HOT = block(SELL.format(1), ORDER)
READS = ID + "SELECT v FROM items WHERE id = :id;\n"
UPDATES = ID + block(UPDATE, "SELECT v FROM t WHERE id = :id;")
NOTIFY = ID + block(UPDATE, "SELECT pg_notify('updated', '');")


def pool(*scripts, number=200, rate=0, **more):
    """Sessions that run these scripts, each a name, a weight and a text."""
    return Group("pool", "shop", "", ("-R", str(rate)) if rate else (), number, scripts=scripts, **more)


def beside(hot, weights=(1, 6, 3), **more):
    """The hot script, and with it what has nothing to do with it."""
    return pool(*zip(("hot", "reads", "updates"), weights, (hot, READS, UPDATES)), **more)


def shop(title, *groups, **more):
    return plain(title, *groups, **{"duration": 10, **more})


def tenth(title, hot, **more):
    return shop(f"a tenth of the transactions of 200 clients: {title}", beside(hot, **more))


MIXED = {
    "shop": tenth("update of one row, then an insert", HOT),
    "foreign_key": shop(
        "a tenth of the transactions of 200 clients: children of one parent, every second one locks it before",
        pool(
            ("child", 1, block(CHILD.format(1))),
            ("parent", 1, block(LOCK_PARENT, CHILD.format(1))),
            ("reads", 12, READS),
            ("updates", 6, UPDATES),
        ),
    ),
    "upsert": tenth(
        "INSERT ... ON CONFLICT DO UPDATE of one key",
        block("INSERT INTO stock VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET n = stock.n - 1;", ORDER),
    ),
    "for_update": tenth(
        "SELECT ... FOR UPDATE, 2 ms of client time, update",
        block("SELECT n FROM stock WHERE id = 1 FOR UPDATE;", THINK.format(2), SELL.format(1), ORDER),
    ),
    "literals": tenth("one row; all by the simple protocol", HOT, protocol="simple"),
    "advisory": tenth("an advisory lock", block("SELECT pg_advisory_xact_lock(7);", ORDER)),
    "half_hot": shop("half of the transactions of 200 clients update one row", beside(HOT, (5, 3, 2))),
    "three_rows": tenth("one of three rows", "\\set row random(1, 3)\n" + block(SELL.format(":row"), ORDER)),
    "moving_row": tenth(
        "one row, every 5 s another",
        "SELECT 1 + floor(extract(epoch FROM now()) / 5)::int % 1000 AS row \\gset\n"
        + block(SELL.format(":row"), ORDER),
    ),
    "shop_open": shop(
        "4500 transactions per second asked for, a fifth update one row", beside(HOT, (3, 8, 4), rate=4500)
    ),
    "children": shop(
        "100 clients insert children, for 2 ms of client time: 6 of 13 of one parent, which 1 of 13 locks",
        pool(
            ("child", 6, block(CHILD.format(1), THINK.format(2))),
            ("parent", 1, block(LOCK_PARENT, CHILD.format(1))),
            ("others", 6, ID + block(CHILD.format(":id"), THINK.format(2))),
            number=100,
        ),
    ),
    "children_20ms": shop(
        "150 clients insert children of one parent, for 20 ms of client time; 1 of 20 locks it",
        pool(
            ("child", 19, block(CHILD.format(1), THINK.format(20))),
            ("parent", 1, block(LOCK_PARENT, CHILD.format(1))),
            number=150,
        ),
    ),
    "notify_open": shop("updates of random rows with NOTIFY, 600 per second", pool(("notify", 1, NOTIFY), rate=600)),
    "notify_closed": shop("300 clients update random rows, with NOTIFY", pool(("notify", 1, NOTIFY), number=300)),
    "mutations": shop(
        "a fifth of 100 clients inserts, for 10 ms of client time, what 3 processors lock the table for; others read",
        pool(
            ("mutations", 1, block("INSERT INTO mutations (stock) VALUES (1);", THINK.format(10))),
            ("reads", 4, READS),
            number=100,
            # pgbench would wait for the lock to prepare the insert, and keep its other clients from ending.
            protocol="extended",
        ),
        Group(
            "processors",
            "shop",
            block("LOCK TABLE mutations IN EXCLUSIVE MODE;", "DELETE FROM mutations;") + THINK.format(50) + "\n",
            number=3,
        ),
    ),
    "held": shop(
        "a tenth of the transactions of 60 clients: a row locked for 50 ms of client time",
        beside(block(SELL.format(1), THINK.format(50)), number=60),
    ),
    "dblink": shop(
        "a tenth of the transactions of 50 clients: one row, and inside, by dblink, one of two more of the table",
        beside("\\set row random(2, 3)\n" + block(SELL.format(1), "SELECT sell_inside(:row);"), number=50),
    ),
    "reconnect": shop(
        "200 clients update one row, with a new connection each time",
        Group("hot", "shop", SELL.format(1), ("-C",), 200, protocol="extended"),
    ),
    # Counts from the first second on, until most have had a turn.
    "at_once": shop(
        "1000 clients that begin at once update one row",
        Group("hot", "shop", SELL.format(1), number=1000),
        duration=20,
        patience=0,
    ),
}

SALE = shop(
    "1800 transactions per second asked for, a third sells one row, for 2 ms of client time: twice what it can do",
    beside(block(SELL.format(1), THINK.format(2), ORDER), (2, 3, 1), rate=1800),
)

LOADS = {**MIXED, "sale": SALE}
PEERS = "off auto gate:8 pgbouncer:20"
BENCHMARKS = {
    "mixed_sessions": Benchmark("Sessions that run everything", " ".join(MIXED), PEERS),
    "flash_sale": Benchmark(
        "More demand than one row can serve; errors are refusals",
        "sale",
        "off auto max_queue_length=50:-1 max_queue_length=50:8 pgbouncer:20",
    ),
}
