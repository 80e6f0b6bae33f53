#!/usr/bin/env python3
"""What a recipe costs to compile, by the number of its policies; prints its tables and draws a plot.

    python benchmarks/compile/run.py [--compiler g++] [--include include] [--torch-include ...] [--rounds 5] [--plot out.svg]

Claims: the recipe headers alone compile in 0.3 seconds; 32 policies add at most 0.5 seconds; a Trainer with five algorithms
(trainer.cpp) in a program that links tutti::separate compiles in at most 1.25 times the loop by hand on torch/torch.h
(by_hand.cpp), and what it takes with headers alone is printed beside it; a policy costs at most 25 ms; as
tutti_add_program() compiles it, a program with four policies (recipe.cpp) takes at most 6 seconds from an edit to its
object file at -O0 and 9 at -O2, and README.md's first program (readme.cpp) at most 10 as a Release. Each program names an Engine of N policies that act on 8
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from plot import line_chart

COUNTS = [0, 1, 8, 27, 32]
MOST = 25.0
MOST_ALONE = 0.3
MOST_ADDED = 0.5
MOST_TRAINER = 1.25
MOST_EDIT = {"-O0": 6.0, "-O2": 9.0}
MOST_README = 10.0
SHARED = "#include <tutti/tutti.hpp>\n"  # what cmake/TuttiProgram.cmake precompiles
KEEPS_HEADERS = "--param=ggc-min-heapsize=1400000"  # what it gives GCC
EVENTS = ["Init", "FitStart", "BatchStart", "BeforeForward", "AfterLoss", "AfterBackward", "BatchEnd",
          "EvalEnd"]


def program(count, by_hand):
    lines = ["#include <tutti/core/engine.hpp>", "extern volatile int effect;"]
    for i in range(count):
        lines.append(f"struct P{i} final {{")
        lines.append("  using events = tutti::types<" + ", ".join("tutti::" + e for e in EVENTS) + ">;")
        if i > 0:
            lines.append(f"  static constexpr tutti::Rules rules{{.runs_after = {{{{tutti::id<P{i - 1}>}}}}}};")
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


def claim(holds, text):
    print(f"{'holds' if holds else 'FAILS'}: {text}")
    return holds


def programs(compiler, flags, root, rounds):
    """Medians of by_hand.cpp, of trainer.cpp as it links tutti::separate, and of the same with headers alone, in turns."""
    times = {"by_hand": ("by_hand", [], []),
             "separate": ("trainer", ["-DTUTTI_SEPARATE_COMPILATION"], []),
             "trainer": ("trainer", [], [])}
    for _ in range(rounds):
        for stem, more, seen in times.values():
            source = root / "benchmarks" / "compile" / f"{stem}.cpp"
            seen.append(measure([compiler, "-std=c++20", "-O0", *flags, *more, "-c", str(source), "-o", "/dev/null"]))
    return {name: (statistics.median(seen), statistics.stdev(seen) if rounds > 1 else 0.0) for name, (_, _, seen) in times.items()}


def is_clang(compiler):
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    return "clang" in said


def precompile(compiler, flags, folder):
    """Precompiles SHARED as CMake does. Returns what a compilation with it needs, the seconds that took, and bytes."""
    header = pathlib.Path(folder) / "shared.hxx"
    header.write_text("#pragma GCC system_header\n" + SHARED)
    source = pathlib.Path(folder) / "shared.cxx"  # as CMake does: the header is included by an empty source
    source.write_text("")
    if is_clang(compiler):
        made = header.with_suffix(".hxx.pch")
        taken = measure([compiler, "-std=gnu++20", *flags, "-Xclang", "-emit-pch", "-fpch-instantiate-templates", "-x",
                         "c++-header", "-Xclang", "-include", "-Xclang", str(header), "-c", str(source), "-o", str(made)])
        use = ["-Xclang", "-include-pch", "-Xclang", str(made), "-Xclang", "-include", "-Xclang", str(header)]
    else:
        made = header.with_suffix(".hxx.gch")
        taken = measure([compiler, "-std=gnu++20", *flags, "-x", "c++-header", "-include", str(header), "-c", str(source),
                         "-o", str(made)])
        use = ["-Winvalid-pch", "-include", str(header)]
    return use, taken, made.stat().st_size


def weak_functions(path):
    said = subprocess.run(["nm", str(path)], capture_output=True, text=True).stdout
    return sum(" W " in line for line in said.splitlines())


def edits(compiler, name, flags, root, rounds):
    """From an edit to the object file, beside torch/torch.h alone and the loop by hand. Prints a table and its claims."""
    here = root / "benchmarks" / "compile"
    ok = True
    print(f"\n| {name} | `torch/torch.h` alone, s | by hand, s | precompiled header, once, s | its MB | empty program "
          "with it, s | edit to object, s | deviation | functions | bar |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    for level, stem, bar in (("-O0", "recipe", MOST_EDIT["-O0"]), ("-O2", "recipe", MOST_EDIT["-O2"]),
                             ("-O3 -DNDEBUG", "readme", MOST_README)):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out.o"
            alone = pathlib.Path(folder) / "alone.cpp"
            alone.write_text("#include <torch/torch.h>\n")
            plain = [compiler, "-std=gnu++20", *level.split(), *flags]
            with_torch = measure([*plain, "-c", str(alone), "-o", str(out)])
            by_hand = measure([*plain, "-c", str(here / "by_hand.cpp"), "-o", str(out)])
            shared = [*level.split(), *flags, "-DTUTTI_SEPARATE_COMPILATION", *([] if is_clang(compiler) else [KEEPS_HEADERS])]
            use, once, size = precompile(compiler, shared, folder)
            alone.write_text("int main() {}\n")
            least = measure([compiler, "-std=gnu++20", *shared, *use, "-c", str(alone), "-o", str(out)])
            taken = [measure([compiler, "-std=gnu++20", *shared, *use, "-c", str(here / f"{stem}.cpp"), "-o", str(out)])
                     for _ in range(rounds)]
            edit, spread = statistics.median(taken), statistics.stdev(taken) if rounds > 1 else 0.0
            print(f"| {stem}.cpp, {level} | {with_torch:.1f} | {by_hand:.1f} | {once:.1f} | {size / 1e6:.0f} | {least:.1f} | {edit:.1f} "
                  f"| {spread:.1f} | {weak_functions(out):,} | {bar:.0f}: {'holds' if edit <= bar else 'missed'} |")
            ok &= edit <= bar
    return claim(ok, f"{name}: from an edit to the object file, the bars above")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", action="append", default=[])
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--torch-include", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot")
    parser.add_argument("--edits-only", action="store_true", help="only the times from an edit to the object file")
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    includes = [f"-I{path}" for path in arguments.include or [str(root / "include")]]
    compilers = arguments.compiler or ["g++"]
    if arguments.edits_only:
        flags = includes + [word for path in arguments.torch_include for word in ("-isystem", path)]
        names = [f"{pathlib.Path(c).name} {subprocess.run([c, '-dumpversion'], capture_output=True, text=True).stdout.strip()}"
                 for c in compilers]
        held = [edits(c, name, flags, root, arguments.rounds) for c, name in zip(compilers, names)]
        print(f"n = {arguments.rounds}")
        sys.exit(0 if all(held) else 1)
    print("| compiler | policies | CPU seconds, median | deviation | by hand | difference | a policy |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    worst, curves, lone, added = 0.0, {}, {}, {}
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
            name = f"{pathlib.Path(compiler).name} {version}"
            curves[name] = {count: statistics.median(times[count, False]) for count in COUNTS}
            added[name] = curves[name][32] - curves[name][0]
            source = pathlib.Path(folder) / "alone.cpp"
            source.write_text("#include <tutti/core/recipe.hpp>\n")
            command = [compiler, "-std=c++20", "-O0", *includes, "-c", str(source), "-o", "/dev/null"]
            lone[name] = statistics.median(measure(command) for _ in range(arguments.rounds))
            for count in COUNTS:
                ours, theirs = (statistics.median(times[count, by_hand]) for by_hand in (False, True))
                spread = statistics.stdev(times[count, False]) if arguments.rounds > 1 else 0.0
                each = 1000 * (ours - theirs) / count if count else 0.0
                worst = max(worst, each if count >= 8 else 0.0)
                print(f"| {pathlib.Path(compiler).name} {version} | {count} | {ours:.2f} | {spread:.2f} | "
                      f"{theirs:.2f} | {ours - theirs:+.2f} | {f'{each:.1f} ms' if count else ''} |")
    if arguments.plot:
        line_chart(arguments.plot, curves, "policies in the recipe", "CPU seconds to compile")
    print()
    ok = claim(worst <= MOST, f"a policy costs at most {MOST} ms; the most seen with 8 or more is {worst:.1f} ms")
    for name in curves:
        ok &= claim(lone[name] <= MOST_ALONE, f"{name}: recipe.hpp alone takes {lone[name]:.2f} s, at most {MOST_ALONE}")
        ok &= claim(added[name] <= MOST_ADDED, f"{name}: 32 policies add {added[name]:.2f} s, at most {MOST_ADDED}")
    if arguments.torch_include:
        flags = includes + [word for path in arguments.torch_include for word in ("-isystem", path)]
        print("\n| compiler | by hand on torch/torch.h, s | deviation | Trainer with five algorithms, tutti::separate, s | deviation "
              "| ratio | headers alone, s | deviation | ratio |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        for compiler, name in zip(compilers, curves):
            taken = programs(compiler, flags, root, arguments.rounds)
            (hand, hand_dev), (ours, ours_dev), (alone, alone_dev) = taken.values()
            print(f"| {name} | {hand:.1f} | {hand_dev:.1f} | {ours:.1f} | {ours_dev:.1f} | {ours / hand:.2f} "
                  f"| {alone:.1f} | {alone_dev:.1f} | {alone / hand:.2f} |")
            ok &= claim(ours <= MOST_TRAINER * hand,
                        f"{name}: with tutti::separate {ours / hand:.2f} times the loop by hand, at most {MOST_TRAINER}")
        for compiler, name in zip(compilers, curves):
            ok &= edits(compiler, name, flags, root, arguments.rounds)
    else:
        print("left out: trainer.cpp beside by_hand.cpp and the times from an edit need --torch-include")
    print(f"n = {arguments.rounds}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
