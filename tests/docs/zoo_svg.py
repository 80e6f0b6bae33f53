#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws one metric of several runs, evaluation by evaluation, from the files of their JSONLinesLogger.

    zoo_svg.py picture.svg NAME=metrics.jsonl [NAME=metrics.jsonl]... [--metric metrics/test/MulticlassAccuracy]
               [--title accuracy] [--low 0] [--batches]

Runs of one NAME are averaged; the picture is of their means. --batches: over the number of the batch, else of the evaluation.
zoo_svg.py --check draws runs that it makes up, and looks at the picture; CTest runs it.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "examples"), str(ROOT / "benchmarks"), str(pathlib.Path(__file__).resolve().parent)]
from curves_svg import Rows  # noqa: E402
from follow_metrics import follow  # noqa: E402
from plot import line_chart  # noqa: E402


class FirstRows(Rows):
    """Of several evaluations at one step the first: a later one is a program's own, such as airbench's of six views."""

    def metrics(self, step, _time, values):
        row = self.rows.setdefault(step, {})
        for name, value in values.items():
            row.setdefault(name, value)


def values(file, metric, batches):
    """{epoch or batch: value} of the evaluations that have the metric."""
    rows = FirstRows()
    follow(file, [rows], once=True)
    found = [(step, row[metric]) for step, row in sorted(rows.rows.items()) if metric in row]
    if len(found) < 2:
        sys.exit(f"{file} has {len(found)} evaluations with {metric}, between which no curve can be drawn")
    return {step if batches else number: value for number, (step, value) in enumerate(found, 1)}


def mean(runs):
    """The mean where all of the runs have a value."""
    shared = [x for x in runs[0] if all(x in run for run in runs)]
    return {x: statistics.mean(run[x] for run in runs) for x in shared}


def check():
    """Two runs of one name, 0.2 and 0.4 and then 0.5 and 0.7, and a longer one of another."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = []
        for name, accuracies in (("a", (0.2, 0.5)), ("a", (0.4, 0.7)), ("b", (0.1, 0.2, 0.9))):
            file = pathlib.Path(folder) / f"{len(arguments)}.jsonl"
            lines = [{"type": "start", "step": 0, "time": 0, "run_name": "r", "rank": 0, "world_size": 1}]
            for epoch, accuracy in enumerate(accuracies, 1):
                metrics = {"metrics/test/MulticlassAccuracy": accuracy}
                lines.append({"type": "metrics", "step": 10 * epoch, "time": epoch, "values": metrics})
            lines.append({**lines[-1], "values": {"metrics/test/MulticlassAccuracy": 1.0}})  # the program's own
            lines.append({"type": "end", "step": 10 * len(accuracies), "time": 9, "status": "finished"})
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
            arguments.append(f"{name}={file}")
        found = mean([values(argument[2:], "metrics/test/MulticlassAccuracy", True) for argument in arguments[:2]])
        assert [(x, round(y, 6)) for x, y in found.items()] == [(10, 0.3), (20, 0.6)], found
        picture = pathlib.Path(folder) / "picture.svg"
        subprocess.run([sys.executable, "-B", __file__, str(picture), *arguments, "--batches"], check=True)
        lengths = [len(points.split()) for points in re.findall(r'<polyline points="([^"]*)"', picture.read_text())]
        assert lengths == [3, 2], f"the curves have {lengths} points, expected 3 and 2"
        broken = subprocess.run(
            [sys.executable, "-B", __file__, str(picture), arguments[0], "--metric", "nothing"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert broken.returncode == 1 and "has 0 evaluations with nothing" in broken.stderr, broken
    print("the curves of runs are drawn")


def main():
    if sys.argv[1:] == ["--check"]:
        return check()
    parser = argparse.ArgumentParser()
    parser.add_argument("picture")
    parser.add_argument("runs", nargs="+", metavar="NAME=metrics.jsonl")
    parser.add_argument("--metric", default="metrics/test/MulticlassAccuracy")
    parser.add_argument("--title", default="accuracy")
    parser.add_argument("--low", type=float, default=0.0)
    parser.add_argument("--batches", action="store_true")
    options = parser.parse_args()
    runs = {}
    for run in options.runs:
        name, _, file = run.partition("=")
        runs.setdefault(name, []).append(values(file, options.metric, options.batches))
    curves = {name: mean(of_name) for name, of_name in runs.items()}
    curves = dict(sorted(curves.items(), key=lambda item: -max(item[1])))  # the longest gives the axis
    line_chart(
        options.picture,
        curves,
        "batch" if options.batches else "evaluation",
        options.title,
        y_low=options.low,
        names="left" if "Accuracy" in options.metric else "right",
    )


if __name__ == "__main__":
    main()
