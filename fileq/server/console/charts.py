"""Charts as SVG, made by the server. Colours come from the stylesheet by class; nothing in them is text of a user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from markupsafe import Markup

from fileq.server.services import EVERY_S, KEPT, LiveSample

_LEFT, _TOP, _BOTTOM = 44, 8, 20
_LABELS, _HALF_LABEL = 7, 34  # how many at most; the half of one is so wide on a phone


def line_chart(series: Sequence[tuple[str, Sequence[float]]], labels: Sequence[str], *, title: str) -> Markup:
    """Lines over the same labels. `series` are (class, values); the first one has an area. A few labels are shown.
    With fewer values than labels the left part stays empty: nothing is known about that time."""
    width, height = 720, 200
    top_value = _round_up(max((value for _, values in series for value in values), default=0))
    count = max(len(labels), 2)
    step, scale = (width - _LEFT - 8) / (count - 1), (height - _TOP - _BOTTOM) / top_value
    base, left = height - _BOTTOM, _LEFT + (len(labels) - max(len(values) for _, values in series)) * step

    def point(index: int, value: float) -> str:
        return f"{left + index * step:.1f},{base - value * scale:.1f}"

    parts = [_grid(top_value, width, base, scale)]
    for number, (name, values) in enumerate(series):
        points = " ".join(point(index, value) for index, value in enumerate(values))
        if number == 0 and values:
            last = f"{left + (len(values) - 1) * step:.1f},{base}"
            parts.append(Markup('<polygon class="area" points="{:.1f},{} {} {}"/>').format(left, base, points, last))
        parts.append(Markup('<polyline class="line {}" points="{}"/>').format(name, points))
    for index in shown_labels(labels, most=_LABELS):
        x = min(_LEFT + index * step, width - _HALF_LABEL)  # so that no label is over the edge
        text = Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
        parts.append(text.format(x, height - 4, labels[index]))
    if left > width / 3:  # most of the time is unknown
        middle = (base + _TOP) // 2 - 12  # a group of its own: the stylesheet counts the labels
        parts.append(Markup('<g><text x="{}" y="{}">no samples yet</text></g>').format(_LEFT + 12, middle))
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, title, Markup("").join(parts)
    )


def sample_chart(samples: Sequence[LiveSample], title: str, **lines: Callable[[LiveSample], float]) -> Markup:
    """The last hour: what each line, by its class, shows of a sample. Empty before the second sample."""
    if len(samples) < 2:
        return Markup("")
    every = max(1, len(samples) // 180)
    kept = samples[::every]
    labels = axis_times([one.at for one in kept], KEPT // every, EVERY_S * every)
    return line_chart([(name, [value(one) for one in kept]) for name, value in lines.items()], labels, title=title)


def axis_times(times: Sequence[str], places: int, every_s: float) -> list[str]:
    """`16:42` for each of the times in RFC 3339, and before them those of the places without a sample."""
    first, missing = datetime.fromisoformat(times[0]), places - len(times)
    before = [first - timedelta(seconds=every_s * count) for count in range(missing, 0, -1)]
    return [f"{one:%H:%M}" for one in before] + [one[11:16] for one in times]


def shown_labels(labels: Sequence[str], most: int = 7) -> list[int]:
    """The places of the labels that are written: where a label begins, at equal distances. The first label has often
    begun before the chart, so it is written only if it is as long as the others."""
    begins = [index for index, label in enumerate(labels) if not index or label != labels[index - 1]]
    if len(begins) > 2 and begins[1] - begins[0] < begins[2] - begins[1]:
        begins = begins[1:]
    return begins[:: -(-len(begins) // most) or 1]


def spark_bars(values: Sequence[int], *, title: str) -> Markup:
    """Small bars without axes, one for each value. A value above 0 is always visible."""
    width, height, top_value = 120, 28, max([*values, 1])
    step = width / max(len(values), 1)
    bars = [
        Markup('<rect class="b" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            i * step, height - 1 - tall, max(step - 1, 1), tall
        )
        for i, value in enumerate(values)
        if (tall := max(2.0, value / top_value * (height - 2)) if value else 0.0)
    ]
    base = Markup('<line class="grid" x1="0" x2="{}" y1="{}" y2="{}"/>').format(width, height - 0.5, height - 0.5)
    return Markup('<svg class="chart spark" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>').format(
        width, height, title, Markup("").join(bars), base
    )


def bar(value: float, most: float, *, title: str) -> Markup:
    """One horizontal bar, as long as its share of `most`."""
    length = 0.0 if not most else max(1.0, 200 * value / most) if value else 0.0
    return Markup(
        '<svg class="chart" viewBox="0 0 200 8" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="track" width="200" height="8" rx="2"/><rect class="a" width="{:.1f}" height="8" rx="2"/></svg>'
    ).format(title, length)


def _grid(top_value: float, width: int, base: int, scale: float) -> Markup:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = f"{base - top_value * share * scale:.1f}"
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, width - 8, y, y))
        text = Markup('<text x="{}" y="{}" text-anchor="end" dominant-baseline="middle">{}</text>')
        parts.append(text.format(_LEFT - 6, y, _short(top_value * share)))
    return Markup("").join(parts)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, …; at least 1."""
    power = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= factor * power:
                return factor * power
        power *= 10


def _short(value: float) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
