#!/usr/bin/env python3
"""Language models in tutti and in Transformers: training steps, generated tokens, loading a folder; prints one table a kind.

    python benchmarks/language/run.py --program build/bench/benchmarks/benchmark_language --python peers/bin/python
                                      --allocator libtcmalloc_minimal.so.4 [--rounds 5] [--folder scratch]

--python: an interpreter with transformers. Both sides read the same folders, written by Transformers with random weights.
Processes of both sides alternate; one thread, fp32, CPU time. Transformers trains eager and with torch.compile, with a fused optimizer and
with --allocator preloaded, since tutti keeps memory itself. The exit code is 1 when a claim fails.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

SIDE = str(pathlib.Path(__file__).with_name("transformers_side.py"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
STEPS, TOKENS = 20, 128
MODELS = {"llama": "Llama, 4 layers, 256 wide, 8 heads over 4", "gpt2": "GPT-2, 4 layers, 256 wide"}


def measure(command, allocator=""):
    environment = {**ENVIRONMENT, **({"LD_PRELOAD": allocator} if allocator else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--allocator", required=True, help="a library that keeps memory, to preload into Transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=pathlib.Path, help="keeps the models there")
    arguments = parser.parse_args()
    scratch = tempfile.TemporaryDirectory()
    root = arguments.folder or pathlib.Path(scratch.name)
    for family in (*MODELS, "large_llama"):
        if not (root / family).exists():
            measure([arguments.python, SIDE, "make", family, str(root / family)])

    program, python = [arguments.program], [arguments.python, SIDE]
    ways = {}
    for family in MODELS:
        ways[family, "tutti"] = [*program, "train", str(root / family), str(STEPS)]
        for way in ("eager", "compiled"):
            ways[family, way] = [*python, "train", way, str(root / family), str(STEPS)]
    ways["generate", "tutti"] = [*program, "generate", str(root / "llama"), str(TOKENS)]
    ways["generate", "eager"] = [*python, "generate", str(root / "llama"), str(TOKENS)]
    ways["load", "tutti"] = [*program, "load", str(root / "large_llama")]
    got = {key: [] for key in ways}
    for number in range(arguments.rounds):
        for key, command in list(ways.items())[:: 1 if number % 2 == 0 else -1]:
            got[key].append(measure(command, "" if key[1] == "tutti" else arguments.allocator))
            print(*key, {k: v for k, v in got[key][-1].items() if k not in ("tokens", "by_position")}, file=sys.stderr, flush=True)

    def median(key, what="ms"):
        return statistics.median(one[what] for one in got[key])

    theirs = got["llama", "eager"][0]
    print(f"n = {arguments.rounds} processes each, alternating; a median of {STEPS} steps in each; one thread, fp32, CPU time; tutti with torch "
          f"{got['llama', 'tutti'][0]['torch']}, Transformers {theirs['transformers']} with torch {theirs['torch']}.\n")
    print("| training step, [8, 128] | tutti, ms | Transformers eager | ratio | torch.compile | ratio | last loss, both |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    claims = []
    for family, title in MODELS.items():
        ours, eager, compiled = (median((family, way)) for way in ("tutti", "eager", "compiled"))
        losses = got[family, "tutti"][0]["loss"], got[family, "eager"][0]["loss"]
        print(f"| {title} | {ours:.1f} | {eager:.1f} | {eager / ours:.2f} | {compiled:.1f} | {compiled / ours:.2f} | "
              f"{losses[0]:.5f}, {losses[1]:.5f} |")
        claims += [(f"{title}: Transformers eager / tutti", eager / ours, 1.2), (f"{title}: compiled / tutti", compiled / ours, 1.0)]
    ours, eager = median(("generate", "tutti")), median(("generate", "eager"))
    same = got["generate", "tutti"][0]["tokens"] == got["generate", "eager"][0]["tokens"]
    quarters = got["generate", "tutti"][len(got["generate", "tutti"]) // 2]["by_position"]
    print(f"\n{TOKENS} tokens, greedy: {ours:.1f} ms, `transformers.generate` {eager:.1f} ms; the same tokens: {'yes' if same else 'no'}. "
          f"A token in the four quarters: {', '.join(f'{us:.0f}' for us in quarters)} µs.")
    print(f"A folder of {median(('load', 'tutti'), 'bytes') / 1e6:.0f} MB: {median(('load', 'tutti')):.0f} ms, one memcpy of it "
          f"{median(('load', 'tutti'), 'copy_ms'):.0f} ms.\n")
    claims += [("generation, Transformers / tutti", eager / ours, 3.0)]
    failed = False
    for what, value, bar in claims:
        failed |= value < bar
        print(f"{'holds' if value >= bar else 'FAILS'}: {what} = {value:.2f}, claimed at least {bar}")
    for what, value, bar in (("cost of a token, last quarter / first", quarters[-1] / quarters[0], 1.2),
                             ("loading / memcpy", median(("load", "tutti")) / median(("load", "tutti"), "copy_ms"), 1.3)):
        failed |= value > bar
        print(f"{'holds' if value <= bar else 'FAILS'}: {what} = {value:.2f}, claimed at most {bar}")
    if not same:
        print("FAILS: the greedy tokens of both sides differ")
    sys.exit(1 if failed or not same else 0)


if __name__ == "__main__":
    main()
