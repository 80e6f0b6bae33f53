#!/usr/bin/env python3
"""Writes golden.safetensors beside this file: steps of the optimizers by PyTorch 2.11, timm 1.0.31, schedulefree 1.4.1 and
pytorch_optimizer 4.1.0, in double precision.

    python tests/optim/golden.py

`p<i>` and `g<i>` are the first weights and the gradients of all steps, `<case>/p<i>` the weights after steps 3 and 8, one behind
the other, `<case>/x<i>` the average of schedule-free ones in the end. The rate of step s is lr times FACTORS[s]. No clipping.
"""
import pathlib

import pytorch_optimizer
import schedulefree
import timm.optim
import torch
from safetensors.torch import save_file
from torch.optim import _muon

FACTORS = [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 1.0, 0.75]
SHAPES = [(4, 5), (13,), (2, 3, 3, 3)]
optim = torch.optim

CASES = {
    "Adagrad": (optim.Adagrad, dict()),
    "Adagrad/all": (optim.Adagrad, dict(lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5, eps=1e-3)),
    "Adagrad/maximize": (optim.Adagrad, dict(maximize=True)),
    "RMSprop": (optim.RMSprop, dict()),
    "RMSprop/centered": (optim.RMSprop, dict(alpha=0.9, eps=1e-3, centered=True)),
    "RMSprop/momentum": (optim.RMSprop, dict(momentum=0.9, weight_decay=0.1)),
    "RMSprop/all": (optim.RMSprop, dict(alpha=0.8, momentum=0.9, weight_decay=0.1, centered=True, maximize=True, eps=1e-2)),
    "Adadelta": (optim.Adadelta, dict()),
    "Adadelta/all": (optim.Adadelta, dict(lr=0.5, rho=0.8, eps=1e-3, weight_decay=0.1, maximize=True)),
    "Adamax": (optim.Adamax, dict()),
    "Adamax/all": (optim.Adamax, dict(lr=0.01, betas=(0.3, 0.95), eps=1e-3, weight_decay=0.1, maximize=True)),
    "NAdam": (optim.NAdam, dict()),
    "NAdam/coupled": (optim.NAdam, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, momentum_decay=0.1)),
    "NAdam/decoupled": (optim.NAdam, dict(weight_decay=0.1, decoupled_weight_decay=True, maximize=True)),
    "RAdam": (optim.RAdam, dict()),
    "RAdam/coupled": (optim.RAdam, dict(lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)),
    "RAdam/decoupled": (optim.RAdam, dict(weight_decay=0.1, decoupled_weight_decay=True, maximize=True)),
    "ASGD": (optim.ASGD, dict()),
    "ASGD/all": (optim.ASGD, dict(lr=0.1, lambd=0.1, alpha=0.5, t0=3, weight_decay=0.1, maximize=True)),
    "Rprop": (optim.Rprop, dict()),
    "Rprop/all": (optim.Rprop, dict(lr=0.1, etas=(0.3, 2.0), step_sizes=(0.05, 0.3), maximize=True)),
    "Lion": (timm.optim.Lion, dict()),
    "Lion/all": (timm.optim.Lion, dict(lr=0.01, betas=(0.4, 0.8), weight_decay=0.1, maximize=True)),
    "ScheduleFreeSGD": (schedulefree.SGDScheduleFree, dict(lr=0.1)),
    "ScheduleFreeSGD/all": (schedulefree.SGDScheduleFree, dict(lr=0.1, momentum=0.8, weight_decay=0.1, warmup_steps=4, r=1.0)),
    "ScheduleFreeAdamW": (schedulefree.AdamWScheduleFree, dict()),
    "ScheduleFreeAdamW/all": (schedulefree.AdamWScheduleFree, dict(lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, warmup_steps=4,
                                                                  r=0.5, weight_lr_power=1.0)),
    "LAMB": (timm.optim.Lamb, dict(max_grad_norm=None)),
    "LAMB/all": (timm.optim.Lamb, dict(max_grad_norm=None, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, bias_correction=False,
                                       grad_averaging=False, trust_clip=True)),
    "LAMB/decoupled": (timm.optim.Lamb, dict(max_grad_norm=None, lr=0.1, decoupled_decay=True, weight_decay=0.1)),
    "LAMB/adapt": (timm.optim.Lamb, dict(max_grad_norm=None, weight_decay=0.0, always_adapt=True)),
    "LARS": (timm.optim.Lars, dict()),
    "LARS/momentum": (timm.optim.Lars, dict(lr=0.5, momentum=0.9, weight_decay=0.1, trust_coeff=0.02)),
    "LARS/all": (timm.optim.Lars, dict(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True, trust_coeff=0.5, eps=1e-3, trust_clip=True)),
    "LARS/adapt": (timm.optim.Lars, dict(lr=0.5, momentum=0.9, dampening=0.2, always_adapt=True)),
    "Adafactor": (optim.Adafactor, dict()),
    "Adafactor/all": (optim.Adafactor, dict(lr=0.5, beta2_decay=-0.5, eps=(1e-4, 1e-2), d=1.5, weight_decay=0.1, maximize=True)),
    "Muon": (optim.Muon, dict(adjust_lr_fn=None)),
    "Muon/all": (optim.Muon, dict(lr=0.1, weight_decay=0.05, momentum=0.8, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw")),
    "Lookahead": (lambda p, **k: pytorch_optimizer.Lookahead(optim.AdamW(p, **k), k=3, alpha=0.4), dict(lr=0.1)),
}


def orthogonal(grad, coefficients, steps, eps):
    """PyTorch's function in the type of its argument, not bfloat16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad.clone()
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


class Pair:
    """Muon for matrices, filters as matrices with a row each, and AdamW for the rest, as one."""

    def __init__(self, parameters, make, options):
        self.muon = make([p for p in parameters if p.dim() == 2], **options)
        self.adamw = optim.AdamW([p for p in parameters if p.dim() != 2], lr=3e-4, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)
        self.param_groups = self.muon.param_groups + self.adamw.param_groups

    def step(self):
        self.muon.step()
        self.adamw.step()


def main():
    torch.set_default_dtype(torch.double)  # also of the scalars in the state of some
    generator = torch.Generator().manual_seed(31)
    steps = len(FACTORS)
    out = {}
    for i, shape in enumerate(SHAPES):
        out[f"p{i}"] = torch.randn(shape, generator=generator, dtype=torch.float)
        out[f"g{i}"] = torch.randn((steps, *shape), generator=generator, dtype=torch.float)
    kept_function = _muon._zeropower_via_newtonschulz
    for name, (make, options) in CASES.items():
        parameters = [out[f"p{i}"].double().clone() for i in range(len(SHAPES))]
        muon = name.startswith("Muon")
        if muon:
            parameters[2] = parameters[2].flatten(1)
            _muon._zeropower_via_newtonschulz = orthogonal
        for p in parameters:
            p.requires_grad_()
        optimizer = Pair(parameters, make, options) if muon else make(parameters, **options)
        if hasattr(optimizer, "train"):
            optimizer.train()
        rates = [group["lr"] for group in optimizer.param_groups]
        kept = [[] for _ in parameters]
        for step in range(steps):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * FACTORS[step]
            for i, p in enumerate(parameters):
                p.grad = out[f"g{i}"][step].double().reshape(p.shape).clone()
            optimizer.step()
            if step in (2, steps - 1):
                for i, p in enumerate(parameters):
                    kept[i].append(p.detach().clone().reshape(SHAPES[i]))
        for i, tensors in enumerate(kept):
            out[f"{name}/p{i}"] = torch.stack(tensors)
        if hasattr(optimizer, "eval"):
            optimizer.eval()
            for i, p in enumerate(parameters):
                out[f"{name}/x{i}"] = p.detach().clone()
    _muon._zeropower_via_newtonschulz = kept_function
    matrix = out["p0"].clone().requires_grad_()  # in bfloat16 inside, as it comes
    optimizer = optim.Muon([matrix], lr=0.1)
    for step in range(steps):
        matrix.grad = out["g0"][step].clone()
        optimizer.step()
    out["Muon/bfloat16/p0"] = matrix.detach().clone()
    versions = f"torch {torch.__version__}, timm {timm.__version__}, schedulefree, pytorch_optimizer"
    save_file({key: value.contiguous() for key, value in out.items()}, pathlib.Path(__file__).with_name("golden.safetensors"),
              metadata={"versions": versions})


if __name__ == "__main__":
    main()
