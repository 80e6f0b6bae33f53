#include <tutti/checkpoint/module_state.hpp>

#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Archive;
using tutti::checkpoint::load_module;
using tutti::checkpoint::save_module;

namespace {

torch::nn::Sequential small_net() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 2, 3)),
                               torch::nn::BatchNorm2d(2), torch::nn::Linear(4, 3));
}

Archive saved(const torch::nn::Module& module) {
  Archive archive;
  save_module(module, archive);
  return archive;
}

// One weight under two names, as the embedding and the head of a language model.
struct Tied : torch::nn::Module {
  Tied() : weight(register_parameter("first", torch::rand({3, 3}))) {
    register_parameter("second", weight);
  }
  torch::Tensor weight;
};

}  // namespace

TEST_CASE("a module's tensors go into another of the same shape", "[checkpoint][module]") {
  torch::manual_seed(1);
  auto from = small_net();
  auto into = small_net();
  from->named_buffers()["1.num_batches_tracked"].fill_(7);
  const Archive archive = saved(*from);
  CHECK(archive.names().front() == "0.weight");
  const auto before = into->parameters();
  const auto report = load_module(*into, archive);
  CHECK(report.complete());
  CHECK(report.loaded.size() == 9);
  const auto after = into->parameters();
  for (std::size_t i = 0; i < after.size(); ++i) {
    CHECK(after[i].is_same(before[i]));  // optimizers hold these objects
    CHECK(after[i].equal(from->parameters()[i]));
    CHECK(after[i].requires_grad());
    CHECK_FALSE(after[i].is_alias_of(from->parameters()[i]));
  }
  CHECK(into->named_buffers()["1.num_batches_tracked"].item<int>() == 7);
}

TEST_CASE("a strict load lists all that differs and changes nothing", "[checkpoint][module]") {
  auto net = small_net();
  Archive archive = saved(*small_net());
  archive.erase("0.bias");
  archive.erase("2.weight");
  archive.put("2.weight", torch::zeros({5, 4}));
  archive.erase("1.weight");
  archive.put("1.weight", torch::zeros({2}, torch::kDouble));
  archive.put("head.weight", torch::zeros({1}));
  const auto before = net->parameters()[0].clone();
  CHECK_THROWS_WITH(
      load_module(*net, archive),
      ContainsSubstring("1 missing (the model has them, the file has not):\n    0.bias") &&
          ContainsSubstring(
              "1 unexpected (the file has them, the model has not):\n    head.weight") &&
          ContainsSubstring("2.weight: shape [5, 4] in the file, [3, 4] in the model") &&
          ContainsSubstring(
              "1.weight: type Double in the file, Float in the model; checkpoint::load_module "
              "converts with convert_dtype"));
  CHECK(net->parameters()[0].equal(before));

  const auto report = load_module(*net, archive, {.strict = false, .convert_dtype = true});
  CHECK(report.missing == std::vector<std::string>{"0.bias"});
  CHECK(report.unexpected == std::vector<std::string>{"head.weight"});
  CHECK(report.mismatched.size() == 1);
  CHECK(report.loaded.size() == 7);
  CHECK(net->named_parameters()["1.weight"].equal(torch::zeros({2})));
  CHECK(net->parameters()[0].equal(archive.tensor("0.weight")));
}

TEST_CASE("a long list of differences is cut", "[checkpoint][module]") {
  tutti::checkpoint::LoadReport report;
  report.missing = {"a", "b", "c"};
  CHECK_THAT(report.text(2),
             ContainsSubstring("3 missing") && ContainsSubstring("b\n    and 1 more"));
  CHECK(tutti::checkpoint::LoadReport{}.text().empty());
}

TEST_CASE("names can be ignored by globs and freed of a prefix", "[checkpoint][module]") {
  auto net = small_net();
  Archive archive;
  archive.put("epoch", 3);
  CHECK_THROWS_WITH(load_module(*net, archive),
                    ContainsSubstring("'epoch' among the weights is no tensor"));

  Archive wrapped;
  for (const auto& [name, tensor] : tutti::checkpoint::module_tensors(*small_net())) {
    wrapped.put("module." + name, name == "2.weight" ? torch::zeros({9, 4}) : tensor.detach());
  }
  const auto report = load_module(*net, wrapped, {.strip_prefix = "module.", .ignore = {"2.*"}});
  CHECK(report.ignored == std::vector<std::string>{"2.weight", "2.bias"});
  CHECK(report.loaded.size() == 7);
  wrapped.erase("module.2.bias");  // the model alone has it
  wrapped.put("module.2.scale", torch::zeros({1}));
  CHECK(load_module(*net, wrapped, {.strip_prefix = "module.", .ignore = {"2.*"}}).ignored ==
        std::vector<std::string>{"2.weight", "2.scale", "2.bias"});
}

TEST_CASE("tied weights are saved under each name and may come under one", "[checkpoint][module]") {
  const Tied net;
  Archive archive = saved(net);
  CHECK(archive.names() == std::vector<std::string>{"first", "second"});
  Tied other;
  CHECK(load_module(other, archive).complete());
  CHECK(other.weight.equal(net.weight));
  CHECK(other.named_parameters()["second"].is_same(other.weight));

  archive.erase("first");
  Tied third;
  CHECK(load_module(third, archive).complete());
  CHECK(third.weight.equal(net.weight));
  archive.put("first", torch::zeros({3, 3}));
  CHECK_THROWS_WITH(load_module(third, archive),
                    ContainsSubstring("second: tied to first in the model"));
}

TEST_CASE("a checksum is of names, types, shapes and bytes, in the order asked for",
          "[checkpoint][module]") {
  torch::manual_seed(1);
  const auto net = small_net();
  const std::vector<std::string> some{"0.weight", "1.running_mean"};
  const std::string all = tutti::checkpoint::checksum(*net, some);
  CHECK(all.size() == 16);
  CHECK(tutti::checkpoint::checksum(*net, some) == all);
  CHECK(tutti::checkpoint::checksum(*net, {"1.running_mean", "0.weight"}) != all);
  CHECK(tutti::checkpoint::checksum(*net, {"0.weight"}) != all);
  const torch::NoGradGuard no_grad;
  net->named_buffers()["1.running_var"].fill_(2);  // not asked for
  CHECK(tutti::checkpoint::checksum(*net, some) == all);
  net->named_buffers()["1.running_mean"][1] = -0.0;  // equal to what was there
  CHECK(tutti::checkpoint::checksum(*net, some) != all);
  CHECK_THROWS_WITH(tutti::checkpoint::checksum(*net, {"9.weight"}),
                    ContainsSubstring("no tensor '9.weight'"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
