#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does what docs/getting_started.md says, in an empty folder, and compares.

    page.py --work FOLDER       runs the page's commands in FOLDER, which is made anew; --cmake: the `cmake` of the page
    page.py --check             only compares the page's listings with the files of examples/template
    page.py --write             writes the listings anew

What stands before a block, which the page does not show, says what it is:

    (nothing)                   ```sh: commands, run one block after the other; ```text: what the block before printed
    <!-- not run: why -->       ```sh that is left out
    <!-- file: path -->         a listing of a file that is there by then; equal to it
    <!-- write: path -->        a listing of a file that the reader writes
    <!-- edit: path -->         ```diff of a file, without line numbers

Of what was printed, the page's lines must be there in their order and equal; a percentage may differ by TOLERANCE, but where
the page has one line twice, it must have been the same twice. Where pip fails, as without a network, the blocks with
programs of its environment are passed over, and the status is 77.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PAGE = SOURCE / "docs" / "getting_started.md"
TEMPLATE = SOURCE / "examples" / "template"
TOLERANCE = 3.0
PERCENTAGE = re.compile(r"\d+(?:\.\d+)? %")


class Block:
    def __init__(self, line, language, comments):
        self.line = line
        self.language = language
        self.comments = comments
        self.text = ""

    def marked(self, word):
        """What the comment `<!-- word: ... -->` before the block says."""
        for comment in self.comments:
            if found := re.fullmatch(rf"<!-- {word}: (.+) -->", comment):
                return found.group(1)
        return None


def fail(line, sentence):
    sys.exit(f"{PAGE}:{line}: {sentence}")


def read_blocks(page):
    blocks, comments, block = [], [], None
    for number, line in enumerate(page.splitlines(), 1):
        if block is not None and line == "```":
            blocks.append(block)
            block = None
        elif block is not None:
            block.text += line + "\n"
        elif line.startswith("```"):
            block = Block(number, line[3:], comments)
            comments = []
        elif line.startswith("<!-- "):
            comments.append(line)
        else:
            comments = []
    return blocks


def check_listings(page):
    count = 0
    for block in read_blocks(page):
        if path := block.marked("file"):
            count += 1
            if block.text != (TEMPLATE / pathlib.Path(path).name).read_text():
                fail(block.line, f"the listing of {path} differs from examples/template; write it anew with "
                                 "tests/first_project/page.py --write")
    if count == 0:
        fail(1, "the page has no listing of a file of examples/template")
    print(f"{count} listings are those of examples/template.")


def write_listings(page):
    def listing(found):
        text = (TEMPLATE / pathlib.Path(found.group(2)).name).read_text()
        return found.group(1) + text + "```\n"
    PAGE.write_text(re.sub(r"(<!-- file: (\S+) -->\n```\w+\n).*?^```\n", listing, page, flags=re.M | re.S))


def edited(block, text):
    """The text after the diff: its old lines are found one after the other, from the top."""
    lines, out = text.splitlines(), []
    for change in block.text.splitlines():
        if change.startswith("+"):
            out.append(change[1:])
            continue
        old = change[1:]
        if old not in lines:
            fail(block.line, f"the file has no line \"{old}\" there")
        at = lines.index(old)
        out += lines[:at] + ([] if change.startswith("-") else [old])
        lines = lines[at + 1:]
    return "\n".join(out + lines) + "\n"


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, work):
        self.top = self.folder = work
        self.printed = ""
        self.seen = {}
        self.skipped = None

    def run(self, block):
        if self.skipped and ".venv/" in block.text:
            self.printed = None
            return
        print(f"--- line {block.line}, in {self.folder}\n{block.text}", end="", flush=True)
        where = self.top / ".where"
        script = f"set -e\n{block.text}pwd > '{where}'\n"
        running = subprocess.Popen(["sh", "-c", script], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, errors="replace")
        self.printed = ""
        for line in running.stdout:
            self.printed += line
            print(line, end="", flush=True)
        status = running.wait()
        if status == 0:
            self.folder = pathlib.Path(where.read_text().rstrip("\n"))
        elif "pip install" in block.text:
            self.skipped = "no Python with numpy and safetensors could be made, so predict.py was not run"
            self.printed = None
        else:
            fail(block.line, f"these commands ended with {status}")

    def compare(self, block):
        if self.printed is None:
            return
        lines = re.split(r"[\r\n]+", self.printed)
        for expected in block.text.splitlines():
            pattern = PERCENTAGE.pattern.join(re.escape(part) for part in PERCENTAGE.split(expected))
            at = next((i for i, line in enumerate(lines) if re.fullmatch(pattern, line)), None)
            if at is None:
                fail(block.line, f"\"{expected}\" was not printed there")
            self.compare_percentages(block, expected, lines[at])
            lines = lines[at + 1:]

    def compare_percentages(self, block, expected, line):
        for page, run in zip(PERCENTAGE.findall(expected), PERCENTAGE.findall(line)):
            if abs(float(page[:-2]) - float(run[:-2])) > TOLERANCE:
                fail(block.line, f"\"{line}\" was printed, and the page says \"{expected}\"")
        if self.seen.setdefault(expected, line) != line:
            fail(block.line, f"\"{line}\" was printed, and \"{self.seen[expected]}\" before, where the page has one line")

    def do(self, block):
        path = block.marked("file") or block.marked("write") or block.marked("edit")
        file = self.top / path if path else None
        if block.marked("file"):
            if file.read_text() != block.text:
                fail(block.line, f"the listing differs from {file}")
        elif block.marked("write"):
            file.write_text(block.text)
        elif block.marked("edit"):
            file.write_text(edited(block, file.read_text()))
        elif block.language == "sh" and not block.marked("not run"):
            self.run(block)
        elif block.language == "text":
            self.compare(block)


def follow(page, work, cmake):
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / "tutti").symlink_to(SOURCE)
    if cmake:
        tools = work / ".tools"
        tools.mkdir()
        (tools / "cmake").symlink_to(cmake)
        os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"
    reader = Reader(work)
    for block in read_blocks(page):
        reader.do(block)
    shutil.rmtree(work)  # more than a gigabyte
    if reader.skipped:
        print("skipped: " + reader.skipped)
        sys.exit(77)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--work", type=pathlib.Path)
    what.add_argument("--check", action="store_true")
    what.add_argument("--write", action="store_true")
    parser.add_argument("--cmake", type=pathlib.Path)
    arguments = parser.parse_args()
    page = PAGE.read_text()
    if arguments.check:
        check_listings(page)
    elif arguments.write:
        write_listings(page)
    else:
        os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", "1")
        follow(page, arguments.work.resolve(), arguments.cmake)


if __name__ == "__main__":
    main()
