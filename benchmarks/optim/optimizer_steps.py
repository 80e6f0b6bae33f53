#!/usr/bin/env python3
"""A step of every optimizer beside the same one in Python, with foreach and as it comes; prints a table.

    python benchmarks/optim/optimizer_steps.py --program build/bench/benchmarks/benchmark_optimizer_steps [--rounds 10]

Run it with an interpreter that has torch, timm, schedulefree and pytorch_optimizer. One thread, medians of CPU time. The large
model is 12 blocks of a transformer 256 wide. The exit code is 1 when a claim fails: 1 time each,
and 10 times for small tensors where a step is one pass over memory.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

import pytorch_optimizer
import schedulefree
import timm.optim
import torch

LARGE = [shape for _ in range(12) for shape in
         [(768, 256), (768,), (256, 256), (256,), (1024, 256), (1024,), (256, 1024), (256,), (256,), (256,), (256,), (256,)]]
SMALL = [(64,)] * 161
o = torch.optim
WAYS = {
    "Adagrad": (o.Adagrad, {}), "RMSprop": (o.RMSprop, {}), "RMSprop centered momentum": (o.RMSprop, dict(momentum=0.9, centered=True)),
    "Adadelta": (o.Adadelta, {}), "Adamax": (o.Adamax, {}), "NAdam": (o.NAdam, {}), "RAdam": (o.RAdam, {}), "ASGD": (o.ASGD, {}),
    "Rprop": (o.Rprop, {}), "Lion": (timm.optim.Lion, {}), "ScheduleFreeSGD": (schedulefree.SGDScheduleFree, dict(lr=1e-3)),
    "ScheduleFreeAdamW": (schedulefree.AdamWScheduleFree, {}), "LAMB": (timm.optim.Lamb, dict(max_grad_norm=None)),
    "LARS": (timm.optim.Lars, dict(momentum=0.9, weight_decay=1e-4)), "Adafactor": (o.Adafactor, {}),
    "Muon": (lambda p, foreach: Muon(p), {}),
    "Lookahead of AdamW": (lambda p, foreach: pytorch_optimizer.Lookahead(o.AdamW(p, lr=1e-3, fused=True), k=5, alpha=0.5), {}),
}

WHOLE = {"LAMB", "LARS", "Adafactor"}  # look at whole tensors, one by one


class Muon:
    """torch.optim.Muon for matrices, AdamW for the rest."""

    def __init__(self, parameters):
        self.parts = [made for made in (
            (o.Muon, [p for p in parameters if p.dim() == 2], {}),
            (o.AdamW, [p for p in parameters if p.dim() != 2], dict(lr=3e-4, fused=True))) if made[1]]
        self.parts = [make(some, **how) for make, some, how in self.parts]

    def step(self):
        for part in self.parts:
            part.step()


def measure(make, options, shapes, rounds, repeats):
    best = None
    for foreach in (True, False):
        parameters = [torch.randn(shape, requires_grad=True) for shape in shapes]
        for p in parameters:
            p.grad = torch.randn_like(p) * 0.01
        optimizer = make(parameters, foreach=foreach, **options)
        if hasattr(optimizer, "train"):
            optimizer.train()
        times = []
        for step in range(-2, rounds):
            before = time.process_time()
            for _ in range(repeats):
                optimizer.step()
            if step >= 0:
                times.append((time.process_time() - before) / repeats * 1e6)
        median = statistics.median(times)
        best = median if best is None else min(best, median)
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = ",".join("x".join(map(str, shape)) for shape in LARGE)
    ours = [json.loads(subprocess.run([given.program, sizes, str(given.rounds)], check=True, capture_output=True, text=True).stdout)]
    theirs = {name: {"small": measure(make, options, SMALL, given.rounds, 10), "large": measure(make, options, LARGE, given.rounds, 1)}
              for name, (make, options) in WAYS.items()}
    ours.append(json.loads(subprocess.run([given.program, sizes, str(given.rounds)], check=True, capture_output=True, text=True).stdout))
    failed = False
    print("| optimizer | 161 small tensors, µs | Python | × | 9.5 million elements, ms | Python | × |\n|---|---:|---:|---:|---:|---:|---:|")
    for name in WAYS:
        row = []
        for kind, unit in (("small", 1), ("large", 1e3)):
            own = statistics.median(time for run in ours for time in run[name][kind])
            peer = theirs[name][kind]
            failed = failed or peer / own < (10 if kind == "small" and name not in WHOLE else 1)
            row.append(f"{own / unit:.1f} | {peer / unit:.1f} | {peer / own:.1f}")
        print(f"| {name} | " + " | ".join(row) + " |")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
