# SPDX-License-Identifier: Apache-2.0
"""torch.ops.tutti.* gives what tutti's own functions have given, bit for bit; gradients and torch.compile work where
docs/python.md says so.

    operators.py FILE     of python_reference
"""

import pathlib
import sys

import safetensors.torch
import torch

import tutti  # noqa: F401 (registers the operators)


class Operators:
    """torch.ops.tutti, and which of it was asked for."""

    used = set()

    def __getattr__(self, name):
        self.used.add(name)
        return getattr(torch.ops.tutti, name)


ops = Operators()
PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs/python.md"
SEED = 11
# By LAPACK, whose last bits change from one call to the next: what is computed twice from the same tensors differs by 1e-6.
DECOMPOSED = {"split_matrix", "factorize_matrix", "factorize_conv2d"}


def results(given):
    """What the operators make of the inputs of reference.cpp: (case, results), in its order."""
    x, target, rows = given["x"], given["target"], given["rows"]

    mixed = ops.mixup_batch(x, target, SEED)
    yield "mixup_batch", mixed
    yield "mix", ops.mix(x, mixed[3], 0.3)
    cut, permuted, kept, box, indices = ops.cutmix_batch(x, target, SEED)
    yield "cutmix_batch", (cut, permuted, kept, *box, indices)
    yield "paste_box", ops.paste_box(x, mixed[3], [1, 2, 9, 14])
    yield "cutout_batch", ops.cutout_batch(x, SEED, num_holes=2, length=0.4, per_image=True)
    yield "colout_batch", ops.colout_batch(x, SEED, p_row=0.3)
    yield "colout_batch_target", ops.colout_batch(x, x[:, :1], SEED)
    yield "augmix_image", ops.augmix_image(given["pixels"], SEED)
    yield "randaugment_image", ops.randaugment_image(given["pixels"], SEED, depth=3, augmentation_set="original")
    yield "smooth_labels", ops.smooth_labels(torch.zeros(8, 10), target, 0.2)
    yield (
        "resize_batch",
        [
            ops.resize_batch(x, target, 0.6, SEED, **how)[0]
            for how in ({}, {"mode": "crop"}, {"interpolation": "antialias"})
        ],
    )
    text = ["input_ids", "attention_mask"], [given["ids"], given["mask"]]
    yield (
        "set_batch_sequence_length",
        (
            *ops.set_batch_sequence_length(*text, 5, preserve_end_of_sequence=True),
            ops.set_batch_sequence_length(*text, 5, truncate=False)[0],
        ),
    )
    yield "shorten_sequences", ops.shorten_sequences(*text, 0.5)[0]
    yield "draw_by_loss", ops.draw_by_loss(given["losses"], SEED, 0.4)
    yield "channels_last", ops.channels_last(x)

    yield "blur_filter", ops.blur_filter()
    yield "blur_2d", (ops.blur_2d(x, stride=2), ops.blur_2d(x, 3, border="reflect"))
    yield "blurmax_pool2d", ops.blurmax_pool2d(x, 3, 2, 1)
    slopes = ops.alibi_slopes(6)
    yield "alibi_slopes", (slopes[0], slopes[3], slopes[5])
    yield "alibi_bias", (ops.alibi_bias(6, 9, True), ops.alibi_bias(4, 9, False))
    mean, variance = torch.zeros(3), torch.ones(3)
    normed = ops.ghost_batch_norm(x, torch.ones(3), torch.zeros(3), mean, variance, torch.tensor(0), ghost_batch_size=4)
    statistics = torch.zeros(20), torch.ones(20), torch.tensor(0)
    yield (
        "ghost_batch_norm",
        (
            normed,
            mean,
            variance,
            ops.ghost_batch_norm(rows, torch.ones(20), torch.zeros(20), *statistics, ghost_batch_size=4),
        ),
    )
    gyro = {"p": 0.4, "sigma": 8, "tau": 3, "period": 2}
    yield "gyro_dropout", [ops.gyro_dropout(rows, SEED, call, **gyro) for call in (3, 4)]
    yield (
        "low_precision",
        (
            ops.low_precision_layer_norm(rows, [20], given["scale"], torch.zeros(20)),
            ops.low_precision_group_norm(x, 3, torch.ones(3), torch.zeros(3)),
        ),
    )
    yield "rms_norm", (ops.rms_norm(rows, given["scale"]), ops.rms_norm(rows, eps=1e-5))
    yield (
        "gated_linear_unit",
        (ops.gated_linear_unit(rows, given["up"]), ops.gated_linear_unit(rows, given["up"], "silu")),
    )
    yield "swiglu", ops.swiglu(rows, given["up"])
    yield "squeeze_excite", ops.squeeze_excite(x, given["squeeze"], given["excite"])
    weight, a, b = given["weight"], given["a"], given["b"]
    yield "lora", (ops.lora_linear(rows, weight, given["bias"], a, b, 0.5), ops.lora_merged(weight, a, b, 0.5))

    skipped = rows.sin(), rows, SEED, 0.5
    yield (
        "stochastic_depth",
        (
            ops.stochastic_depth(*skipped),
            ops.stochastic_depth(*skipped, "sample"),
            ops.stochastic_depth(*skipped, training=False),
        ),
    )

    kernel, gradient = given["kernel"], given["gradient"]
    yield "standardize_weights", ops.standardize_weights(kernel)
    yield "weight_norm", (ops.weight_norm(kernel, given["length"]), ops.weight_norm(kernel, torch.ones(1), -1))
    u, v = given["u"].clone(), given["v"].clone()
    ops.power_iteration_(rows, u, v, 3)
    yield "power_iteration", (u, v)
    yield "spectral_norm", ops.spectral_norm(rows, u, v)
    yield "split_matrix", ops.split_matrix(rows, 2)
    yield "factorize_matrix", ops.factorize_matrix(rows, given["to"], given["map"], rank=4)
    wa, wb, _, rank, _ = ops.factorize_conv2d(given["image"], kernel, rank=2, n_iters=1, padding=1)
    yield "factorize_conv2d", (wa, wb, rank)

    def clipped(kind):
        parameter = kernel.clone().requires_grad_()
        parameter.grad = gradient.clone()
        norm = ops.apply_gradient_clipping([parameter], kind, 0.05)
        return parameter.grad, norm

    yield "apply_gradient_clipping", (*clipped("norm"), clipped("value")[0], clipped("adaptive")[0])
    yield "sam_ascend", ops.sam_ascend([kernel], [gradient], 0.3)
    ema, swa = kernel.clone(), kernel.clone()
    ops.compute_ema_([ema], [kernel + gradient], 0.9)
    ops.update_mean_([swa], [kernel + gradient], 1)
    yield "averages", (ema, swa)

    yield "ema_warmup", ops.ema_warmup(7, 0.99)
    yield "swa_learning_rate", ops.swa_learning_rate(0.1, 0.01, 3, 10, "cosine")
    yield "warmup_seq_length", ops.warmup_seq_length(30, 100, 8, 128, 8)
    yield "should_selective_backprop", ops.should_selective_backprop(0.6, 2)
    yield "is_spike", ops.is_spike([1.0, 1.1, 0.9], 3, 4, 0.1)
    yield "latent_size", ops.latent_size(0.25, 30, 17)


