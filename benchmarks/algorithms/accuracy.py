#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each algorithm does to a short run, alone and in recipes, over seeds; prints the tables of docs/zoo.md.

    python benchmarks/algorithms/accuracy.py --program build/bench/benchmarks/benchmark_accuracy --runs FOLDER/runs.jsonl \\
        --cifar train_4k.bin test_1k.bin --text input.txt [--seeds 5] [--jobs 2] [--svg docs/zoo_algorithms.svg]

--cifar: records of CIFAR-10's binary files, to train on and to test with. --runs: every run is a line there, and what has a line is
not run again. --jobs: runs side by side, one thread each; time is a process's CPU time. A difference is taken seed by seed from the
same run without the algorithm (in a recipe: from the whole recipe), so that its error is that of the differences' mean.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

MILD = ["ProgressiveResizing", "LabelSmoothing", "BlurPool", "ChannelsLast", "EMA"]
MEDIUM = [*MILD, "MixUp", "SAM"]
HOT = [*MEDIUM, "RandAugment", "ColOut", "StochasticDepth"]
RECIPES = {"mild": MILD, "medium": MEDIUM, "hot": HOT}
# What is trained: its algorithms, one by one, and the epochs.
KINDS = {
    "images": (["AugMix", "BlurPool", "ChannelsLast", "ColOut", "CutMix", "CutOut", "EMA", "Factorize", "GhostBatchNorm",
                "GradientClipping", "GyroDropout", "LabelSmoothing", "LayerFreezing", "MixUp", "ProgressiveResizing", "RandAugment",
                "SAM", "SelectiveBackprop", "SqueezeExcite", "StochasticDepth", "SWA", "WeightStandardization"], 10),
    "half": (["LowPrecisionGroupNorm", "LowPrecisionLayerNorm"], 2),
    "text": (["ALiBi", "SeqLengthWarmup"], 2),
    "masked": (["GatedLinearUnits"], 4),
}
TITLES = {"images": "residual network, images", "half": "the same in `amp_bf16`", "text": "GPT-2, text", "masked": "BERT, text"}


def plans():
    """(names, kind, epochs) of all runs; those that others are compared with come first."""
    for kind, (algorithms, epochs) in KINDS.items():
        for name in ["none", *algorithms]:
            yield name, kind, epochs
    epochs = KINDS["images"][1]
    for recipe in RECIPES.values():
        yield "+".join(recipe), "images", epochs
    for name in HOT:
        yield without(name), "images", epochs


def without(name):
    return "+".join(other for other in HOT if other != name)


