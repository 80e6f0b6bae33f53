// SPDX-License-Identifier: Apache-2.0
#pragma once

// What both forms of an exported model do and refuse, for the packages that compiled/make.py makes.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/models/compiled.hpp>

#include "support/catch.hpp"

namespace compiled_rows {

using Tensors = std::map<std::string, at::Tensor>;

inline std::string source(const std::string& name) {
  return TUTTI_SOURCE_DIR "/tests/models/compiled/" + name;
}

/// A batch and what PyTorch gives for it.
inline Tensors expected(const std::string& path) {
  const auto read = tutti::checkpoint::read_safetensors(path + "/expected.safetensors");
  return {read.begin(), read.end()};
}

inline std::vector<at::Tensor> inputs_of(const Tensors& io) {
  return io.contains("x1") ? std::vector{io.at("x0"), io.at("x1")} : std::vector{io.at("x0")};
}

/// 20 steps of SGD on one batch, as make.py does them, and the evaluation afterwards.
inline void check_losses(const std::string& path, double tolerance) {
  const Tensors io = expected(path);
  auto net = tutti::load_compiled(path);
  const tutti::Autocast precision(at::kCPU, at::kBFloat16, net->precision() == "amp_bf16");
  const auto logits = [&] { return net->forward(inputs_of(io))[0].to(at::kFloat); };
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::manual_seed(5);
  for (std::int64_t i = 0; i < io.at("losses").size(0); ++i) {
    optimizer.zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(logits(), io.at("y"));
    loss.backward();
    optimizer.step();
    const double want = io.at("losses")[i].item<double>();
    INFO(path << ", step " << i);
    CHECK(std::abs(loss.item<double>() - want) <= tolerance * want);
  }
  net->eval();
  const at::Tensor out = logits();
  CHECK(out.allclose(io.at("eval"), std::max(tolerance, 1e-4), std::max(tolerance, 1e-5)));
  CHECK(!out.requires_grad());
}

/// 20 steps by the program of forward, loss and backward, and what it is not for.
inline void check_step(const std::string& folder, double tolerance) {
  using Catch::Matchers::ContainsSubstring;
  const Tensors io = expected(folder + "/whole");
  const at::Tensor x = io.at("x0"), y = io.at("y");
  auto net = tutti::load_compiled(folder + "/whole");
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::manual_seed(5);
  for (std::int64_t i = 0; i < io.at("losses").size(0); ++i) {
    optimizer.zero_grad();
    const auto both = net->forward_and_loss(x, y);
    REQUIRE(both.has_value());
    CHECK(!both->first.requires_grad());
    both->second.backward();
    optimizer.step();
    const double want = io.at("losses")[i].item<double>();
    INFO("step " << i);
    CHECK(std::abs(both->second.item<double>() - want) <= tolerance * want);
  }

  // The two programs: outputs, gradients of a part of the loss, statistics, a frozen weight.
  auto two = tutti::load_compiled(folder + "/whole"), one = tutti::load_compiled(folder + "/whole");
  for (auto& each : {two, one}) {
    each->named_parameters()["0.bias"].set_requires_grad(false);
  }
  const at::Tensor part = x.slice(0, 0, 5), of_part = y.slice(0, 0, 5);
  torch::manual_seed(6);
  const at::Tensor out = two->forward(part);
  at::cross_entropy_loss(out, of_part).mul(0.25).backward();
  torch::manual_seed(6);
  const auto both = one->forward_and_loss(part, of_part);
  REQUIRE(both.has_value());
  both->second.mul(0.25).backward();
  CHECK(both->first.allclose(out, 1e-4, 1e-5));
  for (const auto& each : two->named_parameters()) {
    const at::Tensor got = one->named_parameters()[each.key()].grad();
    INFO(each.key());
    CHECK(got.defined() == each.value().grad().defined());
    CHECK((!got.defined() || got.allclose(each.value().grad(), 1e-4, 1e-6)));
  }
  for (const auto& each : two->named_buffers()) {
    CHECK(one->named_buffers()[each.key()].allclose(each.value(), 1e-4, 1e-6));
  }
  CHECK_THROWS_WITH(both->second.backward(), ContainsSubstring("walked backward before"));

  // What takes two programs.
  const auto has = [&](const at::Tensor& targets) {
    return net->forward_and_loss(x, targets).has_value();
  };
  CHECK(has(y));
  at::Tensor one_counts = at::full_like(y, -100);
  one_counts.slice(0, 0, 1).fill_(1);
  CHECK(has(one_counts));
  CHECK(!has(y + 3));
  CHECK(!has(y - 3));
  CHECK(!has(y.to(at::kInt)));
  CHECK(!has(y.slice(0, 1)));
  CHECK(!has(at::ones({8, 3})));
  CHECK(!has({}));
  {
    const at::NoGradGuard no_grad;
    CHECK(!has(y));
  }
  net->eval();
  CHECK(!has(y));
  auto without = tutti::load_compiled(folder + "/dropped");
  CHECK(!without->forward_and_loss(x, y).has_value());
  net->train();
  CHECK_THROWS_WITH(net->forward_and_loss(x.to(at::kDouble), y), ContainsSubstring("convert it"));
}

/// What `forward` says when it refuses, without where it was thrown.
inline std::string said(tutti::CompiledNet& net, const std::vector<at::Tensor>& inputs) {
  try {
    net.forward(inputs);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "not refused";
}

/// Each input that a program would take in silence and read wrongly, or beyond its memory, is
/// refused with what it is and what was exported. folder: that of the packages net and pair.
inline void check_refused_inputs(const std::string& folder) {
  using Catch::Matchers::ContainsSubstring;
  auto net = tutti::load_compiled(folder + "/net");
  const auto given = [&](const at::Tensor& x) { return said(*net, {x}); };
  const auto refused = [](const std::string& text, const std::string& got,
                          const std::string& wanted, const std::string& cure) {
    CHECK_THAT(text, ContainsSubstring("is " + got));
    CHECK_THAT(text, ContainsSubstring("exported for " + wanted));
    CHECK_THAT(text, ContainsSubstring(cure));
  };
  const std::string want = "float32 [batch, 2, 8, 8] on cpu";
  const at::Tensor x = at::zeros({2, 2, 8, 8});
  for (const bool train : {true, false}) {
    net->train(train);
    INFO("train: " << train);
    CHECK(given(x) == "not refused");
    refused(given(x.to(at::kDouble)), "float64 [2, 2, 8, 8]", want, "convert it");
    refused(given(x.to(at::kLong)), "int64 [2, 2, 8, 8]", want, "convert it");
    refused(given(x[0]), "float32 [2, 8, 8]", want, "that many dimensions");
    refused(given(at::zeros({2, 2, 8, 9})), "float32 [2, 2, 8, 9]", want, "dynamic");
    refused(given(x.slice(1, 0, 1)), "float32 [2, 1, 8, 8]", want, "dynamic");
    refused(given(x.slice(0, 0, 0)), "float32 [0, 2, 8, 8]", want, "batch may be 1 to 4096");
    CHECK_THAT(given(at::zeros({4097, 2, 8, 8})),
               ContainsSubstring("export it with another --largest"));
    CHECK_THAT(given(x.to(at::kMeta)),
               ContainsSubstring("on meta") && ContainsSubstring("move it"));
    refused(given(x.to_sparse()), "float32 [2, 2, 8, 8] in the layout Sparse", want, "to_dense()");
    CHECK_THAT(said(*net, {}), ContainsSubstring("takes 1 inputs, got 0"));
    CHECK_THAT(said(*net, {at::Tensor()}), ContainsSubstring("images is undefined"));
  }
  net->train();
  CHECK_THAT(given(at::zeros({2, 2, 8, 8}).requires_grad_()), ContainsSubstring("detach()"));
  {
    const tutti::Autocast low(at::kCPU, at::kBFloat16);
    CHECK_THAT(given(x), ContainsSubstring("--precision amp_bf16"));
  }

  // Sizes that are steps, and a precision that the programs have and the caller has not.
  auto sized = tutti::load_compiled(folder + "/sized");
  CHECK(said(*sized, {at::zeros({3, 2, 8, 32})}) == "not refused");
  CHECK_THAT(said(*sized, {at::zeros({3, 2, 10, 32})}),
             ContainsSubstring("height may be 8 to 32 in steps of 4; export it with another"));
  CHECK_THAT(said(*sized, {at::zeros({3, 2, 8, 36})}), ContainsSubstring("width may be 8 to 32"));
  auto low = tutti::load_compiled(folder + "/low");
  CHECK_THAT(said(*low, {at::zeros({3, 6})}),
             ContainsSubstring("the precision is fp32") &&
                 ContainsSubstring("was exported in amp_bf16, which decides"));

  // A fixed dimension, and one size that two inputs share.
  auto pair = tutti::load_compiled(folder + "/pair");
  const auto both = [&](std::int64_t rows, std::int64_t a, std::int64_t b, at::ScalarType type) {
    return said(*pair, {at::zeros({rows, a, 4}), at::zeros({rows, b}, type)});
  };
  CHECK(both(4, 9, 9, at::kLong) == "not refused");
  refused(both(5, 9, 9, at::kLong), "float32 [5, 9, 4]", "float32 [4, length, 4] on cpu",
          "drop_last");
  CHECK_THAT(both(3, 9, 9, at::kLong), ContainsSubstring("drop_last"));
  refused(both(4, 9, 8, at::kLong), "int64 [4, 8]", "int64 [4, length] on cpu",
          "length is 9 in an input before it");
  refused(both(4, 9, 9, at::kInt), "int32 [4, 9]", "int64 [4, length]", "convert it");

  // Values that are rows of a table, of which a program would end the process.
  const at::Tensor rows = at::arange(12, at::kLong).remainder(10).view({4, 3});
  const auto words = [&](const at::Tensor& tokens) {
    return said(*pair, {at::zeros({4, 3, 4}), tokens});
  };
  CHECK(words(rows) == "not refused");
  CHECK_THAT(words(rows + 1), ContainsSubstring("the input tokens has values from 1 to 10") &&
                                  ContainsSubstring("give it 0 to 9"));
  CHECK_THAT(words(rows - 1), ContainsSubstring("values from -1 to 8"));
}

/// Inputs in another order of memory are the same inputs.
inline void check_orders_of_memory(const std::string& folder) {
  auto net = tutti::load_compiled(folder + "/net");
  net->eval();
  const at::Tensor x = at::randn({5, 2, 8, 8});
  const at::Tensor all = net->forward(std::vector{x})[0];
  const auto same = [&](const at::Tensor& other) {
    return net->forward(std::vector{other})[0].equal(all);
  };
  CHECK(same(x.contiguous(at::MemoryFormat::ChannelsLast)));
  CHECK(same(x.transpose(2, 3).contiguous().transpose(2, 3)));
  CHECK(same(at::cat({x, x}, 3).slice(3, 0, 8)));
}

/// Weights of another type, size, device or memory order are refused before a program reads them.
inline void check_refused_weights(const std::string& folder) {
  using Catch::Matchers::ContainsSubstring;
  const auto with = [&](const std::string& name, auto change) {
    auto net = tutti::load_compiled(folder + "/net");
    const at::NoGradGuard no_grad;
    auto* weight = net->named_parameters().find(name);
    at::Tensor tensor = weight != nullptr ? *weight : net->named_buffers()[name];
    tensor.set_data(change(tensor));
    return said(*net, {at::zeros({2, 2, 8, 8})});
  };
  using T = const at::Tensor&;
  CHECK(with("conv.weight", [](T t) { return t.clone(); }) == "not refused");
  CHECK_THAT(with("conv.weight", [](T t) { return t.contiguous(at::MemoryFormat::ChannelsLast); }),
             ContainsSubstring("conv.weight is float32 [4, 2, 3, 3] in another order of memory") &&
                 ContainsSubstring("ChannelsLast"));
  CHECK_THAT(with("fc.weight", [](T t) { return t.t().contiguous().t(); }),
             ContainsSubstring("another order of memory"));
  CHECK_THAT(with("fc.weight", [](T t) { return t.t().contiguous(); }),
             ContainsSubstring("fc.weight is float32 [4, 10]") &&
                 ContainsSubstring("exported with float32 [10, 4]"));
  CHECK_THAT(with("fc.bias", [](T t) { return t.to(at::kDouble); }),
             ContainsSubstring("fc.bias is float64 [10]"));
  CHECK_THAT(with("norm.running_mean", [](T t) { return t.to(at::kBFloat16); }),
             ContainsSubstring("norm.running_mean is bfloat16 [4]"));
}

/// A backward that the exported program does not have is refused.
inline void check_refused_backwards(const std::string& folder) {
  using Catch::Matchers::ContainsSubstring;
  auto net = tutti::load_compiled(folder + "/dropped");
  const at::Tensor x = at::randn({4, 6});
  const at::Tensor out = net->forward(x).sum();
  out.backward({}, /*retain_graph=*/true);
  CHECK_THROWS_WITH(out.backward(), ContainsSubstring("walked backward before"));
  const at::Tensor twice = net->forward(x).sum();
  CHECK_THROWS_WITH(twice.backward({}, true, /*create_graph=*/true),
                    ContainsSubstring("gradient of gradients"));
  const at::Tensor next = net->forward(x).sum();
  {
    const at::NoGradGuard no_grad;
    net->named_parameters()["b.weight"].mul_(2);
  }
  CHECK_THROWS_WITH(next.backward(), ContainsSubstring("modified by an inplace operation") ||
                                         ContainsSubstring("changed in place"));
}

}  // namespace compiled_rows
