"""Line charts as SVG for the figures of docs/."""
import math
import pathlib

LEFT, BOTTOM, WIDTH, HEIGHT = 70, 280, 480, 240
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"]


def ticks(low, high, log):
    if not log:
        return [low + (high - low) * k / 4 for k in range(5)]
    return [10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def number(value):
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def line_chart(path, curves, x_title, y_title, log_x=False, log_y=False, y_low=0.0, names="left"):
    """curves: {name: {x: y}}, all with the same x. Logarithmic axes take positive numbers only. names: the corner that they are in."""
    xs = list(next(iter(curves.values())))
    ys = [y for curve in curves.values() for y in curve.values()]
    y_ticks = ticks(min(ys) if log_y else min(y_low, min(ys)), max(ys) if log_y else 1.1 * max(ys), log_y)

    def scale(log):
        return math.log10 if log else float

    def place(value, low, high, log):
        f = scale(log)
        return (f(value) - f(low)) / (f(high) - f(low))

    def at_x(x):
        return LEFT + WIDTH * place(x, xs[0], xs[-1], log_x)

    def at_y(y):
        return BOTTOM - HEIGHT * place(y, y_ticks[0], y_ticks[-1], log_y)

    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="600" height="340" font-family="sans-serif" font-size="12">',
           '<rect width="600" height="340" fill="white"/>']
    for value in y_ticks:
        y = at_y(value)
        out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{number(value)}</text>')
    for x in xs[:: max(1, len(xs) // 10)]:
        out.append(f'<text x="{at_x(x):.0f}" y="{BOTTOM + 18}" text-anchor="middle">{number(x)}</text>')
    for (name, curve), colour in zip(curves.items(), COLOURS):
        points = [(at_x(x), at_y(y)) for x, y in curve.items()]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    at, anchor = (LEFT + 12, "") if names == "left" else (LEFT + WIDTH - 12, ' text-anchor="end"')
    for k, (name, colour) in enumerate(zip(curves, COLOURS)):
        out.append(f'<text x="{at}" y="{BOTTOM - HEIGHT + 16 * (k + 1)}" fill="{colour}"{anchor}>{name}</text>')
    out.append(f'<text x="{LEFT + WIDTH / 2}" y="{BOTTOM + 40}" text-anchor="middle">{x_title}</text>')
    out.append(f'<text x="16" y="{BOTTOM - HEIGHT / 2}" transform="rotate(-90 16 {BOTTOM - HEIGHT / 2})" '
               f'text-anchor="middle">{y_title}</text></svg>')
    pathlib.Path(path).write_text("\n".join(out) + "\n")
