#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What can be seen of the recipes in cmake/packages without the programs that they are for.

    recipes.py <cmake> <work folder>

Presets are listed by CMake; vcpkg's portfile and Spack's package run with stand-ins for what they call; the workflow, the
Dockerfile and the devcontainer are read, and checked by check-jsonschema and hadolint where this Python has them.
"""
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGES = ROOT / "cmake/packages"
VERSION_TEXT = (ROOT / "include/tutti/version.hpp").read_text()
VERSION = ".".join(re.findall(r"define TUTTI_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", VERSION_TEXT))
CMAKE_TEXT = "\n".join(p.read_text() for p in [ROOT / "CMakeLists.txt", *sorted((ROOT / "cmake").glob("*.cmake"))])
OPTIONS = set(re.findall(r"(?:option|set)\((TUTTI_[A-Z0-9_]+) ", CMAKE_TEXT)) | {"Torch_DIR"}


def run(*command, **more):
    return subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)


def options_exist():
    """Every option of the build that a recipe names is one."""
    names, count = {"ci.yml", "conanfile.py", "package.py", "portfile.cmake", "Dockerfile", "CMakeUserPresets.json"}, 0
    for path in [*PACKAGES.rglob("*"), ROOT / ".github/workflows/ci.yml"]:
        if path.is_file() and path.name in names:
            for name in re.findall(r"(?:-D|\")(TUTTI_[A-Z_]+)(?=[=\"])", path.read_text()):
                assert name in OPTIONS, f"{path.relative_to(ROOT)} names {name}, which is no option of the build"
                count += 1
    assert count > 12, f"{count} options were found; this check no longer reads the recipes"


def presets(cmake, work):
    work.mkdir(parents=True)
    for path in ROOT.iterdir():
        if not path.name.startswith((".", "build", "CMakeUserPresets")):
            (work / path.name).symlink_to(path)
    shutil.copy(PACKAGES / "CMakeUserPresets.json", work)
    text = json.loads((PACKAGES / "CMakeUserPresets.json").read_text())
    for kind in ("configure", "build", "test"):
        program = cmake.with_name("ctest") if kind == "test" else cmake
        done = run(program, "--list-presets=build" if kind == "build" else "--list-presets", cwd=work)
        for preset in text[f"{kind}Presets"]:
            there = done.returncode == 0 and f'"{preset["name"]}"' in done.stdout
            assert there, f"the {kind} preset {preset['name']}: {done.stdout}"
    for preset in text["configurePresets"]:
        assert set(preset.get("cacheVariables", {})) <= OPTIONS | {"CMAKE_BUILD_TYPE"}, preset


STUBS = r'''
function(note)
  list(JOIN ARGN " " line)
  file(APPEND "${LOG}" "${line}\n")
endfunction()
function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 it "" "OUT_FEATURE_OPTIONS" "FEATURES")
  list(GET it_FEATURES 0 feature)
  list(GET it_FEATURES 1 option)
  set(value OFF)
  if(feature IN_LIST FEATURES)
    set(value ON)
  endif()
  set(${it_OUT_FEATURE_OPTIONS} -D${option}=${value} PARENT_SCOPE)
endfunction()
function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 it "" "SOURCE_PATH" "OPTIONS")
  if(NOT EXISTS "${it_SOURCE_PATH}/include/tutti/version.hpp")
    message(FATAL_ERROR "SOURCE_PATH is ${it_SOURCE_PATH}, which is no checkout of tutti")
  endif()
  note(configure ${it_OPTIONS})
endfunction()
foreach(name IN ITEMS vcpkg_cmake_install vcpkg_cmake_config_fixup vcpkg_fixup_pkgconfig vcpkg_copy_tools)
  cmake_language(EVAL CODE "function(${name})\nnote(${name} \${ARGN})\nendfunction()")
endforeach()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 it "" "" "FILE_LIST")
  foreach(file IN LISTS it_FILE_LIST)
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "${file} is not there")
    endif()
  endforeach()
  note(copyright)
endfunction()
include("${PORT}")
'''


def vcpkg(cmake, work):
    port = PACKAGES / "vcpkg/tutti"
    manifest = json.loads((port / "vcpkg.json").read_text())
    assert manifest["version"] == VERSION, f"vcpkg.json has version {manifest['version']}, expected {VERSION}"
    work.mkdir(parents=True)
    (work / "run.cmake").write_text("cmake_minimum_required(VERSION 3.23)\n" + STUBS)
    for features, tools in (("", "tutti-run AUTO_CLEAN"), ("dashboard", "tutti-run tutti-dashboard AUTO_CLEAN")):
        log = work / "log"
        log.unlink(missing_ok=True)
        done = run(cmake, f"-DPORT={port}/portfile.cmake", f"-DLOG={log}", f"-DFEATURES={features}",
                   f"-DCURRENT_PACKAGES_DIR={work}/out", "-P", work / "run.cmake")
        assert done.returncode == 0, done.stdout
        steps = log.read_text()
        for step in ("configure -DTUTTI_BUILD_TESTS=OFF", "vcpkg_cmake_install", "CONFIG_PATH lib/cmake/tutti", "TOOL_NAMES " + tools,
                     f"-DTUTTI_WITH_HTTP={'ON' if features else 'OFF'}", "copyright"):
            assert step in steps, f"the portfile does not do \"{step}\":\n{steps}"


def spack():
    called = []
    build_systems = types.ModuleType("spack_repo.builtin.build_systems.cmake")

    class CMakePackage:
        def define(self, name, value):
            return f"-D{name}={value}"

        def define_from_variant(self, name, variant):
            assert ("variant", variant) in [(c[0], c[1][0]) for c in called], f"{variant} is no variant"
            return f"-D{name}={variant}"

    build_systems.CMakePackage = CMakePackage
    package = types.ModuleType("spack.package")
    for name in ("version", "variant", "depends_on", "conflicts", "license"):
        setattr(package, name, lambda *a, _name=name, **k: called.append((_name, a, k)))
    names = ["spack", "spack.package", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"]
    sys.modules.update({name: types.ModuleType(name) for name in names} | {"spack.package": package,
                       "spack_repo.builtin.build_systems.cmake": build_systems})
    path = PACKAGES / "spack/packages/tutti/package.py"
    space = {"__name__": "tutti"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    assert ("version", (VERSION,), {}) in called, f"package.py has not version {VERSION}: {called}"
    recipe = space["Tutti"]()
    recipe.spec = {"py-torch": types.SimpleNamespace(prefix="/torch")}
    arguments = recipe.cmake_args()
    assert "-DTorch_DIR=/torch" in arguments, arguments
    for argument in arguments:
        assert argument[2:].split("=")[0] in OPTIONS, f"{argument} is no option of the build"


def conan():
    text = (PACKAGES / "conan/conanfile.py").read_text()
    compile(text, "conanfile.py", "exec")
    for name in re.findall(r"cache_variables\[\"(\w+)\"\]", text):
        assert name in OPTIONS, f"{name} is no option of the build"


def containers():
    text = (PACKAGES / "Dockerfile").read_text()
    pinned = re.search(r"set\(TUTTI_TORCH_PINNED ([\d.]+)\)", CMAKE_TEXT).group(1)
    assert f"torch=={pinned} " in text, f"the Dockerfile has another LibTorch than {pinned}"
    packages = set(re.findall(r"\b(lib[\w-]+-dev|catch2)\b", text))
    needed = set(re.findall(r"tutti_install_package\((lib[\w-]+-dev)\)", CMAKE_TEXT))
    needed |= {"libboost-dev", "librange-v3-dev", "catch2"}
    assert needed <= packages, f"the Dockerfile lacks {sorted(needed - packages)}"
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    build = container["build"]
    assert (ROOT / ".devcontainer" / build["dockerfile"]).resolve() == PACKAGES / "Dockerfile", build
    assert re.search(rf"^FROM .* AS {build['target']}$", text, re.M), f"the Dockerfile has no stage {build['target']}"
    assert (ROOT / re.search(r"(\S+\.json) CMakeUser", container["postCreateCommand"]).group(1)).is_file()
    hadolint = shutil.which("hadolint", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint:
        done = run(hadolint, PACKAGES / "Dockerfile")
        assert done.returncode == 0, done.stdout
    return "hadolint" if hadolint else None


def workflow():
    path = ROOT / ".github/workflows/ci.yml"
    for script in re.findall(r"(?:-P )?(cmake/[\w/]+\.cmake|\.ci/\w+)", path.read_text()):
        assert (ROOT / script).is_file(), f"the workflow runs {script}, which is not there"
    tools = []
    if importlib.util.find_spec("yaml"):
        import yaml
        jobs = yaml.safe_load(path.read_text())["jobs"]
        assert set(jobs) == {"test", "docs", "package", "publish"} and set(jobs["publish"]["needs"]) == {"test", "docs"}, jobs
        tools.append("pyyaml")
    if importlib.util.find_spec("check_jsonschema"):
        done = run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", path)
        assert done.returncode == 0, done.stdout
        tools.append("check-jsonschema")
    return tools


def main():
    cmake, work = pathlib.Path(shutil.which(sys.argv[1])), pathlib.Path(sys.argv[2])
    shutil.rmtree(work, ignore_errors=True)
    options_exist()
    presets(cmake, work / "presets")
    vcpkg(cmake, work / "vcpkg")
    spack()
    conan()
    used = [tool for tool in (containers(), *workflow()) if tool]
    print(f"the recipes are as they should be; tools that looked at them too: {', '.join(used) or 'none of those of PyPI'}")


if __name__ == "__main__":
    main()
