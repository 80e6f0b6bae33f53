#!/usr/bin/env python3
"""Encoding text in tutti and by Hugging Face's tokenizers (Rust); prints one table.

    python benchmarks/text/run.py --program build/bench/benchmarks/benchmark_tokenizer --python venv/bin/python TEXT...

--python: an interpreter with tokenizers. A byte-level BPE of GPT-2's form and size is trained on the texts; then each text, repeated
or cut to 10 MB, is encoded whole and line by line as a batch, by both sides in alternating processes, one thread, CPU time. The exit code
is 1 when a claim fails or the numbers of tokens differ.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

SIDE = str(pathlib.Path(__file__).with_name("tokenizers_side.py"))
ENVIRONMENT = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
SIZE = 10_000_000


def run(*command):
    return json.loads(subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = os.path.join(folder, "tokenizer.json")
        size = run(arguments.python, SIDE, "train", tokenizer, *map(str, arguments.texts))["vocabulary"]
        print(f"n = {arguments.rounds} processes each, alternating; {size} tokens in the vocabulary; one thread, CPU time\n")
        print("| text of 10 MB | tokenizers, s | tutti, s | ratio |\n|---|---:|---:|---:|")
        claims = []
        for path in arguments.texts:
            text = path.read_text(encoding="utf-8", errors="ignore")
            text = (text * (SIZE // len(text) + 1))[:SIZE]
            cut = os.path.join(folder, "text")
            pathlib.Path(cut).write_text(text, encoding="utf-8", newline="")
            sides = {"ours": (arguments.program, tokenizer, cut), "theirs": (arguments.python, SIDE, "encode", tokenizer, cut)}
            got = {side: [] for side in sides}
            for number in range(arguments.rounds):
                for side in list(sides)[:: 1 if number % 2 == 0 else -1]:
                    got[side].append(run(*sides[side]))
            for what, title, bar in (("whole", "whole", 1.0), ("lines", "as a batch of lines", 1.5)):
                ours, theirs = (statistics.median(one[what] for one in got[side]) for side in ("ours", "theirs"))
                print(f"| {path.name}, {title} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.1f} |")
                claims.append((f"{path.name}, {title}: tokenizers / tutti", theirs / ours, bar))
            for what in ("whole_tokens", "line_tokens"):
                if got["ours"][0][what] != got["theirs"][0][what]:
                    print(f"FAILS: {path.name}, {what}: {got['ours'][0][what]} here, {got['theirs'][0][what]} there")
                    failed = True
    print()
    for what, value, bar in claims:
        failed |= value < bar
        print(f"{'holds' if value >= bar else 'FAILS'}: {what} = {value:.1f}, claimed at least {bar}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
