# SPDX-License-Identifier: Apache-2.0
"""What a run of tutti has left in its folder.

Weights are read by tutti's own C++, so every checkpoint that a run can go on from can be read here, and a damaged one, or one of
a newer version, is refused in the same words. Metrics and hyperparameters are read from the lines of JSON that JSONLinesLogger
and Dashboard write.
"""

import csv
import dataclasses
import functools
import json
import math
import pathlib
import re
import warnings

import torch

NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # which JSON lacks
PLACES = {
    "run_name",
    "run_folder",
    "save_folder",
    "run-name",
    "run-folder",
    "save-folder",
}  # which `run` and `folder` say
# Of metrics whose names have this in them smaller is better, as in tutti::Comparison::by_name: parts of names, and whole words.
SMALLER_IS_BETTER = ("loss", "error", "perplexity", "entropy")
SMALLER_IS_BETTER_WORDS = frozenset(
    "mae mse rmse msle rmsle mape smape nll wer cer ter fid brier distance divergence deviance deviation hinge".split()
)


class Table(dict):
    """Columns by name, in order: lists of one length. None is a cell without a value."""

    def __init__(self, columns=(), rows=()):
        """rows: dictionaries; what a row lacks is None. columns: those that come first, and are there without rows too."""
        names = dict.fromkeys(columns)
        for row in rows:
            names.update(dict.fromkeys(row))
        super().__init__((name, [row.get(name) for row in rows]) for name in names)

    @property
    def rows(self):
        """The rows, a dictionary each, with the values that are there."""
        size = len(next(iter(self.values()), ()))
        return [{name: cells[i] for name, cells in self.items() if cells[i] is not None} for i in range(size)]

    def pandas(self):
        """The same as a pandas.DataFrame; pandas has to be installed."""
        import pandas

        return pandas.DataFrame(dict(self))

    def series(self, name):
        """(steps, values) of the metric, where it has one: what a plot takes."""
        pairs = [(step, value) for step, value in zip(self["step"], self[name]) if value is not None]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def __str__(self):
        cells = [[_short(cell) for cell in column] for column in self.values()]
        widths = [max(map(len, [name, *column])) for name, column in zip(self, cells)]
        lines = [list(self), *map(list, zip(*cells))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)

    def _repr_html_(self):
        from html import escape

        def row(cells, tag):
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(map(_short, cells), "td") for cells in zip(*self.values()))
        return f"<table><thead>{row(self, 'th')}</thead><tbody>{body}</tbody></table>"


def _short(cell):
    return "" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell)


@dataclasses.dataclass(frozen=True)
class Best:
    """The best value of a metric, and the step, a number of batches, at which it was first reached."""

    value: float
    step: int


@dataclasses.dataclass
class _Record:
    """What the files of loggers say."""

    name: str = ""
    status: str = "unfinished"
    hyperparameters: dict = dataclasses.field(default_factory=dict)
    rows: dict = dataclasses.field(default_factory=dict)  # by step
    seconds: float = 0.0
    began: float = math.nan

    def take(self, entry):
        kind = entry["type"]
        if kind == "start":
            self.name, self.status = entry.get("run_name") or self.name, "unfinished"
            self.rows = {
                step: row for step, row in self.rows.items() if step < entry["step"]
            }  # a resumed run does them again
            self.began = entry["time"]
        elif kind == "hyperparameters":
            self.hyperparameters.update(_numbers(entry["values"]))
        elif kind == "metrics":
            self.rows.setdefault(entry["step"], {"step": entry["step"]}).update(_numbers(entry["values"]))
        elif kind == "end":
            self.status = entry["status"]
            self.seconds += entry["time"] - self.began


def _numbers(values):
    return {name: NUMBERS.get(value, value) if isinstance(value, str) else value for name, value in values.items()}


def _smaller_is_better(metric):
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", metric).lower()
    return any(part in metric.lower() for part in SMALLER_IS_BETTER) or not SMALLER_IS_BETTER_WORDS.isdisjoint(
        re.split("[^a-z]+", words)
    )


def _log_file(folder):
    """The file with the run's metrics: that of rank 0 where every rank has one. None where there is none."""
    for name in ("metrics.jsonl", "dashboard.jsonl", "metrics.csv"):
        if (folder / name).is_file():
            return folder / name
    return next(iter(sorted([*folder.glob("metrics*.jsonl"), *folder.glob("dashboard*.jsonl")])), None)


