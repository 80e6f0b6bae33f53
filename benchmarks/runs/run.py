#!/usr/bin/env python3
"""Whole runs in tutti, PyTorch and Composer: same networks, data, optimizers, one thread; prints one table.

    python benchmarks/runs/run.py --program build/bench/benchmarks/benchmark_runs --python peers/bin/python \\
        --allocator libtcmalloc_minimal.so.4 [--pytorch python] [--cifar train.bin test.bin] [--text input.txt] [--only digits] \\
        [--jobs 1]

--python needs mosaicml and transformers; --pytorch is another interpreter for plain PyTorch, whose release is then that of
tutti's LibTorch (not for the GPT, which is Hugging Face's). --allocator is preloaded into the peers, since tutti keeps memory
itself. CIFAR-10 in its binary records and a text are the user's; without them these runs are left out, which is said. The peers
have fused optimizers, and each runs with torch.compile as well. The digits and the ResNet-9 are trained, with several seeds, until
an evaluation after an epoch finds the accuracy asked for; the others for a number of epochs. Processes alternate, --jobs of them at
a time, each with one thread; the clock is a process's CPU time from the start of the fit. The exit code is 1 when a claim fails.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import NamedTuple

DATA = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data"
DIGITS = [str(DATA / "digits-images.idx3-ubyte"), str(DATA / "digits-labels.idx1-ubyte")]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SEED = 17


class Run(NamedTuple):
    title: str
    epochs: int  # at most
    target: float = 0  # the accuracy to exceed; 0: none
    seeds: int = 2
    unit: str = ""
    found: str = ""


RUNS = {"digits": Run("digits, small residual network", 40, 0.98, seeds=20),
        "digits_recipe": Run("the same with MixUp + BlurPool + LabelSmoothing + EMA", 5),
        "cifar": Run("CIFAR-10, ResNet-9 of width 16", 20, 0.4, seeds=20),
        "cifar_channels_last": Run("the same with ChannelsLast", 1),
        "cifar_uncached": Run("the same with cache_cpu_memory = false", 1),
        "gpt": Run("text, GPT of 2 layers, 64 wide", 1, unit=" tokens/s", found="perplexity ")}


PEERS = {"PyTorch": "pytorch", "PyTorch, torch.compile": "pytorch_compiled", "Composer": "composer",
         "Composer, torch.compile": "composer_compiled"}
# Composer replaces layers after torch.compile has seen them; the last one is tutti's own.
LEFT_OUT = {"digits_recipe": ["PyTorch", "PyTorch, torch.compile", "Composer, torch.compile"],
            "cifar_channels_last": ["Composer, torch.compile"], "cifar_uncached": list(PEERS)}


def measure(command, allocator=""):
    environment = {**ENVIRONMENT, **({"LD_PRELOAD": allocator} if allocator else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


class Done:
    """What the processes of one side found, one a seed."""

    def __init__(self, run, answers):
        self.run, self.answers = run, answers
        self.rate, self.found, self.epochs, self.seconds = (
            statistics.median(a[key] for a in answers) for key in ("per_second", "found", "epochs", "seconds"))
        self.arrived = all(a["found"] > run.target for a in answers)

    def noise(self):
        """The squared standard error of the seconds, which differ by what the seeds do to the number of epochs."""
        return statistics.variance(a["seconds"] for a in self.answers) / len(self.answers)

    def hardly_slower(self, other):
        """The accuracy was reached later, by less than the seeds tell: twice the standard error of the difference."""
        late = statistics.mean(a["seconds"] for a in self.answers) - statistics.mean(a["seconds"] for a in other.answers)
        return self.arrived and late < 2 * (self.noise() + other.noise()) ** 0.5

    def row(self, base):
        rates = [a["per_second"] for a in self.answers]
        ratio = f"{self.rate / base:.2f}" if base else ""
        versions = ", ".join(f"{key} {self.answers[0][key]}" for key in ("torch", "composer") if key in self.answers[0])
        way = " | "
        if self.run.target:
            seconds = [a["seconds"] for a in self.answers]
            way = f"{self.seconds:.2f} ({min(seconds):.2f} to {max(seconds):.2f}) | {self.epochs:g}"
            if not self.arrived:
                way = "not reached by all | "
        return (f"{len(rates)} | {self.rate:,.0f}{self.run.unit} | {statistics.stdev(rates):,.0f} | {ratio} | {way} | "
                f"{self.run.found}{self.found:.3f} | {versions} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--allocator", required=True, help="a library that keeps memory, to preload into the peers")
    parser.add_argument("--pytorch", help="an interpreter with torch")
    parser.add_argument("--cifar", nargs=2, metavar=("TRAIN", "TEST"))
    parser.add_argument("--text")
    parser.add_argument("--only", action="append", choices=RUNS)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, at most one a core")
    arguments = parser.parse_args()
    files = {"digits": DIGITS, "digits_recipe": DIGITS, "cifar": arguments.cifar, "cifar_channels_last": arguments.cifar,
             "cifar_uncached": arguments.cifar, "gpt": [arguments.text] if arguments.text else None}
    for name in [name for name in files if not files[name]]:
        print(f"not run: {RUNS[name].title}, for no {'--text' if name == 'gpt' else '--cifar'} was given")
    names = [name for name in arguments.only or RUNS if files[name]]

    peers = str(pathlib.Path(__file__).with_name("peers.py"))
    sides = {"tutti": [arguments.program]} | {title: [arguments.python, peers, side] for title, side in PEERS.items()}
    got = {(name, side): [] for name in names for side in sides if side not in LEFT_OUT.get(name, [])}

    def one(number, name, side):
        run = RUNS[name]
        command = [*sides[side], name, str(run.epochs), str(run.target), str(SEED + number), *files[name]]
        if side.startswith("PyTorch") and name != "gpt" and arguments.pytorch:
            command[0] = arguments.pytorch
        answer = measure(command, arguments.allocator if side != "tutti" else "")
        print(name, side, answer, file=sys.stderr, flush=True)
        got[name, side].append(answer)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        todo = [pool.submit(one, number, name, side) for number in range(max(RUNS[name].seeds for name in names))
                for name, side in list(got)[::1 if number % 2 == 0 else -1] if number < RUNS[name].seeds]
        for process in todo:
            try:
                process.result()
            except SystemExit:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    done = {key: Done(RUNS[key[0]], answers) for key, answers in got.items()}

    print("\nOne thread, fp32; n processes each, alternating; CPU time of the fit, evaluations counted; peers with fused optimizers.\n")
    print("| run | in | n | examples/s, median | deviation | × PyTorch | s to the accuracy, median (range) | epochs | accuracy at the end | versions |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---|")
    for (name, side), one in done.items():
        base = done.get((name.split("_")[0] if name.startswith("cifar") else name, "PyTorch"))
        title = RUNS[name].title + (f", to {100 * RUNS[name].target:g} %" if RUNS[name].target else "")
        print(f"| {title} | {side} | {one.row(base and base.rate)}")
    print()
    claims = []
    for name in names:
        ours = done[name, "tutti"]
        for peer in PEERS:
            if theirs := done.get((name, peer)):
                bar = 1.15 if name == "cifar" and peer.startswith("PyTorch") else 1.0
                claims.append((f"{RUNS[name].title}, examples/s, tutti / {peer}", ours.rate / theirs.rate, bar, False))
                if RUNS[name].target:
                    claims.append((f"{RUNS[name].title}, s to the accuracy, {peer} / tutti",
                                   theirs.seconds / ours.seconds if ours.arrived else 0.0, 1.0, ours.hardly_slower(theirs)))
    failed = False
    for what, value, bar, within_noise in claims:
        verdict = "holds" if value >= bar else "not known, within the noise of the seeds" if within_noise else "FAILS"
        failed = failed or verdict == "FAILS"
        print(f"{verdict}: {what} = {value:.2f}, claimed at least {bar}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
