#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <tutti/algorithms/backbone_finetuning.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/layer_freezing.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/skip_spikes.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/algorithms/unfreeze.hpp>
#include <tutti/callbacks/generate.hpp>
#include <tutti/callbacks/optimizer_monitor.hpp>
#include <tutti/checkpoint/snapshot.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

using namespace tutti;
using dist::ShardStage;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

constexpr ShardStage stages[] = {ShardStage::optimizer, ShardStage::gradients,
                                 ShardStage::parameters};

// Of the four positions the third of three ranks has no row.
auto gpt2() {
  torch::manual_seed(1);
  models::GPT2Options size{.vocab_size = 37, .n_positions = 4, .n_embd = 12, .n_layer = 2};
  size.n_head = 3;
  size.resid_pdrop = size.embd_pdrop = size.attn_pdrop = 0;
  const auto model = models::GPT2LMHeadModel(size).ptr();
  model->to(at::kDouble);
  return model;
}

OptimizerSpec optimizer = tutti::SGD{.lr = 0.3, .momentum = 0.9};

TrainerOptions options(std::int64_t batch_size) {
  at::manual_seed(7);
  const at::Tensor ids = at::randint(37, {24, 4}, at::kLong);
  Batch texts;
  texts["input_ids"] = ids;
  texts["labels"] = ids;
  return {.train = TensorLoader{texts, {.batch_size = batch_size, .shuffle = false}},
          .max_duration = "2ep",
          .optimizer = optimizer,
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

/// The loss of every batch.
struct Losses final {
  std::vector<double> all{};
  void apply(BatchEnd, State& state) { all.push_back(state.total_loss.at("total").item<double>()); }
};

/// What a run says: the latest of each metric, and the texts of tables.
struct Logged final {
  std::map<std::string, double> metrics{};
  std::string texts{};
  void log_metrics(std::span<const LoggedMetric> all, std::int64_t) {
    for (const LoggedMetric& metric : all) {
      metrics[std::string(metric.name)] = metric.value;
    }
  }
  void log_table(const LoggedTable& table, std::int64_t) {
    for (const auto& row : table.rows) {
      texts += row.back() + ';';
    }
  }
};

Generate::Tokens to_tokens(std::string_view text) {
  Generate::Tokens out;
  for (const char letter : text) {
    out.push_back(letter - 'A');
  }
  return out;
}
std::string to_text(std::span<const std::int64_t> tokens) {
  std::string out;
  for (const std::int64_t token : tokens) {
    out += static_cast<char>('A' + token);
  }
  return out;
}

/// Every tensor of a checkpoint by its path.
std::map<std::string, at::Tensor> tensors_of(const std::string& path) {
  const auto snapshot = checkpoint::read_snapshot(path);
  std::map<std::string, at::Tensor> out;
  const auto take = [&](const std::string& prefix) {
    return [&out, prefix](const std::string& name, const ArchiveLeaf& leaf) {
      if (const at::Tensor* tensor = leaf.tensor()) {
        out[prefix + name] = *tensor;
      }
    };
  };
  snapshot.model.each_leaf(take("model/"));
  snapshot.state.child("optimizers").each_leaf(take("optimizers/"));
  snapshot.state.child("policies").each_leaf(take("policies/"));
  return out;
}

std::vector<double> norms_of(const std::string& path) {
  return checkpoint::read_snapshot(path).state.get<std::vector<double>>(
      "policies/SkipSpikes/norms");
}

double difference(const std::vector<double>& one, const std::vector<double>& other) {
  double most = one.size() == other.size() && !one.empty() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
    const double off = std::abs(one[i] - other[i]);
    most = off <= most ? most : off;
  }
  return most;
}

/// The largest difference of two runs' tensors, of the largest element of each.
double difference(const std::map<std::string, at::Tensor>& one,
                  const std::map<std::string, at::Tensor>& other) {
  double most = one.size() == other.size() && !one.empty() ? 0 : INFINITY;
  for (const auto& [name, tensor] : one) {
    const at::Tensor mine = tensor.to(at::kDouble);
    const at::Tensor off = (mine - other.at(name).to(at::kDouble)).abs().max();
    const double part = (off / mine.abs().max().clamp_min(1e-300)).item<double>();
    most = part <= most ? most : part;
  }
  return most;
}

/// What a run has made, in double precision.
struct Made {
  std::vector<double> losses{};
  std::map<std::string, at::Tensor> saved{};  // on rank 0
  std::map<std::string, double> metrics{};
  std::string texts{};
};

/// Runs it with so many examples a rank. The checkpoint is whole.
template <class... Ps>
Made made(ShardStage stage, std::int64_t batch, const std::string& path, Ps... policies) {
  TrainerOptions with = options(batch);
  with.sharding.stage = stage;
  with.eval = {{"test", options(batch).train}};
  with.eval_interval = "1ba";
  Trainer<Losses, Logged, Ps...> trainer(gpt2(), std::move(with), Losses{}, Logged{},
                                         std::move(policies)...);
  trainer.fit();
  trainer.save_checkpoint(path);
  Made out{.losses = trainer.template get<Losses>().all,
           .metrics = trainer.template get<Logged>().metrics,
           .texts = trainer.template get<Logged>().texts};
  std::erase_if(out.metrics, [](const auto& one) { return one.first.starts_with("time"); });
  if (trainer.state().rank == 0) {
    out.saved = tensors_of(path);
  }
  return out;
}

/// Every stage makes what one process makes of the whole batches.
template <class... Ps>
std::vector<Made> compare_with_one(double tolerance, const Ps&... policies) {
  const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
  const auto group = dist::initialize();
  const int rank = group->rank();
  std::vector<Made> all;
  for (const ShardStage stage : stages) {
    all.push_back(
        made(stage, 12 / group->size(), folder + "/" + std::string(to_string(stage)), policies...));
    CHECK(all.back().losses.size() == 4);
  }
  if (rank == 0) {
    const Made one =
        alone([&] { return made(ShardStage::none, 12, folder + "/one", policies...); });
    CHECK(one.losses.size() == 4);
    for (const Made& sharded : all) {
      INFO(to_string(stages[&sharded - all.data()]));
      CHECK(difference(sharded.losses, one.losses) < tolerance);
      CHECK(difference(sharded.saved, one.saved) < tolerance);
      CHECK(sharded.texts == one.texts);
      for (const auto& [name, value] : one.metrics) {
        if (name.starts_with("l2_norm/") || name.starts_with("metrics/")) {
          INFO(name);
          CHECK(std::abs(sharded.metrics.at(name) - value) <= 1e-6 * std::abs(value) + 1e-9);
        }
      }
    }
    all.push_back(one);
  }
  return all;
}

}  // namespace

