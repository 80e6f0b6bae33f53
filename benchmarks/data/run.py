#!/usr/bin/env python3
"""What batches cost beside torch::data, a copy of their bytes and, where asked for, PyTorch's DataLoader; prints one table.

    python benchmarks/data/run.py --program build/bench/benchmarks/benchmark_data [--python peers/bin/python] [--rounds 3]
    python benchmarks/data/run.py --program ... --instructions     of pipelines of views and DataLoader alone, by valgrind

A process does the same in every way in turn, so slow changes of the machine hit all alike. Instructions are those of
two runs that differ by ten epochs, so that start-up cancels out. The exit code is 1 when a claim fails.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

WAYS = {"torch_data": "10,000 examples of 32 floats and a class, shuffled, batches of 256: `torch::data`",
        "shuffled": "the same: `TensorLoader`",
        "in_order": "the same, not shuffled: `TensorLoader`",
        "data_loader": "the same examples one by one, shuffled: `DataLoader`, no workers",
        "views": "the same: a pipeline of views, `transform | shuffle | batch`",
        "data_loader_ahead": "the same, one thread, two batches ahead: `DataLoader`",
        "views_ahead": "the same: the pipeline `| prefetch(2)`",
        "python": "the same, shuffled: PyTorch's `DataLoader` over a `TensorDataset`",
        "memcpy": "512 images of 3 x 224 x 224 bytes, shuffled, batches of 64: `memcpy` of each into one buffer",
        "raw": "the same: `TensorLoader`",
        "gap_alone": "waiting for a batch of 32 examples of 0.2 ms: `DataLoader`, no workers",
        "gap_workers": "the same, used for 12 ms each: `DataLoader`, 2 workers"}
PYTHON = """
import json, sys, time, torch
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(10000, 32), torch.randint(10, (10000,)))
loader = torch.utils.data.DataLoader(data, batch_size=256, shuffle=True)
times = []
for i in range(int(sys.argv[1]) + 1):
    before = time.process_time()
    seen = sum(len(y) for x, y in loader)
    times.append(1e3 * (time.process_time() - before))
    assert seen == 10000
print(json.dumps({"python": times[1:], "version": torch.__version__}))
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def measure(command):
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def instructions(program, way):
    """Of an epoch."""
    counts = []
    for alternations in ("1", "3"):
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, alternations, way]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
        found = re.search(r"Collected : (\d+)", done.stderr)
        if done.returncode != 0 or not found:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        counts.append(int(found.group(1)))
    return (counts[1] - counts[0]) / 10


def count(program):
    counts = {way: instructions(program, way) for way in ("data_loader", "views", "data_loader_ahead", "views_ahead")}
    print("| what | instructions an epoch |\n|---|---:|")
    for way, number in counts.items():
        print(f"| {WAYS[way]} | {number:,.0f} |")
    print()
    return [("views / DataLoader, instructions", counts["views"] / counts["data_loader"], "at most", 1.0),
            ("views / DataLoader, a thread ahead, instructions", counts["views_ahead"] / counts["data_loader_ahead"],
             "at most", 1.0)]


def judge(claims):
    failed = False
    for what, value, side, bar in claims:
        holds = value >= bar if side == "at least" else value <= bar
        failed = failed or not holds
        print(f"{'holds' if holds else 'FAILS'}: {what} = {value:.3f}, claimed {side} {bar}")
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", help="an interpreter with torch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alternations", type=int, default=20)
    parser.add_argument("--instructions", action="store_true")
    arguments = parser.parse_args()
    if arguments.instructions:
        sys.exit(1 if judge(count(arguments.program)) else 0)

    times = {way: [] for way in WAYS}
    version = "not measured"
    for _ in range(arguments.rounds):
        got = measure([arguments.program, str(arguments.alternations)])
        if arguments.python:
            got |= measure([arguments.python, "-c", PYTHON, str(arguments.alternations)])
            version = got["version"]
        for way, values in times.items():
            values += got.get(way, [])
    medians = {way: statistics.median(values) for way, values in times.items() if values}

    print(f"One thread, LibTorch {got['torch']}, PyTorch {version}. n = {len(times['shuffled'])} alternations in "
          f"{arguments.rounds} processes; an epoch's CPU time, but for the last two, which wait.\n")
    print("| what | ms, median | quartiles |")
    print("|---|---:|---:|")
    for way, median in medians.items():
        low, _, high = statistics.quantiles(times[way], n=4)
        print(f"| {WAYS[way]} | {median:.3f} | {low:.3f} to {high:.3f} |")
    print()
    claims = [("torch::data / TensorLoader", medians["torch_data"] / medians["shuffled"], "at least", 30),
              ("raw images, memcpy / TensorLoader", medians["memcpy"] / medians["raw"], "at least", 0.95),
              ("views / DataLoader", medians["views"] / medians["data_loader"], "at most", 1.0),
              ("views / DataLoader, a thread ahead", medians["views_ahead"] / medians["data_loader_ahead"], "at most", 1.0),
              ("waiting with workers / without", medians["gap_workers"] / medians["gap_alone"], "at most", 0.05)]
    failed = judge(claims)
    if "python" in medians:
        print(f"PyTorch's DataLoader / TensorLoader = {medians['python'] / medians['shuffled']:.0f}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
