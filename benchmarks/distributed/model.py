#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step time and memory of large models on 8 to 1,024 GPUs, from constants that are stated, for docs/scaling.md.

    python benchmarks/distributed/model.py                        the tables, and the plots in docs/
    python benchmarks/distributed/model.py --check FIGURES.jsonl  its memory, bytes and times against what run.py measured

A step is the sum of what cannot be done at once: compute, and messages as far as they are longer than the compute that they go with.
All-gather and reduce-scatter of N bytes by W ranks take (W - 1) a + N (W - 1) / (W b), all-reduce twice that, with a the latency and b the
bytes per second of a rank. Ranks of one machine have the machine's links, others the network's.
"""
import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import plot  # noqa: E402

DOCS = os.path.join(HERE, "..", "..", "docs")
STAGES = ("none", "optimizer", "gradients", "parameters")
NAMES = {"none": "DDP", "optimizer": "ZeRO-1", "gradients": "ZeRO-2", "parameters": "ZeRO-3", "hybrid": "hybrid, 8 a copy"}


class Model:
    """A decoder: parameters of a block and of what is outside of blocks."""

    def __init__(self, name, layers, width, vocabulary, feed_forward, heads, kv_heads, tied, gated, positions=0):
        self.name, self.layers, self.width, self.vocabulary = name, layers, width, vocabulary
        kv = width * kv_heads // heads
        if gated:  # Llama: no biases
            self.block = 2 * width * width + 2 * width * kv + 3 * width * feed_forward + 2 * width
            norm = width
        else:  # GPT-2
            self.block = 4 * width * width + 4 * width + 2 * width * feed_forward + feed_forward + width + 4 * width
            norm = 2 * width
        self.root = vocabulary * width * (1 if tied else 2) + positions * width + norm
        self.matrices = layers * (2 * width * width + 2 * width * kv + (3 if gated else 2) * width * feed_forward) + vocabulary * width
        self.elements = layers * self.block + self.root


MODELS = [
    Model("GPT-2 1.5B", 48, 1600, 50257, 6400, 25, 25, True, False, 1024),
    Model("Llama 8B", 32, 4096, 128256, 14336, 32, 8, False, True),
    Model("Llama 70B", 80, 8192, 128256, 28672, 64, 8, False, True),
]


class Machine:
    """What a GPU computes and what its links carry. The defaults are a machine of eight H100 with NVLink and 400 Gbit/s a GPU: its data
    sheet times what collectives and large models are commonly reported to reach of it."""

    def __init__(self, flops=989e12 * 0.45, ranks=8, inside=450e9 * 0.8, inside_latency=5e-6, network=50e9 * 0.8, network_latency=15e-6,
                 memory=80e9):
        self.flops, self.ranks, self.memory = flops, ranks, memory
        self.inside, self.inside_latency, self.network, self.network_latency = inside, inside_latency, network, network_latency

    def link(self, size, stride):
        """Latency and bytes a second among `size` ranks that are `stride` apart."""
        if (size - 1) * stride < self.ranks:
            return self.inside_latency, self.inside
        return self.network_latency, self.network

    def gather(self, size, whole, stride=1):
        """Seconds of an all-gather or a reduce-scatter of `whole` bytes."""
        if size == 1 or whole == 0:
            return 0.0
        latency, rate = self.link(size, stride)
        return (size - 1) * latency + whole * (size - 1) / (size * rate)


class Plan:
    """One way to train: `world` ranks, copies of `degree` ranks, tensors over `tensor` ranks. kept: so many ranks
    keep a block together between its passes (reshard_after_forward), 0: all of a copy. bytes: of a parameter while it computes, of a
    gradient in a message, of what the optimizer has for an element."""

    def __init__(self, model, world, stage, degree=0, tensor=1, kept=0, compute=2, reduce=4, own=4, state=8, overlap=True):
        self.overlap = overlap  # reductions with the backward pass, as on GPUs
        self.model, self.world, self.stage, self.tensor = model, world, stage, tensor
        self.data = world // tensor
        self.ranks = 1 if stage == "none" else degree or self.data
        self.copies = self.data // self.ranks
        self.kept = kept or self.ranks
        self.compute, self.reduce, self.own, self.state = compute, reduce, own, state

    def memory(self):
        """Bytes between steps and the most within one, beside activations; dist::memory_plan computes the same from a model."""
        block, root, layers = self.model.block / self.tensor, self.model.root / self.tensor, self.model.layers
        whole = block * layers + root
        part = whole / self.ranks
        mixed = self.compute != self.own
        if self.stage == "none":
            gradients = whole * self.compute
            between = whole * (self.compute + (self.own if mixed else 0)) + gradients + whole * self.state
            return between, between
        kept = whole if self.stage != "parameters" else root
        shards = part if mixed or self.stage == "parameters" else 0
        if self.stage == "parameters" and not mixed:
            shards = part - root / self.ranks  # the root's part lies in the root
        base = kept * self.compute + shards * self.own + part * self.state
        between = base + part * self.own
        packed = block * self.compute / self.ranks if mixed else 0
        message, out = block * self.reduce, block * self.reduce / self.ranks
        now = most = 0.0

        def take(size):
            nonlocal now, most
            now += size
            most = max(most, now)

        piece = block * self.compute / self.kept if self.stage == "parameters" and self.kept < self.ranks else 0
        if self.stage == "parameters":  # forward: a unit, and the next one on its way
            most = 2 * block * self.compute + packed + layers * piece
        now = layers * piece
        take(root * self.compute)  # the gradient of the root
        pending = 0.0
        for i in range(layers):
            ahead = block * self.compute + packed if self.stage == "parameters" and i + 1 < layers else 0
            if self.stage == "parameters":
                take(2 * block * self.compute + packed)
                now -= block * self.compute + packed + piece
            take(ahead + block * self.compute)
            now -= block * self.compute if self.stage == "parameters" else 0
            if self.stage != "optimizer":
                now -= pending
                take(out + message)
                pending = message - (block * self.own / self.ranks - out)
                now -= block * self.compute
                if not self.overlap:
                    now, pending = now - pending, 0.0
            now -= ahead
        now -= pending
        if self.stage == "optimizer":
            for _ in range(layers):
                take(out + message)
                now -= message + block * self.compute
        take(root * self.reduce * (1 + 1 / self.ranks))
        return between, base + most

    def sent(self):
        """Bytes that a rank sends in a step of one microbatch, tensor parallelism apart."""
        block, root, layers = self.model.block / self.tensor, self.model.root / self.tensor, self.model.layers
        whole = block * layers + root
        ring = lambda size, ranks: size * (ranks - 1) / ranks  # noqa: E731
        if self.stage == "none":
            return 2 * ring(whole * self.compute, self.data)
        again = ring(block * layers * self.compute, self.kept) if self.stage == "parameters" else 0
        return (ring(whole * self.reduce, self.ranks) + 2 * ring(whole * self.reduce / self.ranks, self.copies) +
                ring(whole * self.compute, self.ranks) + again)

    def step(self, machine, tokens, length):
        """Seconds of a step of `tokens` tokens a data-parallel rank, and the seconds of compute in it. Blocks are computed again in the
        backward pass, as one does with models of this size."""
        model, layers = self.model, self.model.layers
        block, root = model.block / self.tensor, model.root / self.tensor
        flops = 2 * tokens * model.matrices / self.tensor + 2 * tokens * length * model.width * layers / self.tensor
        forward = flops / machine.flops
        backward = 3 * forward  # of which one is the forward pass again
        compute = forward + backward
        extra = 0.0
        if self.tensor > 1:  # sums of activations: two forward, two computed again, two backward
            extra = 6 * layers * 2 * machine.gather(self.tensor, tokens * model.width * 2)
        stride = self.tensor
        if self.stage == "none":
            reduce = 2 * machine.gather(self.data, (block * layers + root) * self.compute, stride)
            last = 2 * machine.gather(self.data, root * self.compute, stride)
            return compute + extra + max(0.0, reduce - last - backward) + last, compute

        def averaged(size):
            inside = machine.gather(self.ranks, size * self.reduce, stride)
            return inside + 2 * machine.gather(self.copies, size * self.reduce / self.ranks, stride * self.ranks)

        gather_block = machine.gather(self.ranks, block * self.compute, stride)
        gather_root = machine.gather(self.ranks, root * self.compute, stride)
        if self.stage == "parameters":
            ahead = max(forward / layers, gather_block)
            gather_again = machine.gather(self.kept, block * self.compute, stride)
            back = max(backward / layers, gather_again + averaged(block))
            return extra + gather_block + layers * (ahead + back) + averaged(block) + averaged(root) + gather_root, compute
        behind = layers * gather_block + gather_root  # parameters after the step
        if self.stage == "gradients":
            return compute + extra + max(0.0, layers * averaged(block) - backward) + averaged(root) + behind, compute
        return compute + extra + layers * averaged(block) + averaged(root) + behind, compute


def activations(model, tokens, tensor):
    """Bytes with blocks computed again: the input of each block, one block's inside, and logits of 4,096 tokens in bf16 and fp32."""
    chunk = min(tokens, 4096)  # of which the logits are there at once
    return 2 * tokens * model.width * model.layers + 34 * tokens * model.width / tensor + 6 * chunk * model.vocabulary / tensor


