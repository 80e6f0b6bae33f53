# SPDX-License-Identifier: Apache-2.0
"""Models that tutti_export.py exports, for round_trip/compiled.cpp.

make FOLDER: exports each model to NAME.tutti and writes what 20 steps of SGD give in PyTorch (NAME.safetensors: x, y, losses).
check FOLDER: loads NAME.trained.safetensors, which tutti saved, strictly; the evaluation has to be NAME.logits.safetensors' logits.
"""
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../cmake"))

import timm
import torch
import transformers
from safetensors.torch import load_file, save_file

import tutti_export


def gpt2():
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, embd_pdrop=0, attn_pdrop=0,
                                     resid_pdrop=0, use_cache=False)
    return tutti_export.HuggingFace(transformers.GPT2LMHeadModel(config), ["input_ids"], "logits")


def models():
    vit = dict(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5)
    resnet = dict(num_classes=5, layers=[1, 1, 1, 1], channels=[8, 12, 16, 24])
    images = lambda: {"x": torch.randn(4, 3, 16, 16)}
    return {"vit": (timm.create_model("vit_tiny_patch16_224", **vit), images(), "", 5),
            "resnet": (timm.create_model("resnet18", **resnet), {"x": torch.randn(4, 3, 32, 32)}, "", 5),
            "gpt2": (gpt2(), {"input_ids": torch.randint(0, 64, (4, 16))}, "model.", 64)}


def loss_of(logits, y):
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())


torch.set_num_threads(1)
torch.manual_seed(0)
for name, (model, inputs, prefix, classes) in models().items():
    path = os.path.join(sys.argv[2], name)
    if sys.argv[1] == "make":
        tutti_export.export(model, inputs, path + ".tutti", prefix=prefix, data_only=True)
        (x,) = inputs.values()
        y = torch.randint(0, classes, x.shape if x.dim() == 2 else x.shape[:1])
        optimizer = torch.optim.SGD(model.parameters(), 0.005)  # a higher one is unstable, and rounding grows
        model.train()
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        save_file({"x": x, "y": y, "losses": torch.tensor(losses, dtype=torch.float64)}, path + ".safetensors")
    else:
        own = model.model if prefix else model
        own.load_state_dict(load_file(path + ".trained.safetensors"), strict=True)
        model.eval()
        got, want = model(load_file(path + ".safetensors")["x"]), load_file(path + ".logits.safetensors")["logits"]
        assert (got - want).abs().max() <= 5e-5 * want.abs().max(), name
