#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model of zoo.py in PyTorch, one thread; prints one line of JSON.

    python pytorch_side.py export|data|eager|compile NAME FOLDER [SAMPLES]

export, data: writes FOLDER/NAME.tutti, compiled or data alone, and its batch; the CPU seconds that it took.
eager, compile: 20 losses from the package's weights, then the CPU's microseconds of a step, SAMPLES of half a second each; compile is
torch.compile with the fused optimizer, and so is eager's optimizer. memory_mib: the most that the process had, beyond what it had
before the first step.
"""
import json
import os
import resource
import sys
import time

import torch
from safetensors.torch import load_file, save_file

import zoo

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from memory import clear_peak, kib


def seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def write(case, path, data_only):
    begin = seconds()
    zoo.tutti_export.export(case.model, case.inputs, path + ".tutti", prefix=case.prefix, data_only=data_only,
                             sizes=getattr(case, "sizes", None), loss="cross_entropy" if case.loss == "step" else None)
    save_file({"y": case.y.contiguous().clone(), **{f"x.{name}": x.clone() for name, x in case.inputs.items()}},
              path + ".batch.safetensors")
    return {"export_seconds": round(seconds() - begin, 1), "loss": case.loss, "optimizer": case.optimizer,
            "inputs": list(case.inputs)}


def train(case, path, compiled, samples):
    batch = load_file(path + ".batch.safetensors")
    inputs, y = [batch[f"x.{name}"] for name in case.inputs], batch["y"]
    own = case.model.model if case.prefix else case.model
    own.load_state_dict(load_file(path + ".tutti/model.safetensors"), strict=False)
    parameters = list(case.model.parameters())
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9, fused=True) if case.optimizer == "sgd" else \
        torch.optim.AdamW(parameters, 1e-3, weight_decay=1e-2, fused=True)
    model = torch.compile(case.model.train()) if compiled else case.model.train()
    loss_of = zoo.LOSSES[case.loss]

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(*inputs), y)
        loss.backward()
        optimizer.step()
        return loss
    before = kib("VmRSS")
    clear_peak()
    losses = [step().item() for _ in range(20)]
    begin = time.process_time()
    step()
    count = max(1, round(0.5 / (time.process_time() - begin)))
    times = []
    for _ in range(samples):
        begin = time.process_time()
        for _ in range(count):
            step()
        times.append((time.process_time() - begin) / count * 1e6)
    return {"losses": losses, "us": times, "memory_mib": (kib("VmHWM") - before) / 1024}


def main():
    what, name, folder = sys.argv[1:4]
    torch.set_num_threads(1)
    case, path = zoo.make(name), os.path.join(folder, name)
    if what in ("export", "data"):
        try:
            print(json.dumps(write(case, path, what == "data")))
        except zoo.tutti_export.Refusal as refusal:
            print(json.dumps({"refused": str(refusal)}))
    else:
        try:
            print(json.dumps(train(case, path, what == "compile", int(sys.argv[4]))))
        except torch._dynamo.exc.TorchDynamoException as error:
            print(json.dumps({"refused": str(error).strip().splitlines()[0]}))


if __name__ == "__main__":
    main()
