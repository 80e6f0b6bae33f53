#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/events.svg: how events flow in a run.

    events_svg.py             writes it
    events_svg.py --check     compares it with what would be written

Every event of include/tutti/core/event.hpp stands in the picture once.
"""
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# (title, lines): a line is a text, whose capitalised words that are events are drawn as such, or a box of its own.
FIT = ("fit()", [
    "FitStart",
    ("until max_duration: an iteration", [
        "IterationStart",
        ("an epoch", [
            "EpochStart",
            ("each batch", [
                "BeforeDataloader | next batch | AfterDataloader",
                "BatchStart",
                ("the step; SAM runs it twice", [
                    "BeforeTrainBatch",
                    ("each microbatch", [
                        "BeforeForward | outputs = forward(batch) | AfterForward",
                        "BeforeLoss | loss = loss(outputs, batch) | AfterLoss",
                        "BeforeBackward | loss.backward() | AfterBackward"]),
                    "gradients are averaged and unscaled",
                    "AfterTrainBatch"]),
                "optimizer.step(), schedule, timestamp",
                "BatchEnd | evaluations that are due | BatchCheckpoint"]),
            "EpochEnd | evaluations that are due | EpochCheckpoint"]),
        "IterationEnd | IterationCheckpoint"]),
    "FitEnd"])
BEGIN = ("the constructor", ["Init", "BeforeLoad | a checkpoint | AfterLoad"])
EVAL = ("an evaluation", [
    "EvalBeforeAll, of eval() EvalStandaloneStart",
    ("each set", [
        "EvalStart",
        ("each batch", [
            "EvalBatchStart",
            ("each microbatch", ["EvalBeforeForward | eval_forward | EvalAfterForward"]),
            "EvalBatchEnd"]),
        "EvalEnd"]),
    "EvalAfterAll, of eval() EvalStandaloneEnd"])
PREDICT = ("predict()", [
    "PredictStart",
    ("each batch", ["PredictBatchStart", "PredictBeforeForward | forward | PredictAfterForward", "PredictBatchEnd"]),
    "PredictEnd"])
LINE, PAD, GLYPH = 24, 10, 7.3  # pixels; of the 12 pixel monospace font
COLORS = ["#ffffff", "#f3f5fb", "#e6eaf7", "#d8dff2", "#cbd4ee", "#bdc9e9"]


def events():
    text = (ROOT / "include/tutti/core/event.hpp").read_text()
    return re.findall(r"^TUTTI_EVENT\((\w+),", text, re.M)


def drawn(box, x, y, depth, names, out):
    """Draws a box with its upper left corner at x, y; its width and height."""
    title, lines = box
    at, width = y + 22, len(title) * GLYPH + 2 * PAD
    inner = []
    for line in lines:
        if isinstance(line, tuple):
            w, h = drawn(line, x + PAD, at, depth + 1, names, inner)
            at += h + 8
            width = max(width, w + 2 * PAD)
            continue
        left, parts = x + PAD, re.split(r"( \| |\b(?:" + "|".join(names) + r")\b)", line)
        for part in filter(None, parts):
            size = len(part) * GLYPH
            if part in names:
                inner.append(f'<rect x="{left:.0f}" y="{at:.0f}" width="{size + 10:.0f}" height="19" rx="9" fill="#3f51b5"/>')
                inner.append(f'<text x="{left + 5:.1f}" y="{at + 14:.0f}" fill="#ffffff">{part}</text>')
                size += 10
            elif part == " | ":
                inner.append(f'<text x="{left + 3:.1f}" y="{at + 14:.0f}" fill="#3f51b5">→</text>')
            else:
                inner.append(f'<text x="{left + 2:.1f}" y="{at + 14:.0f}" fill="#333333">{html.escape(part.strip())}</text>')
            left += size
        width = max(width, left - x + PAD)
        at += LINE
    height = at - y + 2
    out.append((depth, x, y, title, inner, width, height))
    return width, height


def rendered(box, x, y, names, width=0):
    out = []
    w, h = drawn(box, x, y, 0, names, out)
    return w, h, out


def boxes(found, wide, lines):
    for depth, x, y, title, inner, w, h in found:
        nested = [item for item in inner if isinstance(item, tuple)]
        lines.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{wide - 2 * PAD * depth:.0f}" height="{h:.0f}" rx="6" '
                     f'fill="{COLORS[depth]}" stroke="#8c9bd1"/>')
        lines.append(f'<text x="{x + PAD:.0f}" y="{y + 15:.0f}" fill="#5c6bc0" font-weight="bold">{html.escape(title)}</text>')
        lines += [item for item in inner if isinstance(item, str)]
        boxes(nested, wide, lines)


def picture():
    names = events()
    said = re.findall(r"\b(?:" + "|".join(names) + r")\b", repr((BEGIN, FIT, EVAL, PREDICT)))
    assert sorted(said) == sorted(names), f"the picture has {sorted(set(said) ^ set(names))} too much or not at all, or twice"
    lines, gap = [], 16
    w_fit, h_fit, fit = rendered(FIT, gap, gap, names)
    x = gap + w_fit + gap
    w_side = max(rendered(box, 0, 0, names)[0] for box in (BEGIN, EVAL, PREDICT))
    boxes(fit, w_fit, lines)
    y = gap
    for box in (BEGIN, EVAL, PREDICT):
        _, h, found = rendered(box, x, y, names)
        boxes(found, w_side, lines)
        y += h + gap
    notes = ["At each event algorithms run first, then callbacks,", "then loggers; at Init the other way round.",
             "AfterForward, AfterLoss and AfterBackward go through", "the algorithms in reverse."]
    for note in notes:
        lines.append(f'<text x="{x:.0f}" y="{y + 12:.0f}" fill="#555555">{note}</text>')
        y += 18
    width, height = x + w_side + gap, max(h_fit + 2 * gap, y)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
            'font-family="DejaVu Sans Mono, monospace" font-size="12">\n'
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>\n' + "\n".join(lines) + "\n</svg>\n")


def main():
    path = ROOT / "docs/events.svg"
    if sys.argv[1:] == ["--check"]:
        if path.read_text() != picture():
            sys.exit("docs/events.svg is not what tests/docs/events_svg.py draws; run it.")
        print(f"docs/events.svg has all {len(events())} events")
    else:
        path.write_text(picture())


if __name__ == "__main__":
    main()
