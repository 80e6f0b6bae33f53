#!/usr/bin/env python3
"""Compares one training step in tutti with the same step elsewhere; prints one table.

    python benchmarks/peers/run.py --program build/bench/benchmarks/benchmark_peer_tutti \
        --python venv/bin/python [--rounds 5]

Claims (all in one run, processes of all peers alternating, the order turned round every second time):
tutti's Trainer is at least 12 times as fast as Composer with the train metric emptied, 2.5 times as
fast as PyTorch eager, and faster than the hand-written LibTorch loop with torch::optim. The exit code
is 1 when one of them fails. --python may be given several times: each runs the peers it has installed.

The environment of the Python peers: python -m venv venv; venv/bin/pip install mosaicml==0.32.1 \
torch==2.7.0 lightning accelerate.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
OURS = ["torch_optim", "fused_sgd", "tutti", "tutti_metric", "tutti_algorithms"]
NEEDS = {"pytorch": "torch", "accelerate": "accelerate", "lightning": "lightning",
         "composer": "composer", "composer_metric": "composer", "composer_algorithms": "composer"}
TITLES = {
    "torch_optim": "LibTorch by hand, torch::optim::SGD",
    "fused_sgd": "LibTorch by hand, functions and at::_fused_sgd_",
    "tutti": "**tutti**",
    "tutti_metric": "tutti, with accuracy as train metric",
    "tutti_algorithms": "tutti, MixUp + LabelSmoothing + GradientClipping",
    "pytorch": "PyTorch eager",
    "accelerate": "Accelerate",
    "lightning": "Lightning (barebones)",
    "composer": "Composer, train metric emptied",
    "composer_metric": "Composer as shipped",
    "composer_algorithms": "Composer, MixUp + LabelSmoothing + GradientClipping",
}
BARS = [("tutti", "composer", 12.0), ("tutti", "pytorch", 2.5), ("tutti", "torch_optim", 1.0)]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
               "PYTHONWARNINGS": "ignore"}


def installed(python, package):
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)"
    return subprocess.run([python, "-c", code], env=ENVIRONMENT).returncode == 0


def commands(arguments):
    found = [(name, [arguments.program, name]) for name in OURS]
    for python in arguments.python:
        found += [(name, [python, str(HERE / "peers.py"), name])
                  for name, package in NEEDS.items() if installed(python, package)]
    return found


def measure(command):
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def processor():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return f"{names[0]}, {len(names)} logical cores" if names else platform.processor()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    peers = commands(arguments)
    runs, versions = {}, {}
    for round_number in range(arguments.rounds):
        for name, command in peers if round_number % 2 == 0 else reversed(peers):
            got = measure(command)
            key = (name, got["versions"]["torch"])
            runs.setdefault(key, []).append(got["us"])
            versions[key] = ", ".join(f"{k} {v}" for k, v in got["versions"].items())
            print(f"round {round_number + 1}: {name} {got['us']:.1f}", file=sys.stderr, flush=True)

    medians = {key: statistics.median(values) for key, values in runs.items()}
    best = {}  # the fastest environment of each peer: what tutti is compared with
    for (name, _), value in medians.items():
        best[name] = min(value, best.get(name, value))
    print(f"MLP 32-64-64-10, batch 8, SGD with momentum, one thread, fp32. {processor()}.")
    print(f"n = {arguments.rounds} processes each, alternating; per process the median of 15 blocks of "
          "200 steps after 500 steps of warm-up; deviation over processes.\n")
    print("| step | µs, median | deviation | × tutti | versions |\n|---|---:|---:|---:|---|")
    for key in sorted(medians, key=medians.get):
        spread = statistics.stdev(runs[key]) if len(runs[key]) > 1 else 0.0
        print(f"| {TITLES[key[0]]} | {medians[key]:.1f} | {spread:.1f} | "
              f"{medians[key] / best['tutti']:.2f} | {versions[key]} |")
    print()
    failed = False
    for ours, theirs, bar in BARS:
        if theirs in best:
            ratio = best[theirs] / best[ours]
            failed |= ratio < bar
            print(f"{'holds' if ratio >= bar else 'FAILS'}: {TITLES[theirs]} / tutti = {ratio:.2f}, "
                  f"claimed at least {bar}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
