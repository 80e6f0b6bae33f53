#include <tutti/models/causal_lm.hpp>

#include <type_traits>

#include <tutti/models/gpt2.hpp>
#include <tutti/models/llama.hpp>

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

}  // namespace

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
