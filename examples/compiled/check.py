# SPDX-License-Identifier: Apache-2.0
"""Loads what compiled_digits has trained into timm's model, and says how many of the unseen digits it knows: check.py FILE

Needs timm and safetensors.
"""
import os
import sys

import timm
import torch
from safetensors.torch import load_file

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data")


def read(name, header):
    with open(os.path.join(DATA, name), "rb") as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


model = timm.create_model("vit_tiny_patch16_224", img_size=8, patch_size=2, in_chans=1, embed_dim=32, depth=3, num_heads=4,
                          num_classes=10)
model.load_state_dict(load_file(sys.argv[1]), strict=True)
model.eval()
images = read("digits-images.idx3-ubyte", 16).float().view(-1, 1, 8, 8) / 8 - 1
labels = read("digits-labels.idx1-ubyte", 8).long()
with torch.no_grad():
    right = model(images[::5]).argmax(1) == labels[::5]
print(f"test accuracy in PyTorch: {100 * right.float().mean().item():.2f} %")
