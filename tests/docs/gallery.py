#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of docs/gallery.md and compares what they print with the page, but for numbers.

    gallery.py <folder of the built examples> [--write]

Commands below a comment of how long they take run with --write alone, which puts the output into the page.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs/gallery.md"
BLOCK = re.compile(r"(<!-- (?P<long>[^\n]*) -->\n)?```sh\n(?P<command>build/examples/[^\n]*)\n```\n\n"
                   r"```text\n(?P<output>.*?)```\n", re.S)


def run(folder, command):
    program, *arguments = shlex.split(command)
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run([folder / pathlib.Path(program).name, *arguments], cwd=work, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"{command} ended with status {done.returncode}:\n{done.stdout}")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    kept = []
    for line in lines:  # of an epoch the last one: a slow machine prints more
        epoch = re.match(r"epoch \d+/\d+ ", line)
        if epoch and kept and kept[-1].startswith(epoch.group(0)):
            kept.pop()
        kept.append(line)
    return "".join(line + "\n" for line in kept)


def masked(output):
    """`output` without its numbers, their units, the times that are left and the device."""
    output = re.sub(r"^(device +)\S+, ", r"\1", output, flags=re.M)
    output = re.sub(r" \d\d:\d\d left", "", output).replace("s/ba", "ba/s")
    output = re.sub(r"-?\d[\d.,:]*(e[+-]?\d+)?", "0", output)
    return re.sub(r"[ \t]+", " ", output)


def main():
    folder, write = pathlib.Path(sys.argv[1]).resolve(), "--write" in sys.argv[2:]
    text = PAGE.read_text()
    wrong, count = [], 0

    def block(found):
        nonlocal count
        if found["long"] and not write:
            return found.group(0)
        count += 1
        output = run(folder, found["command"])
        if masked(output) != masked(found["output"]):
            wrong.append(f"{found['command']} prints\n{output}\nwhere docs/gallery.md has\n{found['output']}")
        return found.group(0).replace("```text\n" + found["output"], "```text\n" + output)

    new = BLOCK.sub(block, text)
    assert count >= 4, f"{count} commands were found in {PAGE}, expected 4 or more"
    if write:
        PAGE.write_text(new)
    elif wrong:
        sys.exit("\n".join(wrong) + "\nIf that is right: gallery.py <folder of the built examples> --write")
    print(f"{count} commands print what docs/gallery.md has")


if __name__ == "__main__":
    main()
