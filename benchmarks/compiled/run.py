#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of exported models beside PyTorch eager and torch.compile, both with fused optimizers; prints the table of docs/compiled.md.

    python benchmarks/compiled/run.py --program build/bench/benchmarks/benchmark_compiled --python peers/bin/python --folder FOLDER
                                      --allocator libtcmalloc_minimal.so.4 [--models mlp,gpt2] [--rounds 3] [--samples 5] [--data-only]

--python: an interpreter with torch 2.11, torchvision, timm, transformers, diffusers. --folder: where packages are made, once; they are
taken as they are where they are there. --allocator is preloaded into PyTorch, since tutti keeps memory itself; one column has eager
without it. Processes of all ways alternate; the figures are medians over all samples of all rounds. One thread, CPU time. --data-only:
the lists of operators beside PyTorch eager, without torch.compile; another FOLDER than that of the programs. The exit code is 1 when a
claim fails.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TRANSFORMERS = ("gpt2", "llama", "bert", "vit", "swin", "qwen3", "t5")
LOSSES = 2  # the first ones, before rounding has grown in networks with ReLU and max-pooling


def run(command, allocator=""):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                   **({"LD_PRELOAD": allocator} if allocator else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def exported(arguments, name):
    """What export.json says of a model, which is exported where that is not there."""
    record = os.path.join(arguments.folder, name + ".export.json")
    if not os.path.exists(record):
        what = "data" if arguments.data_only else "export"
        said = run([arguments.python, os.path.join(HERE, "pytorch_side.py"), what, name, arguments.folder])
        with open(record, "w", encoding="utf-8") as file:
            json.dump(said, file)
    with open(record, encoding="utf-8") as file:
        return json.load(file)


def measured(arguments, name, about):
    side = [arguments.python, os.path.join(HERE, "pytorch_side.py")]
    ways = {
        "tutti": [arguments.program, os.path.join(arguments.folder, name), about["loss"], about["optimizer"],
                  str(arguments.samples), *about["inputs"]],
        "eager": [*side, "eager", name, arguments.folder, str(arguments.samples)],
        "plain": [*side, "eager", name, arguments.folder, str(arguments.samples)],
        "compile": [*side, "compile", name, arguments.folder, str(arguments.samples)],
    }
    if arguments.data_only:
        del ways["compile"]
    times, losses = {way: [] for way in ways}, {}
    for index in range(arguments.rounds):
        for way in ways if index % 2 == 0 else reversed(ways):
            got = run(ways[way], "" if way in ("tutti", "plain") else arguments.allocator)
            if "refused" in got:  # torch.compile cannot compile all that torch.export exports
                print(f"{name}: {way} fails: {got['refused']}", file=sys.stderr)
                continue
            times[way] += got["us"]
            losses[way] = got["losses"]
    return {way: statistics.median(values) for way, values in times.items() if values}, losses


def shown(times, way, here):
    """A time and how many times here's it is, as two cells."""
    return f"{times[way] / 1e3:.3g} | {times[way] / here:.2f}" if way in times else " | "


def worst(got, want, count):
    return max(abs(a - b) / abs(b) for a, b in zip(got[:count], want))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--allocator", required=True)
    parser.add_argument("--models", default="mlp,mlp_step,gpt2,llama,bert,vit,t5,qwen3,swin,lstm,cond,resnet18,resnet50,mobilenet_v3,"
                        "efficientnet_b0,convnext_tiny,unet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--data-only", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)

    print(f"n = {arguments.rounds * arguments.samples} samples of half a second\n")
    print("| model | here, ms | PyTorch eager | eager / here | without allocator / here | torch.compile | compile / here | "
          "losses, first 2 | all 20 | export, CPU s |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    claims = []
    for name in arguments.models.split(","):
        about = exported(arguments, name)
        if "refused" in about:
            print(f"| {name} | refused: {' '.join(about['refused'].split())} | | | | | | | | |")
            continue
        times, losses = measured(arguments, name, about)
        here = times["tutti"]
        print(f"| {name} | {here / 1e3:.3g} | {shown(times, 'eager', here)} | {times['plain'] / here:.2f} | "
              f"{shown(times, 'compile', here)} | {worst(losses['tutti'], losses['eager'], LOSSES):.0e} | "
              f"{worst(losses['tutti'], losses['eager'], 20):.0e} | "
              f"{about['export_seconds']} |", flush=True)
        if "compile" in times:
            claims.append((f"{name}: torch.compile / here", times["compile"] / here, 8 if name.startswith("mlp") else 1))
        if arguments.data_only or name in TRANSFORMERS:
            claims.append((f"{name}: eager / here", times["eager"] / here, 0.9 if arguments.data_only else 1.3))
    print()
    for what, value, bar in claims:
        print(f"{'holds' if value >= bar else 'FAILS'}: {what} = {value:.2f}, claimed at least {bar}")
    sys.exit(any(value < bar for _, value, bar in claims))


if __name__ == "__main__":
    main()
