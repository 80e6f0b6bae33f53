# SPDX-License-Identifier: Apache-2.0
"""Writes parametrizations.safetensors: what torch.nn.utils.parametrizations gives. Needs torch 2.11 and safetensors.

    python tests/nn/parametrizations.py
"""

import pathlib

import torch
from safetensors.torch import save_file
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

out = {}


def record(name, layer, x, passes):
    """The layer's state, and outputs, gradients and state of some passes with a step of SGD behind each."""
    out[f"{name}.x"] = x.clone()
    for key, value in layer.state_dict().items():
        out[f"{name}.0.{key}"] = value.clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for i in range(1, passes + 1):
        optimizer.zero_grad()
        y = layer(x)
        y.pow(2).sum().backward()
        out[f"{name}.{i}.y"] = y.detach().clone()
        for key, value in layer.named_parameters():
            out[f"{name}.{i}.grad.{key}"] = value.grad.clone()
        optimizer.step()
        for key, value in layer.state_dict().items():
            out[f"{name}.{i}.{key}"] = value.clone()
    layer.eval()
    out[f"{name}.eval"] = layer(x).detach().clone()


torch.manual_seed(0)
vectors = torch.randn(5, 4, dtype=torch.double)
images = torch.randn(2, 3, 5, 5, dtype=torch.double)
linear = lambda: torch.nn.Linear(4, 3).double()
conv = lambda: torch.nn.Conv2d(3, 4, 3, padding=1).double()
record("weight_norm.linear", weight_norm(linear()), vectors, 2)
record("weight_norm.conv", weight_norm(conv()), images, 2)
record("weight_norm.whole", weight_norm(linear(), dim=None), vectors, 2)
record("spectral_norm.linear", spectral_norm(linear()), vectors, 2)
record("spectral_norm.conv", spectral_norm(conv(), n_power_iterations=2), images, 2)
save_file({key: value.contiguous() for key, value in out.items()}, pathlib.Path(__file__).with_suffix(".safetensors"))
