# SPDX-License-Identifier: Apache-2.0
"""Reads the public names of a header, with their /// blocks.

It knows the C++ of this project's headers, which clang-format writes and the tests compile: what it cannot read is an error,
never a name left out in silence. `read(text)` gives a Scope whose entries are Entry and Scope objects in the header's order.
"""
import dataclasses
import re

ROUND = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # a bracket with two more levels inside
ATTRIBUTE = re.compile(r"\[\[[^\]]*\]\]|\b(?:alignas|explicit|decltype|noexcept|__attribute__)\s*" + ROUND)
BASES = r"(?::(?!:)[^{}()]*(?:\([^()]*\)[^{}()]*)*)?"
CLASS = re.compile(r"\b(struct|class|union)\s+([\w:]+(?:\s*<.*>)?)\s*(?:final\s*)?" + BASES + "$", re.S)
INITIALISERS = re.compile(r"(\)\s*(?:noexcept\s*)?):(?!:).*", re.S)  # of a constructor
ENUM = re.compile(r"\benum\s+(?:class\s+|struct\s+)?(\w+)?\s*(?::[^{]*)?$", re.S)
NAME = re.compile(r"(operator\s*(?:\(\)|\[\]|\"\"\s*\w+|[^\s\w(]+|[\w:<>*& ]+?)|~?\w+)\s*\(")


@dataclasses.dataclass
class Entry:
    """One declaration: its kind (function, variable, alias, concept, class, enum, macro), text, /// lines and line."""
    kind: str
    name: str
    text: str
    doc: list
    line: int
    entries: list = dataclasses.field(default_factory=list)
    scope: str = ""  # the namespace, "functional::" for instance
    beside: bool = False  # stands right below a documented one, which speaks of both


class Unreadable(Exception):
    pass


def without_templates(text):
    """`text` without what stands in angle brackets."""
    text = re.sub(r"operator\s*(<=>|<<|>>|<=|>=|->|<|>)", lambda m: "operator" + "@" * len(m.group(1)), text)
    text = text.replace("->", "  ").replace("<=", "  ").replace(">=", "  ")
    while True:
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def template_prefix(text):
    """The end of `template <...>` and of a requires clause at the front of `text`."""
    at = 0
    while found := re.compile(r"\s*template\s*<").match(text, at):
        depth, round_, at = 1, 0, found.end()
        while depth:
            if at == len(text):
                raise Unreadable(f"a template list does not end: {text[:80]}")
            c = text[at]
            round_ += (c == "(") - (c == ")")
            if not round_ and c in "<>" and text[at - 1] != "-":
                depth += 1 if c == "<" else -1
            at += 1
    return at


def without_last_parameters(text):
    """`text` without the round bracket at its end, if there is one."""
    text = text.rstrip()
    if not text.endswith(")"):
        return text
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if not depth:
            return text[:at].rstrip()
    raise Unreadable(f"a bracket is not opened: {text[:80]}")


def without_conditions(text):
    """`text` without each `requires(...)`."""
    while found := re.search(r"\brequires\s*\(", text):
        at, depth = found.end(), 1
        while depth:
            depth += (text[at] == "(") - (text[at] == ")")
            at += 1
        text = text[:found.start()] + text[at:]
    return text


