#!/usr/bin/env python3
"""Whole runs in tutti, PyTorch and Composer: same networks, data, epochs, one thread; prints one table.

    python benchmarks/runs/run.py --program build/bench/benchmarks/benchmark_runs --python peers/bin/python \\
        [--pytorch python] [--cifar train.bin test.bin] [--text input.txt] [--rounds 3]

--python needs mosaicml and transformers; --pytorch is another interpreter for plain PyTorch, whose release is then that of
tutti's LibTorch (not for the GPT, which is Hugging Face's). CIFAR-10 in its binary records and a text are the user's; without them these runs
are left out, which is said. Processes alternate; the clock is a process's CPU time. The exit code is 1 when a claim fails.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

DATA = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data"
DIGITS = [str(DATA / "digits-images.idx3-ubyte"), str(DATA / "digits-labels.idx1-ubyte")]
TITLES = {"digits": "digits, small residual network", "digits_recipe": "the same with MixUp + BlurPool + LabelSmoothing + EMA",
          "cifar": "CIFAR-10, ResNet-9 of width 16", "cifar_channels_last": "the same with ChannelsLast", "gpt": "text, GPT of 2 layers, 64 wide"}
UNITS = {"gpt": "tokens/s"}
FOUND = {"gpt": "perplexity"}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def measure(command):
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--pytorch", help="an interpreter with torch")
    parser.add_argument("--cifar", nargs=2, metavar=("TRAIN", "TEST"))
    parser.add_argument("--text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    runs = {"digits": DIGITS, "digits_recipe": DIGITS}
    if arguments.cifar:
        runs["cifar"] = runs["cifar_channels_last"] = arguments.cifar
    if arguments.text:
        runs["gpt"] = [arguments.text]
    for name, flag in (("cifar", "--cifar"), ("gpt", "--text")):
        if name not in runs:
            print(f"not run: {TITLES[name]}, for no {flag} was given")

    peers = str(pathlib.Path(__file__).with_name("peers.py"))
    sides = {"tutti": [arguments.program], "PyTorch": [arguments.python, peers, "pytorch"],
             "Composer": [arguments.python, peers, "composer"]}
    got = {}
    for number in range(arguments.rounds):
        for name, files in runs.items():
            for side in list(sides)[::1 if number % 2 == 0 else -1]:
                if side != "PyTorch" or name != "digits_recipe":
                    command = [*sides[side], name, str(arguments.epochs), *files]
                    if side == "PyTorch" and name != "gpt" and arguments.pytorch:
                        command[0] = arguments.pytorch
                    done = measure(command)
                    got.setdefault((name, side), []).append(done)

    print(f"\n{arguments.epochs} epochs, one thread, fp32; n = {arguments.rounds} processes each, alternating; CPU time.\n")
    print("| run | in | examples/s, median | deviation | accuracy at the end | × PyTorch | versions |")
    print("|---|---|---:|---:|---:|---:|---|")
    rates, failed = {}, False
    for (name, side), done in got.items():
        values = [d["per_second"] for d in done]
        rates[name, side] = statistics.median(values)
    for (name, side), done in sorted(got.items(), key=lambda item: (list(runs).index(item[0][0]), list(sides).index(item[0][1]))):
        values = [d["per_second"] for d in done]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found = statistics.median(d["found"] for d in done)
        versions = ", ".join(f"{key} {done[0][key]}" for key in ("torch", "composer") if key in done[0])
        base = rates.get(("cifar" if name == "cifar_channels_last" else name, "PyTorch"))
        ratio = f"{rates[name, side] / base:.2f}" if base else ""
        print(f"| {TITLES[name]} | {side} | {rates[name, side]:,.0f} {UNITS.get(name, '')} | {spread:,.0f} | "
              f"{FOUND.get(name, '')} {found:.3f} | {ratio} | {versions} |")
    print()
    claims = [(f"{TITLES[name]}, tutti / {peer}", rates[name, "tutti"] / rates[name, peer], 1.0)
              for name in runs for peer in ("PyTorch", "Composer") if (name, peer) in rates]
    if "cifar" in runs:
        claims.append(("ResNet-9, tutti with ChannelsLast / PyTorch as it comes",
                       rates["cifar_channels_last", "tutti"] / rates["cifar", "PyTorch"], 1.15))
    for what, value, bar in claims:
        failed = failed or value < bar
        print(f"{'holds' if value >= bar else 'FAILS'}: {what} = {value:.2f}, claimed at least {bar}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
