#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory, bytes and time of a GPT-2 over ranks of this machine, by stage; PyTorch's DDP and fully_shard on the same model beside it.

    python benchmarks/distributed/run.py --program build/bench/benchmarks/benchmark_distributed --launcher build/bench/tutti-run
                                         --out FIGURES.jsonl
                                         [--memory | --speed --python peers/bin/python [--preload LIBRARY] | --network 2]
                                         [--rounds 3]

As root: each run has a network namespace of its own, whose loopback counts its bytes. --memory: 100 million parameters on 1, 2, 4 and 8 ranks;
model.py --check compares the lines of --out with what it says. --speed: models of several sizes on 2 ranks, tutti and PyTorch in turns,
one thread a rank; prints medians of the rounds, and --only takes the shapes with these words alone. Both sides keep freed memory: tutti's as
a Trainer does, PyTorch's by --preload, an allocator such as tcmalloc. --network 2: the same
on a loopback device of 2 Gbit/s (tc), and how much of its time is hidden behind compute.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
STAGES = ("none", "optimizer", "gradients", "parameters")
SHAPES = {"2 blocks, 18 wide, 12 tokens": "2 18 29 12 60",  # the size of the reference cases
          "4 blocks, 64 wide, 64 tokens": "4 64 256 64 30", "4 blocks, 128 wide, 512 tokens": "4 128 512 512 20",
          "4 blocks, 256 wide, 512 tokens": "4 256 512 512 10", "4 blocks, 512 wide, 128 tokens": "4 512 512 128 10",
          "4 blocks, 512 wide, 512 tokens": "4 512 512 512 8", "4 blocks, 512 wide, 1024 tokens": "4 512 512 1024 5"}
# LAYERS WIDTH VOCABULARY LENGTH STEPS


def run(command, rate=""):
    limit = f"tc qdisc add dev lo root tbf rate {rate} burst 1mb latency 100ms && " if rate else ""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([shutil.which("unshare") or "unshare", "-n", "sh", "-c", f"ip link set lo up && {limit}exec {command}"], env=environment,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))


def memory(arguments):
    with open(arguments.out, "w", encoding="utf-8") as file:
        for ranks in (1, 2, 4, 8):
            for stage in STAGES:
                if stage == "none" and ranks > 2:
                    continue  # a rank has the same on any number of ranks
                line = run(f"{arguments.launcher} -n {ranks} {arguments.program} {stage} 8 1024 512 16 2")
                print(json.dumps(line), file=file, flush=True)
                print(json.dumps(line), flush=True)


def speed(arguments):
    preload = f"env LD_PRELOAD={arguments.preload} " if arguments.preload else ""
    for name, shape in SHAPES.items():
        if arguments.only not in name:
            continue
        rows = {}
        for _ in range(arguments.rounds):
            rows.setdefault("one rank", []).append(run(f"{arguments.launcher} -n 1 {arguments.program} none {shape} cached"))
            for stage in STAGES:
                rows.setdefault(f"tutti {stage}", []).append(run(f"{arguments.launcher} -n 2 {arguments.program} {stage} {shape} cached"))
                if stage in ("none", "parameters"):
                    side = f"{arguments.python} {HERE}/pytorch_side.py {stage} {shape}"
                    rows.setdefault(f"PyTorch {stage}", []).append(run(f"{preload}{arguments.launcher} -n 2 {side}"))
        print(f"{name}:")
        for row, lines in rows.items():
            wall, cpu = (statistics.median(line[key] for line in lines) * 1e3 for key in ("wall", "cpu"))
            print(f"  {row:20} {wall:8.2f} ms wall, {cpu:8.2f} ms CPU of all ranks, loss {lines[0]['loss']:.6f}")


def network(arguments):
    """How much of what the messages take is hidden, on a loopback device of so many Gbit/s: the two ranks share it."""
    shape = SHAPES["4 blocks, 512 wide, 512 tokens"]
    for stage in ("none", "parameters", "parameters overlap"):
        name, *words = stage.split()
        command = " ".join([f"{arguments.launcher} -n 2 {arguments.program} {name} {shape}", *words])
        free, limited = [], []
        for _ in range(arguments.rounds):
            free.append(run(command))
            limited.append(run(command, f"{arguments.network}gbit"))
        walls = [statistics.median(line["wall"] for line in lines) for lines in (free, limited)]
        wire = statistics.median(line["sent"] for line in limited) * 8 / (arguments.network * 1e9)
        print(f"  {stage:20} {walls[0] * 1e3:8.2f} ms without a limit, {walls[1] * 1e3:8.2f} ms at {arguments.network:g} Gbit/s, of which the wire is "
              f"busy {wire * 1e3:.2f} ms: {1 - (walls[1] - walls[0]) / wire:.0%} of that is hidden")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--launcher", required=True)
    parser.add_argument("--out", default="figures.jsonl")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--preload", metavar="LIBRARY", default="", help="for PyTorch's side")
    parser.add_argument("--network", metavar="GBIT", type=float, help="per second")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    arguments.program, arguments.launcher = os.path.abspath(arguments.program), os.path.abspath(arguments.launcher)
    if arguments.memory:
        memory(arguments)
    if arguments.speed:
        speed(arguments)
    if arguments.network:
        network(arguments)


if __name__ == "__main__":
    main()
