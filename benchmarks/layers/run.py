#!/usr/bin/env python3
"""What layers of tutti::nn take beside those of torch::nn that they stand for; prints one table.

    python benchmarks/layers/run.py --program build/bench/benchmarks/benchmark_layers [--rounds 3]

A process times both ways of every case in turn, so slow changes of the machine hit all alike. The exit code is 1 when a
claim fails.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

PLAIN = {"batchnorm_56": "BatchNorm2d, 32 x 64 x 56 x 56", "batchnorm_16": "BatchNorm2d, 32 x 64 x 16 x 16",
         "batchnorm_8": "BatchNorm2d, 32 x 64 x 8 x 8", "maxpool2_32": "MaxPool2d of 2 x 2, 32 x 32 x 32 x 32",
         "maxpool3_112": "MaxPool2d of 3 x 3 with stride 2 and padding, 32 x 64 x 112 x 112"}
PLAIN["groupnorm_16"] = "GroupNorm of 4 groups, 32 x 16 x 16 x 16, channels last"
LAST = {f"{case}_last": f"{title}, channels last" for case, title in PLAIN.items() if case != "groupnorm_16"}
CASES = {**PLAIN, **LAST}
BARS = {"forward": 2.0, "both": 1.2}
# With the channels last ATen's loops are less slow, and this case waits for memory whoever does it.
LAST_BARS = {"forward": 1.1, "both": 1.1}
WAITS = {"batchnorm_56_last"}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alternations", type=int, default=20)
    arguments = parser.parse_args()

    times = {}
    for _ in range(arguments.rounds):
        done = subprocess.run([arguments.program, str(arguments.alternations)], env=ENVIRONMENT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{arguments.program} failed:\n{done.stderr[-2000:]}")
        got = json.loads(done.stdout)
        version = got.pop("torch")
        for name, values in got.items():
            times.setdefault(name, []).extend(values)
    medians = {name: statistics.median(values) for name, values in times.items()}

    print(f"One thread, fp32, CPU time, LibTorch {version}. n = {arguments.rounds * arguments.alternations} alternations in "
          f"{arguments.rounds} processes.\n")
    print("| layer | forward, torch, µs | tutti, µs | ratio | with backward, torch, µs | tutti, µs | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    ratios = {which: {} for which in BARS}
    for case, title in CASES.items():
        row = ""
        for which in BARS:
            theirs, ours = medians[f"{case}_{which}_torch"], medians[f"{case}_{which}_tutti"]
            ratios[which][case] = theirs / ours
            row += f" {theirs:,.0f} | {ours:,.0f} | {theirs / ours:.2f} |"
        print(f"| {title} |{row}")
    print()
    failed = False
    for cases, bars in ((PLAIN, BARS), (LAST.keys() - WAITS, LAST_BARS)):
        for which, bar in bars.items():
            case = min(cases, key=ratios[which].get)
            holds = ratios[which][case] >= bar
            failed = failed or not holds
            what = "forward" if which == "forward" else "forward and backward"
            print(f"{'holds' if holds else 'FAILS'}: {what}, torch / tutti, the least = {ratios[which][case]:.2f} ({CASES[case]}), "
                  f"claimed at least {bar}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
