#include <tutti/nn/walk.hpp>

#include "support/catch.hpp"

#include <string>
#include <vector>

#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/sequential.hpp>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
namespace surgery = tutti::surgery;

struct SharedNet : torch::nn::Module {
  SharedNet() {
    register_module("first", shared);
    block = register_module("block", nn::Sequential(nn::Linear(2, 2), torch::nn::Linear(2, 2)));
    block->push_back("again", shared);
    register_module("last", shared);
  }
  nn::Linear shared{2, 2};
  nn::Sequential block{nullptr};
};

}  // namespace

TEST_CASE("a walk lists each module once, parents first, with all its sites", "[nn][walk][law]") {
  SharedNet net;
  std::vector<std::string> paths;
  const auto visits = surgery::walk(net);
  for (const surgery::Visit& visit : visits) {
    paths.push_back(visit.path);
  }
  CHECK(paths == std::vector<std::string>{"first", "block", "block.0", "block.1"});
  REQUIRE(visits[0].sites.size() == 3);
  CHECK(visits[0].sites[0].parent == &net);
  CHECK(visits[0].sites[1].parent == net.block.get());
  CHECK(visits[0].sites[1].name == "again");
  CHECK(visits[0].sites[2].name == "last");
  CHECK(visits[2].ancestors == std::vector<torch::nn::Module*>{&net, net.block.get()});
  CHECK(visits[2].inside<nn::SequentialImpl>());
  CHECK_FALSE(visits[1].inside<nn::SequentialImpl>());
}

TEST_CASE("count takes derived classes in and the root out", "[nn][walk]") {
  SharedNet net;
  CHECK(surgery::count<torch::nn::Linear>(net) == 3);
  CHECK(surgery::count<nn::Linear>(net) == 2);
  CHECK(surgery::count<nn::Conv2d>(net) == 0);
  CHECK(surgery::count<torch::nn::Module>(net) == 4);
  CHECK(surgery::count<nn::Linear>(*net.shared) == 0);
}

TEST_CASE("for_each numbers the modules that it visits", "[nn][walk]") {
  SharedNet net;
  std::vector<std::string> seen;
  surgery::for_each<torch::nn::Linear>(
      net, [&](torch::nn::LinearImpl&, const surgery::Visit& where) {
        seen.push_back(std::to_string(where.index) + " " + where.path);
      });
  CHECK(seen == std::vector<std::string>{"0 first", "1 block.0", "2 block.1"});
}

}  // namespace UNITY_BUILD_UNIQUE_ID
