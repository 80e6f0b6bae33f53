# SPDX-License-Identifier: Apache-2.0
"""Makes the packages of this folder: python make.py (torch 2.11, safetensors). With a folder, the same packages there, compiled.

expected.safetensors has a batch, and what PyTorch gives for it: 20 losses of SGD with momentum, and the evaluation afterwards.
"""
import os
import sys

import torch
from safetensors.torch import save_file

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../../cmake"))
import tutti_export


class Net(torch.nn.Module):
    """Convolution, batch normalisation, pooling, two outputs."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.fc = torch.nn.Linear(4, 10)

    def forward(self, images):
        h = torch.nn.functional.max_pool2d(torch.nn.functional.silu(self.norm(self.conv(images))), 2)
        h = h.mean((2, 3))
        return {"logits": self.fc(h), "features": h}


class Dropped(torch.nn.Module):
    """Dropout, tied weights, a buffer that no state_dict has."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8)
        self.tied = torch.nn.Linear(8, 8, bias=False)
        self.tied.weight = self.b.weight
        self.drop, self.c = torch.nn.Dropout(0.25), torch.nn.Linear(8, 3)
        self.register_buffer("scale", torch.full((8,), 1.5), persistent=False)

    def forward(self, x):
        return self.c(self.tied(self.b(self.drop(torch.nn.functional.gelu(self.a(x))))) * self.scale)


class Pair(torch.nn.Module):
    """Two inputs of one length."""

    def __init__(self):
        super().__init__()
        self.words, self.fc = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3)

    def forward(self, a, tokens):
        return self.fc(torch.tanh(a + self.words(tokens)).sum(1))


class Sized(torch.nn.Module):
    """Images of several heights and widths."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = torch.nn.Conv2d(2, 4, 3, stride=2, padding=1), torch.nn.Linear(16, 3)

    def forward(self, x):
        h = torch.nn.functional.avg_pool2d(torch.tanh(self.conv(x)), 2)
        return self.fc(torch.cat([h.mean((2, 3)), h.amax((2, 3)), *(h.sum(d).mean(2) / h.shape[d] for d in (2, 3))], 1))


def make(name, model, inputs, classes, other=None, **options):
    """other: the batch of the losses, of another size than the exported one."""
    folder = os.path.join(sys.argv[1] if len(sys.argv) > 1 else here, name)
    tutti_export.export(model, inputs, folder, data_only=len(sys.argv) < 2, **options)
    x = other or tuple(inputs.values())
    y = torch.randint(0, classes, (len(x[0]),))

    def logits(*x):
        with torch.autocast("cpu", torch.bfloat16, enabled=options.get("precision") == "amp_bf16"):
            out = model(*x)
        return (out["logits"] if isinstance(out, dict) else out).float()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(5)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits(*x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    save_file({**{f"x{i}": each for i, each in enumerate(x)}, "y": y, "losses": torch.tensor(losses, dtype=torch.float64), "eval": logits(*x).detach()},
              os.path.join(folder, "expected.safetensors"))


torch.manual_seed(0)
make("net", Net(), {"images": torch.randn(8, 2, 8, 8)}, 10)
make("dropped", Dropped(), {"x": torch.randn(8, 6)}, 3)
make("pair", Pair(), {"a": torch.randn(4, 6, 4), "tokens": torch.randint(0, 10, (4, 6))}, 3,
     dynamic={"a": {1: "length"}, "tokens": {1: "length"}})
torch.manual_seed(1)
make("low", torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 3)), {"x": torch.randn(8, 6)}, 3,
     precision="amp_bf16", evaluation=False)
make("sized", Sized(), {"x": torch.randn(4, 2, 16, 24)}, 3, other=(torch.randn(5, 2, 12, 20),), evaluation=False,
     dynamic={"x": {0: "batch", 2: "height", 3: "width"}}, sizes={"height": (8, 32, 4), "width": (8, 32, 4)})
make("whole", torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Dropout(0.25), torch.nn.Linear(8, 3)),
     {"x": torch.randn(8, 6)}, 3, loss="cross_entropy")
