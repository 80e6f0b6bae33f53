# SPDX-License-Identifier: Apache-2.0
"""Pages of the site for the headers: one for each, one for each folder, and the list of all names."""
import html
import pathlib
import posixpath
import re

import headers

TITLES = {"": "Trainer and command line", "algorithms": "Algorithms", "callbacks": "Callbacks", "checkpoint": "Checkpoints",
          "core": "Core: events, time, recipes, state", "data": "Data", "dist": "Several processes", "fused": "Fused passes",
          "loggers": "Loggers", "losses": "Losses", "metrics": "Metrics", "models": "Models", "nn": "Layers",
          "optim": "Optimizers and schedules", "profiler": "Profiler", "text": "Text", "train": "The training loop",
          "views": "Pipelines of views"}


class Header:
    def __init__(self, root, path):
        self.path = path.relative_to(root / "include").as_posix()  # tutti/algorithms/mixup.hpp
        self.inner = self.path.removeprefix("tutti/")
        self.folder = posixpath.dirname(self.inner)
        self.page = f"reference/{self.inner.removesuffix('.hpp')}.md"
        entries = headers.read(path.read_text())
        self.summary = next((e.doc for e in entries if e.kind == "summary" and e.doc), [])
        self.entries = [e for e in entries if e.kind != "summary" and e.name]
        named = {(e.scope, e.name) for e in self.entries if e.doc}
        enums = {e.name for e in self.entries if e.kind == "enum" and e.doc}
        for entry in self.entries:
            if not entry.doc and entry.name == "to_string":  # its parameter says it all
                if (of := re.search(r"to_string\((?:const )?(\w+)", entry.text)) and of.group(1) in enums:
                    entry.doc = ["The word for it in messages, logs and files."]
        self.undocumented = [e for e in self.entries if not (
            e.doc or e.beside or e.kind in ("specialisation", "generated") or (e.scope, e.name) in named)]
        self.shown = [e for e in self.entries if e.doc or e.beside or e.kind not in ("specialisation", "generated")]


def all_headers(root):
    found = []
    for path in sorted((root / "include/tutti").rglob("*.hpp")):
        if not {"detail", "gloo_shim"} & set(path.parts) and not path.name.endswith(".inl.hpp"):  # which has bodies alone
            try:
                found.append(Header(root, path))
            except (headers.Unreadable, IndexError, ValueError) as error:  # the latter where the text ends too early
                raise headers.Unreadable(f"{path.relative_to(root)}: {error}") from None
    return found


def anchor(entry):
    scope = entry.scope.removeprefix("tutti").removeprefix("::").replace("::", ".")
    name = re.sub(r"[^\w]+", lambda m: "-" + "-".join(str(ord(c)) for c in m.group(0)), entry.name)
    return f"{scope}.{name}" if scope else name


def title(entry):
    return f"{entry.scope}::{entry.name}".removeprefix("tutti::").removeprefix("::")


def places(found):
    """Where each name is described that is described in one place: {name: (page, anchor)}."""
    all_places = {}
    for header in found:
        for entry in header.shown:
            all_places.setdefault(title(entry), set()).add((header.page, anchor(entry)))
    return {name: next(iter(where)) for name, where in all_places.items() if len(where) == 1}


