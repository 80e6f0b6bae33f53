# SPDX-License-Identifier: Apache-2.0
"""tutti.load() and tutti.runs() on what runs of examples/digits leave.

runs.py DIGITS FOLDER     the program; where its runs go, which must not exist
"""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import warnings

import safetensors.torch
import torch

import tutti


def train(program, folder, *arguments):
    command = [program, "--run-folder", folder, "--save-interval", "1ep", "--no-progress-bar", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{command}:\n{done.stdout}"


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), f"{error}, expected {words}"
    else:
        raise AssertionError(f"nothing was refused, expected {words}")


def check_run(folder):
    run = tutti.load(folder)
    assert (run.name, run.status) == ("digits", "finished"), run
    assert run.hyperparameters["rank_zero_seed"] == 17 and run.hyperparameters["MixUp/alpha"] == 1, run.hyperparameters
    metrics = run.metrics
    assert {len(column) for column in metrics.values()} == {len(metrics["step"])} and metrics["step"] == sorted(
        set(metrics["step"])
    )
    steps, losses = metrics.series("loss/train/total")
    assert len(losses) == 46 and all(map(math.isfinite, losses)), losses
    _, accuracies = metrics.series("metrics/test/MulticlassAccuracy")
    best = run.best["metrics/test/MulticlassAccuracy"]
    assert len(accuracies) == 2 and best.value == max(accuracies) and best.step in (23, 46), (accuracies, best)
    assert run.best["metrics/test/CrossEntropy"].value == min(metrics.series("metrics/test/CrossEntropy")[1])
    assert tutti.Table(rows=metrics.rows) == metrics and "<th>step</th>" in metrics._repr_html_()
    try:
        import pandas  # noqa: F401
    except ImportError:
        pass
    else:
        assert list(metrics.pandas().columns) == list(metrics) and len(metrics.pandas()) == len(metrics["step"])

    assert [path.name for path in run.checkpoints] == ["ep1-ba23", "ep2-ba46"], run.checkpoints
    stored = safetensors.torch.load_file(folder / "checkpoints/ep2-ba46/model.safetensors")
    for weights in (
        run.state_dict(),
        run.state_dict("ep2-ba46"),
        run.state_dict(run.checkpoints[1]),
        tutti.load(folder / "checkpoints").state_dict(),
        tutti.read_weights(folder / "checkpoints/latest"),
    ):
        assert weights.keys() == stored.keys() and all(torch.equal(weights[name], stored[name]) for name in stored)
    first = run.state_dict("ep1-ba23")
    assert not all(torch.equal(first[name], stored[name]) for name in stored)
    os.chdir(folder.parent)  # where a name is that of another run, not of a checkpoint
    refused(LookupError, "has no checkpoint 'best'", lambda: run.state_dict("best"))
    assert run.state_dict("best/checkpoints/latest").keys() == stored.keys()
    refused(LookupError, "has no checkpoint 'ep9'; there are: ep1-ba23, ep2-ba46", lambda: run.state_dict("ep9"))


def check_best(folder):
    """Of the option restore_best the weights are inside of the last checkpoint; a CheckpointSaver has a folder with a pointer."""
    run = tutti.load(folder)
    value = run.best["metrics/test/MulticlassAccuracy"]
    kept = run.state_dict("best")
    at_step = safetensors.torch.load_file(folder / f"checkpoints/ep{value.step // 23}-ba{value.step}/model.safetensors")
    assert kept.keys() <= at_step.keys() and len(kept) >= 50, kept.keys()
    own = folder / "best_ones"
    shutil.copytree(folder / "checkpoints/ep1-ba23", own / "ep1-ba23")
    (own / "best").symlink_to("ep1-ba23")
    assert run.checkpoint("best") == own / "best"
    assert torch.equal(run.state_dict("best")["fc.weight"], run.state_dict("ep1-ba23")["fc.weight"])
    shutil.rmtree(own)


def check_directions(folder):
    """Names that say that less is better, and others, as in tests/core/comparison.cpp."""
    smaller = "CrossEntropy MAE reg/mae valRMSE FIDScore FID_2048 CosineDistance hinge@2 LanguagePerplexity".split()
    greater = "MulticlassAccuracy MIoU BinaryF1Score Maestro Terms water latency map_50".split()
    folder.mkdir()
    lines = [{"type": "start", "run_name": "directions", "step": 0, "time": 0}]
    for step in (1, 2):
        values = {f"metrics/test/{name}": step for name in (*smaller, *greater)}
        lines.append({"type": "metrics", "step": step, "values": values})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    best = tutti.load(folder).best
    assert {name for name in smaller if best[f"metrics/test/{name}"].value == 1} == set(smaller), best
    assert {name for name in greater if best[f"metrics/test/{name}"].value == 2} == set(greater), best


def check_resumed(folder):
    run = tutti.load(folder)
    steps, _ = run.metrics.series("loss/train/total")
    assert len(steps) == 46 == len(set(steps)), steps
    # A run that was killed between two checkpoints does the steps since the last one again.
    copy = folder.parent / "killed"
    shutil.copytree(folder, copy)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    again = [
        json.dumps({"type": "start", "step": 30, "time": 0, "run_name": "digits"}) + "\n",
        json.dumps({"type": "metrics", "step": 30, "time": 1, "values": {"loss/train/total": "NaN"}}) + "\n",
    ]
    (copy / "metrics.jsonl").write_text("".join(lines + again) + '{"type": "metrics", "st')  # died while it wrote
    killed = tutti.load(copy)
    assert killed.status == "unfinished" and max(killed.metrics["step"]) == 30
    assert math.isnan(killed.metrics["loss/train/total"][-1])
    shutil.rmtree(copy)


