"""The variants that are compared, and their names.

    off              the library preloaded, no limit
    gate             a limit, all else default
    auto             the gate with a limit of -1
    limit            as many clients at work as there are slots, without the
                     gate; the others connected and idle
    pools            the gate with one slot for analysts, and a lower priority
    pool:N           the gate with a limit that nobody reaches, and a pool of N for
                     those that contend: see hotspots.py
    tuned            the gate with SETTINGS
    NAME=VALUE       the gate with admission_gate.NAME = VALUE
    trick            without the gate, in SQL: see datasets.py
    pgbouncer:N      one pgbouncer, with N connections to the server
    pgbouncer2:N     two of them over so_reuseport, N connections each
    without          the library not loaded at all

":N" after the other variants of the gate and after "limit" is the number of slots (-1: no limit but those of hot spots),
instead of the benchmark's.  "-alone" after "off" or "gate" leaves out what the workload has
beside it (sleepers, analysts).
"""

import re
from dataclasses import dataclass

NAMED = re.compile(r"(?P<name>[a-z]+)(?P<processes>[0-9]*)(?P<alone>-alone)?(:(?P<number>-?[0-9]+))?")
SETTING = re.compile(r"(?P<name>[a-z_]+)=(?P<value>[^:]*)(:(?P<number>-?[0-9]+))?")


@dataclass(frozen=True)
class Variant:
    name: str  # as it was given
    kind: str  # off, gate, limit, trick, pgbouncer or without
    slots: int = 0  # of the gate (-1: only of hot spots), or clients at work
    settings: tuple = ()  # of (name, value)
    processes: int = 0  # of pgbouncer
    pool: int = 0  # connections of each of them
    alone: bool = False

    @property
    def is_pooler(self):
        return self.kind == "pgbouncer"


def parse(name, limit, tuned):
    """The variant of that name.  limit is the number of slots if the name says
    none, tuned are the settings of "tuned"."""
    if match := SETTING.fullmatch(name):
        setting = ("admission_gate." + match["name"], match["value"])
        return Variant(name, "gate", int(match["number"] or limit), (setting,))
    match = NAMED.fullmatch(name)
    if not match or (match["processes"] and match["name"] != "pgbouncer"):
        unknown(name)
    if match["name"] == "pgbouncer":
        return Variant(name, match["name"], processes=int(match["processes"] or 1), pool=int(match["number"] or 8))
    alone = bool(match["alone"])
    slots = int(match["number"] or limit)
    if match["name"] == "auto":
        return Variant(name, "gate", -1, alone=alone)
    if match["name"] == "pool":
        return Variant(name, "gate", 1000, (("admission_gate.pools", f"contenders: max_active = {slots}"),))
    settings = {
        "gate": (),
        "tuned": tuned,
        "pools": (("admission_gate.pools", "analysts: max_active = 1, priority = -1"),),
    }
    if match["name"] in settings:
        return Variant(name, "gate", slots, settings[match["name"]], alone=alone)
    if match["name"] == "limit":
        return Variant(name, "limit", slots)
    if match["name"] in ("off", "trick", "without"):
        return Variant(name, match["name"], alone=alone)
    unknown(name)


def unknown(name):
    raise SystemExit(f'error: unknown variant "{name}" in VARIANTS: see bench/README.md')