def safe(line):
    """A line of a comment as Markdown: code stays, and what would be HTML, emphasis or a link is text."""
    if line.startswith("    "):
        return line
    parts = re.split(r"(`[^`]*`)", line)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([*_\[\]<>|\\#~^])", r"\\\1", parts[i])
    return "".join(parts)


def prose(doc):
    """The lines of a block as Markdown; what it returns, throws and is from are paragraphs of their own."""
    out, code = [], False
    for line in doc:
        indented = line.startswith("    ")
        starts = re.match(r"(Returns|Throws|Source:|Draws|[-*] )", line) and not line.startswith("- ")
        if (starts or indented != code) and out and out[-1]:
            out.append("")
        if re.match(r"- ", line) and out and out[-1] and not out[-1].startswith(("- ", "  ")):
            out.append("")
        code = indented or (code and not line)
        out.append("- " + safe(line[2:]) if line.startswith("- ") else safe(line))
    return "\n".join(out)


def first_sentence(doc):
    text = []
    for line in doc:
        if not line or line.startswith("    "):
            break
        text.append(line)
    text = " ".join(text)
    found = re.match(r"(.*?[.:;])(\s|$)", text)
    return safe(found.group(1).rstrip(":;") if found else text)


def cell(text):
    """`text` in a table."""
    return text.replace("\n", " ")


def markup(doc):
    """The lines of a block as HTML for a table."""
    text = html.escape(" ".join(line.strip() for line in doc), quote=False)
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", text)


def fenced(text):
    return f"```cpp\n{text}\n```\n"


def members(entry):
    out = []
    values = [m for m in entry.entries if m.kind in ("enumerator", "variable") and not m.text.startswith("static") and
              not m.text.startswith("template")]
    if values:
        rows = "".join(f"<tr><td><code>{html.escape(m.text.removesuffix('{}'))}</code></td><td>{markup(m.doc)}</td></tr>\n"
                       for m in values)
        head = "value" if entry.kind == "enum" else "member"
        out.append(f"<table>\n<thead><tr><th>{head}</th><th></th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n")
    for member in entry.entries:
        if member not in values and (member.doc or member.beside) and member.kind != "enumerator":
            out.append(fenced(member.text))
            if member.doc:
                out.append(prose(member.doc) + "\n")
    return out


def header_page(header, guides, source):
    name = posixpath.basename(header.inner).removesuffix(".hpp")
    out = [f"# {name}.hpp\n"]
    if header.summary:
        out.append(prose(header.summary) + "\n")
    out.append(fenced(f"#include <{header.path}>"))
    links = [f"[The header]({source(header)})", f"[all of its folder]({'README' if header.folder else 'top'}.md)"]
    for guide in guides:
        links.append(f"[its page]({posixpath.relpath(guide, posixpath.dirname(header.page))})")
    out.append(", ".join(links) + "\n")
    previous = None
    for entry in header.shown:
        key = title(entry)
        if key != previous:
            label = re.sub(r"([*_<>|\[\]])", r"\\\1", key)
            out.append(f"## {label} {{ #{anchor(entry)} }}\n")
        previous = key
        text = entry.text
        for short, long in (("constexpr ", "inline constexpr "), ("", "inline "), ("", "TUTTI_INLINE ")):
            if entry.kind == "function" and text.startswith(long):
                text = short + text[len(long):]
        out.append(fenced(text))
        if entry.doc:
            out.append(prose(entry.doc) + "\n")
        out += members(entry)
    return "\n".join(out)


def folder_title(folder):
    return TITLES.get(folder, folder)


def folder_page(folder, found):
    out = [f"# {folder_title(folder)}\n",
           f"The headers of `<tutti/{folder}/...>`.\n" if folder else "The headers of `<tutti/...>`.\n"]
    here = f"reference/{folder}".rstrip("/")
    for header in found:
        link = posixpath.relpath(header.page, here)
        out.append(f"## {posixpath.basename(header.inner)} {{ #{posixpath.basename(header.inner)} }}\n")
        if header.summary:
            out.append(prose(header.summary) + "\n")
        rows, seen = ["| name | |\n|---|---|"], set()
        for entry in header.shown:
            if title(entry) not in seen:
                seen.add(title(entry))
                rows.append(f"| [`{title(entry)}`]({link}#{anchor(entry)}) | {cell(first_sentence(entry.doc))} |")
        out.append(("\n".join(rows) if seen else f"[What it includes]({link})") + "\n")
    return "\n".join(out)


def index_page(folders, found):
    names = {}
    for header in found:
        for entry in header.shown:
            names.setdefault((title(entry), header.page, anchor(entry)), entry)
    out = ["# API reference\n",
           "Each public name as its header describes it. A thing's header, test and page have the same path.\n",
           "| headers | |\n|---|---|"]
    for folder in folders:
        of = [h for h in found if h.folder == folder]
        page = f"{folder}/README.md" if folder else "top.md"
        out.append(f"| [{folder_title(folder)}]({page}) | {len(of)} of `<tutti/{folder + '/' if folder else ''}...>` |")
    out.append("\n## All names\n")
    for key in sorted(names, key=lambda k: (k[0].split("::")[-1].lower(), k)):
        out.append(f"- [`{key[0]}`]({posixpath.relpath(key[1], 'reference')}#{key[2]})")
    return "\n".join(out) + "\n"
