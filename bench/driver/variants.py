"""The variants that are compared, by their names: bench/README.md says what they are."""

import re
from dataclasses import dataclass

NAME = re.compile(r"(?P<name>[a-z_]+)(=(?P<value>[^:]*))?(:(?P<number>-?[0-9]+))?")
POOLS = "admission_gate.pools"


@dataclass(frozen=True)
class Variant:
    name: str  # as it was given
    kind: str = "gate"  # or off, limit, pgbouncer, without
    number: int = 0  # of slots (-1: only of hot spots), of clients at work, or of connections of pgbouncer
    settings: tuple = ()  # of (name, value)


def parse(name, slots):
    """The variant of that name, with so many slots if it says no number."""
    match = NAME.fullmatch(name)
    if not match:
        unknown(name)
    kind, value, number = match["name"], match["value"], int(match["number"] or slots)
    if value is not None:
        return Variant(name, number=number, settings=(("admission_gate." + kind, value),))
    if kind in ("off", "without", "limit"):
        return Variant(name, kind, number)
    if kind == "pgbouncer":
        return Variant(name, kind, int(match["number"] or 8))
    if kind == "gate":
        return Variant(name, number=number)
    if kind == "auto":
        return Variant(name, number=-1)
    if kind == "pools":
        return Variant(name, number=number, settings=((POOLS, "analysts: max_active = 1, priority = -1"),))
    if kind == "pool":
        return Variant(name, number=1000, settings=((POOLS, f"contenders: max_active = {number}"),))
    unknown(name)


def unknown(name):
    raise SystemExit(f'error: unknown variant "{name}" in VARIANTS: see bench/README.md')
