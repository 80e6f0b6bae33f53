# SPDX-License-Identifier: Apache-2.0
"""Writes vision_golden.safetensors: what torchvision's v2 transforms give, all that is random given, and what Pillow reads of JPEG
files. Needs torchvision 0.26, Pillow and safetensors.

    python tests/data/vision_golden.py
"""

import io
import math
import pathlib

import numpy
import PIL.Image
import torch
import torchvision.transforms.v2 as v2
import torchvision.transforms.v2.functional as F
from safetensors.torch import save_file
from torchvision.transforms import InterpolationMode as Mode

torch.set_num_threads(1)
out = {}
modes = {"nearest": Mode.NEAREST_EXACT, "bilinear": Mode.BILINEAR, "bicubic": Mode.BICUBIC}


def smooth(seed, channels, height, width):
    """Bytes with structures of several sizes."""
    draws = torch.Generator().manual_seed(seed)
    coarse = torch.rand((1, channels, 5, 6), generator=draws)
    fine = torch.randn((channels, height, width), generator=draws) * 12
    return (torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0] * 255 + fine).clamp(0, 255).to(torch.uint8)


def pil(x):
    return PIL.Image.fromarray(x.permute(1, 2, 0).contiguous().numpy() if x.size(0) == 3 else x[0].numpy())


def tensor(image):
    array = torch.from_numpy(numpy.array(image))
    return array.permute(2, 0, 1).contiguous() if array.dim() == 3 else array[None]


def record(name, x):
    out[name] = x.clone().contiguous()


image = smooth(0, 3, 23, 31)
grey = smooth(1, 1, 23, 31)
floats = (smooth(2, 3, 23, 31).float() / 255 + 0.001).clamp(0, 1)
record("image", image)
record("grey", grey)
record("floats", floats)

# Geometry, of bytes and floats.
for kind, x in {"image": image, "floats": floats}.items():
    for name, mode in modes.items():
        for rows, columns in ((12, 17), (28, 33)):
            record(f"resize.{kind}.{name}.{rows}", F.resize(x, [rows, columns], mode, antialias=True))
        record(f"resized_crop.{kind}.{name}", F.resized_crop(x, 3, 5, 14, 11, [9, 8], mode, antialias=True))
    for shorter in (11, 37):
        record(f"resize_shorter.{kind}.{shorter}", F.resize(x, [shorter], antialias=True))
    record(f"resize_max.{kind}", v2.Resize(20, max_size=24)(x))
    record(f"crop_outside.{kind}", F.crop(x, -3, 20, 18, 16))
    for size in ((10, 12), (9, 30), (30, 8), (28, 40)):
        record(f"center_crop.{kind}.{size[0]}", F.center_crop(x, list(size)))
    for mode in ("constant", "edge", "reflect", "symmetric"):
        record(f"pad.{kind}.{mode}", F.pad(x, [3, 5, 7, 2], fill=0 if mode != "constant" else 0.5 if kind == "floats" else 77,
                                           padding_mode=mode))
    record(f"horizontal_flip.{kind}", F.horizontal_flip(x))
    record(f"vertical_flip.{kind}", F.vertical_flip(x))
    record(f"erase.{kind}", F.erase(x, 4, 6, 9, 7, torch.tensor([0.25, 0.5, 0.75] if kind == "floats" else [1, 2, 3])[:, None, None]))
