#!/usr/bin/env python3
"""What an optimizer's step costs, with many small tensors and with clipping and averages beside it; prints two tables.

    python benchmarks/optim/run.py --program build/bench/benchmarks/benchmark_optim --python peers/bin/python
                                   --allocator libtcmalloc_minimal.so.4 [--rounds 5] [--alternations 20]

--python: an interpreter with torch and mosaicml. --allocator is preloaded into it, since tutti keeps memory itself. Processes of
the program and of PyTorch alternate, and a process does every way in turn; the figures are medians over all alternations of all
processes. One thread and CPU time; a last run of the program uses all cores and the clock on the wall. The exit code is 1 when a
claim fails.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

SMALL = {"small_tutti": "tutti::Adam",
         "small_pytorch": "PyTorch, Adam(fused=True)",
         "small_compiled": "PyTorch, Adam(foreach=True) in torch.compile",
         "small_libtorch": "torch::optim::Adam"}
LARGE = {"adam_fused_step": "DecoupledAdamW, clipped by norm, EMA: one fused step",
         "adam_apart": "the same apart",
         "adam_functions": "the same with LibTorch: clip_grad_norm_, _fused_adamw_, _foreach_lerp_",
         "adam_pytorch": "the same with PyTorch: clip_grad_norm_, AdamW(fused=True), _foreach_lerp_",
         "adam_compiled": "PyTorch's three as one function for torch.compile",
         "adam_functions_cached": "LibTorch's three in the library's memory",
         "adam_composer": "Composer's DecoupledAdamW, GradientClipping and EMA",
         "adam_fused_step_unclipped": "one fused step, the norm below the threshold",
         "adam_apart_unclipped": "the same apart",
         "sgd_fused_step": "DecoupledSGDW, clipped by norm, EMA: one fused step",
         "sgd_apart": "the same apart",
         "adam_memory_fused_step": "bare memory: the arrays of the first row read and written, one sum each",
         "adam_memory_apart": "the same apart",
         "sgd_memory_fused_step": "bare memory: those of DecoupledSGDW",
         "sgd_memory_apart": "the same apart"}
SIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_side.py")


def run(command, threads=1, allocator=""):
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
                   "CUDA_VISIBLE_DEVICES": "", **({"LD_PRELOAD": allocator} if allocator else {})}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--allocator", required=True, help="a library that keeps memory, to preload into the peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alternations", type=int, default=20)
    arguments = parser.parse_args()

    sizes = ",".join(run([arguments.program, "sizes"]).split())
    ours = [arguments.program, str(arguments.alternations)]
    theirs = [arguments.python, SIDE, sizes, str(arguments.alternations)]
    times = {way: [] for way in {**SMALL, **LARGE}}
    for index in range(arguments.rounds):
        for command in (ours, theirs) if index % 2 == 0 else (theirs, ours):
            got = json.loads(run(command, allocator=arguments.allocator if command is theirs else "").strip().splitlines()[-1])
            for way in times.keys() & got.keys():
                times[way] += got[way]
    medians = {way: statistics.median(values) for way, values in times.items()}
    cores = len(os.sched_getaffinity(0))
    wide = json.loads(run([*ours, str(cores)], cores).strip().splitlines()[-1])

    def base_of(way):
        for other in ("apart", "functions_cached", "functions", "pytorch", "compiled", "composer"):
            way = way.replace(other, "fused_step")
        return way

    def row(title, values, unit, base):
        low, middle, high = (value / unit for value in statistics.quantiles(values, n=4))
        digits = 2 if unit > 1 else 1
        print(f"| {title} | {middle:.{digits}f} | {low:.{digits}f} to {high:.{digits}f} | {middle * unit / base:.2f} |")

    print(f"n = {len(times['small_tutti'])} alternations in {arguments.rounds} processes each\n")
    print("| Adam, 161 tensors of 64 elements | µs, median | quartiles | × tutti |\n|---|---:|---:|---:|")
    for way, title in SMALL.items():
        row(title, times[way], 1, medians["small_tutti"])
    print("\n| 25.6 million parameters, one thread | ms, median | quartiles | × fused step |\n|---|---:|---:|---:|")
    for way, title in LARGE.items():
        row(title, times[way], 1e3, medians[base_of(way)])
    print(f"\n| the same, {cores} threads | ms, median | quartiles | × fused step |\n|---|---:|---:|---:|")
    for way, title in LARGE.items():
        if way in wide:
            row(title, wide[way], 1e3, statistics.median(wide[base_of(way)]))
    print()
    claims = [("torch::optim::Adam / tutti, small tensors", medians["small_libtorch"] / medians["small_tutti"], 30),
              ("PyTorch fused=True / tutti, small tensors", medians["small_pytorch"] / medians["small_tutti"], 10),
              ("PyTorch in torch.compile / tutti, small tensors", medians["small_compiled"] / medians["small_tutti"], 10),
              ("PyTorch's three in torch.compile / fused step", medians["adam_compiled"] / medians["adam_fused_step"], 1.5),
              ("Composer's three / fused step", medians["adam_composer"] / medians["adam_fused_step"], 1.5),
              ("PyTorch's three calls / fused step", medians["adam_pytorch"] / medians["adam_fused_step"], 1.5),
              ("LibTorch's three functions / fused step", medians["adam_functions"] / medians["adam_fused_step"], 1.5),
              ("LibTorch's three in the library's memory / fused step", medians["adam_functions_cached"] / medians["adam_fused_step"], 1.5),
              ("Adam, apart / fused step", medians["adam_apart"] / medians["adam_fused_step"], 1.5),
              ("SGD, apart / fused step", medians["sgd_apart"] / medians["sgd_fused_step"], 1.5)]
    failed = False
    for what, value, bar in claims:
        failed = failed or value < bar
        print(f"{'holds' if value >= bar else 'FAILS'}: {what} = {value:.2f}, claimed at least {bar}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
