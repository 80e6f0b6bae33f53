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
#include <tutti/algorithms/lora.hpp>
#include <tutti/algorithms/sam.hpp>
#include <tutti/algorithms/skip_spikes.hpp>
#include <tutti/algorithms/swa.hpp>
#include <tutti/algorithms/unfreeze.hpp>
#include <tutti/callbacks/generate.hpp>
#include <tutti/callbacks/hugging_face_checkpointer.hpp>
#include <tutti/callbacks/optimizer_monitor.hpp>
#include <tutti/checkpoint/sharded_snapshot.hpp>
#include <tutti/checkpoint/weight_files.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/models/save_pretrained.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/train/sharded.hpp>
#include <tutti/trainer.hpp>

#include "dist/alone.hpp"
#include "dist/initialize.hpp"
#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "train/sharded_runs.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using dist::ShardStage;
using sharded_runs::difference;
using sharded_runs::Losses;
using sharded_runs::relative_difference;
using sharded_runs::stages;
using sharded_runs::tensors_of;
using tutti_test::all_passed;
using tutti_test::alone;
using tutti_test::run_ranks;

namespace {

// Of the four positions the third of three ranks has no row.
auto gpt2() {
  auto model = sharded_runs::gpt2({.n_positions = 4});
  model->to(at::kDouble);
  return model.ptr();
}

OptimizerSpec optimizer = tutti::SGD{.lr = 0.3, .momentum = 0.9};

TrainerOptions options(std::int64_t batch_size) {
  return sharded_runs::options(sharded_runs::texts(batch_size, /*count=*/24, /*length=*/4),
                               optimizer);
}

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

std::vector<double> norms_of(const std::string& path) {
  return checkpoint::read_checkpoint(path).state.get<std::vector<double>>(
      "policies/SkipSpikes/norms");
}

/// What a run has made, in double precision.
struct Made {
  std::vector<double> losses{};
  sharded_runs::Tensors saved{};  // on rank 0
  std::map<std::string, double> metrics{};
  std::string texts{};
};

/// Runs it with so many examples a rank, saves it after each epoch and its end beside that.
template <class... Ps>
Made made(const dist::ShardingOptions& sharding, std::int64_t batch, const std::string& path,
          const std::string& load_path, const Ps&... policies) {
  TrainerOptions with = options(batch);
  with.sharding = sharding;
  with.eval = {{"test", options(batch).train}};
  with.eval_interval = "1ba";
  with.load_path = load_path;
  with.save_folder = path + "_saved";
  with.save_filename = "ep{epoch}";
  if (sharding.stage != ShardStage::none && load_path.empty()) {
    with.checkpoint_layout = CheckpointLayout::sharded;
  }
  Trainer<Losses, Logged, Ps...> trainer(gpt2(), std::move(with), Losses{}, Logged{}, policies...);
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

std::string path_of(ShardStage stage) {
  return std::string(std::getenv("TUTTI_TEST_FOLDER")) + "/" + std::string(to_string(stage));
}

/// A run in parts, and one that goes on from what it has saved after the first of two epochs: they
/// make the same, whole checkpoints or parts.
template <class... Ps>
Made made_twice(const dist::ShardingOptions& sharding, double tolerance, const Ps&... policies) {
  const int ranks = tutti_test::initialize()->size();
  const std::string path = path_of(sharding.stage);
  Made whole = made(sharding, 12 / ranks, path, "", policies...);
  const Made rest = made(sharding, 12 / ranks, path + "_rest", path + "_saved/ep1", policies...);
  CHECK(whole.losses.size() == 4);
  CHECK(difference(rest.losses, {whole.losses.at(2), whole.losses.at(3)}) <= tolerance);
  if (dist::here().rank == 0) {
    CHECK(relative_difference(rest.saved, whole.saved) <= tolerance);
  }
  return whole;
}

/// Every stage makes what one process makes of the whole batches.
template <class... Ps>
std::vector<Made> compare_with_one(double tolerance, const Ps&... policies) {
  const int rank = tutti_test::initialize()->rank();
  std::vector<Made> all;
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    all.push_back(made_twice({.stage = stage}, tolerance, policies...));
  }
  if (rank == 0) {
    const Made one =
        alone([&] { return made({}, 12, path_of(ShardStage::none), "", policies...); });
    CHECK(one.losses.size() == 4);
    for (const Made& sharded : all) {
      INFO(to_string(stages[&sharded - all.data()]));
      CHECK(difference(sharded.losses, one.losses) < tolerance);
      CHECK(relative_difference(sharded.saved, one.saved) < tolerance);
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
    const auto norms = norms_of(path_of(ShardStage::none));
    CHECK(norms.size() == 4);
    for (const ShardStage stage : stages) {
      CHECK(difference(norms_of(path_of(stage)), norms) < 1e-12);
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

TEST_CASE("rank body: averages of a run that computes in another type", "[.rank]") {
  const EMA ema{.half_life = "2ba"};
  const SkipSpikes spikes{.min_values = 2, .reload_after = 0};
  const OptimizerMonitor monitor{.batch_log_interval = 2};
  const Generate texts{.prompts = {"AB", "C"},
                       .encode = &to_tokens,
                       .decode = &to_text,
                       .generation = {.max_new_tokens = 2}};
  std::vector<Made> all;
  for (const ShardStage stage : stages) {
    INFO(to_string(stage));
    all.push_back(
        made_twice({.stage = stage, .param_dtype = at::kFloat, .reduce_dtype = at::kDouble}, 0, ema,
                   spikes, monitor, texts));
    CHECK(difference(all.back().losses, all.front().losses) < 1e-12);
  }
  if (dist::here().rank == 0) {
    const std::string name = "transformer.h.0.attn.c_attn.weight";
    for (const Made& one : all) {
      CHECK(relative_difference(one.saved, all.front().saved) < 1e-12);
      CHECK(one.saved.at("model/" + name).scalar_type() == at::kDouble);
      CHECK(one.saved.at("policies/EMA/weights/" + name).scalar_type() == at::kDouble);
      CHECK_FALSE(
          one.saved.at("policies/EMA/weights/" + name).equal(one.saved.at("model/" + name)));
    }
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

// A folder has the sums of weights and adapters, the trainer's and one that is written by hand.
template <class Model>
void write_merged(const std::string& name, Model net, const LoRA& lora) {
  const std::string folder = std::string(std::getenv("TUTTI_TEST_FOLDER")) + "/" + name;
  TrainerOptions with = sharded_runs::options(sharded_runs::texts(4, 24, 4), optimizer);
  with.sharding.stage = ShardStage::parameters;
  Trainer trainer(net.ptr(), with, lora,
                  HuggingFaceCheckpointer{.model = net, .folder = folder, .save_interval = "1ep"});
  trainer.fit();
  const auto whole = trainer.state().sharding->summon();
  if (trainer.state().rank == 0) {
    models::save_pretrained(net, folder + "/whole", {.merge_adapters = true});
    functional::merge_lora(*net);
    functional::unload_lora(*net);
    models::save_pretrained(net, folder + "/merged");
    const auto merged = checkpoint::WeightFiles::open(folder + "/merged");
    REQUIRE(merged.tensors().size() == (name == "llama" ? 21U : 28U));
    for (const char* written : {"/whole", "/latest"}) {
      INFO(name << written);
      const auto files = checkpoint::WeightFiles::open(folder + written);
      CHECK(files.tensors().size() == merged.tensors().size());
      for (const auto& tensor : merged.tensors()) {
        INFO(tensor.name);
        const auto* const same = files.find(tensor.name);
        REQUIRE(same != nullptr);
        CHECK(same->view().equal(tensor.view()));
      }
    }
  }
  trainer.state().communicator->barrier();
}

TEST_CASE("rank body: adapters of a sharded run in a folder", "[.rank]") {
  at::manual_seed(4);
  const models::LlamaForCausalLM llama(models::LlamaOptions{.vocab_size = 37,
                                                            .hidden_size = 8,
                                                            .intermediate_size = 12,
                                                            .num_hidden_layers = 2,
                                                            .num_attention_heads = 2,
                                                            .max_position_embeddings = 8});
  write_merged("llama", llama, {.r = 2, .target_modules = {"q_proj", "v_proj", "down_proj"}});
  write_merged("gpt2", sharded_runs::gpt2({.n_positions = 4}),
               {.r = 2, .target_modules = {"c_attn", "c_proj"}});
  CHECK(dist::world_size() > 1);
}

TEST_CASE("policies make of a sharded run what they make of one process", "[train][sharded]") {
  const auto limit = std::chrono::seconds(120);
  for (const char* body :
       {"rank body: averages of a sharded run",
        "rank body: averages of a run that computes in another type",
        "rank body: the mean of a sharded run", "rank body: layers leave a sharded run",
        "rank body: layers join a sharded run",
        "rank body: layers join a sharded run with a rate of their own",
        "rank body: adapters of a sharded run in a folder"}) {
    const TemporaryFolder folder;
    ::setenv("TUTTI_TEST_FOLDER", folder.path().c_str(), 1);
    CHECK(run_ranks(body, 3, limit) == all_passed);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
