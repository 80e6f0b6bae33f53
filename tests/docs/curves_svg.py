#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the curves of a run, epoch by epoch, from the file of its JSONLinesLogger or Dashboard: the training loss, each epoch's
mean, and metrics of an evaluation.

    curves_svg.py metrics.jsonl picture.svg [--metric metrics/test/MulticlassAccuracy]...     without --metric: all of evaluations
"""

import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "examples"), str(ROOT / "benchmarks")]
from follow_metrics import follow  # noqa: E402
from plot import line_chart  # noqa: E402


class Rows:
    """A destination of follow_metrics.py: {step: {name: value}}, what a resumed run did again as it did it last."""

    def __init__(self):
        self.rows = {}

    def start(self, entry):
        self.rows = {step: row for step, row in self.rows.items() if step < entry["step"]}

    def metrics(self, step, _time, values):
        self.rows.setdefault(step, {}).update(values)

    def hyperparameters(self, values):
        pass

    def table(self, step, name, columns, rows):
        pass

    def end(self, status):
        pass


def curves(rows, wanted):
    """{name: {epoch: value}} of a run with an evaluation after every epoch."""
    names = wanted or sorted(
        {
            name
            for row in rows.values()
            for name in row
            if name.startswith("metrics/") and not name.startswith("metrics/train/")
        }
    )
    ends = sorted(step for step, row in rows.items() if any(name in row for name in names))
    if not names or len(ends) < 2:
        raise ValueError("the run has not two evaluations, between which a curve could be drawn")
    out = {"loss/train/total, mean of the epoch": {}, **{name: {} for name in names}}
    begin = 0
    for epoch, end in enumerate(ends, 1):
        losses = [
            row["loss/train/total"] for step, row in rows.items() if begin <= step < end and "loss/train/total" in row
        ]
        out["loss/train/total, mean of the epoch"][epoch] = sum(losses) / len(losses)
        for name in names:
            out[name][epoch] = rows[end][name]
        begin = end
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("picture")
    parser.add_argument("--metric", action="append")
    options = parser.parse_args()
    rows = Rows()
    follow(options.file, [rows], once=True)
    line_chart(options.picture, curves(rows.rows, options.metric), "epoch", "value", names="right")


if __name__ == "__main__":
    main()
