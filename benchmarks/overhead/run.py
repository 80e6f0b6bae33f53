#!/usr/bin/env python3
"""What tutti's Trainer costs over a loop written by hand; prints one table.

    python benchmarks/overhead/run.py --program build/bench/benchmarks/benchmark_overhead [--rounds 5]
    python benchmarks/overhead/run.py --program ... --gate [--write]     instructions alone, beside those of ratios.json

Instructions come from valgrind's callgrind: two runs that differ by 200 steps, so that start-up cancels
out. Time is the median over processes that alternate. The exit code is 1 when a claim fails, or for the gate when a
ratio is more than 2 % off the one that is stored; --write stores what was counted.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

MODES = ["by_hand", "trainer_engine", "trainer", "by_hand_4", "trainer_4_engine", "trainer_4", "hooked_27"]
TITLES = {"by_hand": "by hand", "trainer_engine": "Trainer, no policy, autograd_engine = true",
          "trainer": "Trainer, no policy",
          "by_hand_4": "by hand, with LabelSmoothing + GradientClipping + EMA + throughput inline",
          "trainer_4_engine": "Trainer with these four policies, autograd_engine = true",
          "trainer_4": "Trainer with these four policies",
          "hooked_27": "Trainer, 27 policies hooked on 14 events each"}
PEER = {"trainer_engine": "by_hand", "trainer": "by_hand", "trainer_4_engine": "by_hand_4", "trainer_4": "by_hand_4",
        "hooked_27": "trainer"}
FEW, MANY = 100, 300
TOLERANCE = 0.02
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def instructions(program, mode, steps):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, mode, str(steps)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return int(found.group(1))


def per_step(program, mode):
    return (instructions(program, mode, MANY) - instructions(program, mode, FEW)) / (MANY - FEW)


def gate(program, write):
    """Compares the ratios of instructions with those stored beside this file."""
    stored_at = pathlib.Path(__file__).with_name("ratios.json")
    counts = {mode: per_step(program, mode) for mode in MODES}
    ratios = {mode: round(counts[mode] / counts[peer], 4) for mode, peer in PEER.items()}
    if write:
        stored_at.write_text(json.dumps(ratios, indent=2) + "\n")
    stored = json.loads(stored_at.read_text())
    failed = False
    for mode, ratio in ratios.items():
        off = abs(ratio / stored[mode] - 1)
        failed = failed or off > TOLERANCE
        print(f"{'holds' if off <= TOLERANCE else 'FAILS'}: {TITLES[mode]}: {ratio:.4f} times the instructions of "
              f"{TITLES[PEER[mode]]}, stored are {stored[mode]:.4f}, allowed is {TOLERANCE:.0%} to either side")
    if failed:
        print("If the change is meant, store the new ratios: run again with --gate --write.")
    return 1 if failed else 0


def microseconds(program, mode):
    done = subprocess.run([program, mode], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gate", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.gate:
        sys.exit(gate(arguments.program, arguments.write))

    times = {mode: [] for mode in MODES}
    for round_number in range(arguments.rounds):
        for mode in MODES if round_number % 2 == 0 else reversed(MODES):
            got = microseconds(arguments.program, mode)
            times[mode].append(got["us"])
            version = got["versions"]["torch"]
    counts = {mode: per_step(arguments.program, mode) for mode in MODES}
    medians = {mode: statistics.median(values) for mode, values in times.items()}

    print(f"MLP 32-64-64-10, batch 8, SGD with momentum, one thread, fp32, LibTorch {version}. n = "
          f"{arguments.rounds} processes each, alternating; instructions per step from {MANY} and {FEW} "
          "steps under callgrind.\n")
    print("| loop | instructions a step | ratio | µs a step, median | deviation | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    for mode in MODES:
        peer = PEER.get(mode)
        spread = statistics.stdev(times[mode]) if arguments.rounds > 1 else 0.0
        ratio = f"{counts[mode] / counts[peer]:.4f}" if peer else ""
        time_ratio = f"{medians[mode] / medians[peer]:.3f}" if peer else ""
        print(f"| {TITLES[mode]} | {counts[mode]:,.0f} | {ratio} | {medians[mode]:.2f} | {spread:.2f} | "
              f"{time_ratio} |")
    print()
    machinery = medians["hooked_27"] - medians["trainer"]
    claims = [("Trainer / by hand, both with LibTorch's engine, instructions", counts["trainer_engine"] / counts["by_hand"], 1.01),
              ("with four policies, instructions", counts["trainer_4_engine"] / counts["by_hand_4"], 1.01),
              ("27 hooked policies, µs a step", machinery, 1.0)]
    for what, value, most in claims:
        print(f"{'holds' if value <= most else 'FAILS'}: {what} = {value:.4f}, claimed at most {most}")
    sys.exit(0 if all(value <= most for _, value, most in claims) else 1)


if __name__ == "__main__":
    main()
