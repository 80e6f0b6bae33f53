#!/usr/bin/env python3
"""How a step grows with policies, parameters and batch size, beside the same step by hand; prints tables, draws plots.

    python benchmarks/growth/run.py --program build/bench/benchmarks/benchmark_growth [--rounds 2] [--plots docs]

A process does the same in every way in turn, so slow changes of the machine hit all alike. Bars: 32 policies add at most
1 microsecond; what the Trainer adds to a step is at most 5 % of it, or 2 microseconds, at any number of parameters and any
batch size. The exit code is 1 when one fails.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from plot import line_chart

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SMALL = 2.0  # microseconds that the clock cannot tell


def added(times, name, peer):
    """The median of the differences within alternations."""
    return statistics.median(a - b for a, b in zip(times[name], times[peer]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alternations", type=int, default=10)
    parser.add_argument("--plots", help="folder for growth_policies.svg, growth_parameters.svg, growth_batch.svg")
    arguments = parser.parse_args()

    times = {}
    for _ in range(arguments.rounds):
        done = subprocess.run([arguments.program, str(arguments.alternations)], env=ENVIRONMENT, capture_output=True,
                              text=True, check=True)
        got = json.loads(done.stdout.strip().splitlines()[-1])
        version = got.pop("torch")
        for name, values in got.items():
            times.setdefault(name, []).extend(values)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"One thread, fp32, CPU time, LibTorch {version}. n = {len(next(iter(times.values())))} alternations in "
          f"{arguments.rounds} processes.\n")

    failed = False
    print("| policies, each hooked on 14 events | step, µs | added to that by hand, µs |")
    print("|---:|---:|---:|")
    print(f"| by hand | {medians['policies_by_hand']:.1f} | |")
    by_policies = {"by hand": {}, "Trainer": {}}
    for count in (0, 8, 16, 32):
        by_policies["by hand"][count], by_policies["Trainer"][count] = medians["policies_by_hand"], medians[f"policies_{count}"]
        print(f"| {count} | {medians[f'policies_{count}']:.1f} | {added(times, f'policies_{count}', 'policies_by_hand'):.2f} |")
    print()

    curves = {}
    claims = [("32 policies add, µs", added(times, "policies_32", "policies_0"), 1.0)]
    for what, unit in (("parameters", "parameters"), ("batch", "examples in a batch")):
        counts = [int(name.rsplit("_", 1)[1]) for name in times if name.startswith(f"{what}_by_hand_")]
        print(f"| {unit} | by hand, µs | Trainer, µs | ratio |")
        print("|---:|---:|---:|---:|")
        curves[what] = {"by hand": {}, "Trainer": {}}
        for count in counts:
            hand, trainer = medians[f"{what}_by_hand_{count}"], medians[f"{what}_trainer_{count}"]
            more = added(times, f"{what}_trainer_{count}", f"{what}_by_hand_{count}")
            curves[what]["by hand"][count], curves[what]["Trainer"][count] = hand, trainer
            claims.append((f"{count:,} {unit}: added, µs", more, max(SMALL, 0.05 * hand)))
            print(f"| {count:,} | {hand:,.1f} | {trainer:,.1f} | {trainer / hand:.3f} |")
        print()
    for what, value, bar in claims:
        failed = failed or value > bar
        print(f"{'holds' if value <= bar else 'FAILS'}: {what} = {value:.2f}, claimed at most {bar:.2f}")
    if arguments.plots:
        folder = pathlib.Path(arguments.plots)
        line_chart(folder / "growth_policies.svg", by_policies, "policies, each hooked on 14 events", "microseconds a step")
        line_chart(folder / "growth_parameters.svg", curves["parameters"], "parameters", "microseconds a step", True, True)
        line_chart(folder / "growth_batch.svg", curves["batch"], "examples in a batch", "microseconds a step", True, True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
