// What the refusal of an archive of C++'s torch::save() says to do in Python, done.

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/python.hpp"
#include "support/temporary_folder.hpp"

#include <cstdlib>
#include <fstream>
#include <string>

#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <tutti/checkpoint/weights.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

TEST_CASE("Python makes a safetensors file of an archive of C++ by the words of its refusal",
          "[round_trip][checkpoint][python]") {
  const std::string modules = "torch, numpy, safetensors.torch";
  const std::string python = tutti_test::python_with(modules);
  if (python.empty()) {
    return tutti_test::skip(tutti_test::no_python_with(modules));
  }
  const TemporaryFolder folder;
  const std::string archive = (folder / "model.pt").string();
  const torch::nn::Linear saved(3, 2);
  torch::save(saved, archive);
  const std::string words = message([&] { tutti::checkpoint::read_weights(archive); });
  const std::size_t cure = words.find("state = torch.jit.load(path)");
  REQUIRE(cure != std::string::npos);
  const std::string script = (folder / "cure.py").string();
  std::ofstream(script) << "import os, sys\nimport safetensors.torch, torch\npath = sys.argv[1]\n"
                           "os.chdir(os.path.dirname(path))\n"
                        << words.substr(cure, words.find('\n', cure) - cure) << '\n';
  REQUIRE(std::system((python + " '" + script + "' '" + archive + "'").c_str()) == 0);
  const tutti::Archive read =
      tutti::checkpoint::read_weights((folder / "model.safetensors").string());
  CHECK(at::equal(read.tensor("weight"), saved->weight));
  CHECK(at::equal(read.tensor("bias"), saved->bias));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
