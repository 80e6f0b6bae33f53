#!/usr/bin/env python3
"""What one fused pass over a batch of images costs beside tensor expressions; prints one table.

    python benchmarks/fused/run.py --program build/bench/benchmarks/benchmark_fused [--rounds 3] [--alternations 40]

A process does the same in every way in turn, so slow changes of the machine hit all alike; a ratio is the median over
all alternations of all processes of one divided by that of the other. The exit code is 1 when a claim fails.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

WAYS = {"cast": "bytes to floats and nothing else: `images.to(at::kFloat)`",
        "straightforward": "Normalize + MixUp + CutOut, tensor expressions as one writes them down",
        "in_place": "the same, in place where that can be",
        "fused": "the same, fused",
        "fused_two": "Normalize + MixUp, fused",
        "fused_five": "Normalize + ColOut + CutOut + MixUp + CutMix, fused",
        "recipe": "a trainer's recipe Normalize, CutOut, MixUp, from bytes to the model's input",
        "recipe_apart": "the same recipe with `fuse = false`",
        "recipe_five": "a recipe Normalize, ColOut, CutOut, MixUp, CutMix",
        "recipe_five_apart": "the same recipe with `fuse = false`"}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alternations", type=int, default=40)
    arguments = parser.parse_args()

    times = {way: [] for way in WAYS}
    for _ in range(arguments.rounds):
        done = subprocess.run([arguments.program, str(arguments.alternations)], env=ENVIRONMENT, capture_output=True,
                              text=True, check=True)
        got = json.loads(done.stdout.strip().splitlines()[-1])
        for way, values in times.items():
            values += got[way]
    medians = {way: statistics.median(values) for way, values in times.items()}

    print(f"64 x 3 x 224 x 224 bytes to floats, one thread, {got['kernels']}, LibTorch {got['torch']}. n = "
          f"{len(times['cast'])} alternations in {arguments.rounds} processes; CPU time.\n")
    print("| what | ms, median | quartiles | × cast |")
    print("|---|---:|---:|---:|")
    for way, title in WAYS.items():
        low, _, high = statistics.quantiles(times[way], n=4)
        print(f"| {title} | {medians[way]:.1f} | {low:.1f} to {high:.1f} | {medians[way] / medians['cast']:.2f} |")
    print()
    claims = [("tensor expressions / fused", medians["straightforward"] / medians["fused"], "at least", 8),
              ("in place / fused", medians["in_place"] / medians["fused"], "at least", 2),
              ("fused / cast alone", medians["fused"] / medians["cast"], "at most", 1.3),
              ("recipe apart / fused", medians["recipe_apart"] / medians["recipe"], "at least", 2),
              ("recipe of five apart / fused", medians["recipe_five_apart"] / medians["recipe_five"], "at least", 3),
              ("five transforms / two", medians["fused_five"] / medians["fused_two"], "at most", 1.5)]
    failed = False
    for what, value, side, bar in claims:
        holds = value >= bar if side == "at least" else value <= bar
        failed = failed or not holds
        print(f"{'holds' if holds else 'FAILS'}: {what} = {value:.2f}, claimed {side} {bar}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
