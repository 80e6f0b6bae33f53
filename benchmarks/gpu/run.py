#!/usr/bin/env python3
"""ResNet-50 on images of 224 x 224 and GPT-2 of 124 million parameters on a GPU, in bfloat16: tutti, PyTorch eager and torch.compile;
prints one table.

    python benchmarks/gpu/run.py --program build/bench/benchmarks/benchmark_gpu [--python python3] [--rounds 2] [--only resnet50]
        [--device cuda] [--peak 989e12] [--batch 256 --size 224] [--warm-up 20] [--steps 80]

--python needs torch, torchvision and transformers. Processes alternate; a figure is the median over rounds. The clock is on the wall, and
the device has done what it was given when it is read. --peak: the device's floating-point operations a second in bfloat16, for the share of
them that training uses (MFU): 6 for each parameter and token, and attention's 12 * layers * width * length for each token. --batch and --size
are for a smaller device; with --device cpu and small ones it only shows that everything runs. The exit code is 1 when a claim fails.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

# Name: title, batch, size, the peers' name of it.
RUNS = {"resnet50": ("ResNet-50, Normalize + ChannelsLast", 256, 224, "resnet50"),
        "resnet50_graphs": ("the same with cuda_graphs = true", 256, 224, "resnet50"),
        "gpt2": ("GPT-2 124M", 16, 1024, "gpt2"),
        "gpt2_graphs": ("the same with cuda_graphs = true", 16, 1024, "gpt2"),
        "gpt2_recipe": ("GPT-2 124M, GradientClipping + EMA", 16, 1024, "gpt2_recipe")}
PARAMETERS, LAYERS, WIDTH = 124_439_808, 12, 768


def measure(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def device_name(python, device):
    if device == "cpu":
        return "the CPU"
    code = "import torch; print(torch.cuda.get_device_name(), 'CUDA', torch.version.cuda)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", action="append", choices=RUNS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peak", type=float, default=989e12)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--steps", type=int, default=80)
    arguments = parser.parse_args()

    names = arguments.only or list(RUNS)
    side = [arguments.python, str(pathlib.Path(__file__).with_name("pytorch_side.py"))]
    commands = {}
    for name in names:
        _, batch, size, peer = RUNS[name]
        numbers = [str(n) for n in (arguments.batch or batch, arguments.size or size, arguments.warm_up, arguments.steps)]
        commands["tutti", name] = [arguments.program, name, arguments.device, *numbers]
        for mode in ("eager", "compile"):
            commands[mode, peer] = [*side, mode, peer, arguments.device, *numbers]
    answers = {key: [] for key in commands}
    for index in range(arguments.rounds):
        for key in list(commands) if index % 2 == 0 else reversed(list(commands)):
            answers[key].append(measure(commands[key]))

    print(f"{device_name(arguments.python, arguments.device)}; n = {arguments.rounds} processes each, alternating; bf16 under autocast\n")
    print("| run | in | examples/s, median | range | tokens/s | MFU | × tutti | torch |\n|---|---|---:|---:|---:|---:|---:|---|")
    claims = []
    for name in names:
        title, _, length, peer = RUNS[name]
        rows = {"tutti": answers["tutti", name]}
        if name == peer:
            rows |= {"PyTorch eager": answers["eager", peer], "PyTorch, torch.compile": answers["compile", peer]}
        ours = statistics.median(a["per_second"] for a in rows["tutti"])
        for where, found in rows.items():
            rates = [a["per_second"] for a in found]
            rate = statistics.median(rates)
            text = " | "
            if peer != "resnet50":
                length = arguments.size or length
                tokens = rate * length
                used = tokens * (6 * PARAMETERS + 12 * LAYERS * WIDTH * length) / arguments.peak
                text = f"{tokens:,.0f} | {used:.3f}"
            print(f"| {title} | {where} | {rate:,.1f} | {min(rates):,.1f} to {max(rates):,.1f} | {text} | {ours / rate:.2f} | "
                  f"{found[0]['torch']} |")
        best = max(statistics.median(a["per_second"] for a in answers[mode, peer]) for mode in ("eager", "compile"))
        eager = statistics.median(a["per_second"] for a in answers["eager", peer])
        claims += [(f"{title}: tutti / PyTorch eager", ours / eager), (f"{title}: tutti / the faster of PyTorch's", ours / best)]
    print()
    for what, value in claims:
        print(f"{'holds' if value >= 1 else 'FAILS'}: {what} = {value:.2f}, claimed at least 1")
    sys.exit(any(value < 1 for _, value in claims))


if __name__ == "__main__":
    main()