def _read_lines(path):
    record = _Record()
    data = path.read_bytes()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):  # the last one may be half written
        try:
            record.take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"line {number} of '{path}' is none of a JSONLinesLogger: {line[:80]!r} ({error})"
            ) from None
    return record


def _read_csv(path):
    record = _Record()
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                step = int(row.pop("step"))
                record.rows[step] = {"step": step} | {name: float(cell) for name, cell in row.items() if cell}
            except (KeyError, TypeError, ValueError):
                raise ValueError(
                    f"'{path}' is no table of a CSVLogger: its first column is not step, or a cell is no number"
                ) from None
    return record


def _is_checkpoint(folder):
    return (folder / "manifest.json").is_file()


def _has_checkpoints(folder):
    latest = folder / "latest"
    return folder.is_dir() and (latest.is_symlink() or latest.is_file() or any(map(_is_checkpoint, folder.iterdir())))


def _batch(checkpoint):
    """How far the run was; -1 where the manifest does not tell, which reading the checkpoint refuses."""
    try:
        return json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["meta"]["batch"]
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _save_folder(folder):
    """Where the checkpoints of the run are: in `checkpoints`, else in the folder itself; None where there are none."""
    return next((place for place in (folder / "checkpoints", folder) if _has_checkpoints(place)), None)


def _state_dict(read, path):
    names, tensors = read(str(path))
    return dict(zip(names, tensors))


def read_weights(path):
    """Weights under their PyTorch names, a state dict on the CPU.

    path: a checkpoint of tutti, whole or sharded, or a pointer to one (`latest`, `best`); a file of safetensors or of torch.save();
    a folder of Hugging Face's. Raises RuntimeError saying what is wrong with it.
    """
    return _state_dict(torch.ops.tutti._read_weights, path)


