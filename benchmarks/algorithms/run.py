#!/usr/bin/env python3
"""What each algorithm adds to a training step in tutti and in Composer; prints one table of ratios.

    python benchmarks/algorithms/run.py --program build/bench/benchmarks/benchmark_algorithms \
        --python venv/bin/python --allocator libtcmalloc_minimal.so.4 [--rounds 5] [--only MixUp --only SAM] [--cards docs/algorithms]

Claim, for each of the 27 algorithms: what it adds in tutti is at most half of what it adds in Composer.
The exit code is 1 when it FAILS for one. Added is the step with the algorithm less the step without, on
tensors of the size that the network sees with it: a process trains without, with, with and without it,
each the median of 6 blocks of 10 steps. Processes of both sides alternate, n rounds, every second one in
reverse. --cards writes what each adds into its method card. There is no ratio where what it adds in Composer is within the noise, twice the standard error
over rounds. CPU time, one thread, fp32; Composer has a fused optimizer, no metrics (nor has tutti), and --allocator preloaded,
since tutti keeps memory itself.

The environment of Composer: python -m venv venv; venv/bin/pip install mosaicml==0.32.1 torch==2.7.0 \
torchvision==0.22.0 transformers==4.53.3.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
# algorithm: what it is trained on, and the same without it; None: a function of images, added whole
ALGORITHMS = {
    "ALiBi": ("bert", "bert_reshaped"),
    "AugMix": ("image", None),
    "BlurPool": ("small", "small"),
    "ChannelsLast": ("small", "small"),
    "ColOut": ("small", "small_cut"),
    "CutMix": ("small", "small"),
    "CutOut": ("small", "small"),
    "EMA": ("small", "small"),
    "Factorize": ("small", "small"),
    "GatedLinearUnits": ("bert", "bert"),
    "GhostBatchNorm": ("batch_norm", "batch_norm"),
    "GradientClipping": ("small", "small"),
    "GyroDropout": ("small", "small"),
    "LabelSmoothing": ("small", "small"),
    "LayerFreezing": ("small_epochs", "small_epochs"),
    "LowPrecisionGroupNorm": ("small", "small"),
    "LowPrecisionLayerNorm": ("small", "small"),
    "MixUp": ("small", "small"),
    "ProgressiveResizing": ("small", "small_resized"),
    "RandAugment": ("image", None),
    "SAM": ("small", "small"),
    "SelectiveBackprop": ("small", "small_chosen"),
    "SeqLengthWarmup": ("bert", "bert_shortened"),
    "SqueezeExcite": ("small", "small"),
    "StochasticDepth": ("resnet", "resnet"),
    "SWA": ("small", "small"),
    "WeightStandardization": ("small", "small"),
}
BAR = 0.5
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
               "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}


class Tutti:
    def __init__(self, program):
        self.program = program

    def measure(self, asked):
        done = subprocess.run([self.program, *asked], env=ENVIRONMENT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{self.program} {' '.join(asked)} failed:\n{done.stderr}")
        return json.loads(done.stdout.strip().splitlines()[-1])


class Composer:
    """One process that has imported Composer, and forks a fresh one for each question."""

    def __init__(self, python, allocator):
        self.server = subprocess.Popen(
            [python, "-W", "ignore", str(HERE / "composer_side.py"), "--serve"],
            env={**ENVIRONMENT, "LD_PRELOAD": allocator}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def measure(self, asked):
        self.server.stdin.write(" ".join(asked) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        if not answer:
            sys.exit("composer_side.py ended; run it by hand to see why")
        return json.loads(answer)


def question(name, swapped):
    """With and without in turn, ABBA, so that a drift of the machine cancels out."""
    kind, baseline = ALGORITHMS[name]
    if baseline is None:
        return [name, kind] * 2
    with_it, without = [name, kind], ["none", baseline]
    return (with_it + 2 * without + with_it) if swapped else (without + 2 * with_it + without)


def answer(us, swapped):
    """(microseconds of a step without, microseconds added)."""
    if len(us) == 2:
        return 0.0, sum(us) / 2
    outer, inner = (us[0] + us[3]) / 2, (us[1] + us[2]) / 2
    return (inner, outer - inner) if swapped else (outer, inner - outer)


class Added:
    """What an algorithm added, over rounds. answers: (without, added) of each."""

    def __init__(self, answers):
        added = [us for _, us in answers]
        self.without = statistics.median(us for us, _ in answers)
        self.median = statistics.median(added)
        self.deviation = statistics.stdev(added) if len(added) > 1 else 0.0
        self.noise = 2 * self.deviation / len(added) ** 0.5  # twice the standard error

    def __str__(self):
        return f"{self.without:.0f} | {self.median:.1f} | {self.deviation:.1f}"


def verdict(ours, theirs):
    """The ratio, and whether the claim holds."""
    if theirs.median <= theirs.noise:  # there is nothing to be half of
        more = ours.median > max(ours.noise, theirs.median + theirs.noise)
        return "–", "FAILS, Composer's is within the noise" if more else "within the noise"
    ratio = max(ours.median, 0) / theirs.median
    if ratio <= BAR:
        return f"{ratio:.2f}", "holds"
    noise = (ours.noise ** 2 + (BAR * theirs.noise) ** 2) ** 0.5
    known = "" if ours.median - BAR * theirs.median > noise else ", but within the noise"
    return f"{ratio:.2f}", ("FAILS" if ratio <= 1 else "FAILS, more than Composer") + known


NETWORKS = {"small": "a small convolutional network", "batch_norm": "a small convolutional network",
            "resnet": "two bottleneck blocks", "bert": "a BERT of two layers"}


def write_cost(folder, name, ours):
    """The measured cost as the last line of "Effect and cost" of the card."""
    for card in folder.glob("*.md"):
        text = card.read_text()
        if text.splitlines()[0] != f"# {name}":
            continue
        kind, baseline = ALGORITHMS[name]
        if baseline is None:
            cost = f"{ours.median:.0f} µs for 16 images of 32 x 32"
        else:
            if ours.median > ours.noise:
                added = f"{ours.median:.0f} µs"
            elif ours.median < -ours.noise:
                added = f"{-ours.median:.0f} µs less than without,"
            else:
                added = f"less than {max(ours.median, 0) + ours.noise:.0f} µs, within the noise,"
            cost = f"{added} on a step of {ours.without:.0f} µs of {NETWORKS[kind.split('_ep')[0]]}"
        before, after = text.split("## Effect and cost\n")
        effect, rest = after.split("\n## ", 1)
        effect = re.sub(r"\n*Measured: .*\n", "\n", effect).rstrip()
        line = f"Measured: {cost}, one CPU thread ([method](../benchmark_method.md))."
        card.write_text(f"{before}## Effect and cost\n{effect}\n\n{line}\n\n## {rest}")
        return
    sys.exit(f"{folder} has no card of {name}")


def processor():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return f"{names[0]}, {len(names)} logical cores" if names else platform.processor()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--allocator", required=True, help="a library that keeps memory, to preload into Composer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=sorted(ALGORITHMS))
    parser.add_argument("--cards", type=pathlib.Path, help="folder of the method cards, to write the costs into")
    arguments = parser.parse_args()
    names = arguments.only or list(ALGORITHMS)
    sides = {"tutti": Tutti(arguments.program), "composer": Composer(arguments.python, arguments.allocator)}
    answers, absent, versions = {}, {}, {}
    for number in range(arguments.rounds):
        swapped = number % 2 == 1
        for name in reversed(names) if swapped else names:
            for side in reversed(sides) if swapped else sides:
                if name in absent:
                    continue
                got = sides[side].measure(question(name, swapped))
                if "absent" in got:
                    absent[name] = got["absent"]
                    continue
                versions[side] = ", ".join(f"{k} {v}" for k, v in got["versions"].items())
                without, added = answer(got["us"], swapped)
                answers.setdefault((side, name), []).append((without, added))
                print(f"round {number + 1}: {side} {name} {without:.0f} {added:+.0f}", file=sys.stderr,
                      flush=True)

    print(f"n = {arguments.rounds} rounds; µs of CPU time a step. tutti with {versions['tutti']}; "
          f"{versions.get('composer', 'no Composer')}. {processor()}.\n")
    print("| algorithm | tutti without | added | deviation | Composer without | added | deviation | ratio | "
          "at most half |\n|---|---:|---:|---:|---:|---:|---:|---:|---|")
    worst = []
    for name in names:
        if name in absent:
            print(f"| {name} | – | – | – | – | – | – | – | left out: {absent[name]} |")
            continue
        ours, theirs = (Added(answers[side, name]) for side in sides)
        ratio, holds = verdict(ours, theirs)
        print(f"| {name} | {ours} | {theirs} | {ratio} | {holds} |")
        if arguments.cards:
            write_cost(arguments.cards, name, ours)
        if holds.startswith("FAILS"):
            worst.append(name)
    print(f"\nFAILS: {', '.join(worst)}" if worst else "\nholds: no algorithm is known to add more than half")
    sys.exit(1 if worst else 0)


if __name__ == "__main__":
    main()