record("normalize.image", F.normalize(F.to_dtype(image, torch.float32, scale=True), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
record("normalize.floats", F.normalize(floats, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))

# Colours: bytes through Pillow, floats as tensors.
adjust = {"brightness": F.adjust_brightness, "contrast": F.adjust_contrast, "saturation": F.adjust_saturation}
for name, f in adjust.items():
    for factor in (0.0, 1.7):
        record(f"{name}.image.{factor}", tensor(f(pil(image), factor)))
        record(f"{name}.grey.{factor}", tensor(f(pil(grey), factor)))
    record(f"{name}.floats", f(floats, 1.7))
    record(f"{name}.less_floats", f(floats, 0.3))
# Every colour of a grid beside the image.
axis = torch.arange(0, 256, 23, dtype=torch.uint8)
grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij")).reshape(3, 36, 48).contiguous()
record("grid", grid)
for shift in (-0.5, -0.31, 0.0, 0.1, 0.5):
    record(f"hue.grid.{shift}", tensor(F.adjust_hue(pil(grid), shift)))
    if shift in (-0.31, 0.5):
        record(f"hue.floats.{shift}", F.adjust_hue(floats, shift))
record("hue.grid_floats", F.adjust_hue(grid.float() / 255, 0.1))


class Given:
    """torch's draws replaced by given ones, in the order in which a transform asks."""

    def __init__(self, **draws):
        self.draws = {key: list(values) for key, values in draws.items()}

    def __enter__(self):
        self.saved = torch.rand, torch.randint, torch.randperm, torch.Tensor.uniform_
        take = lambda kind: self.draws[kind].pop(0)
        torch.rand = lambda *a, **k: torch.tensor(take("uniform"), dtype=torch.double)
        torch.randint = lambda *a, **k: torch.tensor(take("integer")) if k.get("size", ()) == () else torch.tensor([take("integer")])
        torch.randperm = lambda n: torch.tensor(take("permutation"))
        torch.Tensor.uniform_ = lambda self, low=0, high=1: torch.tensor([low + (high - low) * take("uniform")], dtype=torch.double)

    def __exit__(self, *_):
        torch.rand, torch.randint, torch.randperm, torch.Tensor.uniform_ = self.saved
        assert not any(self.draws.values()), self.draws


def random(name, transform, x, **draws):
    """What a transform makes of x, and the draws by kind."""
    with Given(**draws):
        record(name, transform(x) if isinstance(x, torch.Tensor) else tensor(transform(x)))
    for kind, values in draws.items():
        record(f"{name}.{kind}", torch.tensor(values, dtype=torch.double if kind == "uniform" else torch.long))


random("random_resized_crop.0", v2.RandomResizedCrop((9, 8)), image, uniform=[0.3, 0.6], integer=[4, 7])
# Two boxes that do not fit, then one that does.
random("random_resized_crop.1", v2.RandomResizedCrop((9, 8)), image, uniform=[1.0, 0.0, 0.99, 0.01, 0.1, 0.5], integer=[2, 1])
# None of ten fits: the largest box in the middle.
random("random_resized_crop.2", v2.RandomResizedCrop((9, 8), scale=(0.99, 1), ratio=(0.2, 0.3)), image, uniform=[0.5, 0.5] * 10)
random("random_resized_crop.3", v2.RandomResizedCrop((9, 8), scale=(0.99, 1), ratio=(3, 4)), image, uniform=[0.5, 0.5] * 10)
random("random_resized_crop.4", v2.RandomResizedCrop((9, 8)), floats, uniform=[0.3, 0.6], integer=[4, 7])
random("random_crop.0", v2.RandomCrop((20, 25)), image, integer=[2, 5])
random("random_crop.1", v2.RandomCrop((23, 31), padding=4), image, integer=[1, 8])
random("random_crop.2", v2.RandomCrop((30, 29), padding=(1, 2, 3, 4), pad_if_needed=True, padding_mode="reflect"), image, integer=[1, 3])
random("random_crop.3", v2.RandomCrop((23, 31), padding=4, fill=0.5), floats, integer=[6, 0])
random("random_flip.0", v2.RandomHorizontalFlip(0.4), image, uniform=[0.39])
random("random_flip.1", v2.RandomHorizontalFlip(0.4), image, uniform=[0.4])
random("random_erasing.0", v2.RandomErasing(0.5), image, uniform=[0.4, 0.5, 0.2], integer=[6, 11])
random("random_erasing.1", v2.RandomErasing(0.5, value=[0.1, 0.2, 0.3]), floats, uniform=[0.1, 1.0, 1.0, 0.7, 0.9], integer=[1, 2])
random("random_erasing.2", v2.RandomErasing(0.5), image, uniform=[0.5])
jitter = v2.ColorJitter(brightness=0.4, contrast=(0.5, 1.3), saturation=0.3, hue=0.1)
random("color_jitter.0", jitter, pil(image), permutation=[[2, 0, 3, 1]], uniform=[0.2, 0.7, 0.9, 0.1])
random("color_jitter.1", jitter, floats, permutation=[[1, 3, 2, 0]], uniform=[0.8, 0.1, 0.4, 0.7])
random("color_jitter.2", v2.ColorJitter(contrast=0.2), pil(image), permutation=[[3, 2, 1, 0]], uniform=[0.3])

# TrivialAugmentWide through Pillow: every operation at some strengths, and its draws.
space = list(v2.TrivialAugmentWide._AUGMENTATION_SPACE.items())
for mode in ("nearest", "bilinear"):
    trivial = v2.TrivialAugmentWide(interpolation=Mode.NEAREST if mode == "nearest" else Mode.BILINEAR)
    for which, (name, (strengths, signed)) in enumerate(space):
        moves = name.startswith(("Shear", "Translate", "Rotate"))
        has_strength = strengths(31, 23, 31) is not None
        for bin in ((7, 20) if has_strength else (0,)) if moves or mode == "nearest" else ():
            for sign in (0.5, 0.6) if signed else (None,):
                random(f"trivial.{mode}.{which}.{bin}.{'plus' if sign != 0.5 else 'minus'}", trivial, pil(image),
                       integer=[which] + ([bin] if has_strength else []), uniform=[] if sign is None else [sign])

# JPEG files of four inks, and what Pillow reads: with Adobe's marker, as luma and chroma, and without the marker.
inks = PIL.Image.fromarray(smooth(3, 4, 10, 12).permute(1, 2, 0).contiguous().numpy(), "CMYK")
file = io.BytesIO()
inks.save(file, "JPEG", quality=95)
cmyk = file.getvalue()
marker = cmyk.index(b"\xff\xee\x00\x0eAdobe")
ycck = cmyk[: marker + 15] + b"\x02" + cmyk[marker + 16 :]
for name, jpeg in {"cmyk": cmyk, "ycck": ycck, "no_marker": cmyk[:marker] + cmyk[marker + 16 :]}.items():
    record(f"jpeg.{name}", torch.frombuffer(bytearray(jpeg), dtype=torch.uint8))
    record(f"jpeg.{name}.rgb", tensor(PIL.Image.open(io.BytesIO(jpeg)).convert("RGB")))

save_file(out, pathlib.Path(__file__).with_suffix(".safetensors"))
