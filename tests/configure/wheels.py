# SPDX-License-Identifier: Apache-2.0
"""Makes wheels that look to pip and to the loader like those of torch and of what it requires, a few kilobytes each.

    wheels.py FOLDER COMPILER VERSION [MEGABYTES]    torch has a file of so many megabytes of zeros

Their libraries link each other as the real ones do: libtorch_cpu the CUDA runtime and CUPTI, libtorch_cuda the runtime and
cuDNN.
FOLDER/torch gets the wheel of torch, FOLDER/cpu those that libtorch_cpu needs, FOLDER/cuda the others, and FOLDER/broken one of
cuDNN in which pip finds an error when it has unpacked a part of it.
"""

import pathlib
import subprocess
import sys
import tempfile
import zipfile

TOOLKIT = "13.0.2"


def wheel(folder, name, version, files, metadata=""):
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tutti\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl", "w") as to:
        for path, content in (files | {f"{info}/RECORD": record}).items():
            to.writestr(path, content, zipfile.ZIP_DEFLATED if len(content) > 1 << 20 else None)


def library(work, compiler, path, *linked):
    """Builds `path`, for instance nvidia/cu13/lib/libcudart.so.13, in `work`, linked with others made there."""
    output = work / path
    output.parent.mkdir(parents=True, exist_ok=True)
    search = ":".join(f"$ORIGIN/../../{folder}" for folder in ("nvidia/cu13/lib", "nvidia/cudnn/lib", "torch/lib"))
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-x", "c++", "/dev/null", "-x", "none", "-o", output, f"-Wl,-soname,{output.name}",
         "-Wl,--disable-new-dtags", "-Wl,--no-as-needed", f"-Wl,-rpath,{search}", "-Wl,--allow-shlib-undefined",
         *(work / other for other in linked)],
        check=True)
    return {path: output.read_bytes()}


def main():
    folder, compiler, version = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    megabytes = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    cudart, cupti, cudnn = "nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcupti.so.13", "nvidia/cudnn/lib/libcudnn.so.9"
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        wheel(folder / "cpu", "nvidia-cuda-runtime", "13.0.96", library(work, compiler, cudart))
        wheel(folder / "cpu", "nvidia-cuda-cupti", "13.0.85", library(work, compiler, cupti))
        files = library(work, compiler, cudnn)
        wheel(folder / "cuda", "nvidia-cudnn-cu13", "9.19", files)
        wheel(folder / "broken", "nvidia-cudnn-cu13", "9.19", files | {"nvidia/cudnn/text": "what was meant"})
        for path in (folder / "broken").iterdir():
            path.write_bytes(path.read_bytes().replace(b"what was meant", b"something else"))
        wheel(folder / "cpu", "cuda-toolkit", TOOLKIT, {},
              "Provides-Extra: cudart\nRequires-Dist: nvidia-cuda-runtime==13.0.*; extra == 'cudart'\n"
              "Provides-Extra: cupti\nRequires-Dist: nvidia-cuda-cupti==13.0.*; extra == 'cupti'\n"
              "Provides-Extra: crt\nRequires-Dist: nvidia-cuda-crt==13.0.*; extra == 'crt'\n"
              "Provides-Extra: cccl\nRequires-Dist: nvidia-cuda-cccl==13.0.*; extra == 'cccl'\n")
        include = "nvidia/cu13/include/"
        wheel(folder / "cuda", "nvidia-cuda-crt", "13.0.88", {f"{include}crt/host_defines.h": ""})
        wheel(folder / "cuda", "nvidia-cuda-cccl", "13.0.85", {f"{include}nv/target": ""})
        lib = "torch/lib/lib"
        files = library(work, compiler, f"{lib}torch_cpu.so", cudart, cupti)
        files |= library(work, compiler, f"{lib}torch_cuda.so", f"{lib}torch_cpu.so", cudart, cudnn)
        files |= library(work, compiler, f"{lib}c10_cuda.so", cudart)
        files |= {f"{lib}c10.so": "__cxx11", "torch/__init__.py": "", "torch/zeros": bytes(megabytes << 20)}
        files["torch/include/torch/csrc/api/include/torch/torch.h"] = ""
        files["torch/include/torch/headeronly/version.h"] = "".join(
            f"#define TORCH_VERSION_{part} {number}\n" for part, number in zip(("MAJOR", "MINOR", "PATCH"), version.split(".")))
        wheel(folder / "torch", "torch", version, files,
              f"Requires-Dist: cuda-toolkit[cudart,cupti]=={TOOLKIT}; platform_system == \"Linux\"\n"
              "Requires-Dist: nvidia-cudnn-cu13==9.19; platform_system == \"Linux\"\n"
              "Provides-Extra: optree\nRequires-Dist: optree; extra == \"optree\"\n")


if __name__ == "__main__":
    main()
