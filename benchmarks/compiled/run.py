#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of exported models beside PyTorch eager and torch.compile, both with fused optimizers; prints the table of docs/compiled.md.

    python benchmarks/compiled/run.py --program build/bench/benchmarks/benchmark_compiled --python peers/bin/python --folder FOLDER
        [--allocator libtcmalloc_minimal.so.4] [--models mlp,gpt2] [--rounds 3] [--samples 5] [--data-only] [--losses]

--python: an interpreter with torch 2.11, torchvision, timm, transformers, diffusers. --folder: where packages are made, once; they are
taken as they are where they are there. --allocator is preloaded into PyTorch, since tutti keeps memory itself; one column has eager
without it, and so is the memory, the most beyond what a process had before its first step (torch.compile's has the compiler's in it and
is left out). Processes of all ways alternate; the figures are medians over all samples of all rounds. One thread, CPU time. --data-only:
the lists of operators beside PyTorch eager, without torch.compile; another FOLDER than that of the programs. Of a ResNet the last lines
say how tutti's own network compares. --losses: nothing
but the losses, beside those of PyTorch eager. The exit code is 1 when a claim fails.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TRANSFORMERS = ("gpt2", "llama", "bert", "vit", "swin", "qwen3", "t5")
# Networks whose losses stay PyTorch's: nothing in them decides by a sign or a maximum, or hardly anything.
SMOOTH = {*TRANSFORMERS, "mlp", "mlp_step", "lstm", "cond", "gpt2_small"} - {"t5"}
# One rounding of a weight moves its gradients by 2 %, with four images and their 2 x 2 pixels in the last stage: only the first loss says
# something.
SENSITIVE = {"resnet50"}
REFUSED_AS_DATA = {"cond"}
OWN = {"resnet18", "resnet50"}  # which tutti::models has too


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
    if name in OWN:
        ways["own"] = [arguments.program, "own", *ways["tutti"][1:]]
    if arguments.losses:
        ways = {way: ways[way] for way in ("tutti", "plain")}
    elif arguments.data_only:
        ways = {way: ways[way] for way in ("tutti", "eager", "plain")}
    times, losses, memory = {way: [] for way in ways}, {}, {}
    for index in range(arguments.rounds):
        for way in ways if index % 2 == 0 else reversed(ways):
            got = run(ways[way], "" if way in ("tutti", "own", "plain") else arguments.allocator)
            if "refused" in got:  # torch.compile cannot compile all that torch.export exports
                print(f"{name}: {way} fails: {got['refused']}", file=sys.stderr)
                continue
            times[way] += got["us"]
            losses[way] = got["losses"]
            memory[way] = min(got["memory_mib"], memory.get(way, got["memory_mib"]))
    return {way: statistics.median(values) for way, values in times.items() if values}, losses, memory


def shown(times, way, here):
    """A time and how many times here's it is, two cells."""
    return (f"{times[way] / 1e3:.3g}", f"{times[way] / here:.2f}") if way in times else ("", "")


def differences(got, want):
    """Of the losses, each relative to PyTorch's; where that has fallen to nothing, to a hundredth of the first."""
    return [abs(a - b) / max(abs(b), 1e-2 * abs(want[0])) for a, b in zip(got, want, strict=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--allocator", default="")
    parser.add_argument("--models", default="mlp,mlp_step,gpt2,llama,bert,vit,t5,qwen3,swin,lstm,cond,resnet18,resnet50,mobilenet_v3,"
                        "efficientnet_b0,convnext_tiny,unet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--data-only", action="store_true")
    parser.add_argument("--losses", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)

    heads = [] if arguments.losses else ["here, ms", "PyTorch eager", "eager / here", "without allocator / here", "torch.compile",
                                         "compile / here", "here, MiB", "eager, MiB", "export, CPU s"]
    if not arguments.losses:
        print(f"n = {arguments.rounds * arguments.samples} samples of half a second\n")
    print(f"| {' | '.join(['model', *heads, 'first loss', 'second', 'all 20'])} |\n|---{'|---:' * (len(heads) + 3)}|")
    claims = []
    for name in arguments.models.split(","):
        about = exported(arguments, name)
        if "refused" in about:
            print(f"| {name} | refused: {' '.join(about['refused'].split())} {'| ' * (len(heads) + 2)}|")
            claims.append((not (arguments.data_only and name in REFUSED_AS_DATA), f"{name}: refused"))
            continue
        times, losses, memory = measured(arguments, name, about)
        here, off = times["tutti"], differences(losses["tutti"], losses["plain"])
        cells = [] if arguments.losses else [f"{here / 1e3:.3g}", *shown(times, "eager", here), f"{times['plain'] / here:.2f}",
                                             *shown(times, "compile", here), f"{memory['tutti']:.0f}", f"{memory['plain']:.0f}",
                                             str(about["export_seconds"])]
        print(f"| {' | '.join([name, *cells, f'{off[0]:.0e}', f'{off[1]:.0e}', f'{max(off):.0e}'])} |", flush=True)
        for what, value, bar, claimed in (("the first loss differs", off[0], 1e-6, True),
                                          ("the second loss differs", off[1], 1e-3, name not in SENSITIVE),
                                          ("20 losses differ", max(off), 1e-5, name in SMOOTH)):
            if claimed:
                claims.append((value > bar, f"{name}: {what} by {value:.1e}, claimed at most {bar}"))
        for way, bar in (("own", 0.8), ("compile", 8 if name.startswith("mlp") else 1),
                         ("eager", 0.9 if arguments.data_only else 1.3 if name in TRANSFORMERS else 0)):
            if way in times and bar > 0:
                ratio = times[way] / here
                claims.append((ratio < bar, f"{name}: {way} / here = {ratio:.2f}, claimed at least {bar}"))
    print()
    for fails, what in claims:
        print(f"{'FAILS' if fails else 'holds'}: {what}")
    sys.exit(any(fails for fails, _ in claims))


if __name__ == "__main__":
    main()