def run(arguments, plan, seed):
    names, kind, epochs = plan
    files = arguments.cifar if kind in ("images", "half") else [arguments.text]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [arguments.program, names, kind, str(seed), str(epochs), *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    value = found.get("MulticlassAccuracy")
    return {"names": names, "kind": kind, "epochs": epochs, "seed": seed, "seconds": found["seconds"],
            "value": 100 * value if value is not None else found["LanguageCrossEntropy"]}


def mean_and_error(values):
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


class Results:
    def __init__(self, path):
        self.of = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            self.add(json.loads(line))

    def add(self, found):
        self.of.setdefault((found["names"], found["kind"], found["epochs"]), {})[found["seed"]] = found

    def has(self, plan, seed):
        return seed in self.of.get(plan, {})

    def values(self, plan, what):
        return [found[what] for _, found in sorted(self.of[plan].items())]

    def row(self, title, plan, base):
        """A row: the value, its difference from the base's with its error, and time as a ratio."""
        mean, error = mean_and_error(self.values(plan, "value"))
        digits = 1 if plan[1] in ("images", "half") else 3
        cells = [title, f"{mean:.{digits}f} ± {error:.{digits}f}"]
        seconds = statistics.mean(self.values(plan, "seconds"))
        if plan == base:
            return f"| {' | '.join(cells)} | | {seconds:.1f} s |"
        pairs = [a - b for a, b in zip(self.values(plan, "value"), self.values(base, "value"))]
        gain, error = mean_and_error(pairs)
        ratio = seconds / statistics.mean(self.values(base, "seconds"))
        sure = abs(gain) > 2 * error
        shown = f"{gain:+.{digits}f} ± {error:.{digits}f}"
        return f"| {' | '.join(cells)} | {f'**{shown}**' if sure else shown} | {ratio:.2f} |"


def draw(path, results, kind="images"):
    """Points of accuracy against CPU time with error bars, one for each algorithm and recipe."""
    algorithms, epochs = KINDS[kind]
    named = {name: (name, kind, epochs) for name in ["none", *algorithms]}
    named.update({recipe: ("+".join(names), kind, epochs) for recipe, names in RECIPES.items()})
    points = {name: (*mean_and_error(results.values(plan, "seconds")), *mean_and_error(results.values(plan, "value")))
              for name, plan in named.items()}
    left, top, width, height = 60, 20, 720, 420
    xs, ys = [p[0] for p in points.values()], [p[2] for p in points.values()]
    x_low, x_high, y_low, y_high = 0.0, 1.15 * max(xs), math.floor(min(ys) - 2), math.ceil(max(ys) + 2)

    def at(x, y):
        return left + width * (x - x_low) / (x_high - x_low), top + height * (y_high - y) / (y_high - y_low)

    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="800" height="490" font-family="sans-serif" font-size="11">',
           '<rect width="800" height="490" fill="white"/>']
    for value in range(y_low, y_high + 1, max(1, (y_high - y_low) // 8)):
        _, y = at(0, value)
        out += [f'<line x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>',
                f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{value}</text>']
    step = max(1, round(x_high / 8))
    for value in range(0, math.floor(x_high) + 1, step):
        x, _ = at(value, y_low)
        out.append(f'<text x="{x:.0f}" y="{top + height + 18}" text-anchor="middle">{value}</text>')
    taken = []
    for name, (seconds, seconds_error, value, error) in sorted(points.items(), key=lambda item: -item[1][2]):
        colour = "#d62728" if name in RECIPES else "#2ca02c" if name == "none" else "#1f77b4"
        x, y = at(seconds, value)
        _, low = at(seconds, value - error)
        _, high = at(seconds, value + error)
        text_y = y + 4
        while any(abs(text_y - other_y) < 11 and abs(x - other_x) < 120 for other_x, other_y in taken):
            text_y += 4
        taken.append((x, text_y))
        out += [f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}" stroke-opacity="0.5"/>',
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>',
                f'<text x="{x + 6:.1f}" y="{text_y:.1f}" fill="{colour}">{name}</text>']
    out += [f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">CPU seconds of the run</text>',
            f'<text x="16" y="{top + height / 2}" transform="rotate(-90 16 {top + height / 2})" text-anchor="middle">'
            "accuracy on the test images, %</text></svg>"]
    pathlib.Path(path).write_text("\n".join(out) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--runs", required=True, type=pathlib.Path)
    parser.add_argument("--cifar", nargs=2, required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--svg")
    arguments = parser.parse_args()
    results = Results(arguments.runs)
    wanted = [(plan, seed) for seed in range(1, arguments.seeds + 1) for plan in plans() if not results.has(plan, seed)]
    with arguments.runs.open("a") as file, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, arguments, *one) for one in wanted]):
            results.add(done.result())
            file.write(json.dumps(done.result()) + "\n")
            file.flush()

    for kind, (algorithms, epochs) in KINDS.items():
        unit = "accuracy, %" if kind in ("images", "half") else "loss"
        print(f"\n| {TITLES[kind]}, {epochs} epochs | {unit} | difference | time |\n|---|---:|---:|---:|")
        for name in ["none", *algorithms]:
            print(results.row(name, (name, kind, epochs), ("none", kind, epochs)))
        if kind == "images":
            for recipe, names in RECIPES.items():
                print(results.row(recipe, ("+".join(names), kind, epochs), ("none", kind, epochs)))
    epochs = KINDS["images"][1]
    hot = ("+".join(HOT), "images", epochs)
    print("\n| `hot` | accuracy, % | difference | time |\n|---|---:|---:|---:|")
    print(results.row("whole", hot, hot))
    for name in HOT:
        print(results.row(f"without {name}", (without(name), "images", epochs), hot))
    if arguments.svg:
        draw(arguments.svg, results)


if __name__ == "__main__":
    sys.exit(main())
