#include <tutti/algorithms/seq_length_warmup.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/nn/modules/embedding.h>

#include <tutti/algorithms/alibi.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/loggers/in_memory.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/fake_communicator.hpp"
#include "support/out_of_memory.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti::SeqLengthWarmup;
using tutti::functional::set_batch_sequence_length;
using tutti::functional::warmup_seq_length;

static_assert(tutti::Algorithm<SeqLengthWarmup>);
static_assert(tutti::Recipe<SeqLengthWarmup>::valid);
static_assert(sizeof(tutti::With<SeqLengthWarmup{.duration = 0.5, .max_seq_length = 64}>) > 0);

Batch rows(std::int64_t count, std::int64_t length) {
  const at::Tensor ids = at::arange(10, 10 + count * length).view({count, length});
  return {{"input_ids", ids}, {"attention_mask", at::ones_like(ids)}, {"labels", ids.clone()}};
}

// A language model of one table: the loss is that of predicting each token from itself.
struct Table : torch::nn::Module {
  Table() { table = register_module("table", torch::nn::Embedding(40, 40)); }
  tutti::Outputs forward(const Batch& batch) {
    lengths.push_back(batch.at("input_ids").size(1));
    return table(batch.at("input_ids"));
  }
  tutti::Loss loss(const tutti::Outputs& outputs, const Batch& batch) {
    return at::cross_entropy_loss(outputs.tensor().flatten(0, 1), batch.at("labels").flatten());
  }
  torch::nn::Embedding table{nullptr};
  std::vector<std::int64_t> lengths;
};

// Has room for two examples.
struct Small : Table {
  tutti::Outputs forward(const Batch& batch) {
    tried.push_back(batch.num_samples());
    if (batch.num_samples() > 2) {
      tutti_test::out_of_memory();
    }
    return Table::forward(batch);
  }
  std::vector<std::int64_t> tried;
};

// The other rank never has room.
struct Full final : FakeCommunicator {
  void all_reduce(std::span<std::int64_t> values, tutti::dist::ReduceOp op) override {
    if (op == tutti::dist::ReduceOp::minimum) {
      std::fill(values.begin(), values.end(), 0);
    }
  }
};

// The last metrics that a policy logs.
struct Metrics {
  explicit Metrics(tutti::State& state) { state.logger.add(*this); }
  void log_metrics(std::span<const tutti::LoggedMetric> metrics, std::int64_t) {
    for (const auto& metric : metrics) {
      last[std::string(metric.name)] = metric.value;
    }
  }
  std::map<std::string, double> last;
};

tutti::TrainerOptions options(const char* length, int batches = 10) {
  std::vector<Batch> data;
  for (int i = 0; i < batches; ++i) {
    const at::Tensor ids = at::randint(40, {4, 32}, at::kLong);
    data.push_back({{"input_ids", ids}, {"labels", ids}});
  }
  return {.train = data,
          .max_duration = tutti::Time::parse(length),
          .optimizer = tutti::DecoupledSGDW{.lr = 0.1},
          .device_train_microbatch_size = 2,
          .device = "cpu",
          .seed = 3,
          .progress_bar = false};
}

}  // namespace

TEST_CASE("the length rises in equal steps and stays", "[functional][seq_length_warmup]") {
  const auto length = [](std::int64_t batch) { return warmup_seq_length(batch, 300, 8, 1024, 8); };
  CHECK(length(0) == 8);
  CHECK(length(1) == 8);
  CHECK(length(2) == 16);
  CHECK(length(100) == 408);
  CHECK(length(253) == 1016);
  CHECK(length(254) == 1024);
  CHECK(length(100000) == 1024);
}

TEST_CASE("warm-ups that are short, empty or have no step end where they should",
          "[functional][seq_length_warmup]") {
  for (std::int64_t batch = 0; batch < 20; ++batch) {
    CHECK(warmup_seq_length(batch, 10, 16, 16, 8) == 16);
    CHECK(warmup_seq_length(batch, 0, 8, 1024, 8) == 1024);
    CHECK(warmup_seq_length(batch, 10, 8, 12, 8) == (batch < 10 ? 8 : 12));
    const std::int64_t length = warmup_seq_length(batch, 5, 8, 88, 8);  // 10 steps in 5 batches
    CHECK(length == std::min<std::int64_t>(8 + 16 * batch, 88));
  }
  for (const std::int64_t warmup : {20, 37, 64, 300}) {  // steps divide: full length at the end
    CHECK(warmup_seq_length(warmup, warmup, 8, 88, 8) == 88);
    CHECK(warmup_seq_length(0, warmup, 8, 88, 8) == 8);
  }
}

