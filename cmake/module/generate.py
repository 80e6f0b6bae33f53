# SPDX-License-Identifier: Apache-2.0
"""Writes the interface of the module tutti, which exports every public name of the headers below tutti.hpp.

    python generate.py INCLUDE OUT.cppm
"""
import collections
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "site"))
import headers  # noqa: E402

KINDS = ("class", "function", "alias", "concept", "variable", "enum", "generated")


def plain(path):
    """The header's text without what needs a library or a device beside LibTorch."""
    out, within = [], []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if re.match(r"#\s*if", line):
            within.append(bool(re.match(r"#\s*if(def)? TUTTI_WITH_", line)))
        elif re.match(r"#\s*el", line) and within[-1]:
            within[-1] = False
        elif re.match(r"#\s*endif", line):
            within.pop()
        out.append("" if any(within) and not line.startswith("#") else line)
    return "\n".join(out)


def included(folder, header, seen):
    """The public headers that `header` includes, itself too."""
    if header in seen:
        return
    seen.add(header)
    for line in plain(folder / header).splitlines():
        if found := re.match(r"#\s*include <(tutti/[^>]*)>", line):
            if (folder / found[1]).exists():
                included(folder, found[1], seen)


def exported(folder):
    """The names of each namespace."""
    names = collections.defaultdict(set)
    seen = set()
    included(folder, "tutti/tutti.hpp", seen)
    for header in seen:
        if "/detail/" in header or not header.endswith(".hpp") or header.endswith(".inl.hpp"):
            continue
        for entry in headers.read(plain(folder / header)):
            if entry.kind in KINDS and entry.scope.startswith("tutti") and "detail" not in entry.scope.split("::"):
                if re.fullmatch(r"\w+|operator\W+", entry.name):
                    names[entry.scope].add(entry.name.replace(" ", ""))
    return names


def main():
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text = ["// Made by cmake/module/generate.py: every public name of <tutti/tutti.hpp>. Macros stay in the headers.", "module;", "#include <tutti/tutti.hpp>",
            "export module tutti;"]
    for scope, names in sorted(exported(folder).items()):
        text.append(f"export namespace {scope} {{")
        text += [f"using ::{scope}::{name};" for name in sorted(names)]
        text.append("}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists() or out.read_text(encoding="utf-8") != "\n".join(text) + "\n":
        out.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
