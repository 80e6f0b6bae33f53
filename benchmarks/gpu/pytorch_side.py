#!/usr/bin/env python3
"""What gpu.cpp trains, in plain PyTorch; prints one line of JSON, as there.

    python pytorch_side.py eager|compile resnet50|gpt2|gpt2_recipe DEVICE BATCH SIZE WARM_UP STEPS

The ResNet-50 is torchvision's, the GPT-2 Hugging Face's with scaled dot product attention. Data are tensors in memory, gathered into
page-locked memory and copied without waiting; optimizers are fused=True; `compile` is torch.compile of the model, compiled in the warm-up.
"""
import json
import sys
import time

import torch
from torch.nn import functional as F

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Data:
    """Batches of shuffled rows, without end."""

    def __init__(self, device, batch, *tensors):
        self.device, self.batch, self.tensors = device, batch, tensors

    def __iter__(self):
        pinned = self.device.type == "cuda"
        while True:
            order = torch.randperm(len(self.tensors[0]))
            for rows in order.split(self.batch):
                taken = (tensor.index_select(0, rows) for tensor in self.tensors)
                yield [(t.pin_memory() if pinned else t).to(self.device, non_blocking=True) for t in taken]


def resnet50(device, batch, size, mode):
    import torchvision
    model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))
    data = Data(device, batch, torch.randint(256, (4 * batch, 3, size, size), dtype=torch.uint8),
                torch.randint(1000, (4 * batch,)))
    forward = torch.compile(model) if mode == "compile" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5, fused=True)

    def loss_of(images, labels):
        x = images.to(torch.float32, memory_format=torch.channels_last).div_(255).sub_(mean).div_(std)
        return F.cross_entropy(forward(x), labels)
    return model, data, optimizer, loss_of


def gpt2(device, batch, size, mode):
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)).to(device)
    data = Data(device, batch, torch.randint(50257, (32 * batch, size)))
    forward = torch.compile(model) if mode == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    return model, data, optimizer, lambda ids: forward(input_ids=ids, labels=ids).loss


def main():
    mode, name, device = sys.argv[1], sys.argv[2], torch.device(sys.argv[3])
    batch, size, warm_up, steps = map(int, sys.argv[4:8])
    torch.manual_seed(17)
    model, data, optimizer, loss_of = (resnet50 if name == "resnet50" else gpt2)(device, batch, size, mode)
    model.train()
    weights = [parameter.detach() for parameter in model.parameters()]
    averages = [weight.clone() for weight in weights]

    def step(tensors):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(*tensors)
        loss.backward()
        if name == "gpt2_recipe":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if name == "gpt2_recipe":
            torch._foreach_lerp_(averages, weights, 0.001)
        return loss

    def now():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for index, tensors in enumerate(data):
        if index == warm_up:
            begin = now()
        if index == warm_up + steps:
            break
        loss = step(tensors)
    seconds = now() - begin
    print(json.dumps({"name": name, "per_second": steps * batch / seconds, "loss": round(loss.item(), 4),
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()
