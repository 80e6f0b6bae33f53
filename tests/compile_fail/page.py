#!/usr/bin/env python3
"""docs/diagnostics.md and docs/diagnostics/ from the programs here: each mistake, what the compiler says, what is right.

    page.py --compiler g++ --include include [--torch-include ...] [--said FOLDER] [--write]

A folder of programs is a page of the same name. Without --write it compares the pages with what it would write, and fails when
they differ. The compiler has to be GCC 12, whose words they show. A program with a file in --said, as the tests leave there, is
not compiled once more.
"""
import argparse
import difflib
import pathlib
import re
import subprocess
import sys

HEAD = """# Diagnostics

What the compiler says of a recipe, a policy or a time that cannot work, and the program that makes it say so. Each program is
a test (`tests/compile_fail`): it has to fail in these words with GCC and Clang, and its corrected twin has to compile. These pages
are made from those tests, in GCC's words: `python3 tests/compile_fail/page.py --compiler g++ --include include --write`.

Read the first lines of a message: the check's name is the kind of mistake, its parameters are who is meant, and the sentence after
`tutti:` says what to do.
"""

# Who meets it: folder, title, in a sentence.
GROUPS = {
    "recipe": ("Recipes", "policies that do not go together, or not in this order"),
    "hook": ("Hooks", "an `apply` that would never run"),
    "match": ("Conditions", "a `match`, or a list of events, that does not belong to an `apply`"),
    "member": ("Members", "members that the library looks for: rules, saved state, what a destination receives"),
    "policy": ("Policies", "what a policy is, and its options"),
    "time": ("Times", "durations such as `\"90ep\"`"),
    "data": ("Data and flags", "loaders, data sets, options of a program"),
    "model": ("Models", "models, losses, metrics, layers that are replaced"),
    "fused": ("Fused passes", "augmentations in one pass over the pixels"),
    "build": ("The build", "compilers, libraries, separate compilation"),
}



def branches(source):
    """The program as it fails, and as it passes."""
    wrong, right, which = [], [], None
    for line in source.splitlines():
        if re.match(r"#if(n?def) FIXED", line):
            which = "wrong" if line.startswith("#ifndef") else "right"
        elif line.startswith("#else") and which:
            which = "wrong" if which == "right" else "right"
        elif line.startswith("#endif") and which:
            which = None
        else:
            if which in (None, "wrong"):
                wrong.append(line)
            if which in (None, "right"):
                right.append(line)
    return wrong, right


def message(output, root):
    """The first lines of what the compiler said that name the check and say the sentence."""
    text = output.replace(str(root) + "/", "").replace("\u2018", "'").replace("\u2019", "'")
    lines = text.splitlines()
    kept = [line for line in lines if re.search(r"In instantiation of|: error: |: in 'constexpr' expansion|^ *\d+ \| +throw ", line)]
    shown = []
    for line in kept[:4]:
        line = re.sub(r"^\S+?:(\d+:)*\s*", "", line.strip())
        line = re.sub(r"std::array<char, \d+>\{(\".*?\")\}", r"\1", line)
        line = re.sub(r"tutti::detail::Text<\d+>\{(\".*?\")\}", r"\1", line)
        line = re.sub(r"tutti::detail::FieldPointer<.*?>\{\(& .*\.(\w+::\w+)\)\}", r"&\1", line)
        line = re.sub(r"\bauto:\d+", "auto", line)  # the compiler counts them from its first header on
        line = re.sub(r"^\d+ \| +", "", line)
        line = line.replace("In instantiation of ", "in ").rstrip(":")
        shown.append(line)
    return shown


def wrapped(line, width=118):
    out, words = [], line.split(" ")
    current = words[0]
    for word in words[1:]:
        if len(current) + 1 + len(word) > width:
            out.append(current)
            current = "    " + word
        else:
            current += " " + word
    return out + [current]


def words(path, command, said, root):
    """What the compiler says of the program as it is."""
    if said and (said / path.parent.name / f"{path.stem}.txt").exists():
        return (said / path.parent.name / f"{path.stem}.txt").read_text()
    done = subprocess.run(command + [str(path)], capture_output=True, text=True, cwd=root)
    if done.returncode == 0:
        sys.exit(f"{path.name} compiles, but has to fail")
    return done.stderr


