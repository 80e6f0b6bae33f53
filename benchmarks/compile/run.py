#!/usr/bin/env python3
"""What a recipe costs to compile, by the number of its policies; prints one table.

    python benchmarks/compile/run.py [--compiler g++] [--include include] [--rounds 5]

Claim: a policy costs at most 25 milliseconds. Each program names an Engine of N policies that act on 8
events each, with order rules between neighbours, and fires all 40 events; beside it stands a program with
the same policies in which somebody has written the same calls by hand. No LibTorch is included, so the
difference is that of the recipe's checks and of the dispatch alone.
"""
import argparse
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

COUNTS = [0, 1, 8, 27, 32]
MOST = 25.0
EVENTS = ["Init", "FitStart", "BatchStart", "BeforeForward", "AfterLoss", "AfterBackward", "BatchEnd",
          "EvalEnd"]


def program(count, by_hand):
    lines = ["#include <tutti/core/engine.hpp>", "extern volatile int effect;"]
    for i in range(count):
        lines.append(f"struct P{i} final {{")
        lines.append("  using events = tutti::types<" + ", ".join("tutti::" + e for e in EVENTS) + ">;")
        if i > 0:
            lines.append(f"  using runs_after = tutti::types<P{i - 1}>;")
        lines += [f"  void apply(tutti::{e}, tutti::State&) {{ effect = {i}; }}" for e in EVENTS]
        lines.append("};")
    if by_hand:
        lines.append("void run(" + "".join(f"P{i}& p{i}, " for i in range(count)) + "tutti::State& s) {")
        lines += [f"  p{i}.apply(tutti::{e}{{}}, s);" for e in EVENTS for i in range(count)]
        lines += ["  static_cast<void>(s);", "}"]
    else:
        names = ", ".join(f"P{i}" for i in range(count))
        lines.append(f"using Engine = tutti::Engine<{names}>;")
        lines.append("template <class... Es>")
        lines.append("void all(Engine& e, tutti::State& s, tutti::types<Es...>) { (e.fire<Es>(s), ...); }")
        lines.append("void run(Engine& e, tutti::State& s) { all(e, s, tutti::all_events{}); }")
    return "\n".join(lines) + "\n"


def measure(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[:3000]}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", action="append", default=[])
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    includes = [f"-I{path}" for path in arguments.include or [str(root / "include")]]
    compilers = arguments.compiler or ["g++"]
    print("| compiler | policies | CPU seconds, median | deviation | by hand | difference | a policy |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for compiler in compilers:
            version = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True).stdout.strip()
            times = {(count, by_hand): [] for count in COUNTS for by_hand in (True, False)}
            for _ in range(arguments.rounds):
                for count, by_hand in times:
                    source = pathlib.Path(folder) / "recipe.cpp"
                    source.write_text(program(count, by_hand))
                    command = [compiler, "-std=c++20", "-O0", *includes, "-c", str(source), "-o", "/dev/null"]
                    times[count, by_hand].append(measure(command))
            for count in COUNTS:
                ours, theirs = (statistics.median(times[count, by_hand]) for by_hand in (False, True))
                spread = statistics.stdev(times[count, False]) if arguments.rounds > 1 else 0.0
                each = 1000 * (ours - theirs) / count if count else 0.0
                worst = max(worst, each if count >= 8 else 0.0)
                print(f"| {pathlib.Path(compiler).name} {version} | {count} | {ours:.2f} | {spread:.2f} | "
                      f"{theirs:.2f} | {ours - theirs:+.2f} | {f'{each:.1f} ms' if count else ''} |")
    print(f"\n{'holds' if worst <= MOST else 'FAILS'}: a policy costs at most {MOST} ms; the most seen with 8 or "
          f"more is {worst:.1f} ms. n = {arguments.rounds}.")
    sys.exit(0 if worst <= MOST else 1)


if __name__ == "__main__":
    main()
