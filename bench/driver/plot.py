"""Draws NAME.svg from NAME.csv, the results of the benchmark "shares" or "overload".

    plot.py NAME.csv

A point is the median over the rounds.  shares: how long reads take in sessions of which a growing
share of the transactions updates one row; solid lines are the 50th percentile, dashed ones the
99th.  overload: how many reads are answered in time; the dashed line is the capacity, which is what
the fewest sessions have with the gate off.
"""

import csv
import math
import os
import statistics
import sys

LINES = {
    "off": ("gate off", "#d55e00"),
    "auto": ("limit -1", "#0072b2"),
    "gate:8": ("limit of 8", "#009e73"),
    "pgbouncer:4": ("pgbouncer, pool of 4", "#757575"),
    "pgbouncer:16": ("pgbouncer, pool of 16", "#cc79a7"),
    "pgbouncer:20": ("pgbouncer, pool of 20", "#757575"),
}
# How they are drawn: dashes, width
SOLID, DASHED = ("none", 2.5), ("5 4", 1.5)
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 80, 20, 40, 55
STEPS = [step * 10.0**power for power in range(-3, 6) for step in (1, 2, 5)]


def read(path, columns, abscissa):
    """Figures by variant and column, then by the abscissa; rows without one are left out."""
    found = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            at = abscissa(row)
            for column in columns if at is not None and row["variant"] in LINES else ():
                line = found.setdefault((row["variant"], column), {})
                line.setdefault(at, []).append(float(row[column]))
    return {key: {at: statistics.median(line[at]) for at in sorted(line)} for key, line in found.items()}


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{more}>{words}</text>'


def path(points, colour, dashes="none", width=1):
    at = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{at}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes}"/>'


def legend(lines, dashes):
    """The variants, then what solid and dashed lines mean"""
    drawn = dict.fromkeys(variant for variant, _ in lines)
    at = LEFT
    for name, colour, how in [(*LINES[variant], SOLID) for variant in drawn] + [(n, "#333", how) for n, how in dashes]:
        yield path([(at, 18), (at + 24, 18)], colour, *how)
        yield text(at + 30, 22, name, "start")
        at += 48 + 7 * len(name)


def draw(lines, x, y, ticks, names, dashes, capacity=None):
    """x and y give a figure's place, between 0 and 1."""
    right, foot = WIDTH - RIGHT, HEIGHT - BOTTOM

    def point(at, figure):
        return LEFT + 20 + x(at) * (right - LEFT - 40), foot - y(figure) * (foot - TOP)

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-family="sans-serif" font-size="13" fill="#333">'
    # A background of its own: GitHub's may be light or dark.
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff"/>'
    yield from legend(lines, dashes)
    places = sorted({at for line in lines.values() for at in line})
    for tick in ticks:
        height = point(places[0], tick)[1]
        yield path([(LEFT, height), (right, height)], "#ddd")
        yield text(LEFT - 8, height + 4, f"{tick:g}", "end")
    for at in places:
        yield text(point(at, ticks[0])[0], foot + 20, at)
    yield text((LEFT + right) / 2, HEIGHT - 12, names[0])
    middle = (TOP + foot) / 2
    yield text(24, middle, names[1], more=f' transform="rotate(-90 24 {middle:.0f})"')
    if capacity:
        height = point(places[0], capacity)[1]
        yield path([(LEFT, height), (right, height)], "#333", *DASHED)
    hows = dict(zip(dict.fromkeys(column for _, column in lines), (SOLID, DASHED)))
    for (variant, column), line in lines.items():
        colour, points = LINES[variant][1], [point(*each) for each in line.items()]
        yield path(points, colour, *hows[column])
        yield "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    yield "</svg>\n"


def shares(path):
    """Shares stand at equal distances, latencies on a logarithmic scale."""
    lines = read(
        path,
        ("p50_ms", "p99_ms"),
        lambda row: int(row["load"].removeprefix("share_")) if row["sessions"] == "reads" else None,
    )
    places = list(next(iter(lines.values())))
    figures = [figure for line in lines.values() for figure in line.values()]
    low = max(step for step in STEPS if step <= min(figures))
    high = min(step for step in STEPS if step >= max(figures))
    return draw(
        lines,
        lambda share: places.index(share) / (len(places) - 1),
        lambda figure: math.log(figure / low) / math.log(high / low),
        [step for step in STEPS if low <= step <= high],
        ("share of the transactions that update one row, %", "latency of reads, ms"),
        (("p50", SOLID), ("p99", DASHED)),
    )


def overload(path):
    """Sessions stand on a logarithmic scale."""
    lines = read(path, ("tps",), lambda row: int(row["clients"]) if row["load"] == "impatient" and row["tps"] else None)
    sessions, capacity = list(lines["off", "tps"]), next(iter(lines["off", "tps"].values()))
    high = max(figure for line in lines.values() for figure in line.values())
    step = min(step for step in STEPS if step * 8 >= high)
    return draw(
        lines,
        lambda number: math.log(number / sessions[0]) / math.log(sessions[-1] / sessions[0]),
        lambda figure: figure / high,
        [step * number for number in range(int(high / step) + 1)],
        ("sessions", "answers in time per second"),
        (("capacity", DASHED),),
        capacity,
    )


if __name__ == "__main__":
    name = sys.argv[1].removesuffix(".csv")
    picture = "".join({"shares": shares, "overload": overload}[os.path.basename(name)](sys.argv[1]))
    with open(name + ".svg", "w") as svg:
        svg.write(picture)
