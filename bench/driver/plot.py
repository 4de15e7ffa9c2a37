"""Draws the results of a benchmark (NAME.csv, NAME-latency.csv) as SVG.

    NAME-WORKLOAD.svg          throughput and p99 over the number of clients
    NAME-WORKLOAD-latency.svg  what share of transactions took at most so long
    NAME-WORKLOAD-knobs.svg    instead of the first, over the values of settings

By hand: plot.py DIRECTORY NAME.  Without NAME all that are in the directory and in those
below it, each beside its CSV: that is `make plots`.
"""

import glob
import io
import os
import re
import statistics
import sys

try:
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("python3-matplotlib is missing (sudo apt-get install python3-matplotlib)")
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from figures import SHARES
from report import ordered, values
from results import read_latencies, read_rows
from workloads import BENCHMARKS

# Text as text, and the same file for the same data.
plt.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "admission_gate",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
    }
)

# The same variant looks the same everywhere; others get what is left.
COLOURS = {
    "off": "#c0392b",
    "gate": "#1f5fa8",
    "limit": "#444444",
    "tuned": "#8e44ad",
    "trick": "#e67e22",
    "without": "#7f8c8d",
    "off-alone": "#e6a09a",
    "gate-alone": "#9bbfe6",
}
OTHERS = ["#2e8b57", "#6b8e23", "#b8860b", "#d87093", "#556b2f", "#20b2aa", "#cd853f", "#708090", "#9370db"]
DASHED = ("limit", "without", "off-alone", "gate-alone")
SHARE_TICKS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
# At most so many client counts side by side in the picture of latencies.
PANELS = 3


class Style:
    def __init__(self, names):
        rest = iter(OTHERS * 3)
        self.colours = {name: COLOURS.get(name) or next(rest) for name in names}

    def line(self, name):
        kind = name.partition(":")[0]
        return {
            "color": self.colours[name],
            "label": name,
            "linestyle": "--" if kind in DASHED else "-",
            "linewidth": 2.2 if kind == "gate" else 1.4,
        }


def summary(rows, column):
    """Median, and how far below and above it the rounds were."""
    found = values(rows, column)
    middle = statistics.median(found)
    return middle, middle - min(found), max(found) - middle


def save(figure, directory, name):
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", bbox_inches="tight", metadata=nothing)
    plt.close(figure)
    with open(os.path.join(directory, name + ".svg"), "w") as file:
        file.write(smaller(text.getvalue()))


