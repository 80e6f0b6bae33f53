# SPDX-License-Identifier: Apache-2.0
"""What Provision.cmake asks of the packages that pip has put in a folder, and what it takes back there.

    site_packages.py needs SITE LIBRARY    the requirements of torch whose packages have what LIBRARY links, one a line
    site_packages.py headers SITE          a requirement for the headers of CUDA that torch does not require, where there is one
    site_packages.py finished SITE         the packages that pip has installed to the end, one a line
    site_packages.py keep SITE FILE        removes the files of all packages but those that FILE lists in this way
"""

import csv
import importlib.metadata
import os
import re
import subprocess
import sys

# The part of a package's name that is not the name of its library: nvidia-cuda-runtime-cu12 has libcudart.
PACKAGE_OF = {"cudart": "runtime"}


def linked(library):
    """The libraries that `library` needs and where the loader finds them; None where it does not."""
    said = subprocess.run(["ldd", library], env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True).stdout
    found = {}
    for name, path in re.findall(r"(\S+) => (not found|\S+)", said):
        found[name] = None if path == "not found" else os.path.realpath(path)
    return found


def provider(library, requirements):
    """The requirement whose package has this library, in pip's notation, or None.

    `nvidia-cuda-cupti-cu12==12.6.80` is one package, `cuda-toolkit[cublas,cupti]==13.0.2` one for each of the extras.
    """
    name = re.match(r"lib(.+?)\.so", library)[1].lower()
    for requirement in requirements:
        package, extras, rest = re.match(r"([\w.-]+)\s*(?:\[(.*?)\])?(.*)", requirement).groups()
        if extras and name in re.split(r"\s*,\s*", extras):
            return f"{package}[{name}]{rest}"
        if re.sub(r"^nvidia-(cuda-)?|-cu\d+$", "", package) == PACKAGE_OF.get(name, name):
            return requirement
    return None


def requirements(site):
    torch = next(importlib.metadata.distributions(name="torch", path=[site]))
    return [line for line in torch.requires or () if "extra ==" not in line]


def needs(site, library):
    required = requirements(site)
    site = os.path.realpath(site) + os.sep
    # One that is found outside, in a CUDA toolkit, is of that toolkit's version and may go with it.
    outside = [name for name, path in linked(library).items() if not (path and path.startswith(site))]
    return sorted({provider(name, required) for name in outside} - {None})


def headers(site):
    """Those of torch's other requirements include these: the compiler's part of the runtime, and nv/target."""
    toolkits = [re.match(r"cuda-toolkit\[.*?\](==[\w.]+)", line) for line in requirements(site)]
    return [f"cuda-toolkit[cccl,crt]{toolkit[1]}" for toolkit in toolkits if toolkit]


def finished(site):
    """pip writes the file INSTALLER when it has unpacked a package."""
    return sorted(name for name in os.listdir(site) if os.path.exists(os.path.join(site, name, "INSTALLER")))


def keep(site, packages):
    """Bytecode is left, and whatever stands outside `site`."""
    site = os.path.realpath(site)
    kept = set()
    for package in packages:
        with open(os.path.join(site, package, "RECORD"), newline="") as record:
            kept.update(os.path.normpath(os.path.join(site, row[0])) for row in csv.reader(record))
    for folder, _, names in os.walk(site, topdown=False):
        if os.path.basename(folder) == "__pycache__":
            continue
        for path in (os.path.join(folder, name) for name in names):
            if path not in kept:
                os.remove(path)
        if folder != site and not os.listdir(folder):
            os.rmdir(folder)


def main():
    command, site, *arguments = sys.argv[1:]
    if command == "keep":
        with open(arguments[0]) as names:
            keep(site, names.read().split())
        return
    for line in {"needs": needs, "headers": headers, "finished": finished}[command](site, *arguments):
        print(line)


if __name__ == "__main__":
    main()
