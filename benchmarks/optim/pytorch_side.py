#!/usr/bin/env python3
"""The steps of optim.cpp in PyTorch and, where it is installed, in Composer, one thread; prints one line of JSON with times in
microseconds of the CPU.

    python pytorch_side.py SHAPES ALTERNATIONS        SHAPES: numbers of elements, separated by commas
"""
import importlib.util
import json
import sys
import time

import torch

SMOOTHING = 0.999


def parameters(sizes):
    made = [torch.randn(size, requires_grad=True) for size in sizes]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter) * 0.01
    return made


def norm_of(parameters):
    return torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters]).item()


def pytorch(sizes):
    """The three as functions over lists."""
    large = parameters(sizes)
    adam = torch.optim.AdamW(large, lr=1e-3, fused=True)
    averages = [parameter.detach().clone() for parameter in large]
    weights = [parameter.detach() for parameter in large]
    norm = norm_of(large)

    def apart(step):
        torch.nn.utils.clip_grad_norm_(large, 0.999 ** step * norm)
        adam.step()
        torch._foreach_lerp_(averages, weights, 1 - SMOOTHING)
    return apart


def compiled(sizes):
    """The three as one function for torch.compile, which writes its own loops."""
    large = parameters(sizes)
    adam = torch.optim.AdamW(large, lr=1e-3, foreach=True)
    averages = [parameter.detach().clone() for parameter in large]
    weights = [parameter.detach() for parameter in large]
    norm = norm_of(large)
    limit = torch.tensor(0.0)

    @torch.compile
    def together():
        gradients = [parameter.grad for parameter in large]
        total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        torch._foreach_mul_(gradients, torch.clamp(limit / (total + 1e-6), max=1.0))
        adam.step()
        torch._foreach_lerp_(averages, weights, 1 - SMOOTHING)

    def run(step):
        limit.fill_(0.999 ** step * norm)
        with torch.no_grad():
            together()
    return run


def small(fused):
    made = parameters([64] * 161)
    if fused:
        adam = torch.optim.Adam(made, lr=1e-3, fused=True)
        return lambda _: adam.step()
    adam = torch.optim.Adam(made, lr=1e-3, foreach=True)
    step = torch.compile(adam.step)
    return lambda _: step()


def composer(sizes):
    """What Composer's Trainer does with DecoupledAdamW, GradientClipping and EMA."""
    from composer.algorithms.ema.ema import EMAParameters, compute_ema
    from composer.algorithms.gradient_clipping import apply_gradient_clipping
    from composer.optim import DecoupledAdamW
    large = parameters(sizes)
    model = torch.nn.ParameterList(large)
    adam = DecoupledAdamW(model.parameters(), lr=1e-3)
    averages = EMAParameters(model)
    norm = norm_of(large)

    def apart(step):
        apply_gradient_clipping(model, "norm", 0.999 ** step * norm, fsdp_enabled=False)
        adam.step()
        compute_ema(model, averages, smoothing=SMOOTHING)
    return apart


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = [int(size) for size in sys.argv[1].split(",")]
    alternations = int(sys.argv[2])
    ways = {"small_pytorch": (50, small(fused=True)), "small_compiled": (50, small(fused=False)),
            "adam_pytorch": (1, pytorch(sizes)), "adam_compiled": (1, compiled(sizes))}
    if importlib.util.find_spec("composer"):
        ways["adam_composer"] = (1, composer(sizes))
    times = {way: [] for way in ways}
    for step in range(-2, alternations):
        for way, (repeats, run) in ways.items():
            before = time.process_time()
            for _ in range(repeats):
                run(step + 3)
            if step >= 0:
                times[way].append((time.process_time() - before) / repeats * 1e6)
    print(json.dumps({"torch": torch.__version__, **times}))


if __name__ == "__main__":
    main()
