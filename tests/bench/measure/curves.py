# SPDX-License-Identifier: Apache-2.0
"""Curves as SVG pictures that need nothing else."""
import html
import math

from measure.page import COLOURS
from measure.table import number

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 520, 300, 70, 44, 46, 16
STYLE = ('text { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #5c6b7a; } '
         "text.title { font-weight: 600; fill: #1d2733; }")


def short(value):
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def ceiling(value):
    """The next round number that is not below."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


class Panel:
    """One diagram: x grows by factors, y from zero on. `lines`: {name: [(x, y), ...]}."""

    def __init__(self, title, x_title, lines):
        self.title, self.x_title, self.lines = title, x_title, lines
        self.xs = sorted({x for points in lines.values() for x, _ in points})
        self.most = ceiling(max((y for points in lines.values() for _, y in points), default=1))

    def _x(self, value):
        low, high = math.log(self.xs[0]), math.log(self.xs[-1])
        part = (math.log(value) - low) / (high - low) if high > low else 0.5
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def _y(self, value):
        return HEIGHT - BOTTOM - value / self.most * (HEIGHT - TOP - BOTTOM)

    def draw(self, left):
        parts = [f'<g transform="translate({left} 0)">',
                 f'<text class="title" x="{LEFT}" y="18">{html.escape(self.title)}</text>',
                 f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
                 f"{html.escape(self.x_title)}</text>"]
        for step in range(5):
            value = self.most * step / 4
            y = self._y(value)
            parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dfe5ea"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value) if value else 0}</text>')
        for value in self.xs:
            parts.append(f'<text x="{self._x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                         f"{short(value)}</text>")
        at = LEFT
        for index, (name, points) in enumerate(self.lines.items()):
            colour = COLOURS[index % len(COLOURS)]
            path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts += [f'<circle cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="3.5" fill="{colour}"/>'
                      for x, y in points]
            parts.append(f'<rect x="{at}" y="27" width="10" height="10" rx="2" fill="{colour}"/>')
            parts.append(f'<text x="{at + 14}" y="36">{html.escape(name)}</text>')
            at += 30 + 7 * len(name)
        return "\n".join([*parts, "</g>"])


def picture(label, panels):
    width = WIDTH * len(panels)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" '
            f'height="{HEIGHT}" role="img" aria-label="{html.escape(label)}">\n<style>{STYLE}</style>\n'
            f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>\n'
            + "\n".join(panel.draw(i * WIDTH) for i, panel in enumerate(panels)) + "\n</svg>\n")
