"""Curves over time as an SVG: one row for each quantity, one colour for each process."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, GAP = 900, 170, 70, 50
COLOURS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#888888")


def drawing(times: Sequence[float], rows: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """`rows`: quantity -> name of the curve -> a number for each time in seconds (NaN: nothing)."""
    parts = []
    last = max(times[-1], 1e-9)
    for number, (quantity, curves) in enumerate(rows.items()):
        top = number * (HEIGHT + GAP) + GAP
        most = max((value for curve in curves.values() for value in curve if value == value), default=1.0) or 1.0
        parts.append(f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{html.escape(quantity)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#ccc"/>')
        parts += [
            f'<text x="{LEFT - 6}" y="{top + y}" text-anchor="end">{text}</text>'
            for y, text in ((10, f"{most:.4g}"), (HEIGHT, "0"))
        ]
        parts.append(f'<text x="{LEFT + WIDTH}" y="{top + HEIGHT + 14}" text-anchor="end">{last:.0f} s</text>')
        for place, (name, curve) in enumerate(curves.items()):
            colour = COLOURS[place % len(COLOURS)]
            points = " ".join(
                f"{LEFT + WIDTH * time / last:.1f},{top + HEIGHT - HEIGHT * value / most:.1f}"
                for time, value in zip(times, curve, strict=True)
                if value == value
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
            at = LEFT + WIDTH + 10, top + 14 + 14 * place
            parts.append(f'<text x="{at[0]}" y="{at[1]}" fill="{colour}">{html.escape(name)}</text>')
    size = f'width="{LEFT + WIDTH + 180}" height="{len(rows) * (HEIGHT + GAP) + GAP}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'
