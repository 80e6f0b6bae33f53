# SPDX-License-Identifier: Apache-2.0
"""Image models of timm, Transformers and torchvision for round_trip/vision.cpp.

make FOLDER: one folder for each model, as its library saves it, with what 20 steps of SGD have as
losses in PyTorch (io.safetensors: x and labels of a batch, its logits, the rate and the losses).
check FOLDER: loads what tutti saved in NAME/saved with the library; the logits of x have to be
those of NAME/tutti.safetensors within 5e-5 of the largest.
"""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import timm
import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

STEPS = 20


def timm_model(architecture, folder, **args):
    model = timm.create_model(architecture, pretrained=False, **args)
    save_for_hf(model, folder, model_args=args, safe_serialization=True)
    return model


def hf_model(kind, config, folder):
    model = kind(config)
    model.save_pretrained(folder)
    return model


def torchvision_model(model, folder):
    torch.save(model.state_dict(), os.path.join(folder, "weights.pth"))
    return model


def models(root):
    """Names, and functions that make a model and its folder."""
    vit = dict(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5)
    hf_vit = transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                                    image_size=16, patch_size=4, num_labels=5)
    hf_resnet = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2], layer_type="bottleneck",
                                          num_labels=5)
    return {
        "timm_vit": lambda f: timm_model("vit_tiny_patch16_224", f, **vit),
        "timm_vit_avg": lambda f: timm_model("vit_tiny_patch16_224", f, **vit, global_pool="avg", class_token=False,
                                             qkv_bias=False, init_values=0.5),
        "timm_resnet": lambda f: timm_model("resnet18", f, num_classes=5, layers=[1, 2, 1, 1], channels=[8, 12, 16, 24]),
        "hf_vit": lambda f: hf_model(transformers.ViTForImageClassification, hf_vit, f),
        "hf_resnet": lambda f: hf_model(transformers.ResNetForImageClassification, hf_resnet, f),
        "torchvision_vit": lambda f: torchvision_model(
            torchvision.models.VisionTransformer(image_size=16, patch_size=4, num_layers=2, num_heads=4, hidden_dim=32,
                                                 mlp_dim=48, num_classes=5), f),
        "torchvision_resnet18": lambda f: torchvision_model(torchvision.models.resnet18(num_classes=5), f),
    }


def logits_of(model, x):
    out = model(x)
    return out if isinstance(out, torch.Tensor) else out.logits


def shake(model):
    """Weights that are nobody's start, so that the last layer's zeros do not hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)


def make(root):
    torch.manual_seed(7)
    for name, build in models(root).items():
        folder = os.path.join(root, name)
        os.makedirs(folder)
        size = 16 if "vit" in name else 32
        x, labels = torch.randn(8, 3, size, size), torch.arange(8) % 5
        model = build(folder)
        shake(model)
        if name.startswith("timm"):
            save_file({k: v.contiguous() for k, v in model.state_dict().items()}, os.path.join(folder, "model.safetensors"))
        elif name.startswith("hf"):
            model.save_pretrained(folder)
        else:
            torch.save(model.state_dict(), os.path.join(folder, "weights.pth"))
        model.eval()
        with torch.no_grad():
            io = {"x": x, "labels": labels, "logits": logits_of(model, x).clone()}
        model.train()
        # Rounding grows from step to step in a network this deep, and differs between processors: float64 leaves the arithmetic.
        io["train_x"] = x.double() if name == "torchvision_resnet18" else x.clone()
        model.to(io["train_x"].dtype)
        # So that the losses do not come near 0, where 1e-4 of them is less than float32's rounding.
        io["lr"] = torch.tensor(2e-4 if name == "torchvision_resnet18" else 0.01, dtype=torch.float64)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=io["lr"].item()), []
        for _ in range(STEPS):
            loss = torch.nn.functional.cross_entropy(logits_of(model, io["train_x"]), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        io["losses"] = torch.tensor(losses, dtype=torch.float64)
        save_file(io, os.path.join(folder, "io.safetensors"))


def load(name, folder):
    if name.startswith("timm"):
        return timm.create_model("local-dir:" + folder, pretrained=True)
    if name.startswith("hf"):
        kind = transformers.ViTForImageClassification if "vit" in name else transformers.ResNetForImageClassification
        model, info = kind.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        return model
    config = json.load(open(os.path.join(folder, "config.json")))
    config.pop("dtype", None)
    path = config.pop("function", None) or config.pop("class")
    model = getattr(torchvision.models, path.rsplit(".", 1)[1])(**config)
    model.load_state_dict(load_file(os.path.join(folder, "model.safetensors")))
    return model


def check(root):
    bad = 0
    for name in models(root):
        want = load_file(os.path.join(root, name, "tutti.safetensors"))
        with torch.no_grad():
            got = logits_of(load(name, os.path.join(root, name, "saved")).eval(), want["x"])
        difference = (got - want["logits"]).abs().max().item() / want["logits"].abs().max().item()
        print(f"{name}: largest difference {difference:.1e} of the largest logit", flush=True)
        bad += not difference <= 5e-5
    return bad


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(make(sys.argv[2]) if sys.argv[1] == "make" else check(sys.argv[2]))
