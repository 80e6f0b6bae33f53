# SPDX-License-Identifier: Apache-2.0
from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Tutti(CMakePackage):
    """tutti is a header-only C++20 library that trains neural networks on LibTorch.

    spack repo add cmake/packages/spack; spack dev-build --path . tutti@0.1.0
    """

    maintainers = []
    license("Apache-2.0", checked_by="tutti")

    version("0.1.0")  # of a checkout, by `spack dev-build` or `spack develop`

    variant("dashboard", default=True, description="Build tutti-dashboard, which shows runs in the browser")

    depends_on("cxx", type="build")
    depends_on("cmake@3.23:", type="build")
    depends_on("py-torch@2.7:", type=("build", "link", "run"))
    depends_on("boost@1.74:", type=("build", "link"))
    depends_on("range-v3@0.12:", type=("build", "link"))
    depends_on("cpp-httplib@0.11:", when="+dashboard", type="build")

    conflicts("%gcc@:11", msg="tutti needs GCC 12 or newer")
    conflicts("%clang@:13", msg="tutti needs Clang 14 or newer")
    conflicts("platform=darwin", msg="tutti is built and tested on Linux alone")
    conflicts("platform=windows", msg="tutti is built and tested on Linux alone")

    def cmake_args(self):
        return [
            self.define("TUTTI_BUILD_TESTS", False),
            self.define("TUTTI_BUILD_EXAMPLES", False),
            self.define("TUTTI_FETCH", False),
            self.define("Torch_DIR", self.spec["py-torch"].prefix),
            self.define_from_variant("TUTTI_WITH_HTTP", "dashboard"),
        ]