class Reader:
    def __init__(self, text):
        self.text, self.at = text, 0

    def line(self, at=None):
        return self.text.count("\n", 0, self.at if at is None else at) + 1

    def skip_balanced(self):
        """Goes behind the bracket that closes the one here."""
        depth = 0
        while self.at < len(self.text):
            c = self.text[self.at]
            if self.skip_quoted():
                continue
            depth += (c in "({[") - (c in ")}]")
            self.at += 1
            if not depth:
                return
        raise Unreadable("a bracket is not closed")

    def skip_quoted(self):
        """Goes behind a comment, a string or a character here; whether there was one."""
        text, at = self.text, self.at
        if text.startswith("//", at):
            self.at = text.find("\n", at)
            self.at = len(text) if self.at < 0 else self.at
        elif text.startswith("/*", at):
            self.at = text.index("*/", at) + 2
        elif found := re.compile(r'R"(\w*)\(').match(text, at):
            self.at = text.index(")" + found.group(1) + '"', at) + len(found.group(1)) + 2
        elif text[at] == '"' or (text[at] == "'" and not (text[at - 1].isalnum() and text[at + 1].isalnum())):
            self.at += 1
            while text[self.at] != text[at]:
                self.at += 2 if text[self.at] == "\\" else 1
            self.at += 1
        else:
            return False
        return True

    def comment_lines(self, marker):
        """The text of the comment lines with `marker` from here on."""
        lines = []
        while found := re.compile(rf"[ \t]*{marker}(?!/)(.*)\n?").match(self.text, self.at):
            lines.append(found.group(1).removeprefix(" ").rstrip())
            self.at = found.end()
        return lines

    def scope(self, entries, scope, kind, public=True):
        """Reads until the bracket that closes this scope, or the end."""
        doc, above = [], None  # the kind of the documented entry above, and the line after it
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at == len(self.text):
                return
            text, at = self.text, self.at
            if text.startswith("///", at) and not text.startswith("////", at):
                doc = self.comment_lines("///")
            elif text.startswith("//", at):
                self.skip_quoted()
            elif text[at] == "#":
                end = re.compile(r"(?:[^\n]*\\\n)*[^\n]*\n?").match(text, at).end()
                found = re.match(r"#\s*define\s+(\w+(?:\([^)]*\))?)", text[at:end])
                if found and doc:
                    entries.append(Entry("macro", found.group(1).split("(")[0], found.group(1), doc, self.line()))
                elif doc and not entries and not scope:  # of the whole header
                    entries.append(Entry("summary", "", "", doc, self.line()))
                self.at, doc = end, []
            elif text[at] == "}":
                return
            elif text[at] == ";":
                self.at += 1
            elif found := re.compile(r"(public|private|protected)\s*:(?!:)").match(text, at):
                public, doc, self.at = found.group(1) == "public", [], found.end()
            else:
                first = self.line()
                entry = self.declaration(doc, scope, kind)
                if isinstance(entry, Entry) and public:
                    entry.beside = not entry.doc and above == (entry.kind, first)
                    entries.append(entry)
                    above = (entry.kind, self.line() + (self.text[self.at - 1] != "\n")) if entry.doc or entry.beside else None
                elif isinstance(entry, list):
                    entries.extend(entry)
                doc = []

    def declaration(self, doc, scope, kind):
        start, line = self.at, self.line()
        end = None  # of the text that is shown
        while True:
            if self.at >= len(self.text):
                raise Unreadable(f"line {line}: the declaration does not end")
            c = self.text[self.at]
            if self.text.startswith("//", self.at):  # inside a declaration
                self.skip_quoted()
            elif c in "([":
                self.skip_balanced()
            elif c == ";":
                end = self.at if end is None else end
                self.at += 1
                return self.finish(self.text[start:end], doc, line, scope, kind)
            elif c == "{":
                text = self.clean(self.text[start:self.at])
                head = text[template_prefix(text):].strip()
                if re.match(r"(inline\s+)?namespace\b", head):
                    return self.namespace(head, doc, line, scope)
                if re.match(r'extern\s+"C"', head):
                    self.at += 1
                    entries = []
                    self.scope(entries, scope, kind)
                    self.at += 1
                    return entries
                bare = ATTRIBUTE.sub("", head)
                if found := ENUM.search(bare):
                    return self.enumerators(text, found.group(1) or "", doc, line, scope)
                if found := CLASS.search(bare):
                    return self.members(text, found, doc, line, scope)
                if re.search(r"(=|&&|\|\||\(|!|\brequires|\breturn)\s*requires$", without_last_parameters(head)):
                    self.skip_balanced()  # a requires-expression
                elif self.is_body(head):
                    end = self.at
                    self.skip_balanced()
                    return self.finish(self.text[start:end], doc, line, scope, kind, True)
                else:
                    self.skip_balanced()
            elif not self.skip_quoted():
                self.at += 1

    @staticmethod
    def clean(text):
        return re.sub(r"//[^\n]*", "", text)

    @staticmethod
    def is_body(head):
        """Whether the { behind `head` opens the body of a function, not an initialiser."""
        bare = ATTRIBUTE.sub("", without_templates(head)).strip()
        if re.search(r"(?<![=!<>])=(?!=)", re.sub(r"operator\s*[^\s\w(]+|" + ROUND, "", bare)):
            return False
        if "(" not in bare:
            return bool(re.search(r"\boperator\b", bare))
        return not INITIALISERS.search(bare) or bare.endswith((")", "}"))

    def namespace(self, head, doc, line, scope):
        name = re.sub(r"^(inline\s+)?namespace\s*", "", head).strip()
        self.at += 1
        entries = []
        inner = name if not scope else f"{scope}::{name}" if name else ""
        self.scope(entries, inner, "namespace")
        self.at += 1
        parts = inner.split("::")
        if not name or "detail" in parts or parts[0] != "tutti":
            entries = []
        if doc:
            entries.insert(0, Entry("summary", name, "", doc, line))
        return entries

    def enumerators(self, text, name, doc, line, scope):
        self.at += 1
        entry = Entry("enum", name, " ".join(text.split()), doc, line, scope=scope)
        above = []
        while True:
            while self.text[self.at].isspace():
                self.at += 1
            if self.text[self.at] == "}":
                break
            if self.text.startswith("///", self.at):
                above = self.comment_lines("///")
                continue
            if self.skip_quoted():
                continue
            start = self.at
            while self.text[self.at] not in ",}" and not self.text.startswith("//", self.at):
                self.skip_balanced() if self.text[self.at] in "({" else None
                self.at += 1
            value = " ".join(self.text[start:self.at].split())
            at = self.line()
            if self.text[self.at] == ",":
                self.at += 1
            entry.entries.append(Entry("enumerator", value.split(" ")[0], value, above + self.comment_lines("///<"), at))
            above = []
        self.at += 1
        self.trailing(entry)
        return entry

    def members(self, text, found, doc, line, scope):
        self.at += 1
        name = re.sub(r"\s*<.*", "", found.group(2), flags=re.S)
        entry = Entry("class", name, " ".join(text.split()), doc, line, scope=scope)
        self.scope(entry.entries, "", "class", found.group(1) != "class")
        self.at += 1
        self.trailing(entry)
        if re.search(r"<", found.group(2)):
            entry.kind = "specialisation"
        return entry

    def trailing(self, entry):
        end = self.text.index(";", self.at)
        self.at = end + 1
        entry.doc = entry.doc + self.comment_lines("///<")

    def finish(self, text, doc, line, scope, kind, body=False):
        doc = doc + self.comment_lines("///<")
        text = self.clean(text)
        shown = re.sub(r"\n  ", "\n", text.strip()) if kind == "class" else text.strip()
        head = text[template_prefix(text):].strip()
        if body and kind == "class":
            shown = INITIALISERS.sub(r"\1", shown, count=1).rstrip()
        entry = Entry("", "", shown, doc, line, scope=scope)
        forward = r"(struct|class|enum|union)\s+(class\s+)?[\w:]+\s*(:[^:].*)?$"
        if re.match(r"static_assert|extern\s+template|namespace\b|template\b|" + forward, head):
            return None
        if head.startswith("friend") and not (doc and "(" in head):
            return None
        if re.fullmatch(r"[A-Z][A-Z0-9_]+\s*\(.*\)", head, re.S):  # TORCH_MODULE(ResNet), TUTTI_EVENT(Init, "init")
            name = re.match(r"[A-Z][A-Z0-9_]+\s*\(\s*(\w*)", head).group(1)
            entry.kind, entry.name = "generated", name
        elif found := re.match(r"using\s+(\w+)\s*(?:\[\[.*\]\]\s*)?=", head):
            entry.kind, entry.name = "alias", found.group(1)
        elif re.match(r"using\b", head):
            return None
        elif found := re.match(r"concept\s+(\w+)", head):
            entry.kind, entry.name = "concept", found.group(1)
        else:
            bare = ATTRIBUTE.sub("", without_templates(head))
            bare = without_conditions(bare)
            before = re.split(r"(?<![=!<>@])=(?!=)", bare)[0] if "operator" not in bare else bare
            if kind == "class":
                before = INITIALISERS.sub(r"\1", before, count=1)
            braced = 0 <= before.find("{") < before.find("(") and "operator" not in before  # `x{f()}`
            if found := None if braced else NAME.search(before):
                if kind == "namespace" and before[: found.start()].endswith("::"):
                    return None  # a member, defined outside of its class
                entry.kind, entry.name = "function", re.sub(r"\s+", " ", found.group(1))
                if "@" in entry.name:
                    entry.name = re.search(r"operator\s*(<=>|<<|>>|<=|>=|->|<|>)", head).group(0)
                if kind == "namespace" and re.match(r"(explicit\s+)?\w+\s*\(.*\)\s*->", head, re.S):
                    return None  # a deduction guide
            elif found := re.search(r"(\w+)\s*(?:\[[^\]]*\]|\{.*\})?\s*$", before.split("{")[0].strip(), re.S):
                entry.kind, entry.name = "variable", found.group(1)
            else:
                raise Unreadable(f"line {line}: it is not clear what this declares: {text[:100]}")
        return entry


def without_bodies(text):
    """`text` with blank lines in place of what is compiled apart, and of what stands in for a library that is missing."""
    out, stack = [], []
    for line in text.split("\n"):
        if re.match(r"#\s*if", line):
            apart = r"#\s*if (TUTTI_BODIES|defined\(TUTTI_SEPARATE_COMPILATION\))|#\s*ifndef TUTTI_WITH_"
            stack.append(bool(re.match(apart, line)))
            out.append("")
        elif re.match(r"#\s*(else|elif)", line):
            stack[-1] = not stack[-1] if stack[-1] else True
            out.append("")
        elif re.match(r"#\s*endif", line):
            stack.pop()
            out.append("")
        else:
            out.append("" if any(stack) else line)
    return "\n".join(out)


def read(text):
    reader, entries = Reader(without_bodies(text) + "\n"), []
    reader.scope(entries, "", "namespace")
    if reader.at < len(reader.text):
        raise Unreadable(f"line {reader.line()}: a bracket closes what was never opened")
    return entries