def smaller(svg):
    """The same picture in fewer bytes: a tenth of a point is enough, nobody reads comments
    and names of groups, and most marks share a few styles."""
    svg = re.sub(r"<!--.*?-->|<\?xml.*?\?>|<!DOCTYPE.*?>|<g [^>]*/>|<defs/>", "", svg, flags=re.S)
    svg = re.sub(r' id="(?:[\w.]+_\d+|[Ll]egend\w*)"| transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r'(?<=[";]) ?font-family: [^;"]*;?', "", svg)
    # Not between a tag and the next: that is what is written on an axis.
    svg = re.sub(r"\d+\.\d{2,}(?=[^<>]*>)", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    svg = re.sub(r"\s*([LMCz\"])\s*(?=[\d\"])", r"\1", svg)
    while (flat := re.sub(r"<g>\s*(<(?!g\b|/g)[^>]*>(?:[^<]*</\w+>)?)\s*</g>|<g>\s*</g>", r"\1", svg)) != svg:
        svg = flat
    styles = {}
    svg = re.sub(r'style="([^"]*)"', lambda style: f'class="s{styles.setdefault(style[1], len(styles))}"', svg)
    rules = ["text{font-family:sans-serif}", *(f".s{number}{{{style}}}" for style, number in styles.items())]
    return svg.replace("</style>", "\n".join(["", *rules]) + "</style>", 1).strip() + "\n"


def plain(axis, ticks):
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def sweep(rows, title, style):
    """Two panels; one line for each variant, with the range of the rounds."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2))
    counts = sorted({row.clients for row in rows})
    for panel, column, label in zip(panels, ("tps", "p99_ms"), ("transactions per second", "p99 latency, ms")):
        for name in style.colours:
            mine = [row for row in rows if row.variant == name and getattr(row, column) is not None]
            x = sorted({row.clients for row in mine})
            points = [summary([row for row in mine if row.clients == clients], column) for clients in x]
            if points:
                middle, low, high = zip(*points)
                panel.errorbar(x, middle, yerr=(low, high), marker="o", markersize=4, capsize=2, **style.line(name))
        panel.set_xscale("log")
        plain(panel.xaxis, counts)
        panel.set_xlabel("clients")
        panel.set_ylabel(label)
    panels[0].set_ylim(bottom=0)
    panels[1].set_yscale("log")
    finish(figure, panels[1], title)
    return figure


def bars(rows, title, style):
    """The same for one number of clients."""
    names = list(style.colours)
    figure, panels = plt.subplots(1, 2, figsize=(11, 0.8 + 0.4 * len(names)), sharey=True)
    for panel, column, label in zip(panels, ("tps", "p99_ms"), ("transactions per second", "p99 latency, ms")):
        for place, name in enumerate(names):
            mine = [row for row in rows if row.variant == name]
            if values(mine, column):
                middle, low, high = summary(mine, column)
                panel.barh(place, middle, xerr=((low,), (high,)), color=style.colours[name], capsize=3, height=0.6)
        panel.set_yticks(range(len(names)), names)
        panel.set_xlabel(label)
    panels[0].invert_yaxis()
    figure.suptitle(f"{title}, {rows[0].clients} clients")
    figure.tight_layout()
    return figure


def knobs(rows, title):
    """Throughput and p99 over the values of each setting, beside the gate off."""
    names = ordered(row.variant.partition("=")[0] for row in rows if "=" in row.variant)
    figure, panels = plt.subplots(len(names), 2, figsize=(11, 3.6 * len(names)), squeeze=False)
    off = [row for row in rows if row.variant == "off"]
    for line, setting in zip(panels, names):
        for panel, column, label in zip(line, ("tps", "p99_ms"), ("transactions per second", "p99 latency, ms")):
            mine = [row for row in rows if row.variant.startswith(setting + "=") and getattr(row, column) is not None]
            steps = ordered(row.variant.partition("=")[2] for row in mine)
            if not steps:
                continue
            points = [summary([row for row in mine if row.variant == f"{setting}={step}"], column) for step in steps]
            middle, low, high = zip(*points)
            panel.errorbar(
                range(len(steps)), middle, yerr=(low, high), marker="o", capsize=3, color=COLOURS["gate"], label="gate"
            )
            if values(off, column):
                panel.axhline(summary(off, column)[0], color=COLOURS["off"], linestyle="--", label="off")
            panel.set_xticks(range(len(steps)), steps)
            panel.set_xlabel(f"{setting}, ms")
            panel.set_ylabel(label)
            panel.set_ylim(bottom=0)
    finish(figure, panels[0][1], f"{title}, {rows[0].clients} clients")
    return figure


def latency(found, workload, counts, title, style):
    """Cumulative distributions, one panel for each number of clients.  The scale of
    the shares is stretched towards both ends, where variants differ most."""
    figure, panels = plt.subplots(1, len(counts), figsize=(1 + 4.5 * len(counts), 4.2), squeeze=False)
    for panel, clients in zip(panels[0], counts):
        for name in style.colours:
            rounds = found.get((workload, clients, name))
            if rounds:
                middle = [statistics.median(column) for column in zip(*rounds)]
                panel.plot([max(value, 0.001) for value in middle[:-1]], SHARES[:-1], **style.line(name))
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.set_yscale("logit")
        panel.set_ylim(SHARE_TICKS[0], SHARE_TICKS[-1])
        panel.yaxis.set_major_locator(FixedLocator(SHARE_TICKS))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
        panel.set_xlabel("latency, ms")
        panel.set_title(f"{clients} clients", fontsize=10)
    panels[0][0].set_ylabel("share of transactions at most so long")
    finish(figure, panels[0][-1], title)
    return figure


def finish(figure, panel, title):
    """The legend goes beside the last panel."""
    handles, labels = panel.get_legend_handles_labels()
    if handles:
        panel.legend(handles, labels, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.suptitle(title)
    figure.tight_layout()


def some(counts):
    """The largest ones, but at most PANELS."""
    return counts[-PANELS:]


def draw(directory, name):
    rows = read_rows(directory, name)
    found = {}
    if os.path.exists(os.path.join(directory, name + "-latency.csv")):
        found = read_latencies(directory, name)
    titles = {workload.name: workload.title for workload, _ in BENCHMARKS[name].runs}
    for workload in ordered(row.workload for row in rows):
        mine = [row for row in rows if row.workload == workload]
        counts = sorted({row.clients for row in mine})
        title = titles.get(workload, workload)
        style = Style(ordered(row.variant for row in mine))
        if any("=" in row.variant for row in mine):
            save(knobs(mine, title), directory, f"{name}-{workload}-knobs")
        elif len(counts) > 1:
            save(sweep(mine, title, style), directory, f"{name}-{workload}")
        else:
            save(bars(mine, title, style), directory, f"{name}-{workload}")
        if any(key[0] == workload for key in found):
            save(latency(found, workload, some(counts), title, style), directory, f"{name}-{workload}-latency")


def draw_all(top):
    for path in sorted(glob.glob(os.path.join(top, "**", "*.csv"), recursive=True)):
        directory, file = os.path.split(path)
        name = file.removesuffix(".csv")
        if name in BENCHMARKS and os.path.basename(directory) != "quick":
            print(os.path.relpath(os.path.join(directory, name), top))
            draw(directory, name)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        draw(sys.argv[1], sys.argv[2])
    else:
        draw_all(sys.argv[1])