def check_unfinished(folder):
    """What find_latest() of C++ says: the last complete checkpoint, and errors that name what is wrong."""
    copy = folder.parent / "damaged"
    shutil.copytree(folder, copy, symlinks=True)
    run, saved = tutti.load(copy), copy / "checkpoints"
    (saved / "latest").unlink()
    (saved / "ep3-ba69").mkdir()  # without a manifest, the last thing that is written
    shutil.copy(saved / "ep1-ba23/model.safetensors", saved / "ep3-ba69")
    assert run.checkpoint().name == "ep2-ba46" and len(run.checkpoints) == 2
    refused(RuntimeError, "has no manifest.json", lambda: run.state_dict("ep3-ba69"))
    (saved / "latest").symlink_to("ep8-ba184")
    refused(RuntimeError, "ep8-ba184', which is not there", run.state_dict)
    model = saved / "ep2-ba46/model.safetensors"
    model.write_bytes(model.read_bytes()[:-5])
    refused(RuntimeError, "model.safetensors", lambda: run.state_dict("ep2-ba46"))
    manifest = saved / "ep1-ba23/manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 7'))
    refused(RuntimeError, "its checksum differs", lambda: run.state_dict("ep1-ba23"))
    shutil.rmtree(copy)


def check_sharded(folder, whole):
    """The layout that every rank of a run writes its part of: the same run has the same weights in both."""
    found, expected = tutti.load(folder).state_dict(), tutti.load(whole).state_dict()
    assert not (folder / "checkpoints/latest/model.safetensors").exists()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def check_files(folder, work):
    metrics = tutti.load(folder).metrics
    only = work / "only_csv"
    only.mkdir()
    with open(only / "metrics.csv", "w") as file:
        print(*metrics, sep=",", file=file)
        for cells in zip(*metrics.values()):
            print(*("" if cell is None else repr(cell) for cell in cells), sep=",", file=file)
    assert tutti.load(only).metrics == metrics
    (only / "metrics.csv").write_text("a,b\n1,2\n")
    refused(ValueError, "is no table of a CSVLogger", lambda: tutti.load(only).metrics)
    bad = work / "bad"
    bad.mkdir()
    (bad / "metrics.jsonl").write_text('{"type": "other", "new": 1}\n[]\n')
    refused(
        ValueError, f"line 2 of '{bad / 'metrics.jsonl'}' is none of a JSONLinesLogger", lambda: tutti.load(bad).metrics
    )
    refused(FileNotFoundError, "there is no folder", lambda: tutti.load(work / "nowhere"))
    (bad / "metrics.jsonl").unlink()
    (bad / "elsewhere").symlink_to(folder)
    refused(ValueError, "is no run: it has no metrics.jsonl", lambda: tutti.load(bad))
    (bad / "elsewhere").unlink()
    refused(ValueError, "has no runs", lambda: tutti.runs(bad))
    shutil.rmtree(only)
    shutil.rmtree(bad)


def check_table(folder):
    (folder / "broken").mkdir()
    (folder / "broken/metrics.jsonl").write_text("{}\n")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        table = tutti.runs(folder)
    assert len(said) == 1 and "line 1 of" in str(said[0].message), said
    shutil.rmtree(folder / "broken")
    table = {pathlib.Path(row["folder"]).name: row for row in table.rows}
    assert sorted(table) == ["best", "broken", "plain", "resumed"] and table["broken"]["status"] == "unreadable", table
    assert table["plain"]["lr"] == 0.1 and table["best"]["lr"] == 0.05, table["plain"]
    assert all(
        table[name]["status"] == "finished" and table[name]["step"] == 46 for name in ("best", "plain", "resumed")
    )
    assert 0 < table["plain"]["metrics/test/MulticlassAccuracy"] <= 1 and table["resumed"]["seconds"] > 0
    assert "MixUp/alpha" not in table["plain"] and "MixUp/alpha" in tutti.runs(folder, all_hyperparameters=True)
    assert len(tutti.runs(folder / "plain")["run"]) == 1


if __name__ == "__main__":
    program, work = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    runs = work / "runs"
    runs.mkdir(parents=True)
    train(program, runs / "plain", "--max-duration", "2ep")
    train(
        program,
        runs / "best",
        "--max-duration",
        "2ep",
        "--lr",
        "0.05",
        "--restore-best-monitor",
        "MulticlassAccuracy",
        "--restore-best-dataloader-label",
        "test",
    )
    train(program, runs / "resumed", "--max-duration", "1ep")
    train(program, runs / "resumed", "--max-duration", "2ep", "--autoresume")
    train(program, work / "sharded", "--max-duration", "2ep", "--checkpoint-layout", "sharded")
    check_run(runs / "plain")
    check_sharded(work / "sharded", runs / "plain")
    check_best(runs / "best")
    check_resumed(runs / "resumed")
    check_directions(work / "directions")
    check_unfinished(runs / "plain")
    check_files(runs / "plain", work)
    check_table(runs)
    print("runs of digits are read")