def title(path):
    return path.stem.replace("_", " ").capitalize()


def section(path, command, said, root):
    source = path.read_text()
    body = "\n".join(line for line in source.splitlines() if not re.match(r"// (error|culprit|flags|wrong flags|wrong without|right flags|needs|torch)", line))
    flags = re.search(r"^// flags: (.*)$", source, re.M)
    wrong_flags = re.search(r"^// wrong flags: (.*)$", source, re.M)
    without = re.search(r"^// wrong without: (.*)$", source, re.M)
    right_flags = re.search(r"^// right flags: (.*)$", source, re.M)
    more = [word for found in (flags, wrong_flags) if found for word in found.group(1).split()]
    output = words(path, command + more, said, root)
    wrong, right = branches(body)
    changed = [line for line in difflib.unified_diff(wrong, right, lineterm="", n=0) if not re.match(r"---|\+\+\+|@@", line)]
    if without:
        changed.append(f"+target_link_libraries(app PRIVATE tutti::{without.group(1)})")
    elif wrong_flags:
        changed += ["-g++ " + wrong_flags.group(1), "+g++"]
    if right_flags:
        changed += ["-g++", "+g++ " + right_flags.group(1)]
    lines = [f"## {title(path)}", "", "```cpp"]
    lines += [line for line in wrong if line.strip()]
    lines += ["```", "```text"]
    for line in message(output, root):
        lines += wrapped(line)
    lines += ["```", "Right:", "```diff"] + changed + ["```", ""]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--torch-include", action="append", default=[])
    parser.add_argument("--said", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    folder = pathlib.Path(__file__).resolve().parent
    root = folder.parents[1]
    version = subprocess.run([arguments.compiler, "-dumpversion"], capture_output=True, text=True).stdout.strip()
    if version.split(".")[0] != "12":
        sys.exit(f"the page is in the words of GCC 12, and {arguments.compiler} is {version}; give it with --compiler")
    command = [arguments.compiler, "-std=c++20", "-Wall", "-fsyntax-only", "-fdiagnostics-color=never"]
    command += [f"-I{pathlib.Path(path).resolve()}" for path in arguments.include]
    with_torch = command + [word for path in arguments.torch_include for word in ("-isystem", path)]
    strangers = {path.parent.name for path in folder.glob("**/*.cpp")} - set(GROUPS)
    if strangers:
        sys.exit(f"no page is for the programs in {', '.join(sorted(strangers))}; GROUPS in page.py says which there are")
    pages = {root / "docs" / "diagnostics.md": HEAD}
    for group, (name, what) in GROUPS.items():
        page = f"# {name}\n\n{what[0].upper()}{what[1:]}. [Diagnostics](../diagnostics.md) says how to read a message.\n\n"
        listed = []
        for path in sorted((folder / group).glob("*.cpp")):
            page += section(path, with_torch if "// torch" in path.read_text() else command, arguments.said, root)
            listed.append(f"- [{title(path)}](diagnostics/{group}.md#{path.stem.replace('_', '-')})")
        pages[root / "docs" / "diagnostics" / f"{group}.md"] = page
        pages[root / "docs" / "diagnostics.md"] += f"\n## [{name}](diagnostics/{group}.md)\n\n{what[0].upper()}{what[1:]}:\n\n" + "\n".join(listed) + "\n"
    differ = False
    for target, page in pages.items():
        if arguments.write:
            target.parent.mkdir(exist_ok=True)
            target.write_text(page)
        elif not target.exists() or target.read_text() != page:
            old = target.read_text().splitlines() if target.exists() else []
            shown = str(target.relative_to(root))
            print("\n".join(difflib.unified_diff(old, page.splitlines(), shown, "from the tests", lineterm="")))
            differ = True
    if differ:
        sys.exit("the pages are not what the tests say; write them anew with --write, as docs/diagnostics.md says")


if __name__ == "__main__":
    main()
