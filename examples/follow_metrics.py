#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Follows the file of a JSONLinesLogger and sends what it reads to another place, while the run goes on.

  python3 follow_metrics.py run/metrics.jsonl                       prints each line of metrics
  python3 follow_metrics.py run/metrics.jsonl --to csv:metrics.csv  a table: step,time,name,value
  python3 follow_metrics.py run/metrics.jsonl --to wandb --project digits    (pip install wandb)
  python3 follow_metrics.py run/metrics.jsonl --to comet --project digits    (pip install comet_ml)

--to may be given several times. The program waits for the file and ends when the run has ended; with --once it reads what is
there and ends. The training process needs neither the service's package nor its key. Started again, it goes on where the
service is, and writes the CSV anew. A resumed run repeats the steps since its checkpoint: the CSV drops the old ones, and a
service, which cannot take a step back, keeps them.
"""

import argparse
import csv
import json
import math
import os
import sys
import time

NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def numbers(values):
    return {name: NUMBERS.get(value, value) for name, value in values.items()}


class Console:
    def start(self, entry):
        print(f"start at step {entry['step']} of {entry['run_name']}", flush=True)

    def hyperparameters(self, values):
        print("hyperparameters:", ", ".join(f"{name}={value}" for name, value in values.items()), flush=True)

    def metrics(self, step, _time, values):
        print(f"step {step}:", ", ".join(f"{name}={value:.6g}" for name, value in values.items()), flush=True)

    def table(self, step, name, columns, rows):
        print(f"step {step}: table {name} with {len(rows)} rows of {', '.join(columns)}", flush=True)

    def end(self, status):
        print(f"end: {status}", flush=True)


class Csv:
    """One row a value. Rows of a step that a resumed run repeats are taken out by cutting the file there."""

    def __init__(self, path):
        self.file = open(path, "w+", newline="", encoding="utf-8")
        self.rows = csv.writer(self.file)
        self.rows.writerow(["step", "time", "name", "value"])
        self.begins = []  # (step, where its first row is), in the order of the file

    def start(self, entry):
        where = None
        while self.begins and self.begins[-1][0] >= entry["step"]:
            where = self.begins.pop()[1]
        if where is not None:
            self.file.seek(where)
            self.file.truncate()

    def hyperparameters(self, values):
        pass

    def metrics(self, step, when, values):
        if not self.begins or self.begins[-1][0] < step:
            self.begins.append((step, self.file.tell()))
        self.rows.writerows([step, when, name, repr(value)] for name, value in values.items())
        self.file.flush()

    def table(self, step, name, columns, rows):
        pass

    def end(self, status):
        self.file.flush()


class Wandb:
    """Weights & Biases. The run has the id of the tutti run, so a resumed one goes on in the same."""

    def __init__(self, project):
        import wandb

        self.wandb, self.project, self.run = wandb, project, None

    def start(self, entry):
        if self.run is None:
            name = entry["run_name"]
            self.run = self.wandb.init(project=self.project, name=name, id=name, resume="allow")

    def hyperparameters(self, values):
        self.run.config.update(values, allow_val_change=True)

    def metrics(self, step, _time, values):
        if step >= self.run.step:  # it refuses to go back
            self.run.log(values, step=step)

    def table(self, step, name, columns, rows):
        if step >= self.run.step:
            self.run.log({name: self.wandb.Table(columns=columns, data=rows)}, step=step)

    def end(self, status):
        self.run.finish(exit_code=0 if status == "finished" else 1)


class Comet:
    def __init__(self, project):
        import comet_ml

        self.comet, self.project, self.experiment, self.last = comet_ml, project, None, -1

    def start(self, entry):
        if self.experiment is None:
            self.experiment = self.comet.start(project_name=self.project)
            self.experiment.set_name(entry["run_name"])

    def hyperparameters(self, values):
        self.experiment.log_parameters(values)

    def metrics(self, step, _time, values):
        if step >= self.last:
            self.last = step
            self.experiment.log_metrics(values, step=step)

    def table(self, step, name, columns, rows):
        self.experiment.log_table(f"{name}-{step}.csv", tabular_data=rows, headers=columns)

    def end(self, status):
        self.experiment.log_other("status", status)
        self.experiment.end()


def destination(text, project):
    kind, _, path = text.partition(":")
    if kind == "csv" and path:
        return Csv(path)
    makers = {"stdout": Console, "wandb": lambda: Wandb(project), "comet": lambda: Comet(project)}
    if text not in makers:
        sys.exit(f'--to is "{text}", expected stdout, csv:FILE, wandb or comet')
    try:
        return makers[text]()
    except ImportError as error:
        sys.exit(f"--to {text} needs a package of Python: {error}; install it with pip")


def lines(path, once, interval):
    """The whole lines of the file, as they come; None when it has none for the moment. A file that was replaced by another
    is read from its start; one that was cut is read on from its end."""
    file, rest = None, b""
    while True:
        try:
            now = os.stat(path)
            if file is None or os.fstat(file.fileno()).st_ino != now.st_ino:
                file, rest = open(path, "rb"), b""
            elif now.st_size < file.tell():
                file.seek(now.st_size)
                rest = b""
        except FileNotFoundError:
            if once:
                sys.exit(f"there is no file {path}; name the file of a JSONLinesLogger")
        piece = file.read(1 << 20) if file else b""
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
        if not piece:
            if once:
                return
            yield None
            time.sleep(interval)


def follow(path, places, once=False, interval=0.5, patience=10.0):
    ended = None  # when an "end" was read: a restarted run may still append
    for line in lines(path, once, interval):
        if line is None:
            if ended is not None and time.monotonic() - ended >= patience:
                break
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            print(f"a line is no JSON and is left out: {line[:80]!r}", file=sys.stderr)
            continue
        ended = None
        status = entry.get("status")
        for place in places:
            if entry["type"] == "start":
                place.start(entry)
            elif entry["type"] == "hyperparameters":
                place.hyperparameters(numbers(entry["values"]))
            elif entry["type"] == "metrics":
                place.metrics(entry["step"], entry["time"], numbers(entry["values"]))
            elif entry["type"] == "table":
                place.table(entry["step"], entry["name"], entry["columns"], entry["rows"])
        if entry["type"] == "end":
            ended, last = time.monotonic(), status
            if status == "finished":
                break
    for place in places:
        place.end(last if ended is not None else "still running")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the JSONLinesLogger's file")
    parser.add_argument("--to", action="append", help="stdout (the default), csv:FILE, wandb or comet")
    parser.add_argument("--project", default="tutti", help="of the service")
    parser.add_argument("--once", action="store_true", help="do not wait for more")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two looks at the file")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds that a failed run has to be started again")
    options = parser.parse_args()
    places = [destination(text, options.project) for text in options.to or ["stdout"]]
    follow(options.file, places, options.once, options.interval, options.patience)


if __name__ == "__main__":
    main()
