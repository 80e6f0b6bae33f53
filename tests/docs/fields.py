#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/options.md and docs/state.md, which list the fields of a struct as its header has them.

    fields.py --write    writes the tables anew
    fields.py --check    compares the pages with the headers

A table stands between <!-- fields: header struct --> and <!-- end of fields -->.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("docs/options.md", "docs/state.md", "docs/policy_rules.md")
MARK = re.compile(r"(<!-- fields: (\S+) (\w+) -->\n).*?(<!-- end of fields -->)", re.S)
HEADING = re.compile(r"// -{4} (.*?) -+$")


def members(header, struct):
    """Headings and members of `struct`, in order: ("heading", text) or ("member", declaration, what it is)."""
    text = (ROOT / "include" / header).read_text(encoding="utf-8")
    found = re.search(rf"^struct {struct} \{{\n(.*?)^\}};", text, re.S | re.M)
    if not found:
        sys.exit(f"{header} has no struct {struct}")
    out, doc, declaration, depth = [], [], "", 0
    for line in found.group(1).splitlines():
        line = line.strip()
        if depth:  # within a body
            depth += line.count("{") - line.count("}")
            continue
        code, _, beside = line.partition("///<")
        code = code.strip()
        if re.search(r"\) = (default|delete);", code):  # what every type has
            continue
        if heading := HEADING.match(line):
            out.append(("heading", heading.group(1)))
        elif line.startswith("///<"):
            out[-1] = ("member", out[-1][1], f"{out[-1][2]} {beside.strip()}".strip())
        elif line.startswith("///"):
            doc.append(line[3:].strip())
        elif code and not line.startswith("//"):
            declaration = f"{declaration} {code}".strip()
            is_function = re.match(r"[^={]*\w\(", declaration) is not None
            if is_function and declaration.endswith("{"):
                depth = declaration.count("{") - declaration.count("}")
            if declaration.endswith(";") or is_function and declaration.endswith(("{", "}")):
                said = " ".join([*doc, beside.strip()]).strip()
                out.append(("member", re.sub(r"\s*\{[^}]*$|;$", "", declaration), said))
                declaration, doc = "", []
    return out


def cell(text):
    return text.replace("|", "\\|")


def table(header, struct):
    rows, heads = [], "| field | type | default | what it is |\n|---|---|---|---|"
    for member in members(header, struct):
        if member[0] == "heading":
            rows.append(f"\n### {member[1]}\n\n{heads}")
            continue
        declaration, said = member[1:]
        if re.match(r"[^={]*\w\(", declaration):
            name = re.search(r"(\w+)\(", declaration).group(1)
            signature = declaration.replace("[[nodiscard]] ", "")
            rows.append(f"| `{name}()` | `{cell(signature)}` | | {cell(said)} |")
            continue
        declared, default = declaration, ""
        if found := re.fullmatch(r"(.*?) = (.*)", declaration):
            declared, default = found.groups()
        elif found := re.fullmatch(r"(.*?)\{(.*)\}", declaration):
            declared, default = found.groups()
        kind, name = declared.rsplit(" ", 1)
        rows.append(f"| `{name}` | `{cell(kind)}` | {f'`{cell(default)}`' if default else ''} | {cell(said)} |")
    if not rows[0].startswith("\n"):
        rows.insert(0, heads)
    return "\n".join(rows).strip("\n") + "\n"


def written(page):
    text, count = MARK.subn(lambda m: f"{m.group(1)}\n{table(m.group(2), m.group(3))}\n{m.group(4)}", page)
    if count == 0:
        sys.exit("the page has no table of fields")
    return text


def main():
    if sys.argv[1:] not in (["--write"], ["--check"]):
        sys.exit(__doc__)
    for name in PAGES:
        path = ROOT / name
        page = path.read_text(encoding="utf-8")
        if sys.argv[1] == "--write":
            path.write_text(written(page), encoding="utf-8")
        elif written(page) != page:
            sys.exit(f"{name} is not what its headers say; write it anew with tests/docs/fields.py --write")
        elif len(page.splitlines()) < 30:
            sys.exit(f"{name} is too short; fields.py no longer reads the headers")


if __name__ == "__main__":
    main()
