# SPDX-License-Identifier: Apache-2.0
"""tutti for Conan 2: conan create cmake/packages/conan --build=missing

LibTorch is not taken from Conan: the environment variable Torch_DIR, the torch of the Python in use or tutti's cache folder says
where it is, here as for the programs that use the package.
"""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class TuttiConan(ConanFile):
    name = "tutti"
    description = "Training recipes for LibTorch, checked and inlined by the compiler"
    license = "Apache-2.0"
    topics = ("deep-learning", "libtorch", "training", "header-only")
    settings = "os", "arch", "compiler", "build_type"

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "../../../include/tutti/version.hpp"))
        self.version = self.version or ".".join(re.findall(r"define TUTTI_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "../../..")
        for pattern in ("CMakeLists.txt", "LICENSE", "NOTICE", "include/*", "cmake/*"):
            copy(self, pattern, root, self.export_sources_folder)

    def requirements(self):
        self.requires("boost/[>=1.74 <2]", options={"header_only": True}, transitive_headers=True)
        self.requires("range-v3/[>=0.12 <1]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["TUTTI_BUILD_TESTS"] = False
        toolchain.cache_variables["TUTTI_BUILD_EXAMPLES"] = False
        toolchain.cache_variables["TUTTI_FETCH"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "NOTICE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):  # find_package(tutti) finds tutti's own package, which looks for LibTorch
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/tutti"]
        self.cpp_info.libs = []
