#include <tutti/models/tensor_parallel.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/dist/process_group.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/train/detail/spread.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/message.hpp"

// A model over several ranks: loss and gradients are those of one process.

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::Batch;
using tutti_test::all_passed;
using tutti_test::run_ranks;
namespace dist = tutti::dist;
namespace models = tutti::models;

models::GPT2Options gpt2_options() {
  return {.vocab_size = 37,  // which no number of ranks divides
          .n_positions = 8,
          .n_embd = 16,
          .n_layer = 2,
          .n_head = 4,
          .embd_pdrop = 0,
          .attn_pdrop = 0,
          .resid_pdrop = 0};
}

// The last of four ranks has one token of it.
models::LlamaOptions llama_options(const std::string& type) {
  return {.vocab_size = 37,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .max_position_embeddings = 8,
          .tie_word_embeddings = type == "qwen3",
          .model_type = type};
}

models::BertOptions bert_options() {
  return {.vocab_size = 37,
          .hidden_size = 16,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .intermediate_size = 24,
          .hidden_dropout_prob = 0,
          .attention_probs_dropout_prob = 0,
          .max_position_embeddings = 8};
}

models::VisionTransformerOptions vit_options() {
  return {.image_size = 4,
          .patch_size = 2,
          .num_layers = 2,
          .num_heads = 4,
          .hidden_dim = 16,
          .mlp_dim = 24,
          .num_classes = 3};
}

Batch text() {
  at::manual_seed(3);
  const at::Tensor ids = at::randint(0, 37, {3, 8}, at::kLong);
  at::Tensor labels = ids.clone();
  labels[0].slice(0, 5).fill_(-100);
  at::Tensor mask = at::ones({3, 8}, at::kLong);
  mask[0].slice(0, 5).zero_();
  return {{"input_ids", ids}, {"attention_mask", mask}, {"labels", labels}};
}

Batch sentences() {
  Batch batch = text();
  return {{"input_ids", batch.at("input_ids")}, {"labels", at::arange(3, at::kLong).remainder(2)}};
}

Batch images() {
  at::manual_seed(3);
  return {{"inputs", at::rand({3, 3, 4, 4}, at::kDouble)}, {"targets", at::arange(3, at::kLong)}};
}

using Loss = std::function<at::Tensor(torch::nn::Module&)>;

// The loss of a model as its class has it.
template <class Impl>
at::Tensor loss_of(torch::nn::Module& module, const Batch& batch) {
  auto& model = dynamic_cast<Impl&>(module);
  if constexpr (std::is_same_v<Impl, models::VisionTransformerImpl>) {
    const at::Tensor logits = model.forward(batch.at("inputs"));
    return at::cross_entropy_loss(logits, batch.at("targets"));
  } else {
    return model.loss(model.forward(batch), batch).total();
  }
}

// Numbers that a model has not at its start: no zeros, so that all has gradients.
template <class Holder>
Holder filled(Holder holder, std::uint64_t seed) {
  at::manual_seed(seed);
  const torch::NoGradGuard no_grad;
  holder->to(at::kDouble);
  for (at::Tensor& parameter : holder->parameters()) {
    parameter.copy_(at::rand(parameter.sizes(), at::kDouble)
                        .sub(0.5)
                        .mul(0.4)
                        .add(parameter.dim() == 1 ? 0.5 : 0.0));
  }
  return holder;
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  const double largest = b.abs().max().item<double>();
  return (a - b).abs().max().item<double>() / std::max(largest, 1e-300);
}

