#!/usr/bin/env python3
"""The steps of optim.cpp in PyTorch, one thread; prints one line of JSON with times in microseconds of the CPU.

    python pytorch_side.py SHAPES ALTERNATIONS        SHAPES: numbers of elements, separated by commas
"""
import json
import sys
import time

import torch


def parameters(sizes):
    made = [torch.randn(size, requires_grad=True) for size in sizes]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter) * 0.01
    return made


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = [int(size) for size in sys.argv[1].split(",")]
    alternations = int(sys.argv[2])
    small = torch.optim.Adam(parameters([64] * 161), lr=1e-3, fused=True)
    large = parameters(sizes)
    adam = torch.optim.AdamW(large, lr=1e-3, fused=True)
    averages = [parameter.detach().clone() for parameter in large]
    weights = [parameter.detach() for parameter in large]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in large]).item()

    def apart(step):
        torch.nn.utils.clip_grad_norm_(large, 0.999 ** step * norm)
        adam.step()
        torch._foreach_lerp_(averages, weights, 0.001)

    times = {"small_pytorch": [], "adam_pytorch": []}
    for step in range(-2, alternations):
        before = time.process_time()
        for _ in range(50):
            small.step()
        passed = time.process_time() - before
        before = time.process_time()
        apart(step + 3)
        if step >= 0:
            times["small_pytorch"].append(passed / 50 * 1e6)
            times["adam_pytorch"].append((time.process_time() - before) * 1e6)
    print(json.dumps({"torch": torch.__version__, **times}))


if __name__ == "__main__":
    main()
