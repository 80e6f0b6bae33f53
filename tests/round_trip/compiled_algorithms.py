# SPDX-License-Identifier: Apache-2.0
"""The algorithms of tutti_export.py against Composer's outputs and gradients in tests/golden; for round_trip/compiled_code.cpp."""
import json
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "../../cmake"))

import torch
from safetensors.torch import load_file

import tutti_export

GOLDEN = os.path.join(here, "../golden")


def built(layers):
    made = []
    for kind, *rest in layers:
        if kind == "Sequential":
            made.append(built(rest[0]))
        else:
            args, kwargs = (*rest, [], {})[:2] if len(rest) < 2 else rest
            made.append(getattr(torch.nn, kind)(*args, **(kwargs or {})))
    return torch.nn.Sequential(*made)


def arguments(params):
    return {**params.get("args", {}), **{k: v for k, v in params.items() if k in ("ghost_batch_size", "n_last_layers_ignore")}}


def close(name, got, want):
    assert got.shape == want.shape, name
    assert (got - want).abs().max() <= max(2e-5 * want.abs().max().item(), 2e-6), f"{name}: {(got - want).abs().max()}"


def check(case, tensors):
    def all_of(role, start):
        return {k["key"].removeprefix(start): tensors[k["name"]] for k in case["tensors"]
                if k["role"] == role and k["key"].startswith(start)}
    model = built(case["params"]["model"]).train(case["params"].get("train", True))
    model.load_state_dict(all_of("in", "state."), strict=True)
    algorithm = case["function"].removeprefix("apply_")
    tutti_export.OURS[algorithm](model, **arguments(case["params"]))
    model.load_state_dict(all_of("in", "after."), strict=False)
    x = all_of("in", "x")[""].requires_grad_()
    y = model(x)
    close(f"{case['name']}: y", y, all_of("out", "y")[""])
    (y * all_of("in", "g")[""]).sum().backward()
    close(f"{case['name']}: grad_x", x.grad, all_of("out", "grad_x")[""])
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for key, want in all_of("out", "grad.").items():
        close(f"{case['name']}: {key}", parameters[key].grad, want)
    for key, want in all_of("out", "after.").items():
        close(f"{case['name']}: {key}", buffers[key], want)
    if "state_keys_after" in (case.get("expect") or {}):
        assert sorted(model.state_dict()) == sorted(case["expect"]["state_keys_after"]), case["name"]


def refused(names, said, composer):
    try:
        tutti_export.apply_algorithms(torch.nn.Sequential(torch.nn.Linear(2, 2)), names, composer)
    except tutti_export.Refusal as refusal:
        assert said in str(refusal), refusal
    else:
        raise AssertionError(f"{names} was not refused")


torch.set_num_threads(1)
with open(os.path.join(GOLDEN, "index.json"), encoding="utf-8") as file:
    cases = [c for c in json.load(file)["cases"] if c["function"].removeprefix("apply_") in tutti_export.OURS]
checked = 0
for case in cases:
    if any(t["key"] == "grad_x" for t in case["tensors"] or []) and (case.get("expect") or {}).get("count") != 0:
        check(case, load_file(os.path.join(GOLDEN, case["file"])))
        checked += 1
assert checked >= 15, checked


class Nothing:
    """Composer where it is not installed."""


class Recorder:
    """Composer where it is: each function says that it was called."""
    called = []
    apply_blurpool = staticmethod(lambda model: Recorder.called.append("blurpool"))
    apply_factorization = staticmethod(lambda model: Recorder.called.append("factorization"))


refused(["factorization"], "factorization needs Composer", Nothing)
refused(["channels_last"], "one order of memory", Nothing)
refused(["mixup"], "go into the recipe in C++", Nothing)
refused(["blurpool"], "finds no layer to replace", Nothing)
tutti_export.apply_algorithms(torch.nn.Sequential(), ["blurpool", "factorization"], Recorder)
assert Recorder.called == ["factorization", "blurpool"]
print(checked, "cases of Composer agree")
