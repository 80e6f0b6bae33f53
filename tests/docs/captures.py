#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/ anew, each by the script that its page names; the target `captures` runs it.

    captures.py --digits <program> [--gpt <program>] [--dashboard <tutti-dashboard> --loggers-tests <program>]
                [--out <folder>] [--short]

    events.svg                         tests/docs/events_svg.py
    terminal.svg, terminal_result.svg  tests/docs/terminal_svg.py, a run of examples/digits
    digits_curves.svg, gpt_curves.svg  tests/docs/curves_svg.py, from the lines of JSON that runs of these examples write
    dashboard.png, dashboard_run.png   tests/loggers/dashboard_browser.py, by Chromium; skipped with the reason without it

Those of docs/benchmarks.md are figures, which the benchmarks draw when they measure. --short: runs of a few epochs, no pages, for
the test of this script, into a folder that --out names.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.dom.minidom

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def script(path, *arguments, skipped=None):
    done = subprocess.run(
        [sys.executable, "-B", str(path), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode not in (0, skipped):
        sys.exit(f"{path} ended with {done.returncode}:\n{done.stdout}")
    return done.returncode == 0, done.stdout.strip()


def curves(command, log, picture, *arguments):
    """Runs the command in a folder of its own and draws what it writes to `log` there."""
    environment = {**os.environ, "TUTTI_DASHBOARD": "/bin/true"}  # nobody looks at the page of these runs
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [str(command[0].resolve()), *command[1:], "--run-folder", "run", "--no-progress-bar"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if run.returncode:
            sys.exit(f"{command} ended with {run.returncode}:\n{run.stdout}")
        script(HERE / "curves_svg.py", f"{folder}/run/{log}", picture, *arguments)


def page(dashboard, loggers_tests, out):
    """Why there are no pictures of the page; nothing where they are made."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not chromium:
        return "there is no Chromium (apt-get install chromium)"
    if not dashboard or not loggers_tests:
        return "tutti-dashboard or loggers_tests is not built"
    made, said = script(
        ROOT / "tests/loggers/dashboard_browser.py", chromium, dashboard, loggers_tests, "--pictures", out, skipped=77
    )
    return "" if made else said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--digits", type=pathlib.Path, required=True)
    parser.add_argument("--gpt", type=pathlib.Path)
    parser.add_argument("--dashboard", default="")
    parser.add_argument("--loggers-tests", default="")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    if options.short and options.out.resolve() == ROOT / "docs":
        parser.error("--short needs --out, for the pictures of docs/ are of whole runs")
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"

    script(HERE / "events_svg.py", *(["--check"] if options.short else []))
    drawn, said = script(
        HERE / "terminal_svg.py",
        options.digits,
        "--out",
        options.out,
        "--max-duration",
        "4ep" if options.short else "12ep",
        skipped=77,
    )
    curves(
        [options.digits, "--max-duration", "2ep" if options.short else "30ep"],
        "metrics.jsonl",
        options.out / "digits_curves.svg",
    )
    names = [*(["terminal.svg", "terminal_result.svg"] if drawn else []), "digits_curves.svg"]
    if options.gpt and not options.short:
        names.append("gpt_curves.svg")
        curves(
            [options.gpt, "--dashboard", "--max-duration", "6ep"],
            "dashboard.jsonl",
            options.out / names[-1],
            "--metric",
            "metrics/test/LanguageCrossEntropy",
        )
    for name in names:
        texts = xml.dom.minidom.parse(str(options.out / name)).getElementsByTagName(
            "text"
        )  # well-formed, and not empty
        assert len(texts) >= 10, f"{name} has {len(texts)} texts"
    print(f"{', '.join(names)} are in {options.out}")
    if not options.short and not options.gpt:
        print("skipped: gpt_curves.svg: examples/gpt is not built")
    if not options.short:
        why = page(options.dashboard, options.loggers_tests, options.out)
        print(f"skipped: dashboard.png and dashboard_run.png: {why}" if why else "and those of the page")
    if not drawn:
        print(said)
        sys.exit(77)


if __name__ == "__main__":
    main()