def ways(model, world):
    for stage in STAGES:
        yield NAMES[stage], Plan(model, world, stage, compute=4 if stage == "none" else 2)  # DDP with autocast: all in fp32 but the kernels
    if world > 8:
        yield "ZeRO-3, 8 keep blocks", Plan(model, world, "parameters", kept=8)
        yield NAMES["hybrid"], Plan(model, world, "parameters", degree=8)
    if world >= 8:
        yield "ZeRO-3, tensors over 8", Plan(model, world, "parameters", tensor=8)


def tables(machine, tokens, length):
    out = []
    for model in MODELS:
        out.append(f"**{model.name}**, {model.elements / 1e9:.2f} billion parameters:\n")
        out.append("| GPUs | " + " | ".join(name for name, _ in ways(model, 1024)) + " |")
        out.append("|" + "---|" * (1 + len(list(ways(model, 1024)))))
        for world in (8, 32, 128, 512, 1024):
            cells = dict.fromkeys((name for name, _ in ways(model, 1024)), "-")
            for name, plan in ways(model, world):
                peak = plan.memory()[1] + activations(model, tokens, plan.tensor)
                seconds, compute = plan.step(machine, tokens, length)
                cells[name] = f"{compute / seconds:.0%}, {peak / 1e9:.0f} GB" if peak <= machine.memory else f"no: {peak / 1e9:.0f} GB"
            out.append(f"| {world} | " + " | ".join(cells.values()) + " |")
        out.append("")
    return "\n".join(out)


