#include <tutti/dist/sharded.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <tutti/checkpoint/json_file.hpp>
#include <tutti/checkpoint/safetensors.hpp>
#include <tutti/dist/process_group.hpp>
#include <tutti/nn/unit.hpp>

#include "dist/ranks.hpp"
#include "golden_dist/runner.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// zero/*.safetensors: a run that is sharded over W ranks gives what one process gives.

namespace dist = tutti::dist;
namespace fs = std::filesystem;

using dist::ShardStage;

namespace {

struct BlockImpl final : torch::nn::Module, tutti::nn::Unit {
  BlockImpl(std::int64_t width, std::int64_t its_heads)
      : heads(its_heads),
        ln_1(register_module("ln_1", torch::nn::LayerNorm(norm(width)))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        proj(register_module("proj", torch::nn::Linear(width, width))),
        ln_2(register_module("ln_2", torch::nn::LayerNorm(norm(width)))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))),
        scale(register_parameter("scale", torch::ones(2))) {}

  static torch::nn::LayerNormOptions norm(std::int64_t width) {
    return torch::nn::LayerNormOptions({width});
  }

  at::Tensor forward(const at::Tensor& input) {
    return in_unit(input, [&](const at::Tensor& x) {
      const at::Tensor h = x + scale[0] * linear(proj, attention(linear(qkv, ln_1(x))));
      return h + scale[1] * linear(down, at::gelu(linear(up, ln_2(h))));
    });
  }

  // As Python's layer: torch::nn::Linear rounds before it adds the bias, once more in bfloat16.
  static at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
    return at::linear(x, layer->weight, layer->bias);
  }

  at::Tensor attention(const at::Tensor& x) const {
    const std::int64_t n = x.size(0);
    const std::int64_t t = x.size(1);
    const std::int64_t width = x.size(2) / 3;
    const at::Tensor all = x.view({n, t, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const double by = std::pow(static_cast<double>(width / heads), -0.5);
    const at::Tensor scores = all[0].matmul(all[1].transpose(-1, -2)) * by;
    const at::Tensor seen = at::ones({t, t}, at::kBool).tril();
    const at::Tensor weights = scores.masked_fill(~seen, -INFINITY).softmax(-1);
    return weights.matmul(all[2]).transpose(1, 2).reshape({n, t, width});
  }

  std::int64_t heads;
  torch::nn::LayerNorm ln_1;
  torch::nn::Linear qkv, proj;
  torch::nn::LayerNorm ln_2;
  torch::nn::Linear up, down;
  at::Tensor scale;
};
TORCH_MODULE(Block);

struct Tiny final : torch::nn::Module {
  Tiny(const golden_dist::Tensors& reference, std::int64_t layers, std::int64_t heads) {
    const auto words = reference.at("init.wte.weight").sizes();
    const auto places = reference.at("init.wpe.weight").sizes();
    wte = register_module("wte", torch::nn::Embedding(words[0], words[1]));
    wpe = register_module("wpe", torch::nn::Embedding(places[0], places[1]));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (std::int64_t i = 0; i < layers; ++i) {
      blocks->push_back(Block(words[1], heads));
    }
    ln_f = register_module("ln_f", torch::nn::LayerNorm(BlockImpl::norm(words[1])));
    const c10::NoGradGuard no_grad;
    for (const auto& item : named_parameters()) {
      item.value().copy_(reference.at("init." + item.key()));
    }
  }

  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = wte(ids) + wpe(at::arange(ids.size(1)));
    for (const auto& block : *blocks) {
      x = block->as<Block>()->forward(x);
    }
    return at::linear(ln_f(x), wte->weight);
  }

  at::Tensor loss(const at::Tensor& ids) {
    return at::cross_entropy_loss(forward(ids).slice(1, 0, -1).flatten(0, 1),
                                  ids.slice(1, 1).flatten());
  }

  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};
};

