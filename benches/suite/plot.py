"""Plots as SVG: light and dark by the reader's preference, and readable on a phone."""

import math
from dataclasses import dataclass
from html import escape

WIDTH = 480
LINE_HEIGHT = 22
PLOT_HEIGHT = 240
MARGIN_LEFT = 58
MARGIN_RIGHT = 18
MARGIN_BOTTOM = 48
# Distinct for the color-blind, on white and on black.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7f7f7f")
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 15px }
  .axis { stroke: #59636e } .grid { stroke: #d1d9e0 }
  .line { fill: none; stroke-width: 2.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .axis { stroke: #9198a1 } .grid { stroke: #3d444d }
  }
"""


@dataclass(frozen=True)
class Series:
    name: str
    # Pairs of x and y. In a plot with categories, x is the index of one.
    points: tuple[tuple[float, float], ...]


class Axis:
    """Maps values to pixels, linearly or by their logarithms."""

    def __init__(self, low, high, start, end, is_logarithmic):
        self.low, self.high, self.start, self.end, self.is_logarithmic = low, max(high, low * 1.0001 + 1e-9), start, end, is_logarithmic

    def __call__(self, value):
        low, high = self.low, self.high
        if self.is_logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def lines(title, x_title, series, categories=None, log_x=False, log_y=False):
    """Returns a plot with one line per series; `categories` are the names of the positions on the x axis."""
    top = LINE_HEIGHT * (1 + len(series)) + 16
    bottom = top + PLOT_HEIGHT
    xs = sorted({x for entry in series for x, _ in entry.points})
    ys = [y for entry in series for _, y in entry.points]
    if log_y:
        low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))
        ticks = [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    else:
        ticks = even_ticks(max(ys))
        low, high = 0, ticks[-1]
    x_axis = Axis(xs[0], xs[-1], MARGIN_LEFT + 8, WIDTH - MARGIN_RIGHT - 8, log_x)
    y_axis = Axis(low, high, bottom, top, log_y)
    parts = [f'<text class="title" x="8" y="{LINE_HEIGHT - 4}">{escape(title)}</text>']
    for index, entry in enumerate(series):
        y = LINE_HEIGHT * (index + 2) - 6
        parts.append(f'<rect x="8" y="{y - 10}" width="18" height="10" fill="{color(index)}"/><text x="34" y="{y}">{escape(entry.name)}</text>')
    for tick in ticks:
        y = y_axis(tick)
        parts.append(f'<line class="grid" x1="{MARGIN_LEFT}" x2="{WIDTH - MARGIN_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{MARGIN_LEFT - 6}" y="{y + 5:.1f}" text-anchor="end">{short(tick)}</text>')
    for x in xs:
        label = categories[round(x)] if categories else short(x)
        parts.append(f'<text x="{x_axis(x):.1f}" y="{bottom + 20}" text-anchor="middle">{escape(label)}</text>')
    parts.append(f'<line class="axis" x1="{MARGIN_LEFT}" x2="{WIDTH - MARGIN_RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text x="{(MARGIN_LEFT + WIDTH) / 2:.0f}" y="{bottom + MARGIN_BOTTOM - 8}" text-anchor="middle">{escape(x_title)}</text>')
    for index, entry in enumerate(series):
        pixels = [(x_axis(x), y_axis(y)) for x, y in sorted(entry.points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        parts.append(f'<polyline class="line" stroke="{color(index)}" points="{path}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color(index)}"/>' for x, y in pixels]
    return document(bottom + MARGIN_BOTTOM, title, parts)


def bars(title, values):
    """Returns a plot with one horizontal bar per pair of a name and a value."""
    longest = max(value for _, value in values)
    parts = [f'<text class="title" x="8" y="{LINE_HEIGHT - 4}">{escape(title)}</text>']
    y = LINE_HEIGHT + 8
    for index, (name, value) in enumerate(values):
        # The figure stands right of the bar.
        length = max(2.0, (WIDTH - 100) * value / longest)
        parts.append(f'<text x="8" y="{y + 12}">{escape(name)}</text>')
        parts.append(f'<rect x="8" y="{y + 18}" width="{length:.1f}" height="14" fill="{color(index)}"/>')
        parts.append(f'<text x="{length + 16:.1f}" y="{y + 30}">{short(value)}</text>')
        y += 2 * LINE_HEIGHT
    return document(y + 8, title, parts)


def document(height, title, parts):
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
    return "\n".join([start, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def color(index):
    return COLORS[index % len(COLORS)]


def even_ticks(highest):
    """Returns about five round values from zero to at least the highest."""
    step = 10 ** math.floor(math.log10(highest / 4)) if highest > 0 else 1
    step = next(step * factor for factor in (1, 2, 5, 10) if step * factor * 5 >= highest)
    return [step * index for index in range(math.ceil(highest / step) + 1)]


def short(value):
    """Formats a number for a plot: 1500 as 1.5k."""
    for limit, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= limit:
            return f"{float(f'{value / limit:.3g}'):g}{unit}"
    return f"{float(f'{value:.3g}'):g}"
