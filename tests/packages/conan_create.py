#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""conan create cmake/packages/conan, without a network: packages of links to this machine's headers stand for Boost and range-v3.

    conan_create.py <work folder> <include folder of Hana> <include folder of range-v3>
"""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

RECIPE = pathlib.Path(__file__).resolve().parent.parent.parent / "cmake/packages/conan"
STAND_IN = '''from conan import ConanFile
class StandIn(ConanFile):
    name, version, package_type = "{name}", "{version}", "header-library"
    options, default_options = {{"header_only": [True, False]}}, {{"header_only": True}}
    def package_info(self):
        self.cpp_info.includedirs = ["{include}"]
        self.cpp_info.libdirs = self.cpp_info.bindirs = []
'''


def conan(*arguments):
    done = subprocess.run([sys.executable, "-c", "from conans.conan import run; run()", *arguments], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"conan {' '.join(arguments)} failed:\n{done.stdout}")
    return done.stdout


def main():
    if importlib.util.find_spec("conan") is None:
        print("skipped: this Python has no conan; TUTTI_PACKAGES_PYTHON names another")
        sys.exit(77)
    work, *includes = sys.argv[1:]
    work = pathlib.Path(work).resolve()
    shutil.rmtree(work, ignore_errors=True)
    os.environ["CONAN_HOME"] = str(work / "home")
    conan("profile", "detect")
    for (name, version, inside), include in zip((("boost", "1.74.0", "boost"), ("range-v3", "0.12.0", "range")), includes):
        (work / name / "include").mkdir(parents=True)
        (work / name / "include" / inside).symlink_to(pathlib.Path(include) / inside)
        (work / name / "conanfile.py").write_text(STAND_IN.format(name=name, version=version, include=work / name / "include"))
        conan("create", str(work / name), "--no-remote")
    shutil.copytree(RECIPE / "test_package", work / "test", ignore=shutil.ignore_patterns("build", "CMakeUserPresets.json"))
    said = conan("create", str(RECIPE), "--no-remote", "-s", "compiler.cppstd=20", "--test-folder", str(work / "test"))
    for expected in ("tutti/", ": 0.10 0.70"):
        assert expected in said, f"conan create does not say \"{expected}\":\n{said}"
    assert said.count(": 0.10 0.70") == 2, f"the program was not run twice, the second time by tutti-run:\n{said}"
    cache = next((work / "test").rglob("CMakeCache.txt")).read_text()
    for name, variable in (("boost", "TUTTI_hana_INCLUDE"), ("range-v3", "TUTTI_range_v3_INCLUDE")):
        assert f"{variable}:PATH={work / name / 'include'}\n" in cache, f"the program does not see Conan's {name}:\n{cache}"
    print("conan create makes the package, and a program finds it")


if __name__ == "__main__":
    main()