struct Variant {
  std::string name;
  bool adamw = false;
  double clip = 0;
  std::int64_t microbatches = 1;
  bool frozen = false;
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all{{.name = "sgd"},
                                        {.name = "sgd_clip", .clip = 0.5},
                                        {.name = "adamw", .adamw = true},
                                        {.name = "adamw_clip", .adamw = true, .clip = 0.5},
                                        {.name = "sgd_micro2", .microbatches = 2},
                                        {.name = "sgd_frozen", .frozen = true}};
  return all;
}

struct Result {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> tensors;  // "final.*", "exp_avg.*", "exp_avg_sq.*"
};

/// A rank's sequences fall into microbatches of one size.
bool divides(const Variant& variant, const golden_dist::Tensors& reference, int ranks) {
  return reference.at("data").size(1) % (ranks * variant.microbatches) == 0;
}

/// 8 steps of this rank's rows.
Result train(const golden_dist::Tensors& reference, std::int64_t layers, std::int64_t heads,
             const Variant& variant, const dist::ShardingOptions& options, at::ScalarType type) {
  const auto group = dist::initialize();
  Tiny model(reference, layers, heads);
  model.to(type);
  for (const auto& item : model.named_parameters()) {
    const bool frozen = item.key().rfind("wpe.", 0) == 0 || item.key().rfind("blocks.0.", 0) == 0;
    item.value().set_requires_grad(!variant.frozen || !frozen);
  }
  const auto sharding = dist::shard(model, group, options);
  std::vector<at::Tensor> shards;
  for (const auto& one : sharding->parameters()) {
    if (one.shard.requires_grad()) {
      shards.push_back(one.shard);
    }
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (variant.adamw) {
    optimizer = std::make_unique<torch::optim::AdamW>(
        shards, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  } else {
    optimizer =
        std::make_unique<torch::optim::SGD>(shards, torch::optim::SGDOptions(0.2).momentum(0.9));
  }
  Result result;
  const at::Tensor data = reference.at("data").to(at::kLong);
  for (std::int64_t step = 0; step < data.size(0); ++step) {
    const at::Tensor rows =
        data[step].chunk(group->size())[static_cast<std::size_t>(group->rank())];
    double loss_sum = 0;
    optimizer->zero_grad();
    const auto parts = rows.chunk(variant.microbatches);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      sharding->before_forward(i + 1 == parts.size());
      const at::Tensor loss = model.loss(parts[i]) / static_cast<double>(parts.size());
      sharding->before_backward(loss);
      loss.backward();
      sharding->after_backward();
      loss_sum += loss.item<double>();
    }
    double squares = 0;
    for (const at::Tensor& shard : shards) {
      squares += shard.grad().to(at::kDouble).square().sum().item<double>();
    }
    const double norm = std::sqrt(sharding->shard_group().all_reduce_value(squares));
    if (variant.clip > 0) {
      for (const at::Tensor& shard : shards) {
        shard.mutable_grad().mul_(std::min(1.0, variant.clip / (norm + 1e-6)));
      }
    }
    optimizer->step();
    sharding->after_step();
    result.losses.push_back(group->all_reduce_value(loss_sum, dist::ReduceOp::mean));
    result.norms.push_back(norm);
  }
  const auto whole = sharding->summon();
  for (const auto& one : sharding->parameters()) {
    result.tensors["final." + one.name] = one.whole.detach().clone();
    const auto state = optimizer->state().find(one.shard.unsafeGetTensorImpl());
    if (variant.adamw && state != optimizer->state().end()) {
      const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*state->second);
      result.tensors["exp_avg." + one.name] = sharding->whole_of(one, adam.exp_avg());
      result.tensors["exp_avg_sq." + one.name] = sharding->whole_of(one, adam.exp_avg_sq());
    }
  }
  return result;
}

