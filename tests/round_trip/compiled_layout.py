# SPDX-License-Identifier: Apache-2.0
"""The memory order in which an exported forward keeps images for its backward, run by round_trip/compiled_code.cpp.

Inductor puts the channels of convolutions last. A program whose graph has them first copies each of these tensors in its forward, and
again in its backward: efficientnet_b0 took 1.5 times as long.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../cmake"))

import torch
from torch import nn

import tutti_export


class Images(nn.Module):
    """Images to images."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.up = nn.Conv2d(8, 8, 3, 2, padding="valid"), nn.ConvTranspose2d(8, 6, 2)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.up(self.second(x).tanh()), x.mean((2, 3))


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
    images = [tensor for tensor in kept if tensor.size(2) > 3]  # and no filter
    assert len(images) >= 4, (precision, kept)
    for image in images:
        assert image.is_contiguous(memory_format=torch.channels_last), (precision, image.shape, image.stride())
    assert len(found["PlainAOTOutput"]) == 2 and all(tensor.is_contiguous() for tensor in found["PlainAOTOutput"]), precision
