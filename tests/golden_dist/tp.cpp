#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/dist/process_group.hpp>
#include <tutti/dist/tensor_parallel.hpp>

#include "dist/ranks.hpp"
#include "golden_dist/runner.hpp"
#include "support/catch.hpp"
#include "support/environment_variable.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// One block over several ranks, whose loss and gradients are those of one process.

namespace {

using golden_dist::Case;
using golden_dist::Tensors;
namespace dist = tutti::dist;

// A rank's part of a parameter, or of its gradient.
at::Tensor part(const std::string& name, const at::Tensor& whole,
                const dist::TensorParallel& over) {
  if (name == "wte") {
    const auto [begin, end] = dist::own_rows(whole.size(0), over);
    return whole.narrow(0, begin, end - begin).clone();
  }
  if (name == "qkv.w" || name == "qkv.b") {
    return dist::parallel_part(whole, 0, over, 3);
  }
  if (name == "up.w" || name == "up.b") {
    return dist::parallel_part(whole, 0, over);
  }
  return name == "o.w" || name == "down.w" ? dist::parallel_part(whole, 1, over) : whole.clone();
}

at::Tensor attend(const at::Tensor& x, std::int64_t own_heads) {
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  std::vector<at::Tensor> qkv;
  for (const at::Tensor& one : x.chunk(3, -1)) {
    qkv.push_back(one.reshape({batch, length, own_heads, -1}).transpose(1, 2));
  }
  return at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0, /*is_causal=*/true)
      .transpose(1, 2)
      .reshape({batch, length, -1});
}

at::Tensor loss_of(const Tensors& p, const at::Tensor& ids, std::int64_t vocabulary,
                   std::int64_t heads, const dist::TensorParallel& over) {
  const std::int64_t width = p.at("ln.w").size(0);
  at::Tensor x = dist::vocabulary_embedding(ids, p.at("wte"), vocabulary, over);
  at::Tensor y = at::layer_norm(x, {width}, p.at("ln.w"), p.at("ln.b"));
  y = attend(dist::column_linear(y, p.at("qkv.w"), p.at("qkv.b"), over), heads / over.size());
  x = x + dist::row_linear(y, p.at("o.w"), p.at("o.b"), over);
  y = at::layer_norm(x, {width}, p.at("ln2.w"), p.at("ln2.b"));
  y = at::gelu(dist::column_linear(y, p.at("up.w"), p.at("up.b"), over));
  x = x + dist::row_linear(y, p.at("down.w"), p.at("down.b"), over);
  const at::Tensor logits = dist::column_linear(x, p.at("wte"), {}, over);
  const std::int64_t length = ids.size(1);
  return dist::vocabulary_cross_entropy(logits.narrow(1, 0, length - 1).flatten(0, 1),
                                        ids.narrow(1, 1, length - 1).flatten(), vocabulary, over);
}

// What the file says; where it does not, the number whose loss is the file's, 4 before others.
std::int64_t heads_of(const Case& c, const Tensors& file) {
  const tutti::checkpoint::SafetensorsFile opened(c.path);
  if (const auto said = opened.metadata().find("heads"); said != opened.metadata().end()) {
    return std::stoll(said->second);
  }
  constexpr std::int64_t usual = 4;
  Tensors parameters;
  for (const auto& [name, tensor] : file) {
    parameters[name.starts_with("param.") ? name.substr(6) : name] = tensor;
  }
  const dist::TensorParallel alone{.group = std::make_shared<dist::SingleProcess>()};
  const double want = file.at("loss").item<double>();
  const std::int64_t width = file.at("param.ln.w").size(0);
  for (std::int64_t i = 0; i <= width; ++i) {
    const std::int64_t heads = i == 0 ? usual : i;
    if (width % heads == 0) {
      const at::Tensor loss = loss_of(parameters, file.at("ids").to(at::kLong),
                                      file.at("param.wte").size(0), heads, alone);
      if (std::abs(loss.item<double>() - want) <= 1e-12 * std::abs(want)) {
        return heads;
      }
    }
  }
  return usual;
}

void check_case(const Case& c, const dist::TensorParallel& over) {
  const Tensors file = c.tensors();
  Tensors parameters;
  for (const auto& [name, tensor] : file) {
    if (name.starts_with("param.")) {
      const std::string own = name.substr(6);
      parameters[own] = part(own, tensor, over).requires_grad_();
    }
  }
  const at::Tensor loss = loss_of(parameters, file.at("ids").to(at::kLong),
                                  file.at("param.wte").size(0), heads_of(c, file), over);
  loss.backward();
  c.number("loss", loss.item<double>(), file.at("loss").item<double>(), 1e-12);
  if (over.sequence == dist::SequenceParallel::yes) {
    std::vector<at::Tensor> whole;
    for (const char* name : {"ln.w", "ln.b", "ln2.w", "ln2.b", "o.b", "down.b"}) {
      whole.push_back(parameters.at(name));
    }
    dist::sum_gradients(whole, over);
  }
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor& whole = file.at("grad." + name);
    const at::Tensor want = part(name, whole, over);
    const double largest = whole.abs().max().item<double>();
    const double worst = want.numel() == 0  // a rank without a row of the vocabulary
                             ? 0
                             : (parameter.grad() - want).abs().max().item<double>();
    c.check(worst <= 1e-12 * largest, "the gradient of " + name + " differs by " +
                                          std::to_string(worst / largest) + " of the largest");
  }
}

void run(const Case& c) {
  if (c.path.extension() != ".safetensors") {
    throw golden_dist::Unmapped("a block is a safetensors file");
  }
  const EnvironmentVariable path("TUTTI_TEST_TP_CASE", c.path.c_str());
  const std::int64_t heads = heads_of(c, c.tensors());
  for (const int ranks : {1, 2, 3, 4}) {
    if (heads % ranks != 0) {
      continue;
    }
    const std::string report = tutti_test::run_ranks("rank body: a block over several ranks", ranks,
                                                     std::chrono::seconds(180));
    c.check(report == tutti_test::all_passed, std::to_string(ranks) + " ranks: " + report);
  }
}

const bool registered = golden_dist::register_kind("tp", run);

}  // namespace

TEST_CASE("rank body: a block over several ranks", "[.rank]") {
  const char* path = std::getenv("TUTTI_TEST_TP_CASE");
  REQUIRE(path != nullptr);
  for (const auto sequence : {dist::SequenceParallel::no, dist::SequenceParallel::yes}) {
    const Case c("tp", path, path);
    const auto group = dist::initialize();
    if (sequence == dist::SequenceParallel::yes &&
        c.tensors().at("ids").size(1) % group->size() != 0) {
      continue;
    }
    check_case(c, {.group = group, .sequence = sequence});
    for (const std::string& complaint : c.complaints()) {
      FAIL_CHECK(complaint);
    }
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
