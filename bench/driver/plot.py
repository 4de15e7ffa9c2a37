"""Draws NAME.svg from NAME.csv: bars of transactions per second, one for each variant.

    plot.py NAME.csv [SESSIONS...]

Each group of sessions is a panel: those that are named, or all of one load.  A bar is the
median over the rounds; the line through its end is their range.
"""

import csv
import statistics
import sys
from html import escape

TITLES = {
    "hot, alone": "100 clients: one row",
    "others": "then 200 others: other rows",
    "hot": "the one row, beside them",
}
LABELS = {"off": "gate off", "auto": "limit -1", "gate": "limit {}", "pool": "a pool of {} for the row"}
COLOURS = {"off": "#c0392b", "auto": "#1f5fa8", "gate": "#6b9bd1", "pool": "#9bbfe6", "pgbouncer": "#7f8c8d"}
LABEL, PANEL, BAR, LINE, TOP = 155, 205, 120, 26, 30


def rates(path):
    """By group of sessions and variant, of each round."""
    found = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["tps"]:
                found.setdefault(row["sessions"], {}).setdefault(row["variant"], []).append(float(row["tps"]))
    return found


def label(variant):
    kind, _, number = variant.partition(":")
    return LABELS.get(kind, "pgbouncer, pool of {}" if kind == "pgbouncer" else variant).format(number)


def text(x, y, words, more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(words)}</text>'


def panel(left, title, variants, names):
    """The bars of one group of sessions, the longest of them BAR wide."""
    yield text(left, 18, title, ' font-weight="bold"')
    most = max(max(found) for found in variants.values())
    for line, name in enumerate(names):
        found, y = variants.get(name, [0]), TOP + LINE * line
        middle, low, high = (BAR * figure / most for figure in (statistics.median(found), min(found), max(found)))
        colour = COLOURS.get(name.partition(":")[0], "#b8860b")
        yield f'<rect x="{left}" y="{y}" width="{middle:.1f}" height="18" fill="{colour}"/>'
        yield f'<path d="M{left + low:.1f} {y + 9}H{left + high:.1f}" stroke="#222"/>'
        yield text(left + high + 5, y + 13, f"{statistics.median(found):.0f}")


def draw(path, chosen):
    found = rates(path)
    sessions = chosen or list(found)
    names = list(dict.fromkeys(name for key in sessions for name in found[key]))
    width, height = LABEL + PANEL * len(sessions), TOP + LINE * len(names) + 4
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    lines.append(text(LABEL - 8, 18, "transactions/s", ' text-anchor="end"'))
    lines += [text(LABEL - 8, TOP + LINE * i + 13, label(name), ' text-anchor="end"') for i, name in enumerate(names)]
    for number, key in enumerate(sessions):
        lines += panel(LABEL + PANEL * number, TITLES.get(key, key), found[key], names)
    with open(path.removesuffix(".csv") + ".svg", "w") as file:
        file.write("\n".join([*lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    draw(sys.argv[1], sys.argv[2:])