template <class Holder>
void check_equal(const std::function<Holder()>& make, const Batch& batch,
                 const models::TensorParallelOptions& options) {
  using Impl = typename Holder::Impl;
  const Holder whole = filled(make(), 7);
  const at::Tensor loss = loss_of<Impl>(*whole, batch);
  loss.backward();

  const int rank = dist::default_group()->rank();
  Holder spread = filled(make(), rank == 0 ? 7 : 8);  // rank 0's numbers become everybody's
  models::tensor_parallel(*spread, options);
  for (int pass = 1; pass <= 2; ++pass) {  // gradients add up
    const at::Tensor own = loss_of<Impl>(*spread, batch);
    CHECK(std::abs(own.item<double>() - loss.item<double>()) <= 1e-12 * loss.item<double>());
    own.backward();
    const auto parts = tutti::train::detail::spread_of(*spread);
    REQUIRE(parts);
    const auto wholes = whole->named_parameters();
    REQUIRE(spread->named_parameters().keys() == wholes.keys());
    for (const auto& item : spread->named_parameters()) {
      INFO(item.key() << " in pass " << pass);
      const at::Tensor want = wholes[item.key()].grad();
      const auto* part = parts->find(item.value());
      const double error =
          apart(item.value().grad(), (part != nullptr ? parts->part_of(*part, want) : want) * pass);
      // Where every rank has all, it sees numbers of all; a part's largest may be small.
      const double scale =
          part != nullptr ? want.abs().max().item<double>() /
                                (parts->part_of(*part, want).abs().max().item<double>() + 1e-300)
                          : 1;
      CHECK(error <= 1e-12 * std::max(scale, 1.0));
      if (part != nullptr) {
        CHECK(apart(parts->whole_of(*part, item.value().detach()), wholes[item.key()].detach()) ==
              0);
      }
    }
  }
  // Evaluation gives what one process gives, also token by token.
  const torch::NoGradGuard no_grad;
  spread->eval();
  whole->eval();
  if constexpr (requires { whole->forward(batch).tensor(); }) {
    CHECK(apart(spread->forward(batch).tensor(), whole->forward(batch).tensor()) <= 1e-12);
  }
  if constexpr (requires { spread->logits({}); }) {
    auto cache = spread->make_cache(3, 8);
    auto other = whole->make_cache(3, 8);
    const at::Tensor ids = batch.at("input_ids");
    for (const auto& some : {ids.slice(1, 0, 3), ids.slice(1, 3, 4)}) {
      CHECK(apart(spread->logits({.input_ids = some, .cache = &cache, .last_only = true}),
                  whole->logits({.input_ids = some, .cache = &other, .last_only = true})) <= 1e-12);
    }
  }
}

}  // namespace

TEST_CASE("rank body: language models over several ranks", "[.rank]") {
  dist::initialize();
  for (const auto sequence : {dist::SequenceParallel::no, dist::SequenceParallel::yes}) {
    CAPTURE(sequence == dist::SequenceParallel::yes);
    const models::TensorParallelOptions options{.sequence = sequence};
    for (const bool tied : {true, false}) {
      CAPTURE(tied);
      check_equal<models::GPT2LMHeadModel>(
          [&] {
            auto own = gpt2_options();
            own.tie_word_embeddings = tied;
            return models::GPT2LMHeadModel(own);
          },
          text(), options);
    }
    for (const std::string type : {"llama", "mistral", "qwen2", "qwen3"}) {
      CAPTURE(type);
      check_equal<models::LlamaForCausalLM>(
          [&] { return models::LlamaForCausalLM(llama_options(type)); }, text(), options);
    }
  }
}

TEST_CASE("GPT-2 and the Llama family over two ranks are those of one process",
          "[models][tensor_parallel]") {
  CHECK(run_ranks("rank body: language models over several ranks", 2) == all_passed);
}

TEST_CASE("GPT-2 and the Llama family over four ranks are those of one process",
          "[models][tensor_parallel]") {
  CHECK(run_ranks("rank body: language models over several ranks", 4) == all_passed);
}

TEST_CASE("rank body: BERT and ViT over several ranks", "[.rank]") {
  dist::initialize();
  for (const auto sequence : {dist::SequenceParallel::no, dist::SequenceParallel::yes}) {
    CAPTURE(sequence == dist::SequenceParallel::yes);
    const models::TensorParallelOptions options{.sequence = sequence};
    check_equal<models::BertForMaskedLM>([] { return models::BertForMaskedLM(bert_options()); },
                                         text(), options);
    check_equal<models::BertForSequenceClassification>(
        [] { return models::BertForSequenceClassification(bert_options()); }, sentences(), options);
    const bool cut = sequence == dist::SequenceParallel::yes;
    check_equal<models::VisionTransformer>(
        [&] {
          auto own = vit_options();
          own.class_token = !cut;  // with it there are five tokens
          own.global_pool = cut ? models::VitPool::avg : models::VitPool::token;
          own.fc_norm = false;
          own.init_values = cut ? 0 : 0.1;
          return models::VisionTransformer(own);
        },
        images(), options);
  }
}

TEST_CASE("BERT and ViT over two ranks are those of one process", "[models][tensor_parallel]") {
  CHECK(run_ranks("rank body: BERT and ViT over several ranks", 2) == all_passed);
}

TEST_CASE("BERT and ViT over four ranks are those of one process", "[models][tensor_parallel]") {
  CHECK(run_ranks("rank body: BERT and ViT over several ranks", 4) == all_passed);
}