def bits(value):
    if not isinstance(value, torch.Tensor):
        value = torch.tensor(float(value), dtype=torch.float64)
    return value.dtype, value.shape, value.detach().contiguous().flatten().view(torch.uint8).tolist()


def check_results(stored):
    # Where a new tensor lies, as in C++: matrix products may differ in the last bit by how the memory of a factor is aligned.
    given = {name[3:]: tensor.clone() for name, tensor in stored.items() if name.startswith("in.")}
    expected = {name for name in stored if not name.startswith("in.")}
    count = 0
    for case, found in results(given):
        for i, one in enumerate(found if isinstance(found, (list, tuple)) else [found]):
            name = f"{case}.{i}"
            assert name in expected, f"reference.cpp has no {name}"
            expected.remove(name)
            if case in DECOMPOSED:
                torch.testing.assert_close(
                    torch.as_tensor(one, dtype=stored[name].dtype), stored[name], rtol=1e-4, atol=1e-5
                )
                continue
            assert bits(one) == bits(stored[name]), f"{name} differs from what C++ gives"
            count += 1
    assert not expected, f"no operator was asked for {sorted(expected)}"
    # Each operator was compared, and stands in the page.
    names = {
        name.removeprefix("tutti::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("tutti::") and not name.startswith("tutti::_")
    }
    page = PAGE.read_text(encoding="utf-8")
    assert len(names) > 40 and names == ops.used, f"not compared: {sorted(names - ops.used)}"
    assert not [name for name in names if f"`{name}`" not in page], (
        f"{PAGE} lacks {[name for name in names if f'`{name}`' not in page]}"
    )
    return count


def check_gradients():
    torch.manual_seed(0)
    x = torch.rand(4, 3, 6, 6, dtype=torch.double, requires_grad=True)
    w = torch.rand(6, 4, dtype=torch.double, requires_grad=True)
    y, order = torch.arange(4), torch.tensor([3, 2, 1, 0])
    a, b = (torch.rand(size, dtype=torch.double, requires_grad=True) for size in ((2, 4), (3, 2)))
    weight = torch.rand(3, 4, dtype=torch.double, requires_grad=True)
    u, v = torch.rand(6, dtype=torch.double), torch.rand(4, dtype=torch.double)
    squeeze, excite = (torch.rand(size, dtype=torch.double, requires_grad=True) for size in ((2, 3), (3, 2)))
    cases = [
        (lambda x: ops.mixup_batch(x, y, SEED)[0], x),
        (lambda x: ops.mix(x, order, 0.3), x),
        (lambda x: ops.cutmix_batch(x, y, SEED)[0], x),
        (lambda x: ops.cutout_batch(x, SEED), x),
        (lambda x: ops.colout_batch(x, SEED), x),
        (lambda x: ops.resize_batch(x, y, 0.5, interpolation="bilinear")[0], x),
        (lambda x: ops.blur_2d(x, stride=2), x),
        (ops.blurmax_pool2d, x),
        (lambda x: ops.ghost_batch_norm(x, ghost_batch_size=2), x),
        (lambda w: ops.gyro_dropout(w, SEED, 3), w),
        (lambda w: ops.rms_norm(w), w),
        (lambda w: ops.swiglu(w, w.sin()), w),
        (lambda w: ops.gated_linear_unit(w, w.sin()), w),
        (lambda w: ops.stochastic_depth(w, w.sin(), SEED, 0.5, "sample"), w),
        (ops.squeeze_excite, x, squeeze, excite),
        (lambda x, weight, a, b: ops.lora_linear(x, weight, None, a, b, 2.0), w, weight, a, b),
        (ops.standardize_weights, w),
        (lambda w: ops.weight_norm(w, w.norm(dim=1, keepdim=True)), w),
        (lambda w: ops.spectral_norm(w, u, v), w),
        (lambda w: ops.low_precision_layer_norm(w, [4]), w),
    ]
    for function, *inputs in cases:
        assert torch.autograd.gradcheck(function, tuple(inputs))
    return len(cases)


def check_compiled():
    """Whole under torch.compile, without a break in the graph, with the same gradients; all others are left out of the graph."""
    torch.manual_seed(0)
    x, w, q = torch.randn(4, 3, 8, 8), torch.randn(6, 4), torch.randn(8, 8)
    order, y = torch.tensor([3, 2, 1, 0]), torch.arange(4)
    u, v = torch.randn(6), torch.randn(4)
    cases = {
        "mix": (lambda x: ops.mix(x, order, 0.3), x),
        "mixup_batch": (lambda x: ops.mixup_batch(x, y, 0, mixing=0.3, indices=order)[0], x),
        "paste_box": (lambda x: ops.paste_box(x, order, [1, 1, 4, 5]), x),
        "cutmix_batch": (lambda x: ops.cutmix_batch(x, y, 0, box=[1, 1, 4, 5], indices=order)[0], x),
        "set_batch_sequence_length": (lambda w: ops.set_batch_sequence_length(["input_ids"], [w], 3)[0], w),
        "channels_last": (ops.channels_last, x),
        "shorten_sequences": (lambda w: ops.shorten_sequences(["input_ids"], [w], 0.5)[0], w),
        "low_precision_layer_norm": (lambda w: ops.low_precision_layer_norm(w, [4]), w),
        "low_precision_group_norm": (lambda x: ops.low_precision_group_norm(x, 3), x),
        "gated_linear_unit": (lambda q: ops.gated_linear_unit(q, q.sin()), q),
        "squeeze_excite": (lambda x: ops.squeeze_excite(x, w.T[:2, :3], w[:3, :2]), x),
        "lora_linear": (lambda w: ops.lora_linear(w, q[:3, :4], None, q[:2, :4], q[:3, :2]), w),
        "standardize_weights": (ops.standardize_weights, x),
        "weight_norm": (lambda w: ops.weight_norm(w, w.norm(dim=1, keepdim=True)), w),
        "spectral_norm": (lambda w: ops.spectral_norm(w, u, v), w),
    }
    for name, (function, value) in cases.items():
        torch._dynamo.reset()
        found = []
        for one in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
            leaf = value.clone().requires_grad_()
            result = one(leaf)
            result.sin().sum().backward()
            found.append((result.detach(), leaf.grad))
        for eager, compiled in zip(*found):
            torch.testing.assert_close(compiled, eager, msg=lambda text: f"{name} compiled: {text}")
    apart = torch.compiler.disable(lambda x: ops.mixup_batch(x, y, SEED)[0])
    assert torch.equal(torch.compile(lambda x: apart(x * 2) + 1, backend="aot_eager")(x), apart(x * 2) + 1)
    return len(cases)


def check_autocast():
    x = torch.randn(4, 8)
    assert ops.low_precision_layer_norm(x, [8]).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.low_precision_layer_norm(x, [8]).dtype == ops.low_precision_group_norm(x, 2).dtype == torch.bfloat16


def check_refusals():
    x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
    cases = [
        (lambda: ops.mixup_batch(x, y, SEED, alpha=-1.0), ValueError, "alpha is -1, expected 0 or more"),
        (
            lambda: ops.blur_2d(x, border="wrap"),
            ValueError,
            'border is "wrap", expected one of "zero", "renormalize", "reflect"',
        ),
        (lambda: ops.paste_box(x, y, [0, 0, 4]), ValueError, "box has 3 numbers, expected 4: top, left, bottom, right"),
        (lambda: ops.ghost_batch_norm(x, ghost_batch_size=5), ValueError, "smaller than ghost_batch_size 5"),
        (lambda: ops.ghost_batch_norm(x, training=False), ValueError, "the running statistics are needed"),
        (lambda: ops.gyro_dropout(x, SEED, -1), ValueError, "call is -1, expected 0 or more"),
        (
            lambda: ops.squeeze_excite(x, x[0, 0], x[0, 0]),
            ValueError,
            "expected [N, C, H, W], [inner, C] and [C, inner]",
        ),
        (lambda: ops.stochastic_depth(x, x[:2], SEED), ValueError, "expected one shape [N, ...]"),
        (lambda: ops.lora_linear(x, x, None, x, x), ValueError, "expected [out, in], [r, in] and [out, r]"),
        (lambda: ops.sam_ascend([x], []), ValueError, "1 weights and 0 gradients"),
        (lambda: ops.compute_ema_([x], [x[0]]), ValueError, "average 0 is [4, 3, 8, 8] and its weight [3, 8, 8]"),
        (lambda: ops.update_mean_([x], [x], -1), ValueError, "count is -1, expected 0 or more"),
        (lambda: ops.shorten_sequences(["a", "b"], [x], 0.5), ValueError, "2 names and 1 tensors"),
        (lambda: ops.gated_linear_unit(x, x, "xielu"), ValueError, 'activation is "xielu", expected one of "gelu", "gelu_new"'),
        (lambda: tutti.read_weights("/nowhere"), RuntimeError, "there is no '/nowhere'"),
    ]
    for call, kind, words in cases:
        try:
            call()
        except kind as error:
            assert words in str(error), f"{error}, expected {words}"
        else:
            raise AssertionError(f"nothing was refused, expected {words}")
    return len(cases)


if __name__ == "__main__":
    print(check_results(safetensors.torch.load_file(sys.argv[1])), "results of C++ bit for bit")
    check_autocast()
    print(check_gradients(), "gradients,", check_compiled(), "compiled,", check_refusals(), "refusals")
