"""How much shared memory the library takes for 10000 backends, as the server tells."""

import report
from server import Server

TITLE = "Shared memory for 10000 connections"
CONNECTIONS = 10000


def estimate(_options):
    return 10


def carry_out(name, options, say):
    with Server(options, 0, settings=[("max_connections", str(CONNECTIONS))]) as server:
        allocated = server.sql(
            "SELECT coalesce(sum(allocated_size), 0) FROM pg_shmem_allocations WHERE name LIKE 'admission_gate%'"
        )
        everything = server.sql("SELECT sum(allocated_size) FROM pg_shmem_allocations")
    say(f"{allocated} bytes, of {everything}")
    report.write_table(
        options.path("results"),
        name,
        TITLE,
        "From pg_shmem_allocations.",
        ("max_connections", "bytes of admission_gate", "per connection", "bytes of the server"),
        [(CONNECTIONS, allocated, f"{int(allocated) / CONNECTIONS:.1f}", everything)],
    )