def plots(machine, tokens, length):
    worlds = (8, 16, 32, 64, 128, 256, 512, 1024)
    model = MODELS[1]
    shares, memory = {}, {}
    for name in (*(NAMES[stage] for stage in STAGES), NAMES["hybrid"]):
        found = {world: dict(ways(model, world)).get(name) or Plan(model, world, "parameters") for world in worlds}
        shares[name] = {world: 100 * plan.step(machine, tokens, length)[1] / plan.step(machine, tokens, length)[0] for world, plan in found.items()}
        memory[name] = {world: plan.memory()[1] / 1e9 for world, plan in found.items()}
    plot.line_chart(os.path.join(DOCS, "scaling_time.svg"), shares, "GPUs", f"compute, % of a step of {model.name}", log_x=True)
    plot.line_chart(os.path.join(DOCS, "scaling_memory.svg"), memory, "GPUs", f"GB a GPU beside activations, {model.name}", log_x=True)


def check(path):
    """Prints what run.py measured over what this file says; the times from the constants that the figures themselves give."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.strip()]
    print("| stage | ranks | between steps, MB | after forward, measured | peak, MB | measured | sent by all, MB | measured |")
    print("|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for line in lines:
        layers = (line["elements"] - line["root"]) // line["largest_unit"]
        model = Model("measured", layers, 64, 1, 64, 1, 1, True, False)
        model.block, model.root = line["largest_unit"], line["root"]
        plan = Plan(model, line["ranks"], line["stage"], compute=4, reduce=4, own=4, state=8, overlap=False)
        between, peak = plan.memory()
        worst = max(worst, abs(line["plan_between_steps"] / between - 1), abs(line["plan_peak"] / peak - 1))  # dist::memory_plan
        before_gradients = between  # DDP's buckets stay
        if line["stage"] != "none" or line["ranks"] == 1:
            before_gradients -= 4 * line["elements"] / line["ranks"]
        sent = plan.sent() * line["ranks"]
        worst = max(worst, abs(line["peak"] / peak - 1), abs(line["sent"] / sent - 1) if sent else 0)
        print(f"| `{line['stage']}` | {line['ranks']} | {between / 1e6:.1f} | {line['after_forward'] / before_gradients:.3f} | {peak / 1e6:.1f} | "
              f"{line['peak'] / peak:.3f} | {sent / 1e6:.1f} | {line['sent'] / sent if sent else 1:.3f} |")
    print(f"\nworst: {worst:.1%}")
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="FIGURES.jsonl")
    parser.add_argument("--tokens", type=int, default=16384, help="of a data-parallel rank in a step")
    parser.add_argument("--length", type=int, default=2048, help="of a sequence")
    arguments = parser.parse_args()
    if arguments.check:
        sys.exit(check(arguments.check) > 0.1)
    print(tables(Machine(), arguments.tokens, arguments.length))
    plots(Machine(), arguments.tokens, arguments.length)


if __name__ == "__main__":
    main()
