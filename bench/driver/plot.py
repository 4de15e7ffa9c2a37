"""Draws NAME.svg from NAME.csv, the results of the benchmark "overload": how many reads are answered
in time, over the number of sessions.

    plot.py NAME.csv

A point is the median over the rounds.  The dashed line is the capacity: what the fewest sessions
have with the gate off.
"""

import csv
import math
import statistics
import sys

LINES = {
    "off": ("gate off", "#d55e00"),
    "auto": ("limit -1", "#0072b2"),
    "pgbouncer:4": ("pgbouncer, pool of 4", "#757575"),
    "pgbouncer:16": ("pgbouncer, pool of 16", "#cc79a7"),
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 80, 20, 40, 55
STEPS = [step * 10**power for power in range(6) for step in (1, 2, 5)]


def answers(path):
    """In time per second, by variant, then by the number of sessions"""
    found = {variant: {} for variant in LINES}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["load"] == "impatient" and row["tps"] and row["variant"] in LINES:
                found[row["variant"]].setdefault(int(row["clients"]), []).append(float(row["tps"]))
    return {
        variant: {number: statistics.median(rounds) for number, rounds in sorted(line.items())}
        for variant, line in found.items()
        if line
    }


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{more}>{words}</text>'


def path(points, colour, dashes="none", width=2.5):
    at = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{at}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes}"/>'


def legend(entries):
    at = LEFT
    for name, *how in entries:
        yield path([(at, 18), (at + 24, 18)], *how)
        yield text(at + 30, 22, name, "start")
        at += 48 + 7 * len(name)


def draw(lines):
    sessions = list(lines["off"])
    capacity = lines["off"][sessions[0]]
    high = max(figure for line in lines.values() for figure in line.values())
    step = min(step for step in STEPS if step * 8 >= high)

    def x(number):
        part = math.log(number / sessions[0]) / math.log(sessions[-1] / sessions[0])
        return LEFT + 20 + part * (WIDTH - LEFT - RIGHT - 40)

    def y(figure):
        return HEIGHT - BOTTOM - figure / high * (HEIGHT - TOP - BOTTOM)

    def across(figure, *how):
        return path([(LEFT, y(figure)), (WIDTH - RIGHT, y(figure))], *how)

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-family="sans-serif" font-size="13" fill="#333">'
    # A background of its own: GitHub's may be light or dark.
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff"/>'
    yield from legend([*(LINES[variant] for variant in lines), ("capacity", "#333", "5 4", 1.5)])
    for tick in range(0, int(high) + 1, step):
        yield across(tick, "#ddd", "none", 1)
        yield text(LEFT - 8, y(tick) + 4, tick, "end")
    yield across(capacity, "#333", "5 4", 1.5)
    for number in sessions:
        yield text(x(number), HEIGHT - BOTTOM + 20, number)
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "sessions")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield text(24, middle, "answers in time per second", more=f' transform="rotate(-90 24 {middle:.0f})"')
    for variant, line in lines.items():
        colour, points = LINES[variant][1], [(x(number), y(figure)) for number, figure in line.items()]
        yield path(points, colour)
        yield "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    yield "</svg>\n"


if __name__ == "__main__":
    picture = "".join(draw(answers(sys.argv[1])))
    with open(sys.argv[1].removesuffix(".csv") + ".svg", "w") as svg:
        svg.write(picture)
