#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/terminal.svg, a run of examples/digits under way, and docs/terminal_result.svg, its end, as a terminal of 80 columns
shows them.

    terminal_svg.py <digits> [--out <folder>] [--max-duration 12ep]

The program runs in a terminal of its own (a pty), and what it writes there is drawn: texts, colours, and what it has written over.
"""

import argparse
import copy
import fcntl
import html
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COLUMNS = 80
CELL, LINE, MARGIN = 8.4, 18, 16
STYLES = {
    "1": 'font-weight="bold"',
    "2": 'fill="#8b949e"',
    "32": 'fill="#3fb950"',
    "36": 'fill="#39c5cf"',
}  # of Look::in()
ESCAPE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


class Screen:
    """The lines that a terminal shows, as far as tutti's bars write there: texts, CR, LF, ESC[K and ESC[...m."""

    def __init__(self):
        self.lines = [[]]  # of cells (character, style)
        self.column = 0
        self.style = ""
        self.rest = ""  # an escape sequence of which the end is yet to come

    def feed(self, text):
        text, self.rest = self.rest + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = ESCAPE.match(text, at)
                if not found:
                    if len(text) - at > 20:
                        raise ValueError(f"a sequence that this does not know: {text[at : at + 20]!r}")
                    self.rest = text[at:]
                    return
                self.escape(*found.groups())
                at = found.end()
                continue
            self.put(text[at])
            at += 1

    def escape(self, number, letter):
        if letter == "m":
            self.style = "" if number in ("", "0") else number
        elif letter == "K" and number in ("", "0"):
            del self.lines[-1][self.column :]
        else:
            raise ValueError(f"a sequence that this does not know: ESC[{number}{letter}")

    def put(self, character):
        line = self.lines[-1]
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.lines.append([])
            self.column = 0
        else:
            line += [(" ", "")] * (self.column - len(line))
            line[self.column : self.column + 1] = [(character, self.style)]
            self.column += 1

    def text(self, line):
        return "".join(character for character, _ in self.lines[line])


def follow(command, folder, wanted):
    """Runs the command in a terminal; the screens at the first moment when the last line matches `wanted`, and at the end."""
    try:
        master, slave = pty.openpty()
    except OSError as error:  # as in a container without /dev/pts
        print(f"skipped: this machine has no pseudo terminals ({error})")
        sys.exit(77)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    environment.update({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"})
    run = subprocess.Popen(command, cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    screen, under_way, bytes_left = Screen(), None, b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # nobody writes any more
            break
        if not data:
            break
        bytes_left += data
        whole = bytes_left.decode("utf-8", "ignore")  # but for a character of which the end is yet to come
        bytes_left = bytes_left[len(whole.encode()) :]
        screen.feed(whole)
        if under_way is None and re.search(wanted, screen.text(-1)):
            under_way = copy.deepcopy(screen)
    if run.wait():
        raise SystemExit(
            f"{command} ended with {run.returncode}:\n" + "\n".join(map(screen.text, range(len(screen.lines))))
        )
    return under_way, screen


def spans(line, y):
    """The cells of a line as texts, one for each style, each at its column."""
    out, at = [], 0
    while at < len(line):
        end = at
        while end < len(line) and line[end][1] == line[at][1]:
            end += 1
        text = "".join(character for character, _ in line[at:end]).rstrip()
        column = at + len(text) - len(text.lstrip())
        text = text.lstrip().replace(" ", "\N{NO-BREAK SPACE}")  # others count once, however many there are
        if text:
            style = "".join(" " + STYLES[code] for code in line[at][1].split(";") if code)
            out.append(
                f'<text x="{MARGIN + CELL * column:.1f}" y="{y}" textLength="{CELL * len(text):.1f}"{style}>'
                f"{html.escape(text)}</text>"
            )
        at = end
    return out


def draw(screen, command, path):
    lines = [[(character, "2") for character in f"$ {command}"]] + screen.lines
    while not lines[-1]:
        lines.pop()
    width, height = round(CELL * COLUMNS + 2 * MARGIN), LINE * len(lines) + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" fill="#e6edf3">',
        f"<title>What {html.escape(command)} shows in a terminal of {COLUMNS} columns</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
    ]
    for number, line in enumerate(lines):
        out += spans(line, MARGIN + LINE * number + 13)
    path.write_text("\n".join(out) + "\n</svg>\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("digits", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs")
    parser.add_argument("--max-duration", default="12ep")
    options = parser.parse_args()
    arguments = ["--max-duration", options.max_duration]
    epochs = int(options.max_duration.removesuffix("ep"))
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(options.digits.resolve(), pathlib.Path(folder) / "digits")
        later = "|".join(map(str, range((epochs + 1) // 2, epochs + 1)))
        wanted = rf"epoch ({later})/{epochs} +[3-9]\d%"
        under_way, end = follow(["./digits", *arguments], folder, wanted)
    if under_way is None:
        sys.exit(
            f"no line of the run matched {wanted!r}, a bar in the second half of the run; is an epoch shorter than 0.1 s?"
        )
    command = " ".join(["./digits", *arguments])
    draw(under_way, command, options.out / "terminal.svg")
    draw(end, command, options.out / "terminal_result.svg")


if __name__ == "__main__":
    main()
