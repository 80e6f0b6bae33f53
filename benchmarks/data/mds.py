#!/usr/bin/env python3
"""Reading MDS shards beside MosaicML Streaming in Python, and what decoding them costs a step; prints two tables.

    python benchmarks/data/mds.py --program build/bench/benchmarks/benchmark_mds --python venv/bin/python

--python: an interpreter with mosaicml-streaming. Both sides read the same shards in the same order, which is compared,
in alternating processes, and report CPU time. Training does steps on raw shards that are there and on shards that are
fetched and decoded, in turn, in one process. The exit code is 1 when a claim fails or the orders differ.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

SIDE = str(pathlib.Path(__file__).with_name("mds_side.py"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
TITLES = {"ours": "tutti, `StreamingDataLoader`, batches of 32", "samples": "Python's `StreamingDataset`, samples",
          "batches": "the same behind torch's `DataLoader`, batches of 32"}


def run(*command):
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def read(arguments, folder, order):
    """Samples a second of each way, from the medians over processes; whether all had one order."""
    commands = {"ours": (arguments.program, "read", folder, order),
                "samples": (arguments.python, SIDE, folder, order, "samples"),
                "batches": (arguments.python, SIDE, folder, order, "batches")}
    got = {way: [] for way in commands}
    for number in range(arguments.rounds):
        for way in list(commands)[:: 1 if number % 2 == 0 else -1]:
            got[way].append(run(*commands[way]))
    for way, title in TITLES.items():
        seconds = [one["seconds"] for one in got[way]]
        print(f"| {title}, {order} | {statistics.median(seconds):.3f} | {min(seconds):.3f} to {max(seconds):.3f} | "
              f"{got[way][0]['samples'] / statistics.median(seconds):,.0f} |")
    rates = {way: runs[0]["samples"] / statistics.median(one["seconds"] for one in runs) for way, runs in got.items()}
    return rates, len({one["order"] for runs in got.values() for one in runs}) == 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=32, help="of 32 training steps, each way")
    arguments = parser.parse_args()
    failed = False
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        run(arguments.program, "write", f"{folder}/raw", str(arguments.samples), "none", str(1 << 26))
        print(f"{arguments.samples:,} samples of 1024 tokens, int32; n = {arguments.rounds} processes each, alternating; CPU time "
              "of an epoch, one thread\n\n| way | s, median | range | samples/s |\n|---|---:|---:|---:|")
        for order in ("in_order", "shuffle"):
            rates, same = read(arguments, f"{folder}/raw", order)
            failed |= not same
            best = max(rates["samples"], rates["batches"])
            claims.append((f"{order}: tutti / Python's faster way", rates["ours"] / best, "at least", 5))
            if not same:
                print(f"FAILS: {order}: the samples came in other orders")
        for compression in ("none", "zstd"):
            run(arguments.program, "write", f"{folder}/train-{compression}", "8192", compression, str(1 << 22))
        got = run(arguments.program, "train", f"{folder}/train-none", f"{folder}/train-zstd", f"{folder}/scratch",
                  str(arguments.blocks))
    print(f"\nSteps of 8 samples; n = {arguments.blocks} blocks of 32 each, in turn\n\n"
          "| shards | µs a step, CPU time of the loop's thread, median | quartiles | for its batch, mean | wait for it, mean |\n"
          "|---|---:|---:|---:|---:|")
    for way, title in (("raw", "raw, in place"), ("zstd", "zstd, fetched and decoded beside")):
        low, middle, high = (1e6 * value for value in statistics.quantiles(got[way]["steps"], n=4))
        print(f"| {title} | {middle:,.0f} | {low:,.0f} to {high:,.0f} | {1e6 * got[way]['next']:,.1f} | {1e6 * got[way]['waited']:,.1f} |")
    step = {way: statistics.median(got[way]["steps"]) for way in ("raw", "zstd")}
    claims += [("a step beside decoding / beside none", step["zstd"] / step["raw"], "at most", 1.02),
               ("what decoding adds to a batch / a step, CPU time of the loop's thread",
                (got["zstd"]["next"] - got["raw"]["next"]) / step["raw"], "at most", 0.02)]
    print()
    for what, value, side, bar in claims:
        holds = value >= bar if side == "at least" else value <= bar
        failed |= not holds
        print(f"{'holds' if holds else 'FAILS'}: {what} = {value:.3f}, claimed {side} {bar}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
