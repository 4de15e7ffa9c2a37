"""The variants that are compared, by their names: bench/README.md says what they are."""

import os
import re
from dataclasses import dataclass

NAME = re.compile(r"(?P<name>[a-z_]+)(=(?P<value>[^:]*))?(:(?P<number>-?[0-9]+))?")


@dataclass(frozen=True)
class Variant:
    name: str  # as it was given
    kind: str = "gate"  # or off, pgbouncer, without
    number: int = 0  # of slots (-1: only of hot spots), or of connections of pgbouncer
    settings: tuple = ()  # of (name, value)


def parse(name):
    """The variant of that name, with four slots per core if it says no number."""
    match = NAME.fullmatch(name)
    kind, value, number = match.group("name", "value", "number") if match else (None, None, None)
    number = int(number or 4 * len(os.sched_getaffinity(0)))
    if value is not None:
        return Variant(name, number=number, settings=(("admission_gate." + kind, value),))
    if kind in ("off", "without", "gate", "pgbouncer"):
        return Variant(name, kind, number)
    if kind == "auto":
        return Variant(name, number=-1)
    if kind == "pool":
        return Variant(name, number=1000, settings=(("admission_gate.pools", f"contenders: max_active = {number}"),))
    raise SystemExit(f'error: unknown variant "{name}" in VARIANTS: see bench/README.md')