TEST_CASE("truncated sequences can keep their last token", "[functional][seq_length_warmup]") {
  const Batch cut = set_batch_sequence_length(rows(2, 6), 3, true, true);
  const at::Tensor expected = at::tensor({10, 11, 15, 16, 17, 21}, at::kLong).view({2, 3});
  CHECK(cut.at("input_ids").equal(expected));
  CHECK(cut.at("labels").equal(expected));
  CHECK(cut.at("labels").is_contiguous());

  Batch padded = rows(2, 6);
  padded.at("attention_mask") = at::tensor({1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}).view({2, 6});
  const Batch same = set_batch_sequence_length(padded, 3, true, true);
  CHECK(same.at("input_ids").equal(at::tensor({10, 11, 12, 16, 17, 18}, at::kLong).view({2, 3})));
  CHECK(padded.at("input_ids").size(1) == 6);

  Batch features = rows(2, 6);
  features["embedded"] = at::arange(24).view({2, 6, 2});
  const Batch three = set_batch_sequence_length(features, 2, true, true);
  CHECK(three.at("embedded").equal(at::tensor({0, 1, 10, 11, 12, 13, 22, 23}).view({2, 2, 2})));
}

TEST_CASE("sequences are cut into shorter ones and the rest is dropped",
          "[functional][seq_length_warmup]") {
  const Batch cut = set_batch_sequence_length(rows(2, 6), 5, false);
  CHECK(cut.at("input_ids").equal(at::arange(10, 20).view({2, 5})));
  CHECK(cut.num_samples() == 2);
  CHECK(set_batch_sequence_length(rows(3, 8), 2, false).num_samples() == 12);
}

TEST_CASE("a batch that is short enough is the same batch", "[functional][seq_length_warmup]") {
  const Batch batch = rows(2, 6);
  for (const bool truncate : {true, false}) {
    const Batch same = set_batch_sequence_length(batch, 6, truncate);
    CHECK(same.at("input_ids").is_same(batch.at("input_ids")));
    CHECK(same.at("labels").is_same(batch.at("labels")));
  }
  // Nothing is cut, so that no mask is needed to find what to keep.
  CHECK(set_batch_sequence_length(batch, 6, true, true).at("labels").is_same(batch.at("labels")));
}

TEST_CASE("labels of whole sequences survive truncation and forbid cutting",
          "[functional][seq_length_warmup]") {
  Batch batch = rows(2, 6);
  batch.at("labels") = at::tensor({0, 1});
  CHECK(set_batch_sequence_length(batch, 3).at("labels").equal(at::tensor({0, 1})));
  CHECK_THROWS_WITH(set_batch_sequence_length(batch, 3, false),
                    ContainsSubstring("\"labels\" is [2], expected [2, 6]"));
  CHECK_THROWS_WITH(set_batch_sequence_length({{"input_ids", at::ones({2, 6})}}, 3, true, true),
                    ContainsSubstring("there are: input_ids"));
  CHECK_THROWS_AS(set_batch_sequence_length(at::ones({6}), 3), c10::ValueError);
  CHECK_THROWS_AS(set_batch_sequence_length(rows(2, 6), 0), c10::ValueError);
}

TEST_CASE("a run begins short, reaches the full length and logs what it does",
          "[seq_length_warmup][trainer]") {
  const auto model = std::make_shared<Table>();
  tutti::Trainer trainer{
      model, options("1ep"),
      SeqLengthWarmup{.duration = 0.5, .min_seq_length = 8, .max_seq_length = 32},
      tutti::InMemoryLogger{}};
  trainer.fit();
  std::vector<std::int64_t> expected;
  for (const std::int64_t length : {8, 16, 24, 32, 32, 32, 32, 32, 32, 32}) {
    expected.insert(expected.end(), 2, length);  // two microbatches
  }
  CHECK(model->lengths == expected);

  const auto cutting = std::make_shared<Table>();
  tutti::Trainer other{cutting, options("20ba"),
                       SeqLengthWarmup{.duration = 0.2, .max_seq_length = 32, .truncate = false}};
  other.fit();
  CHECK(cutting->lengths.front() == 8);
  CHECK(std::count(cutting->lengths.begin(), cutting->lengths.end(), 8) == 8);  // 16 rows in twos
}

TEST_CASE("what is logged is the length of the schedule", "[seq_length_warmup]") {
  tutti::State state;
  state.model = std::make_shared<Table>();
  state.max_duration = "10ba";
  state.batch = rows(2, 6);
  Metrics seen(state);
  const Warnings quiet;  // that the sequences are shorter
  SeqLengthWarmup warmup{.duration = 0.5, .min_seq_length = 8, .max_seq_length = 32};
  warmup.apply(tutti::AfterDataloader{}, state);
  CHECK(state.batch.inputs().size(1) == 6);
  CHECK(seen.last.at("seq_length_warmup/curr_seq_len") == 8);
  CHECK(seen.last.at("seq_length_warmup/curr_bs") == 2);
}

