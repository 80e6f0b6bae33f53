"""examples/follow_metrics.py against files of a JSONLinesLogger, with stand-ins for the services' packages.

    python follow_metrics.py <examples/follow_metrics.py> <loggers_tests>
"""

import json
import os
import subprocess
import sys
import tempfile
import time

FOLLOWER = sys.argv[1]

FAKE_WANDB = """
import json, os
class Config(dict):
    def update(self, values, allow_val_change): super().update(values); say("config", dict(self))
def say(*words): open(os.environ["SAID"], "a").write(json.dumps(words) + "\\n")
class Table:
    def __init__(self, columns, data): self.columns, self.data = columns, data
class Run:
    def __init__(self, **options): say("init", options); self.config = Config(); self.step = 0
    def log(self, values, step):
        assert step >= self.step; self.step = step
        say("log", step, {k: [v.columns, v.data] if isinstance(v, Table) else v for k, v in values.items()})
    def finish(self, exit_code): say("finish", exit_code)
def init(**options): return Run(**options)
"""
FAKE_COMET = """
import json, os
def say(*words): open(os.environ["SAID"], "a").write(json.dumps(words) + "\\n")
class Experiment:
    def __getattr__(self, name): return lambda *words, **named: say(name, *words, named)
def start(**options): say("start", options); return Experiment()
"""


def entry(kind, step=None, **more):
    line = {"type": kind, **({} if step is None else {"step": step}), "time": 1767225600.5, **more}
    return json.dumps(line) + "\n"


def start(step):
    return entry("start", step, run_name="calm", rank=0, world_size=1)


def metrics(step, **values):
    return entry("metrics", step, values=values)


RUN = [start(0), entry("hyperparameters", values={"lr": 0.1}), metrics(1, loss=0.5), metrics(2, loss="NaN"),
       metrics(3, loss=0.25), metrics(3, acc=0.75), entry("end", 3, status="failed"),
       start(2), metrics(2, loss=7), metrics(3, loss=8), "no json\n", entry("unknown", 3),
       entry("table", 3, name="t", columns=["a"], rows=[["1"]]), entry("end", 3, status="finished")]


def begin(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": folder, "SAID": os.path.join(folder, "said")}
    return subprocess.Popen([sys.executable, FOLLOWER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=environment)


def finished(process, status=0):
    out, error = process.communicate(timeout=60)
    assert process.returncode == status, (process.returncode, out, error)
    return out, error


def said(folder):
    with open(os.path.join(folder, "said"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write(folder, lines):
    path = os.path.join(folder, "metrics.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(lines)
    return path


def test_prints(folder):
    out, error = finished(begin(folder, write(folder, RUN), "--once"))
    assert out.splitlines() == [
        "start at step 0 of calm", "hyperparameters: lr=0.1", "step 1: loss=0.5", "step 2: loss=nan", "step 3: loss=0.25",
        "step 3: acc=0.75", "start at step 2 of calm", "step 2: loss=7", "step 3: loss=8",
        "step 3: table t with 1 rows of a", "end: finished"], out
    assert "no JSON" in error, error


def test_csv_drops_what_a_resumed_run_repeats(folder):
    path = os.path.join(folder, "out.csv")
    finished(begin(folder, write(folder, RUN), "--once", "--to", f"csv:{path}"))
    with open(path, encoding="utf-8") as file:
        rows = [line.strip().split(",") for line in file]
    assert [[row[0], row[2], row[3]] for row in rows] == [
        ["step", "name", "value"], ["1", "loss", "0.5"], ["2", "loss", "7"], ["3", "loss", "8"]], rows


def test_wandb_is_never_sent_a_step_back(folder):
    with open(os.path.join(folder, "wandb.py"), "w", encoding="utf-8") as file:
        file.write(FAKE_WANDB)
    finished(begin(folder, write(folder, RUN), "--once", "--to", "wandb", "--project", "p"))
    words = said(folder)
    assert words[0] == ["init", {"project": "p", "name": "calm", "id": "calm", "resume": "allow"}], words
    assert words[1] == ["config", {"lr": 0.1}], words
    logged = [(step, values) for kind, step, *values in words if kind == "log"]
    assert [step for step, _ in logged] == [1, 2, 3, 3, 3, 3], logged
    assert logged[-1][1] == [{"t": [["a"], [["1"]]]}], logged
    assert words[-1] == ["finish", 0], words


def test_comet(folder):
    with open(os.path.join(folder, "comet_ml.py"), "w", encoding="utf-8") as file:
        file.write(FAKE_COMET)
    finished(begin(folder, write(folder, RUN[:7]), "--once", "--to", "comet"))
    words = said(folder)
    assert words[0] == ["start", {"project_name": "tutti"}] and words[1] == ["set_name", "calm", {}], words
    assert ["log_metrics", {"acc": 0.75}, {"step": 3}] in words, words
    assert words[-2:] == [["log_other", "status", "failed", {}], ["end", {}]], words


def test_follows_a_run_that_goes_on_and_is_started_again(folder):
    path = os.path.join(folder, "metrics.jsonl")
    process = begin(folder, path, "--interval", "0.02")  # before there is a file
    time.sleep(0.2)
    with open(path, "a", encoding="utf-8") as file:
        for line in RUN[:7]:
            for piece in (line[:5], line[5:]):  # a line may come in pieces
                file.write(piece)
                file.flush()
                time.sleep(0.03)
        time.sleep(0.2)  # a failed run: it waits for the next
        assert process.poll() is None
        file.writelines(RUN[7:])
    out, _ = finished(process)
    assert out.splitlines()[-1] == "end: finished", out
    assert "step 3: loss=0.25" in out and "step 3: loss=8" in out, out


def test_refuses_what_it_cannot_do(folder):
    assert 'expected stdout, csv:FILE, wandb or comet' in finished(begin(folder, "x", "--to", "paper"), 1)[1]
    assert "there is no file x" in finished(begin(folder, "x", "--once"), 1)[1]


def test_reads_a_real_file(folder):
    path = os.path.join(folder, "run.jsonl")
    subprocess.run([sys.argv[2], "a run for the follower to read"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "TUTTI_JSON_LINES_FILE": path})
    out, error = finished(begin(folder, path, "--once"))
    assert error == "" and out.startswith("start at step 0") and "loss/train/total=" in out, (out, error)
    assert out.splitlines()[-1] == "end: finished", out


for name, test in list(globals().items()):
    if name.startswith("test_"):
        with tempfile.TemporaryDirectory() as folder:
            test(folder)
            print("passed:", name)
