# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of cmake/python, installs it in an environment of its own, and runs there what tests it: the operators, what
reads runs, and the notebook of the docs.

    wheel.py --python <with torch, scikit-build-core and pip> --reference <python_reference> --digits <examples/digits>
             --work <folder> --compiler <c++> --build-type <CMake's> --flags <CMake's>

The last three are those of the tests, for results are equal bit for bit only where the compiler did the same.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout.strip()


def build(options):
    """The path of the wheel. The build folder is kept, so that what has not changed is not compiled again."""
    folder = options.work / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    settings = {
        "build-dir": options.work / "build",
        "cmake.build-type": options.build_type,
        "cmake.define.CMAKE_CXX_COMPILER": options.compiler,
        "cmake.define.CMAKE_CXX_FLAGS": options.flags,
    }
    chosen = [f"--config-settings={name}={value}" for name, value in settings.items()]
    run(
        options.python,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        "--wheel-dir",
        folder,
        *chosen,
        ROOT / "cmake/python",
    )
    wheels = list(folder.glob("*.whl"))
    assert len(wheels) == 1 and "-py3-none-" in wheels[0].name, wheels
    return wheels[0]


def install(options, wheel):
    """The Python of a new environment that has the wheel, beside the packages of options.python."""
    venv = options.work / "environment"
    shutil.rmtree(venv, ignore_errors=True)
    run(options.python, "-m", "venv", "--without-pip", venv)
    python = venv / "bin/python"
    sites = run(options.python, "-c", "import site; print(*site.getsitepackages(), sep='\\n')").splitlines()
    own = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (own / "beside.pth").write_text("import site; " + "; ".join(f"site.addsitedir({site!r})" for site in sites) + "\n")
    run(
        options.python,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        wheel,
    )
    return python


def main():
    parser = argparse.ArgumentParser()
    for name in ("python", "reference", "digits", "work", "build-type", "compiler", "flags"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    options.work = pathlib.Path(options.work).resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    python = install(options, build(options))
    runs, results = options.work / "runs", options.work / "reference.safetensors"
    shutil.rmtree(runs, ignore_errors=True)
    results.unlink(missing_ok=True)
    run(options.reference, results)
    elsewhere = {"cwd": options.work}  # so that no file here is imported in place of what is installed
    other = (
        "import torch; torch.__version__ = '99.0.0'\ntry:\n  import tutti\nexcept ImportError as error:\n  print(error)"
    )
    said = run(python, "-c", other, **elsewhere)
    assert said.startswith("this tutti was built for torch ") and "torch is 99.0.0; build it again with pip" in said, (
        said
    )
    print(run(python, HERE / "operators.py", results, **elsewhere))
    print(run(python, HERE / "runs.py", options.digits, runs, **elsewhere))
    notebooks = sorted((ROOT / "docs").glob("*.ipynb"))
    assert notebooks
    for notebook in notebooks:
        print(run(python, HERE / "notebook.py", notebook, cwd=runs / "runs"))


if __name__ == "__main__":
    main()
