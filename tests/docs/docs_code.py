#!/usr/bin/env python3
"""Compiles the C++ of pages of documentation.

    docs_code.py --compiler g++ [--given FILE] [--flag=-I... ...] page.md ...

A page's blocks become functions of one program, whose names (`model`, `options`, `x`, ...) are those of given.hpp; behind a line
like "In a loop of your own:" `model` is the `net` there. Comments before a block, which a page does not show, say what else it
needs:

    <!-- given: std::vector<std::string> paths; -->     declarations for the block
    <!-- not compiled: a fragment of a struct -->       the reason is obligatory
    <!-- from: examples/own_policies.hpp -->            it stands in that file, which is compiled there, line for line

Blocks of Python are parsed.

FILE is given.hpp precompiled, given.hpp.gch or .pch; without it the text is read.

`...` stands for anything: alone on a line, as a body `{ ... }`, in front of other initialisers or behind `=`.
"""
import argparse
import ast
import pathlib
import re
import subprocess
import sys

FILE_SCOPE = re.compile(r"(struct|template|static_assert)\b")


def blocks(page):
    """(line, declarations, code) of every block that is compiled."""
    out, code, where, given, skipped, by_hand = [], None, 0, [], False, False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if code is not None:
            if line.startswith("```"):
                if by_hand and not any(re.search(r"\bmodel( =|;)", line) for line in given):
                    given.insert(0, "auto model = net;")
                if not skipped:
                    out.append((where, given, code))
                code, given, skipped, by_hand = None, [], False, False
            else:
                code.append(line)
        elif line.startswith("```cpp"):
            code, where = [], number
        elif found := re.fullmatch(r"<!-- given: (.*) -->", line):
            given.append(found.group(1))
        elif re.fullmatch(r"<!-- (not compiled|from): .+ -->", line):
            skipped = True
        elif re.search(r"\bof your own.*:$", line):
            by_hand = True
    return out


def quoted_wrongly(page, root):
    """Blocks that say where they are from and do not stand there, one sentence each."""
    out, source, code = [], None, None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if found := re.fullmatch(r"<!-- from: (.*) -->", line):
            source = found.group(1)
        elif code is None and line.startswith("```cpp"):
            code = []
        elif code is not None and line.startswith("```"):
            if source and "\n".join(["", *code, ""]) not in "\n" + (root / source).read_text():
                out.append(f"{page}:{number}: the block that ends here does not stand in {source}")
            source, code = None, None
        elif code is not None:
            code.append(line)
    return out


def wrong_python(page):
    """Blocks of Python that are none, one sentence each."""
    out = []
    for found in re.finditer(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
        try:
            ast.parse(found.group(1))
        except SyntaxError as error:
            line = page.read_text().count("\n", 0, found.start()) + 1 + error.lineno
            out.append(f"{page}:{line}: {error.msg}")
    return out


def filled(line):
    line = re.sub(r"^(\s*)\.\.\.(\s*//.*)?$", r"\1", re.sub(r"^int main\(\) ", "", line))
    return line.replace("{ ... }", "{ throw 0; }").replace("{..., ", "{").replace("= ...;", "= {};")


def program(pages):
    includes, parts = ['#include "given.hpp"'], []
    for page in pages:
        for where, given, code in blocks(page):
            outside, inside, ends, open_scopes = [], [], None, 0
            for offset, line in enumerate(code, 1):
                line = filled(line)
                numbered = [f'#line {where + offset} "{page}"', line]
                if line.startswith("#include"):
                    includes.append(line)
                elif ends is not None or FILE_SCOPE.match(line):
                    if ends is None:
                        ends = None if line.startswith("static_assert") else re.compile(r"\}")
                    elif ends.match(line):
                        ends = None
                    outside += numbered
                else:
                    if line.startswith("tutti::Trainer") and any(re.search(r"\btrainer[{(]", other) for other in inside):
                        inside.append("{")
                        open_scopes += 1
                    inside += numbered
            name = re.sub(r"\W", "_", page.stem)
            parts += [f"namespace {name}_{where} {{", *outside, "struct Block : Given {", "void code() {",
                      *given, *inside, "}" * open_scopes, "}", "};", "}"]
    return "\n".join(dict.fromkeys(includes)) + "\n" + "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--given", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--flag", action="append", default=[])
    parser.add_argument("pages", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    here = pathlib.Path(__file__).resolve().parent
    pages = [page.resolve() for page in arguments.pages]
    if wrong := [sentence for page in pages for sentence in quoted_wrongly(page, here.parent.parent) + wrong_python(page)]:
        sys.exit("\n".join(wrong))
    text = program(pages)
    folder, precompiled = here, []
    if arguments.given and arguments.given.suffix == ".pch":
        precompiled = ["-include-pch", arguments.given]
    elif arguments.given:  # GCC reads given.hpp.gch where it looks for given.hpp
        folder = arguments.given.parent
    quiet = ["-w"]
    if arguments.given and arguments.given.suffix == ".pch":  # Clang takes designators in any order, GCC does not
        quiet = ["-Wno-everything", "-Werror=reorder-init-list"]
    command = [arguments.compiler, "-std=c++20", "-fsyntax-only", *quiet, f"-I{folder}", *precompiled, *arguments.flag, "-x", "c++", "-"]
    done = subprocess.run(command, input=text, text=True)
    count = text.count("void code()")
    if done.returncode != 0:
        sys.exit("The code of the pages does not compile; see the lines above.")
    print(f"{count} blocks compile")
    if count == 0:
        sys.exit("There is no code to compile.")


if __name__ == "__main__":
    main()
