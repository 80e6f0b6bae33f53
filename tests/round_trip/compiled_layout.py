# SPDX-License-Identifier: Apache-2.0
"""The memory order in which an exported forward keeps images for its backward, run by round_trip/compiled_code.cpp.

A program whose graph has another order than its convolutions copies each of these tensors in its forward, and again in its backward:
efficientnet_b0 took 1.5 times as long. Convolutions with more filter than image are slower with channels last: resnet18.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../cmake"))

import torch
from torch import nn

import tutti_export


class Images(nn.Module):
    """Images to images, and to scores by a convolution with large filters."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.up = nn.Conv2d(8, 8, 3, 2, padding="valid"), nn.ConvTranspose2d(8, 6, 2)
        self.deep = nn.Conv2d(8, 48, 5)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        x = self.second(x).tanh()
        return self.up(x), self.deep(x).tanh().mean((2, 3))


def outputs(precision):
    """What the forward graph gives, by the kind of output."""
    found = {}

    def compiled(P, name, graph, path):
        if name == "forward":
            end = tutti_export.output_node(graph)
            for node, word in zip(end.args[0], end.meta["desc"]):
                found.setdefault(type(word).__name__, []).append(tutti_export.value(node))
        with open(path, "wb"):
            pass
        return lambda given: graph(*given)
    tutti_export.compiled = compiled
    with tempfile.TemporaryDirectory() as folder:
        tutti_export.export(Images(), {"x": torch.randn(4, 3, 12, 12)}, os.path.join(folder, "net"), evaluation=False, precision=precision)
    return found


torch.set_num_threads(1)
torch.manual_seed(3)
for precision in ("fp32", "amp_bf16"):
    found = outputs(precision)
    kept = [tensor for tensor in found["SavedForBackwardsAOTOutput"] if isinstance(tensor, torch.Tensor) and tensor.dim() == 4]
    images = [tensor for tensor in kept if tensor.size(1) == 8 and tensor.size(2) > 3 and tensor.size(0) != 8]  # and no filter
    last = [tensor for tensor in images if tensor.is_contiguous(memory_format=torch.channels_last)]
    assert {tuple(tensor.shape[2:]) for tensor in last} == {(12, 12), (5, 5)}, (precision, images)
    first = [tensor for tensor in images if tensor.is_contiguous()]
    assert {tuple(tensor.shape[2:]) for tensor in first} == {(5, 5)}, (precision, images)  # for self.deep
    assert len(found["PlainAOTOutput"]) == 2 and all(tensor.is_contiguous() for tensor in found["PlainAOTOutput"]), precision
