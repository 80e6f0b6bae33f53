#!/usr/bin/env python3
"""How long training waits for a checkpoint, written at once and in the background; prints one table.

    python benchmarks/checkpoint/run.py --program build/bench/benchmarks/benchmark_checkpoint [--rounds 3] [--folder F]

All figures of a row come from the same processes. The first save of each is left out, in which the memory for the
copy is reserved. The exit code is 1 when the claim fails.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
CLAIM = 1.1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mebibytes", type=int, nargs="*", default=[16, 32, 64, 128])
    parser.add_argument("--folder", default="/tmp/tutti_benchmark_checkpoint")
    arguments = parser.parse_args()

    print("MLP, SGD with momentum, one thread, fp32, CPU; a save after every batch, "
          f"{arguments.rounds} processes of 12 saves each, medians in ms (deviation); first saves left out. "
          "Running: time of the training thread on a processor, which other programs do not lengthen.\n")
    print("| saved | at once | in the background | of it running | one memcpy, running | wait at once / in the "
          "background | background / memcpy, running | first, running |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    holds = True
    columns = ["at_once_wall", "background_wall", "background_running", "memcpy_running"]
    for size in arguments.mebibytes:
        got = {name: [] for name in columns}
        first = []
        for _ in range(arguments.rounds):
            done = subprocess.run([arguments.program, str(size), "12", arguments.folder], env=ENVIRONMENT,
                                  capture_output=True, text=True, check=True)
            line = json.loads(done.stdout.strip().splitlines()[-1])
            first.append(line["background_running"][0])
            for name, values in got.items():
                values += line[name][1:]
        middle = {name: statistics.median(values) for name, values in got.items()}
        cells = " | ".join(f"{middle[name]:.2f} ({statistics.stdev(got[name]):.2f})" for name in columns)
        stall = middle["background_running"] / middle["memcpy_running"]
        holds = holds and stall <= CLAIM
        print(f"| {line['mebibytes']} MiB | {cells} | {middle['at_once_wall'] / middle['background_wall']:.1f} | "
              f"{stall:.2f} | {statistics.median(first):.1f} |")
    print(f"\n{'holds' if holds else 'FAILS'}: background / memcpy at most {CLAIM}, running")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
