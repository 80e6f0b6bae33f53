# SPDX-License-Identifier: Apache-2.0
"""What MkDocs does for this site beyond showing the pages of docs/.

- The navigation is the map in docs/README.md; the first page is README.md with that map in place of its own.
- The API reference is made from the headers (reference.py). A public name without a /// block is a warning, which ends a
  strict build.
- The first `Name` or `tutti::name` of a page that is a public one leads to the reference.
- A file outside of docs/ that a page links to is shown as a page of the site, and a folder as the list of its files.
"""
import logging
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File, InclusionLevel

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
import headers  # noqa: E402
import reference  # noqa: E402

log = logging.getLogger("mkdocs.hooks.tutti")
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
LANGUAGES = {".hpp": "cpp", ".cpp": "cpp", ".py": "python", ".cmake": "cmake", ".json": "json", ".yaml": "yaml", ".yml": "yaml",
             ".sh": "sh", ".sbatch": "sh", ".csv": "text", ".txt": "text"}
CODE = re.compile(r"^(```|~~~).*?^\1", re.S | re.M)


def outside_code(text, change):
    """`text` with change(part) for each part between fenced blocks of code."""
    out, at = [], 0
    for found in CODE.finditer(text):
        out += [change(text[at:found.start()]), found.group(0)]
        at = found.end()
    return "".join([*out, change(text[at:])])


def github_markdown(text):
    """Python-Markdown wants a blank line where GitHub wants none: before lists and tables below a paragraph, and around fences.
    Comments, which no page shows, are left out."""
    text = columns(outside_code(text, lambda part: re.sub(r"^<!--.*?-->\n?", "", part, flags=re.S | re.M)))
    out, code, before = [], False, ""
    for line in text.split("\n"):
        if line.startswith("```"):
            code = not code
            if code and before.strip():
                out.append("")
        elif not code:
            item, table = re.match(r"([-*]|\d+\.) ", line), line.startswith("|")
            was = re.match(r"([-*]|\d+\.) |  ", before)
            if before.strip() and ((item and not was) or (table and not before.startswith("|")) or before == "```"):
                out.append("")
            if table:  # where a | in code needs no backslash
                line = re.sub(r"`[^`]*`", lambda m: m.group(0).replace("\\|", "|"), line)
        out.append(line)
        before = line
    return "\n".join(out)


def columns(text):
    """A table of two columns of code, which GitHub shows, as two columns that stand below each other on a narrow screen."""
    def cells(found):
        heads, body = re.findall(r"<th>(.*?)</th>", found.group(1)), found.group(2)
        cells = re.split(r"^</td>(?:</tr><tr>)?<td>$", body, flags=re.M)
        cells = [f"**{head}**\n{cell}" for head, cell in zip(heads, cells)] + cells[len(heads):]
        inner = "".join(f'<div markdown="1">\n\n{cell}\n</div>\n' for cell in cells)
        return f'<div class="columns" markdown="1">\n{inner}</div>\n'
    return re.sub(r"^<table><tr>((?:<th>.*?</th>)+)</tr><tr><td>\n(.*?)^</td></tr></table>\n", cells, text, flags=re.S | re.M)


def map_of_docs():
    """[(group, [page, ...]), ...] of docs/README.md, and for a folder that it links to, the folder."""
    groups = []
    for line in (ROOT / "docs/README.md").read_text().split("\n"):
        if line.startswith("## "):
            groups.append((line[3:], []))
        for found in LINK.finditer(line) if groups else ():
            if not found.group(2).startswith(("http", "..")) and found.group(2) not in groups[-1][1]:
                groups[-1][1].append(found.group(2))
    return groups


def first_page():
    text = (ROOT / "README.md").read_text()
    found = re.search(r"^## Documentation\n.*?(?=^## )", text, re.S | re.M)
    text, rest = text[:found.start()], text[found.end():]

    def from_docs(link):
        before, target, mark, after = link.groups()
        if target.startswith("docs/"):
            target = target.removeprefix("docs/")
        elif not target.startswith("http"):
            target = "../" + target
        return before + target + (mark or "") + after

    text, rest = LINK.sub(from_docs, text), LINK.sub(from_docs, rest)
    own = (ROOT / "docs/README.md").read_text()
    return text + re.sub(r"^#", "##", own, flags=re.M) + "\n" + rest


