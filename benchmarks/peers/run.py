#!/usr/bin/env python3
"""Compares one training step in tutti with the same step elsewhere; prints one table.

    python benchmarks/peers/run.py --program build/bench/benchmarks/benchmark_peer_tutti \
        --python venv/bin/python [--rounds 5] [--allocator libtcmalloc_minimal.so.4]

Claims (all in one run, processes of all peers alternating, the order turned round every second time):
tutti's Trainer is at least 12 times as fast as Composer with the train metric emptied, 2.5 times as
fast as PyTorch, and faster than the hand-written LibTorch loop with torch::optim. Every peer of Python
runs as its documentation shows it, with fused optimizers, and with torch.compile as well; each of these
also with an allocator that keeps memory, since tutti's keeps it, when --allocator names a library to
preload. The fastest is what tutti is compared with. The exit code is 1 when a claim fails. --python may
be given several times: each runs the peers it has installed.

The environment of the Python peers: python -m venv venv; venv/bin/pip install mosaicml==0.32.1 \
torch==2.7.0 lightning accelerate. The allocator: apt-get install libtcmalloc-minimal4.
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
WAYS = {"plain": "", "fused": ", fused optimizer", "compiled": ", fused optimizer, torch.compile"}
OURS = ["torch_optim", "fused_sgd", "tutti", "tutti_metric", "tutti_algorithms"]
NEEDS = {"pytorch": "torch", "accelerate": "accelerate", "lightning": "lightning",
         "composer": "composer", "composer_metric": "composer", "composer_algorithms": "composer"}
TITLES = {
    "torch_optim": "LibTorch by hand, torch::optim::SGD",
    "fused_sgd": "LibTorch by hand, functions and at::_fused_sgd_",
    "tutti": "**tutti**",
    "tutti_metric": "tutti, with accuracy as train metric",
    "tutti_algorithms": "tutti, MixUp + LabelSmoothing + GradientClipping",
    "pytorch": "PyTorch",
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
    """(name, way, allocator, command) of each process of a round."""
    found = [(name, "plain", "", [arguments.program, name]) for name in OURS]
    for python in arguments.python:
        for name in (name for name, package in NEEDS.items() if installed(python, package)):
            for way in WAYS:
                command = [python, str(HERE / "peers.py"), name, way]
                found += [(name, way, allocator, command) for allocator in {"", arguments.allocator}]
    return found


def measure(command, allocator):
    environment = {**ENVIRONMENT, **({"LD_PRELOAD": allocator} if allocator else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
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
    parser.add_argument("--allocator", default="", help="a library to preload into the peers of Python as well")
    arguments = parser.parse_args()
    if not arguments.allocator:
        print("not run: the peers of Python with an allocator that keeps memory, for no --allocator was given")
    peers = commands(arguments)
    runs, versions = {}, {}
    for round_number in range(arguments.rounds):
        for name, way, allocator, command in peers if round_number % 2 == 0 else reversed(peers):
            got = measure(command, allocator)
            key = (name, way, allocator, got["versions"]["torch"])
            runs.setdefault(key, []).append(got["us"])
            versions[key] = ", ".join(f"{k} {v}" for k, v in got["versions"].items())
            print(f"round {round_number + 1}: {name} {way} {allocator} {got['us']:.1f}", file=sys.stderr, flush=True)

    medians = {key: statistics.median(values) for key, values in runs.items()}
    best = {}  # the fastest configuration of each peer: what tutti is compared with
    for (name, *_), value in medians.items():
        best[name] = min(value, best.get(name, value))
    print(f"MLP 32-64-64-10, batch 8, SGD with momentum, one thread, fp32. {processor()}.")
    print(f"n = {arguments.rounds} processes each, alternating; per process the median of 15 blocks of "
          "200 steps after 500 steps of warm-up; deviation over processes.\n")
    print("| step | µs, median | deviation | × tutti | versions |\n|---|---:|---:|---:|---|")
    for key in sorted(medians, key=medians.get):
        spread = statistics.stdev(runs[key]) if len(runs[key]) > 1 else 0.0
        name, way, allocator, _ = key
        kept = ", " + pathlib.Path(allocator).name.split(".")[0].removeprefix("lib") if allocator else ""
        print(f"| {TITLES[name]}{WAYS[way]}{kept} | {medians[key]:.1f} | {spread:.1f} | "
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
