"""Draws NAME.svg from NAME.csv, the results of the benchmark "shares": how long reads take in
sessions of which a growing share of the transactions updates one row.

    plot.py NAME.csv

Solid lines are the 50th percentile, dashed ones the 99th; a point is the median over the rounds.
"""

import csv
import math
import statistics
import sys

LINES = {
    "off": ("gate off", "#d55e00"),
    "auto": ("limit -1", "#0072b2"),
    "gate:8": ("limit of 8", "#009e73"),
    "pgbouncer:20": ("pgbouncer, pool of 20", "#757575"),
}
# How they are drawn: dashes, width
PERCENTILES = {"p50_ms": ("none", 2.5), "p99_ms": ("5 4", 1.5)}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 80, 20, 40, 55
TICKS = [step * 10.0**power for power in range(-3, 6) for step in (1, 2, 5)]


def latencies(path):
    """Of the reads in ms, by variant and percentile, then by share."""
    found = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["sessions"] == "reads":
                share = int(row["load"].removeprefix("share_"))
                for column in PERCENTILES:
                    line = found.setdefault((row["variant"], column), {})
                    line.setdefault(share, []).append(float(row[column]))
    return {
        key: {share: statistics.median(rounds) for share, rounds in sorted(line.items())} for key, line in found.items()
    }


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{more}>{words}</text>'


def path(points, colour, dashes="none", width=1):
    at = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{at}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes}"/>'


def legend():
    at = LEFT
    for name, colour in LINES.values():
        yield path([(at, 18), (at + 24, 18)], colour, width=2.5)
        yield text(at + 30, 22, name, "start")
        at += 55 + 7 * len(name)
    for column, how in PERCENTILES.items():
        yield path([(at, 18), (at + 24, 18)], "#333", *how)
        yield text(at + 30, 22, column[:3], "start")
        at += 65


def draw(lines):
    shares = sorted({share for line in lines.values() for share in line})
    figures = [figure for line in lines.values() for figure in line.values()]
    low = max(tick for tick in TICKS if tick <= min(figures))
    high = min(tick for tick in TICKS if tick >= max(figures))

    def x(share):
        """Shares stand at equal distances."""
        return LEFT + 20 + shares.index(share) * (WIDTH - LEFT - RIGHT - 40) / (len(shares) - 1)

    def y(figure):
        return HEIGHT - BOTTOM - math.log(figure / low) / math.log(high / low) * (HEIGHT - TOP - BOTTOM)

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-family="sans-serif" font-size="13" fill="#333">'
    # A background of its own: GitHub's may be light or dark.
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff"/>'
    yield from legend()
    for tick in TICKS:
        if low <= tick <= high:
            yield path([(LEFT, y(tick)), (WIDTH - RIGHT, y(tick))], "#ddd")
            yield text(LEFT - 8, y(tick) + 4, f"{tick:g}", "end")
    for share in shares:
        yield text(x(share), HEIGHT - BOTTOM + 20, f"{share} %")
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "share of the transactions that update one row")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield text(24, middle, "latency of reads, ms", more=f' transform="rotate(-90 24 {middle:.0f})"')
    for variant, (_, colour) in LINES.items():
        for column, how in PERCENTILES.items():
            points = [(x(share), y(figure)) for share, figure in lines[variant, column].items()]
            yield path(points, colour, *how)
            yield "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    yield "</svg>\n"


if __name__ == "__main__":
    picture = "".join(draw(latencies(sys.argv[1])))
    with open(sys.argv[1].removesuffix(".csv") + ".svg", "w") as svg:
        svg.write(picture)