def algorithms_page():
    """The list of the algorithms' pages, with the first sentence of each."""
    rows = ["# Algorithms\n", "What each does, its options, its events, its effect and cost, and where it is from.\n"]
    rows.append("| | |\n|---|---|")
    for path in sorted((ROOT / "docs/algorithms").glob("*.md")):
        text = path.read_text()
        name = re.match(r"# (.*)", text).group(1)
        what = " ".join(re.search(r"^## What it does\n+(.*?)(?:\n\n|\n\||\n-|\Z)", text, re.S | re.M).group(1).split())
        first = re.match(r"(.*?[.:])(?: |$)", what)
        rows.append(f"| [{name}]({path.name}) | {(first.group(1) if first else what).rstrip(':')} |")
    return "\n".join(rows) + "\n"


def shown(path):
    """A file of the repository as a page."""
    if path.suffix == ".md":
        return path.read_text()
    language = LANGUAGES.get(path.suffix, "cmake" if path.name == "CMakeLists.txt" else "text")
    return f"# {path.relative_to(ROOT)}\n\n`````{language}\n{path.read_text()}\n`````\n"


class Sources:
    """Files outside of docs/ that pages link to, each a page of the site below source/."""

    def __init__(self):
        self.pages = {}  # page: text

    def add(self, path):
        """The page of `path`, a file or a folder; none where that does not exist."""
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            page = f"source/{name}/README.md"
            if page not in self.pages:
                self.pages[page] = ""
                rows = [f"# {name}\n"]
                for below in sorted(path.rglob("*")):
                    if below.is_file() and (below.suffix in LANGUAGES or below.name == "CMakeLists.txt"):
                        link = posixpath.relpath(self.add(below), posixpath.dirname(page))
                        rows.append(f"- [{below.relative_to(path)}]({link})")
                self.pages[page] = "\n".join(rows) + "\n"
        elif path.is_file():
            page = f"source/{name}" if name.endswith(".md") else f"source/{name}.md"
            if page not in self.pages:
                self.pages[page] = shown(path)
        else:
            return None
        return page


sources = Sources()
found_headers = []
names = {}  # of one place: (page, anchor)


def on_config(config):
    nav = []
    for group, pages in map_of_docs():
        items = []
        for page in pages:
            if (ROOT / "docs" / page).is_dir():
                items.append({"All": f"{page}/README.md"})
                items += [f"{page}/{p.name}" for p in sorted((ROOT / "docs" / page).glob("*.md")) if p.name != "README.md"]
            else:
                items.append(page)
                below = page.removesuffix(".md")
                if (ROOT / "docs" / below).is_dir():
                    items += [f"{below}/{p.name}" for p in sorted((ROOT / "docs" / below).glob("*.md"))]
        nav.append({group: items})
    found_headers[:] = reference.all_headers(ROOT)
    names.clear()
    names.update(reference.places(found_headers))
    folders = sorted({h.folder for h in found_headers})
    nav[-1][next(iter(nav[-1]))].append(
        {"API": ["reference/README.md", *(f"reference/{f}/README.md" if f else "reference/top.md" for f in folders)]})
    config.nav = [{"Home": "README.md"}, *nav]
    return config


def add_page(files, config, page, text, level=InclusionLevel.NOT_IN_NAV):
    file = File.generated(config, page, content=text, inclusion=level)
    if file.src_uri in files.src_uris:
        files.remove(files.src_uris[file.src_uri])
    files.append(file)


