# SPDX-License-Identifier: Apache-2.0
"""The memory order of images in exported programs, run by round_trip/compiled_code.cpp.

A program gives what it keeps for its backward in the order of its graph; inductor's own order for convolutions, channels last, costs two
copies of each image then. With more filter than image a convolution is slower with channels last.
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


def exported(precision):
    """The graphs of the programs."""
    graphs = {}

    def compiled(P, name, graph, path):
        graphs[name] = graph
        with open(path, "wb"):
            pass
        return lambda given: graph(*given)
    tutti_export.compiled = compiled
    with tempfile.TemporaryDirectory() as folder:
        tutti_export.export(Images(), {"x": torch.randn(4, 3, 12, 12)}, os.path.join(folder, "net"), precision=precision)
    return graphs


def results(graph):
    return [tutti_export.value(node) for node in tutti_export.output_node(graph).args[0]]


def sizes(tensors, order):
    """Of the images that stand in this order. Filters of 8 channels have at most 3 x 3."""
    return {tuple(t.shape[2:]) for t in tensors if t.dim() == 4 and t.size(1) == 8 and t.size(2) > 3 and t.is_contiguous(memory_format=order)}


torch.set_num_threads(1)
torch.manual_seed(3)
for precision in ("fp32", "amp_bf16"):
    graphs = exported(precision)
    kinds = [type(word).__name__ for word in tutti_export.output_node(graphs["forward"]).meta["desc"]]
    kept = [t for t, kind in zip(results(graphs["forward"]), kinds)
            if kind == "SavedForBackwardsAOTOutput" and isinstance(t, torch.Tensor) and t.size(0) != 48]
    assert sizes(kept, torch.channels_last) == {(12, 12), (5, 5)}, (precision, kept)
    assert sizes(kept, torch.contiguous_format) == {(5, 5)}, (precision, kept)  # for Images.deep
    outputs = [t for t, kind in zip(results(graphs["forward"]), kinds) if kind == "PlainAOTOutput"]
    assert len(outputs) == 2 and all(t.is_contiguous() for t in outputs + results(graphs["eval"])), precision
    read = [tutti_export.value(node.args[0]) for node in graphs["eval"].graph.nodes if node.target is torch.ops.aten.convolution.default]
    assert [t.is_contiguous(memory_format=torch.channels_last) for t in read] == [True, True, True, False], (precision, read)