class Run:
    """A run of a Trainer, by the folder that its option run_folder names, made by load().

    The logger's file is read once, when it is first asked for: load() a run that is under way again to see how it goes on.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def __repr__(self):
        return f"<tutti run {self.name!r} in {str(self.path)!r}, {self.status}>"

    @functools.cached_property
    def _record(self):
        path = _log_file(self.path)
        if path is None:
            return _Record()
        return _read_csv(path) if path.suffix == ".csv" else _read_lines(path)

    @property
    def name(self):
        """The run's name; the folder's where no logger has written it."""
        return self._record.name or self.path.resolve().name

    @property
    def status(self):
        """One of "finished", "failed" and "unfinished": under way, killed, or without a file that tells."""
        return self._record.status

    @property
    def hyperparameters(self):
        """What the run was made with, by the names of docs/loggers.md: {"optimizer/lr": 0.1, ...}."""
        return dict(self._record.hyperparameters)

    @property
    def metrics(self):
        """A Table: a row for each step that has metrics, in order; columns `step` and the metrics. What a resumed run did again
        is there once."""
        rows = self._record.rows
        return Table(["step"], [rows[step] for step in sorted(rows)])

    @property
    def best(self):
        """The best value of each metric of an evaluation, `metrics/<set>/<metric>`: the smallest where the metric's name has loss,
        error, perplexity or entropy in it, or a word such as MAE or distance, else the largest. Of equal ones the first; nan only where there is nothing else."""
        found = {}
        for step in sorted(self._record.rows):
            for name, value in self._record.rows[step].items():
                if not name.startswith("metrics/") or name.startswith("metrics/train/"):
                    continue
                old = found.get(name)
                less = _smaller_is_better(name.split("/", 2)[-1])
                if (
                    old is None
                    or (math.isnan(old.value) and not math.isnan(value))
                    or (value < old.value if less else value > old.value)
                ):
                    found[name] = Best(value, step)
        return found

    @property
    def checkpoints(self):
        """The paths of the checkpoints that are complete, the one furthest in the run last."""
        place = _save_folder(self.path)
        if place is None:
            return []
        entries = (entry for entry in place.iterdir() if not entry.name.startswith(".") and not entry.is_symlink())
        return sorted(filter(_is_checkpoint, entries), key=lambda path: (_batch(path), path.name))

    def checkpoint(self, which="latest"):
        """The path of a checkpoint.

        which: a pointer, such as "latest"; the name of a checkpoint, "ep10-ba230"; or the path of one that is
        elsewhere, a pathlib.Path or a text with a slash. For "latest" where there is no pointer it is the one furthest in
        the run; one that a run died while writing is none. "best" is looked for in the run's other folders too, where a
        CheckpointSaver may have its own.
        Raises LookupError when there is none.
        """
        place = _save_folder(self.path)
        if which == "latest" and place is not None:
            if found := torch.ops.tutti._find_latest(str(place), "latest"):
                return pathlib.Path(found)
        places = [place] if place else []
        if which == "best":
            places += sorted(entry for entry in self.path.iterdir() if entry.is_dir())
        is_path = isinstance(which, pathlib.PurePath) or "/" in which
        candidates = [pathlib.Path(which)] if is_path else [folder / which for folder in places]
        for candidate in candidates:
            if which != "latest" and (candidate.is_symlink() or candidate.exists()):
                return candidate
        there = ", ".join(path.name for path in self.checkpoints) or "none"
        raise LookupError(f"the run in '{self.path}' has no checkpoint '{which}'; there are: {there}")

    def state_dict(self, which="latest"):
        """The weights of a checkpoint: tensors on the CPU under the parameters' Python names.

        which: as checkpoint() takes. "best" is also what the option restore_best has kept.
        Raises LookupError when there is no such checkpoint, RuntimeError saying what is wrong when it is damaged.
        """
        try:
            path = self.checkpoint(which)
        except LookupError:
            if which != "best" or _save_folder(self.path) is None:
                raise
            kept = _state_dict(torch.ops.tutti._read_kept_best, self.checkpoint())
            if not kept:
                raise
            return kept
        return read_weights(path)


def load(run):
    """The run in that folder.

    run: the run_folder of a Trainer, or its save_folder where it has no other.
    Raises FileNotFoundError when there is no such folder, ValueError when it is none of a run.
    """
    path = pathlib.Path(run)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder '{path}'; give the run_folder of a Trainer")
    if _log_file(path) is None and _save_folder(path) is None:
        raise ValueError(
            f"'{path}' is no run: it has no metrics.jsonl, dashboard.jsonl or metrics.csv and no checkpoints; give the run_folder of a "
            "Trainer, or for the runs of a folder tutti.runs()"
        )
    return Run(path)


def runs(folder, all_hyperparameters=False):
    """A Table of the runs of a folder: itself, and the folders in it, as tutti-dashboard shows them.

    Columns: `run` the name, `folder`, `status`, `step` the last one, `seconds` of the parts that have ended, the best value of
    each metric of an evaluation, the last training loss, and the hyperparameters that differ between the runs, or all of them.
    A run whose files cannot be read has the status "unreadable", with a warning that says why.
    Raises FileNotFoundError when there is no such folder, ValueError when it has no run.
    """
    root = pathlib.Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder '{root}'")
    places = [path for path in [root, *sorted(root.iterdir())] if path.is_dir() and not path.name.startswith(".")]
    found = [Run(path) for path in places if _log_file(path) is not None]
    if not found:
        raise ValueError(
            f"'{root}' has no runs: neither it nor a folder in it has metrics.jsonl, dashboard.jsonl or metrics.csv"
        )
    rows, options = [], []
    for run in found:
        row = {"run": run.path.resolve().name, "folder": str(run.path)}
        rows.append(row)
        options.append({})
        try:
            metrics = run.metrics
        except (OSError, ValueError) as error:
            warnings.warn(f"tutti.runs: {error}", stacklevel=2)
            row["status"] = "unreadable"
            continue
        row.update(
            {
                "run": run.name,
                "status": run.status,
                "step": max(metrics["step"], default=0),
                "seconds": run._record.seconds,
            }
        )
        row.update({name: best.value for name, best in run.best.items()})
        losses = [value for value in metrics.get("loss/train/total", ()) if value is not None]
        if losses:
            row["loss/train/total"] = losses[-1]
        options[-1] = run.hyperparameters
    names = dict.fromkeys(name for each in options for name in each)
    for name in names:
        values = [each.get(name) for each in options if each]  # of the runs that say what theirs are
        if all_hyperparameters or (name not in PLACES and any(value != values[0] for value in values)):
            for row, each in zip(rows, options):
                if name in each:
                    row.setdefault(name, each[name])
    return Table(["run", "folder", "status", "step", "seconds"], rows)