/// A line for each comparison: its name, how far off, how far it may be.
class Report {
 public:
  void relative(const std::string& what, const std::vector<double>& got,
                const std::vector<double>& want, double allowed) {
    double worst = got.size() == want.size() ? 0 : INFINITY;
    for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
      const double off = got[i] == want[i] ? 0 : std::abs(got[i] - want[i]) / std::abs(want[i]);
      worst = off <= worst ? worst : off;
    }
    line(what, worst, allowed);
  }
  void of_maximum(const std::string& what, const at::Tensor& got, const at::Tensor& want,
                  double allowed) {
    if (!got.defined() || got.sizes() != want.sizes()) {
      line(what, INFINITY, allowed);
      return;
    }
    if (want.numel() == 0) {
      line(what, 0, allowed);
      return;
    }
    const at::Tensor exact = want.to(at::kDouble);
    const double largest = exact.abs().max().item<double>();
    const double worst = (got.to(at::kDouble) - exact).abs().max().item<double>();
    line(what, largest > 0 ? worst / largest : worst, allowed);
  }
  void left_out(const std::string& what) { text_ << what << '\n'; }
  [[nodiscard]] std::string text() const { return text_.str(); }

 private:
  void line(const std::string& what, double off, double allowed) {
    text_ << what << '\t' << off << '\t' << allowed << '\n';
  }
  std::ostringstream text_;
};

std::vector<double> numbers(const at::Tensor& tensor) {
  const at::Tensor all = tensor.to(at::kDouble).contiguous();
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void compare(Report& report, const std::string& what, const Variant& variant, const Result& got,
             const golden_dist::Tensors& reference, double losses, double weights) {
  report.relative(what + " losses", got.losses, numbers(reference.at(variant.name + ".losses")),
                  losses);
  report.relative(what + " norms", got.norms, numbers(reference.at(variant.name + ".norms")),
                  losses);
  for (const auto& [name, want] : reference) {
    const std::string start = variant.name + ".";
    if (const std::string own = name.substr(std::min(name.size(), start.size()));
        name.starts_with(start) && own != "losses" && own != "norms") {
      const auto found = got.tensors.find(own);
      report.of_maximum(what + " " + own, found == got.tensors.end() ? at::Tensor() : found->second,
                        want, weights);
    }
  }
}

void write_report(const Report& report) {
  CHECK_FALSE(report.text().empty());
  if (dist::rank() == 0) {
    std::ofstream(variable("TUTTI_ZERO_REPORT")) << report.text();
  }
}

/// Starts the ranks and takes over what they report.
void run_on(const golden_dist::Case& c, const std::string& body, int ranks) {
  const TemporaryFolder folder;
  const std::string path = (folder / "report").string();
  ::setenv("TUTTI_ZERO_CASE", c.path.c_str(), 1);
  ::setenv("TUTTI_ZERO_REPORT", path.c_str(), 1);
  const std::string outcome = tutti_test::run_ranks(body, ranks, std::chrono::seconds(280));
  c.check(outcome == tutti_test::all_passed, c.name + ": " + outcome);
  std::ifstream report(path);
  std::size_t lines = 0;
  for (std::string line; std::getline(report, line);) {
    std::istringstream fields(line);
    std::string what;
    std::string off_text;
    std::string allowed_text;
    std::getline(fields, what, '\t');
    if (!std::getline(fields, off_text, '\t')) {
      std::cout << c.name << " on " << ranks << " ranks: " << what << '\n';
      continue;
    }
    ++lines;
    std::getline(fields, allowed_text);
    const double off = std::stod(off_text);  // also nan and inf, which a stream cannot read
    const double allowed = std::stod(allowed_text);
    std::ostringstream text;
    text << c.name << " on " << ranks << " ranks: " << what << " are off by " << off
         << ", allowed are " << allowed;
    c.check(off <= allowed, text.str());
  }
  c.check(lines > 0, c.name + ": no report of " + std::to_string(ranks) + " ranks");
}

void run_zero(const golden_dist::Case& c) {
  if (c.path.extension() == ".json") {
    const auto ranks = tutti::checkpoint::read_json(c.path).at("world").integer();
    run_on(c, "rank body: a case in low precision", static_cast<int>(ranks));
    return;
  }
  const golden_dist::Tensors reference = c.tensors();
  for (const auto& item : reference) {
    const std::string& name = item.first;
    const std::string variant = name.substr(0, name.find('.'));
    const bool known = std::ranges::count(variants(), variant, &Variant::name) > 0;
    c.check(known || !name.ends_with(".losses"), "nothing trains the variant " + variant);
  }
  const std::int64_t sequences = reference.at("data").size(1);
  for (const int ranks : {1, 2, 3, 4, 6}) {
    if (sequences % ranks == 0) {  // else the mean of the ranks' means is another one
      run_on(c, "rank body: a case in double precision", ranks);
    }
  }
  for (const int ranks : {2, 3}) {
    if (sequences % ranks == 0) {
      run_on(c, "rank body: a case in single precision", ranks);
    }
  }
}

const bool registered = golden_dist::register_kind("zero", run_zero);

struct Loaded {
  explicit Loaded(const fs::path& path)
      : reference(golden_dist::read_tensors(path)), file(path.string()) {}
  [[nodiscard]] std::int64_t count(const char* name) const {
    return std::stoll(file.metadata().at(name));
  }
  golden_dist::Tensors reference;
  tutti::checkpoint::SafetensorsFile file;
};

}  // namespace

