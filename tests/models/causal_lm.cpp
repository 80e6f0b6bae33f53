#include <tutti/models/causal_lm.hpp>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace models = tutti::models;
using tutti::nn::KeyValueCache;

// Knows no cache, but has both functions.
struct Repeats {
  at::Tensor logits(const models::CausalInput& input) { return input.input_ids; }
  [[nodiscard]] KeyValueCache make_cache(std::int64_t batch, std::int64_t length) const {
    return {1, batch, length};
  }
};
struct NoCache {
  at::Tensor logits(const models::CausalInput& input) { return input.input_ids; }
};

static_assert(models::CausalLM<Repeats>);
static_assert(!models::CausalLM<NoCache>);
static_assert(models::CausalLM<models::GPT2LMHeadModelImpl>);
static_assert(models::CausalLM<models::LlamaForCausalLMImpl>);
static_assert(std::is_base_of_v<models::CausalLanguageModel, models::GPT2LMHeadModelImpl>);

// Texts of these lengths in one batch; their labels are their tokens, and -100 behind them.
tutti::Batch texts(const std::vector<std::int64_t>& lengths) {
  const auto rows = static_cast<std::int64_t>(lengths.size());
  const at::Tensor ids = at::arange(rows * 12).view({rows, 12}).mul(7).remainder(11);
  at::Tensor labels = ids.clone();
  for (std::int64_t row = 0; row < rows; ++row) {
    labels[row].slice(0, lengths[static_cast<std::size_t>(row)]).fill_(-100);
  }
  return tutti::Batch{{"input_ids", ids}, {"labels", labels}};
}

// The loss of one step on a batch that is cut in microbatches, and all weights after it.
std::pair<double, at::Tensor> after_a_step(const tutti::Batch& batch, std::int64_t microbatch,
                                           double lr = 0.5) {
  torch::manual_seed(5);
  const models::GPT2LMHeadModel model(models::GPT2Options{.vocab_size = 11,
                                                          .n_positions = 12,
                                                          .n_embd = 8,
                                                          .n_layer = 1,
                                                          .n_head = 2,
                                                          .embd_pdrop = 0,
                                                          .attn_pdrop = 0,
                                                          .resid_pdrop = 0});
  tutti::TrainerOptions options{.train = std::vector<tutti::Batch>{batch},
                                .max_duration = "1ba",
                                .optimizer = tutti::SGD{.lr = lr},
                                .accumulate_train_batch_on_tokens = true,
                                .device = "cpu",
                                .seed = 3,
                                .progress_bar = false};
  options.device_train_microbatch_size = microbatch;
  tutti::Trainer<> trainer(model.ptr(), options);
  trainer.fit();
  std::vector<at::Tensor> weights;
  for (const at::Tensor& each : model->parameters()) {
    weights.push_back(each.detach().flatten());
  }
  return {trainer.state().total_loss.at("total").item<double>(), at::cat(weights)};
}

}  // namespace

TEST_CASE("by tokens microbatches of texts of several lengths weigh what their losses are means of",
          "[models]") {
  for (const auto& lengths :
       {std::vector<std::int64_t>{2, 2, 12, 12}, {1, 12, 7, 3}, {1, 1, 9, 4}}) {
    const auto whole = after_a_step(texts(lengths), 4);
    for (const std::int64_t size : {1, 2, 3}) {
      const auto parts = after_a_step(texts(lengths), size);
      CHECK(std::abs(parts.first - whole.first) < 1e-5);
      CHECK((parts.second - whole.second).abs().max().item<double>() < 1e-5);
    }
  }
}

TEST_CASE("a batch with no token to learn has the loss 0 and moves no weight", "[models]") {
  const auto step = after_a_step(texts({1, 1}), 1);
  CHECK(step.first == 0);
  CHECK(step.second.equal(after_a_step(texts({2, 2}), 1, /*lr=*/0).second));
}

TEST_CASE("a causal language model is found among modules of whatever type", "[models]") {
  const auto gpt2 = models::GPT2LMHeadModel(models::GPT2Options{
      .vocab_size = 7, .n_positions = 8, .n_embd = 8, .n_layer = 1, .n_head = 2});
  const auto llama = models::LlamaForCausalLM(models::LlamaOptions{.vocab_size = 7,
                                                                   .hidden_size = 8,
                                                                   .intermediate_size = 8,
                                                                   .num_hidden_layers = 1,
                                                                   .num_attention_heads = 2});
  for (const std::shared_ptr<torch::nn::Module>& module :
       {std::shared_ptr<torch::nn::Module>(gpt2.ptr()),
        std::shared_ptr<torch::nn::Module>(llama.ptr())}) {
    auto* found = dynamic_cast<models::CausalLanguageModel*>(module.get());
    REQUIRE(found != nullptr);
    const torch::NoGradGuard no_grad;
    KeyValueCache cache = found->make_cache(1, 8);
    const at::Tensor ids = at::ones({1, 3}, at::kLong);
    CHECK(found->logits({.input_ids = ids, .cache = &cache, .last_only = true}).sizes() ==
          at::IntArrayRef{1, 1, 7});
    CHECK(cache.length() == 3);
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