TEST_CASE("rank body: averages of a sharded run", "[.rank]") {
  optimizer = tutti::AdamW{.lr = 1e-2};
  const auto all = compare_with_one(1e-12, EMA{.half_life = "2ba"},
                                    SkipSpikes{.min_values = 2, .reload_after = 0},
                                    OptimizerMonitor{.batch_log_interval = 2},
                                    Generate{.prompts = {"AB", "C"},
                                             .encode = &to_tokens,
                                             .decode = &to_text,
                                             .generation = {.max_new_tokens = 2}});
  if (dist::here().rank == 0) {
    CHECK(all.back().texts.size() == 12);  // two of two letters, after each epoch
    CHECK(all.back().metrics.contains("l2_norm/grad/global"));
    CHECK(all.back().metrics.contains("l2_norm/moment/transformer.wpe.weight"));
    const std::string folder = std::getenv("TUTTI_TEST_FOLDER");
    const auto norms = norms_of(folder + "/one");
    CHECK(norms.size() == 4);
    for (const ShardStage stage : stages) {
      CHECK(difference(norms_of(folder + "/" + std::string(to_string(stage))), norms) < 1e-12);
    }
    CHECK(all.back().saved.contains("policies/EMA/weights/transformer.h.0.ln_1.bias"));
  }
}

TEST_CASE("rank body: the mean of a sharded run", "[.rank]") {
  const auto all = compare_with_one(
      1e-12, SWA{.swa_start = "0.25dur", .swa_end = "0.75dur", .update_interval = "1ba"}, SAM{});
  if (dist::here().rank == 0) {
    CHECK(all.back().saved.contains("policies/SWA/mean/weights/transformer.h.0.ln_1.bias"));
  }
}

TEST_CASE("rank body: layers leave a sharded run", "[.rank]") {
  compare_with_one(1e-12, LayerFreezing{.freeze_start = 0.2, .freeze_level = 0.6});
}

TEST_CASE("rank body: layers join a sharded run", "[.rank]") {
  compare_with_one(1e-12, Unfreeze{.at = "1ep", .train = {"transformer.h.1"}});
}

TEST_CASE("rank body: layers join a sharded run with a rate of their own", "[.rank]") {
  compare_with_one(
      1e-12, BackboneFinetuning{.backbone = "transformer.h.0", .unfreeze_backbone_at_epoch = 1});
}

TEST_CASE("policies make of a sharded run what they make of one process", "[train][sharded]") {
  const auto limit = std::chrono::seconds(120);
  for (const char* body :
       {"rank body: averages of a sharded run", "rank body: the mean of a sharded run",
        "rank body: layers leave a sharded run", "rank body: layers join a sharded run",
        "rank body: layers join a sharded run with a rate of their own"}) {
    const TemporaryFolder folder;
    ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
    CHECK(run_ranks(body, 3, limit) == all_passed);
  }
}
