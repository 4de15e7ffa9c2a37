"""What thousands of waiters cost while nothing moves.

The slots are held by sessions that sleep, and CLIENTS others wait for them.  Three
states follow each other on one server:

    idle     the same number of connections, none of which has anything to do
    waiting  all in the queue; nobody lends (lend_after = -1), but one of them wakes
             up every 50 ms to see whether holders block each other
    watched  all in the queue; one of them looks twice per lend_after, its
             default, whether a holder waits in a way to lend for (none does)

In each, ROUNDS times DURATION seconds are counted (usage.py says what).
"""

import time

import report
from measure import IDLE, LIMIT, script_file
from pgbench import Load
from plan import default_slots
from server import Failed, Server
from usage import Meter

TITLE = "The cost of waiting"
HEADER = ("state", "connections", "round", "seconds", "CPU ms", "% of a core", "switches/s")
CLIENTS = 8000
# After a reload, which wakes all backends, or after many connections.
SETTLE = 5


def waiters(options):
    wanted = max(options.clients) if options.clients else 20 if options.quick else CLIENTS
    return min(wanted, options.most_clients - 100)


def duration(options):
    return max(options.duration or 12, 2 if options.quick else 10)


def estimate(options):
    return 20 + 4 * 0.006 * waiters(options) + 3 * options.rounds_of() * duration(options)


def carry_out(name, options, say):
    clients, slots = waiters(options), default_slots(4, options)
    rows = []

    def count(state):
        meter.take()
        time.sleep(1 if options.quick else SETTLE)
        for number in range(1, options.rounds_of() + 1):
            row = (state, clients, number, *window(meter, duration(options)))
            say("{}, {} connections, round {}: {} s, {} ms CPU, {} % of a core, {} switches/s".format(*row))
            rows.append(row)

    with Server(options, clients + slots, settings=[("autovacuum", "off")]) as server, Meter(server.pid) as meter:
        server.configure({})
        with clients_of(server, options, "idle", IDLE, clients) as load:
            load.wait_until_at_work()
            count("idle")
        server.end_sessions()
        server.configure({LIMIT: slots, "admission_gate.lend_after": -1})
        with clients_of(server, options, "holders", "SELECT pg_sleep(2000);\n", slots):
            wait_for(server, "running", slots)
            with clients_of(server, options, "waiters", "SELECT 1;\n", clients):
                wait_for(server, "waiting", clients)
                count("waiting")
                server.configure({LIMIT: slots})
                count("watched")
        server.end_sessions()
    report.write_table(options.path("results"), name, TITLE, __doc__.partition("\n\n")[2].strip(), HEADER, rows)


def clients_of(server, options, name, script, number):
    address = {**server.address, "PGDATABASE": "postgres"}
    return Load(options, name, number, script_file(options, name, "postgres", script), address)


def wait_for(server, column, number):
    if not server.wait_until(f"SELECT {column} FROM pg_stat_admission_gate", str(number), 60 + number / 20):
        raise Failed(f"there are not {number} backends {column}")


def window(meter, seconds):
    before = meter.take()
    time.sleep(seconds)
    after = meter.take()
    took = after.middle - before.middle
    cpu = after.cpu - before.cpu
    switches = (after.switches or 0) - (before.switches or 0)
    return f"{took:.1f}", f"{cpu * 1000:.2f}", f"{cpu / took * 100:.4f}", f"{switches / took:.1f}"