TEST_CASE("a microbatch that has no room is halved for the training as well, on every rank",
          "[seq_length_warmup]") {
  const auto model = std::make_shared<Small>();
  tutti::State state;
  state.model = model;
  state.task = model;
  state.communicator = std::make_shared<tutti::dist::SingleProcess>();
  state.auto_microbatching = true;
  tutti::detail::reserve_room(state, rows(8, 2));
  CHECK(state.device_train_microbatch_size == 2);
  CHECK(model->tried == std::vector<std::int64_t>{8, 4, 2});
  CHECK_FALSE(model->table->weight.grad().defined());
  tutti::detail::reserve_room(state, rows(8, 2));  // fits: the size stays
  CHECK(state.device_train_microbatch_size == 2);

  // Another rank has no room for 2.
  state.communicator = std::make_shared<Full>();
  tutti::detail::reserve_room(state, rows(8, 2));
  CHECK(state.device_train_microbatch_size == 1);

  state.auto_microbatching = false;
  state.device_train_microbatch_size = 4;
  CHECK_THROWS_AS(tutti::detail::reserve_room(state, rows(8, 2)), c10::OutOfMemoryError);
  CHECK(state.device_train_microbatch_size == 4);
}

TEST_CASE("a run whose number of batches is not known is refused as it starts",
          "[seq_length_warmup][trainer]") {
  tutti::Trainer trainer{std::make_shared<Table>(), options("1000tok"), SeqLengthWarmup{}};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("max_duration is 1000tok"));
}

TEST_CASE("a warm-up beyond the context of the model is refused before a step is made",
          "[seq_length_warmup][trainer]") {
  const SeqLengthWarmup warmup{.duration = 0.5, .min_seq_length = 8, .max_seq_length = 32};
  const std::string why =
      "max_seq_length is 32 and the model is made for sequences of up to 16 tokens";
  const auto gpt2 = [](std::int64_t positions) {
    return tutti::models::GPT2LMHeadModel(tutti::models::GPT2Options{
        .vocab_size = 40, .n_positions = positions, .n_embd = 8, .n_layer = 1, .n_head = 2});
  };
  const auto bert =
      tutti::models::BertForMaskedLM(tutti::models::BertOptions{.vocab_size = 40,
                                                                .hidden_size = 8,
                                                                .num_hidden_layers = 1,
                                                                .num_attention_heads = 2,
                                                                .intermediate_size = 8,
                                                                .max_position_embeddings = 16});
  const auto llama = [](std::optional<double> factor) {
    return tutti::models::LlamaForCausalLM(tutti::models::LlamaOptions{
        .vocab_size = 40,
        .hidden_size = 8,
        .intermediate_size = 8,
        .num_hidden_layers = 1,
        .num_attention_heads = 2,
        .max_position_embeddings = 16,
        .rope_parameters = {
            .rope_type = factor ? tutti::nn::RopeType::linear : tutti::nn::RopeType::plain,
            .factor = factor}});
  };
  const auto refused = [&](tutti::AnyModel model) {
    const auto before = model.module()->parameters().front().clone();
    tutti::Trainer trainer{model, options("4ba"), warmup};
    CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring(why));
    CHECK(model.module()->parameters().front().equal(before));
  };
  refused(gpt2(16).ptr());
  refused(bert.ptr());
  refused(llama({}).ptr());
  CHECK_NOTHROW(tutti::Trainer{gpt2(32).ptr(), options("4ba"), warmup}.fit());
  CHECK_NOTHROW(tutti::Trainer{llama(2.0).ptr(), options("4ba"), warmup}.fit());

  // ALiBi sets how many positions there are, more or fewer.
  const tutti::ALiBi longer{.max_sequence_length = 32, .train_sequence_length_scaling = 1};
  CHECK_NOTHROW(tutti::Trainer{gpt2(16).ptr(), options("4ba"), warmup, longer}.fit());
  const tutti::ALiBi shorter{.max_sequence_length = 16, .train_sequence_length_scaling = 0.5};
  tutti::Trainer trainer{gpt2(64).ptr(), options("4ba"), warmup, shorter};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring(why));
}

TEST_CASE("SeqLengthWarmup refuses options that contradict each other or are out of range",
          "[seq_length_warmup]") {
  const auto refused = [](const SeqLengthWarmup& warmup, const char* why) {
    CHECK_THROWS_WITH(warmup.validate(), ContainsSubstring(why));
  };
  SeqLengthWarmup{}.validate();
  refused({.duration = 1.5}, "duration is 1.5, expected a number from 0 to 1");
  refused({.min_seq_length = 0}, "min_seq_length is 0");
  refused({.min_seq_length = 64, .max_seq_length = 32}, "max_seq_length is 32");
  refused({.step_size = 0}, "step_size is 0");
  refused({.truncate = false, .preserve_end_of_sequence = true}, "set one of them only");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
