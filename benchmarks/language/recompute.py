#!/usr/bin/env python3
"""Activation checkpointing of a GPT-2 in tutti and in Transformers, whose is torch.utils.checkpoint; prints one table.

    python benchmarks/language/recompute.py --program build/bench/benchmarks/benchmark_recompute --python peers/bin/python
    python benchmarks/language/recompute.py side none|half|all STEPS        what benchmark_recompute does, in Transformers

--python: an interpreter with transformers. Processes of both sides alternate; one thread, fp32, CPU time. Memory is how far a process
grew in a step beyond what it had before it, measured in processes of their own with MALLOC_MMAP_THRESHOLD_=65536.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from memory import clear_peak, kib

WAYS = ("none", "half", "all")


def side(way, steps):
    import torch
    import transformers

    torch.manual_seed(17)
    config = transformers.GPT2Config(vocab_size=512, n_positions=256, n_embd=256, n_layer=12, n_head=8)
    config._attn_implementation = "sdpa"
    model = transformers.GPT2LMHeadModel(config).train()
    if way != "none":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for i, block in enumerate(model.transformer.h):
            block.gradient_checkpointing = way == "all" or i % 2 == 0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randint(512, (8, 256))
    times, grown = [], []
    for step in range(2 + steps):
        optimizer.zero_grad(set_to_none=True)
        before = kib("VmRSS")
        clear_peak()
        begin = time.process_time()
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        last = loss.item()
        times.append(1e3 * (time.process_time() - begin))
        grown.append((kib("VmHWM") - before) / 1024)
    return {"ms": statistics.median(times[2:]), "mib": statistics.median(grown[2:]), "loss": last}


def measure(command, environment):
    base = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env={**base, **environment}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    commands = {"tutti": [arguments.program], "Transformers": [arguments.python, __file__, "side"]}
    got = {}
    for number in range(arguments.rounds):
        for who in list(commands)[:: 1 if number % 2 == 0 else -1]:
            for way in WAYS:
                command = [*commands[who], way, str(arguments.steps)]
                times = measure(command, {})
                memory = measure(command, {"MALLOC_MMAP_THRESHOLD_": "65536"})
                got.setdefault((who, way), []).append((times["ms"], memory["mib"]))
    print("| recomputed | tutti, ms | Transformers, ms | tutti, MiB | Transformers, MiB |\n|---|---:|---:|---:|---:|")
    table = {}
    for way in WAYS:
        mine, theirs = ([statistics.median(column) for column in zip(*got[who, way])] for who in commands)
        print(f"| {way} | {mine[0]:.0f} | {theirs[0]:.0f} | {mine[1]:.0f} | {theirs[1]:.0f} |")
        table[way] = (mine, theirs)
    (mine, theirs), (plain, their_plain) = table["all"], table["none"]
    sys.exit(0 if mine[1] <= theirs[1] and mine[0] / plain[0] <= theirs[0] / their_plain[0] else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["side"]:
        print(json.dumps(side(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
