"""The tables: one database each, made when first needed.

The trick, an admission gate in SQL as it has been published: a function loops
over ten advisory locks, does its work under the first that it gets, and if it
gets none, sleeps for up to 30 seconds and tries again.
"""

from server import run

TRICK = """
CREATE FUNCTION {name} RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        FOR slot IN 1..10 LOOP
            IF pg_try_advisory_xact_lock(slot) THEN
                {work};
                RETURN;
            END IF;
        END LOOP;
        PERFORM pg_sleep(30 * random());
    END LOOP;
END $$
"""

HOT = [
    "CREATE TABLE hot (id int PRIMARY KEY, n bigint NOT NULL)",
    "INSERT INTO hot VALUES (1, 0)",
    TRICK.format(name="trick()", work="UPDATE hot SET n = n + 1 WHERE id = 1"),
]

COUNTERS = [
    "CREATE TABLE counters (id int PRIMARY KEY, cnt int NOT NULL)",
    "INSERT INTO counters SELECT i, 0 FROM generate_series(1, {rows}) i",
    TRICK.format(name="trick(which int, step int)", work="UPDATE counters SET cnt = cnt + step WHERE id = which"),
]

# About 1.6 kB each, below the size from which values are compressed.
JSON = [
    "CREATE TABLE test (id int PRIMARY KEY, info jsonb NOT NULL)",
    """INSERT INTO test SELECT i, jsonb_build_object('id', i, 'name', md5(i::text),
           'tags', jsonb_build_array('new', 'red', i % 100), 'text', repeat(md5(i::text), 46))
       FROM generate_series(1, {rows}) i""",
]

FACTS = [
    "CREATE TABLE dims (id int PRIMARY KEY, name text NOT NULL)",
    "INSERT INTO dims SELECT i, md5(i::text) FROM generate_series(1, {rows} / 10) i",
    "CREATE TABLE facts (dim int NOT NULL, amount int NOT NULL, note text NOT NULL)",
    """INSERT INTO facts SELECT 1 + i % ({rows} / 10), (i::bigint * 7919 % 1000003)::int, md5(i::text)
       FROM generate_series(1, {rows}) i""",
]

HOTSPOTS = [
    *(f"CREATE TABLE {name} (id int PRIMARY KEY, v bigint NOT NULL DEFAULT 0)" for name in ("hot", "few", "many")),
    "INSERT INTO hot (id) VALUES (1), (2)",
    "INSERT INTO few (id) SELECT generate_series(1, 60)",
    "INSERT INTO many (id) SELECT generate_series(1, {rows})",
]

# By name: statements, and rows in a full and in a quick run.
STATEMENTS = {
    "hot": (HOT, 1, 1),
    "counters": (COUNTERS, 5000000, 20000),
    "json": (JSON, 200000, 2000),
    "facts": (FACTS, 1000000, 20000),
    "hotspots": (HOTSPOTS, 100000, 1000),
}

# By name: scale of pgbench -i, likewise.
PGBENCH = {"tpcb_10": (10, 1), "tpcb_100": (100, 2)}


def rows(name, options):
    """How many rows the dataset has (or accounts, for pgbench's)."""
    if name in PGBENCH:
        return scale(name, options) * 100000
    _, full, small = STATEMENTS[name]
    if name == "counters" and options.rows:
        return options.rows
    return small if options.quick else full


def scale(name, options):
    return PGBENCH[name][1 if options.quick else 0]


def load(server, name):
    """Makes the dataset unless the server has it."""
    if name in server.databases:
        return
    options = server.options
    server.sql(f"CREATE DATABASE {name}")
    if name in PGBENCH:
        run([options.program("pgbench"), "-i", "-q", "-s", str(scale(name, options)), name], env=server.environment())
    else:
        count = rows(name, options)
        server.sql(
            *(statement.replace("{rows}", str(count)) for statement in STATEMENTS[name][0]),
            "VACUUM ANALYZE",
            database=name,
        )
    server.databases.add(name)
