# SPDX-License-Identifier: Apache-2.0
"""What tutti_export.py compares before it writes a package, run by round_trip/compiled_code.cpp.

Gradients of a deep network with batch normalisation over four rows move by a per mille when its tensors are rounded elsewhere: such
a model is exported. One whose gradients are wrong by 10 % is refused at these depths. The gradient of a bias before a batch normalisation is
what roundings leave of zero: any other such rest may stand for it, and nothing that is much of the whole gradient.
"""
import importlib.util
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../cmake"))

import torch
from torch import nn

import tutti_export

check = tutti_export.check
EPSILON = torch.finfo(torch.float32).eps


def rounded(part, program, tensors):
    return program([t * (1 + 2 * EPSILON * torch.randn_like(t)) if t.is_floating_point() else t for t in tensors])


def wrong(part, program, tensors):
    return [t * 1.1 if part == "backward" else t for t in rounded(part, program, tensors)]


def with_other_rests(part, program, tensors, factor=0.0):
    """Rests of zero are turned round, and get a share of the largest gradient."""
    results = program(tensors)
    if part != "backward":
        return results
    largest = max(t.norm() for t in results)
    rests = [t.norm() < 1e-5 * largest for t in results]
    assert any(rests) and not all(rests)
    return [factor * largest - t if rest else t for t, rest in zip(results, rests)]


def with_wrong_rests(part, program, tensors):
    return with_other_rests(part, program, tensors, 0.01)


class Scaled(nn.Module):
    def forward(self, x):
        return 1e6 * x


def exported(change, depth, *last):
    """Why a network of so many layers is refused when each program is changed; nothing when it is exported."""
    def changed(model, run, wiring, runs, *rest):
        programs = {part: lambda tensors, part=part, program=program: change(part, program, tensors) for part, program in runs.items()}
        check(model, run, wiring, programs, *rest)
    tutti_export.check = changed
    torch.manual_seed(3)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    with tempfile.TemporaryDirectory() as folder:
        try:
            tutti_export.export(nn.Sequential(*layers, nn.Linear(8, 4), *last), {"x": torch.randn(4, 8)},
                                os.path.join(folder, "net"), data_only=True)
        except tutti_export.Refusal as refusal:
            return str(refusal)
    return ""


torch.set_num_threads(1)
for depth in (10, 20):
    said = exported(rounded, depth)
    assert not said, said
    said = exported(wrong, depth)
    assert said.startswith("the gradient of ") and "this model cannot be exported" in said, said
said = exported(with_other_rests, 1, Scaled())
assert not said, said
said = exported(with_wrong_rests, 1, Scaled())
assert said.startswith("the gradient of 0.bias "), said

# A name that a library does not know is refused, with names near it.
if importlib.util.find_spec("timm"):
    try:
        tutti_export.model_of("timm:resnet81", {}, False, [], None)
        raise AssertionError("timm has a resnet81")
    except tutti_export.Refusal as refusal:
        assert "timm has no such model; near it are resnet18" in str(refusal), refusal

# What the command reports: outputs of ReLU and pooling are kept, and whoever changes the size of images is told.
tutti_export.check = check
with tempfile.TemporaryDirectory() as folder:
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    package = tutti_export.export(network, {"x": torch.randn(4, 3, 6, 6)}, os.path.join(folder, "net"), data_only=True)
assert package["saved_bytes"] == 4 * (8 * 6 * 6 + 8) * 4, package["saved_bytes"]
said = tutti_export.needs_other_sizes(package)
assert len(said) == 1 and said[0].startswith("ProgressiveResizing and ColOut"), said