TEST_CASE("rank body: a case in double precision", "[.rank]") {
  const Loaded loaded(variable("TUTTI_ZERO_CASE"));
  const int ranks = dist::initialize()->size();
  std::vector<dist::ShardingOptions> ways;
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters}) {
    ways.push_back({.stage = stage});
    if (ranks >= 4) {
      ways.push_back({.stage = stage, .shard_degree = ranks / 2});  // 2x2 and 2x3
    }
  }
  Report report;
  for (const Variant& variant : variants()) {
    if (!divides(variant, loaded.reference, ranks)) {
      report.left_out(variant.name +
                      " is not run: ranks and microbatches do not divide its sequences");
    }
  }
  for (const auto& way : ways) {
    for (const Variant& variant : variants()) {
      if (!divides(variant, loaded.reference, ranks)) {
        continue;
      }
      const Result got = train(loaded.reference, loaded.count("layers"), loaded.count("heads"),
                               variant, way, at::kDouble);
      const std::string what = std::string(to_string(way.stage)) + "/" +
                               std::to_string(way.shard_degree) + " " + variant.name;
      compare(report, what, variant, got, loaded.reference, 1e-12, 1e-9);
    }
  }
  write_report(report);
}

TEST_CASE("rank body: a case in single precision", "[.rank]") {
  const Loaded loaded(variable("TUTTI_ZERO_CASE"));
  Report report;
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters}) {
    for (const Variant& variant : variants()) {
      if (!variant.adamw && divides(variant, loaded.reference, dist::initialize()->size())) {
        const Result got = train(loaded.reference, loaded.count("layers"), loaded.count("heads"),
                                 variant, {.stage = stage}, at::kFloat);
        compare(report, std::string(to_string(stage)) + " fp32 " + variant.name, variant, got,
                loaded.reference, 1e-6, 1e-6);
      }
    }
  }
  write_report(report);
}

TEST_CASE("rank body: a case in low precision", "[.rank]") {
  const fs::path path = variable("TUTTI_ZERO_CASE");  // a_bf16_w2.json, of a.safetensors
  const auto want = tutti::checkpoint::read_json(path);
  const std::string name = path.stem().string();
  const Loaded loaded(path.parent_path() / (name.substr(0, name.find("_bf16")) + ".safetensors"));
  const auto list = [&](const char* kind, const char* what) {
    std::vector<double> out;
    for (const auto& number : want.at(kind).at(what).array()) {
      out.push_back(number.number());
    }
    return out;
  };
  Report report;
  const auto compare_with = [&](const char* kind, dist::ShardingOptions options, double losses,
                                double norms) {
    const Result got = train(loaded.reference, loaded.count("layers"), loaded.count("heads"),
                             variants().front(), options, at::kFloat);
    report.relative(std::string(kind) + " losses", got.losses, list(kind, "losses"), losses);
    report.relative(std::string(kind) + " norms", got.norms, list(kind, "norms"), norms);
  };
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters}) {
    compare_with("full", {.stage = stage}, 1e-6, 1e-6);
    compare_with("default",
                 {.stage = stage, .param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}, 8e-3,
                 6e-3);
    compare_with("pure", {.stage = stage, .param_dtype = at::kBFloat16}, 8e-3, 6e-3);
  }
  write_report(report);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
