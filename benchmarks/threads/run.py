#!/usr/bin/env python3
"""How long training on the digits takes with 1, all and a chosen number of threads, beside other work; prints one table.

    python benchmarks/threads/run.py --program build/bench/benchmarks/benchmark_threads [--net mlp] [--epochs 30]
        [--rounds 3] [--busy 2] [--cores 2]

Beside each process run `--busy` others that only compute, at the usual priority, all of them on the same `--cores` cores.
The ways take turns, round by round, so that slow changes of the machine hit all alike. MKL_CBWR is AVX2,STRICT unless the
environment has another: products of matrices then have the same bits on any number of threads. The exit code is 1 when
`auto` gives other weights than the number that it starts with.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

DATA = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data"


def once(arguments, way, cores):
    environment = {"MKL_CBWR": "AVX2,STRICT", **os.environ, "OMP_NUM_THREADS": str(len(cores)),
                   "CUDA_VISIBLE_DEVICES": ""}
    pin = lambda: os.sched_setaffinity(0, cores)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=pin) for _ in range(arguments.busy)]
    try:
        done = subprocess.run([arguments.program, arguments.net, way, str(arguments.epochs), str(DATA)], env=environment,
                              preexec_fn=pin, capture_output=True, text=True, check=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--net", choices=["mlp", "resnet"], default="mlp")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:arguments.cores]
    ways = ["1", str(len(cores)), "auto"]

    runs = {way: [] for way in ways}
    for number in range(arguments.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            runs[way].append(once(arguments, way, cores))
    seconds = {way: [run["seconds"] for run in runs[way]] for way in ways}
    best = min(statistics.median(seconds[way]) for way in ways[:2])

    print(f"{arguments.net}, {arguments.epochs} epochs on {len(cores)} cores beside {arguments.busy} busy processes; time on the "
          f"wall, n = {arguments.rounds} processes each, in turns.\n")
    print("| threads | s, median | range | × the better number | steps by their threads |")
    print("|---|---:|---:|---:|---|")
    for way in ways:
        steps = ", ".join(f"{times} with {count}" for count, times in runs[way][-1]["steps"].items()) or "all"
        print(f"| {way} | {statistics.median(seconds[way]):.2f} | {min(seconds[way]):.2f} to {max(seconds[way]):.2f} | "
              f"{statistics.median(seconds[way]) / best:.2f} | {steps} |")
    same = {run["weights"] for way in ways[1:] for run in runs[way]}
    print(f"\n{'holds' if len(same) == 1 else 'FAILS'}: auto has the weights of {ways[1]} threads, bit by bit")
    sys.exit(0 if len(same) == 1 else 1)


if __name__ == "__main__":
    main()