def on_files(files, config):
    sources.pages.clear()
    for header in found_headers:
        for entry in header.undocumented:
            log.warning("%s:%d: %s is public and has no /// block", header.path, entry.line, reference.title(entry))
    folders = sorted({h.folder for h in found_headers})
    docs = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    for header in found_headers:
        stem = header.inner.removesuffix(".hpp")
        guides = [page for page in (f"{stem}.md",) if page in docs]
        source = lambda h: posixpath.relpath(f"source/include/{h.path}.md", posixpath.dirname(h.page))  # noqa: E731
        sources.add(ROOT / "include" / header.path)
        add_page(files, config, header.page, reference.header_page(header, guides, source))
    for folder in folders:
        page = f"reference/{folder}/README.md" if folder else "reference/top.md"
        add_page(files, config, page, reference.folder_page(folder, [h for h in found_headers if h.folder == folder]),
                 InclusionLevel.INCLUDED)
    add_page(files, config, "reference/README.md", reference.index_page(folders, found_headers), InclusionLevel.INCLUDED)
    add_page(files, config, "README.md", first_page(), InclusionLevel.INCLUDED)
    if (ROOT / "docs/algorithms").is_dir():
        add_page(files, config, "algorithms/README.md", algorithms_page(), InclusionLevel.INCLUDED)
    # What pages link to: found now, since files cannot be added later.
    for page in sorted(docs):
        text = first_page() if page == "README.md" else (ROOT / "docs" / page).read_text()
        outside_code(text, lambda part, page=page: LINK.sub(lambda m: rewritten(m, page), part))
    for page in list(sources.pages):  # which link to others
        if page.endswith(".md") and (ROOT / page.removeprefix("source/")).suffix == ".md":
            outside_code(sources.pages[page], lambda part, page=page: LINK.sub(lambda m: rewritten(m, page), part))
    for page, text in sources.pages.items():
        add_page(files, config, page, text)
    files.append(File.generated(config, "site.css", abs_src_path=str(HERE / "site.css")))
    return files


def rewritten(found, page):
    """A link as the site has it."""
    before, target, mark, after = found.groups()
    if re.match(r"[a-z]+:", target):
        return found.group(0)
    base = ROOT / page.removeprefix("source/") if page.startswith("source/") else ROOT / "docs" / page
    path = pathlib.Path(posixpath.normpath(posixpath.join(base.parent.as_posix(), target)))
    docs = ROOT / "docs"
    if path.is_relative_to(docs):
        to = path.relative_to(docs).as_posix()
        to = f"{to}/README.md" if path.is_dir() else to
    elif path == ROOT / "README.md":
        to = "README.md"
    elif path.is_relative_to(ROOT) and path.exists():
        to = sources.add(path)
    else:
        return found.group(0)  # MkDocs says that it leads nowhere
    return before + posixpath.relpath(to, posixpath.dirname(page) or ".") + (mark or "") + after


def with_names(text, page):
    """`text` with a link to the reference at the first mention of each public name, but in heads and links."""
    seen = set()

    def link(found):
        name = found.group(1).removeprefix("tutti::")
        if name in seen or name not in names or not (found.group(1) != name or re.match(r"[A-Z][a-z]|[A-Z]+$", name)):
            return found.group(0)
        seen.add(name)
        to, anchor = names[name]
        return f"[{found.group(0)}]({posixpath.relpath(to, posixpath.dirname(page) or '.')}#{anchor})"

    def line(text):
        if text.startswith("#"):
            return text
        parts = re.split(r"(\[[^\]]*\]\([^)]*\))", text)
        return "".join(part if i % 2 else re.sub(r"`((?:tutti::)?[\w:]+)`", link, part) for i, part in enumerate(parts))

    return outside_code(text, lambda part: "\n".join(map(line, part.split("\n"))))


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if uri.startswith("source/"):
        page.meta["search"] = {"exclude": True}  # the reference has its words
    if uri.startswith("reference/") or uri.startswith("source/") and not (ROOT / uri.removeprefix("source/")).is_file():
        return markdown
    text = outside_code(github_markdown(markdown), lambda part: LINK.sub(lambda m: rewritten(m, uri), part))
    return text if uri.startswith("source/") else with_names(text, uri)
