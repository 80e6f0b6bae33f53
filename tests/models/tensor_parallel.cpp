#include <tutti/models/tensor_parallel.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/dist/process_group.hpp>
#include <tutti/models/spread_of.hpp>
#include <tutti/nn/surgery.hpp>

#include <ATen/ATen.h>

#include "dist/ranks.hpp"
#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/thread_ranks.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

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

models::LlamaOptions llama_options(models::LlamaType type) {
  models::LlamaOptions out;
  out.model_type = type;
  out.vocab_size = 37;
  out.hidden_size = 16;
  out.intermediate_size = 24;
  out.num_hidden_layers = 2;
  out.num_attention_heads = 4;
  out.num_key_value_heads = 2;  // of four ranks two have the same
  out.max_position_embeddings = 8;
  out.tie_word_embeddings = type == models::LlamaType::qwen3;
  out.pad_token_id = 3;
  return out;
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
  Holder whole = filled(make(), 7);
  const at::Tensor loss = loss_of<Impl>(*whole, batch);
  loss.backward();
  double largest = 0;
  for (const at::Tensor& parameter : whole->parameters()) {
    largest = std::max(largest, parameter.grad().abs().max().item().toDouble());
  }

  const int rank = dist::default_group()->rank();
  Holder spread = filled(make(), rank == 0 ? 7 : 8);  // rank 0's numbers become everybody's
  models::tensor_parallel(*spread, options);
  for (int pass = 1; pass <= 2; ++pass) {  // gradients add up
    const at::Tensor own = loss_of<Impl>(*spread, batch);
    CHECK(std::abs(own.item<double>() - loss.item<double>()) <= 1e-12 * loss.item<double>());
    own.backward();
    const auto parts = models::spread_of(*spread);
    REQUIRE(parts);
    const auto wholes = whole->named_parameters();
    REQUIRE(spread->named_parameters().keys() == wholes.keys());
    for (const auto& item : spread->named_parameters()) {
      INFO(item.key() << " in pass " << pass);
      const at::Tensor want = wholes[item.key()].grad();
      const auto* part = parts->find(item.value());
      const at::Tensor own = (part != nullptr ? parts->part_of(*part, want) : want) * pass;
      REQUIRE(item.value().grad().sizes() == own.sizes());
      const at::Tensor off = (item.value().grad() - own).abs().max();
      // A gradient that is 0 but for rounding (of the keys' bias) has the noise of all.
      CHECK(off.item().toDouble() <=
            std::max(1e-12 * want.abs().max().item().toDouble(), 1e-14 * largest));
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
    for (const auto type : {models::LlamaType::llama, models::LlamaType::mistral,
                            models::LlamaType::qwen2, models::LlamaType::qwen3}) {
      CAPTURE(to_string(type));
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

TEST_CASE("dropout within layers draws for each rank, by the default generator alone",
          "[models][tensor_parallel]") {
  const auto drawn = [](int rank) {
    at::manual_seed(5);
    const at::Tensor out = models::detail::drop_own(at::ones({200}), 0.25, rank);
    return std::pair(out, at::rand({1}));
  };
  const auto [first, after_first] = drawn(0);
  const auto [second, after_second] = drawn(1);
  CHECK(first.equal(drawn(0).first));
  CHECK_FALSE(first.equal(second));
  CHECK(after_first.equal(after_second));
  CHECK(first.ne(0).logical_xor(first.eq(at::ones({}) / 0.75)).logical_not().all().item<bool>());
  CHECK(std::abs(first.eq(0).sum().item<double>() - 50) < 25);
  CHECK(models::detail::drop_own(at::ones({4}), 1, 0).equal(at::zeros({4})));
}

TEST_CASE("rank body: a GPT-2 with dropout over several ranks", "[.rank]") {
  const auto world = dist::initialize();
  auto own = gpt2_options();
  own.embd_pdrop = own.attn_pdrop = own.resid_pdrop = 0.3;
  for (const auto sequence : {dist::SequenceParallel::no, dist::SequenceParallel::yes}) {
    auto model = filled(models::GPT2LMHeadModel(own), 7);
    models::tensor_parallel(*model, {.sequence = sequence});
    const auto pass = [&](bool again) {
      model->set_activation_checkpointing(again);
      model->zero_grad();
      at::manual_seed(11);
      const at::Tensor loss = loss_of<models::GPT2LMHeadModelImpl>(*model, text());
      loss.backward();
      std::vector<at::Tensor> out{loss.detach()};
      for (const at::Tensor& parameter : model->parameters()) {
        out.push_back(parameter.grad().clone());
      }
      return out;
    };
    const auto once = pass(false);
    for (const at::Tensor& other : world->all_gather(once.front())) {
      CHECK(other.equal(once.front()));
    }
    const auto parts = models::spread_of(*model);
    for (const auto& item : model->named_parameters()) {
      INFO(item.key());
      if (parts->find(item.value()) == nullptr) {  // whole: the same gradient everywhere
        for (const at::Tensor& other : world->all_gather(item.value().grad())) {
          CHECK(apart(other, item.value().grad()) <= 1e-14);
        }
      }
    }
    const auto twice = pass(true);  // activations are computed again, with the same draws
    for (std::size_t i = 0; i < once.size(); ++i) {
      CHECK(apart(twice[i], once[i]) <= 1e-12);
    }
  }
}

TEST_CASE("a GPT-2 with dropout is the same model on both ranks", "[models][tensor_parallel]") {
  CHECK(run_ranks("rank body: a GPT-2 with dropout over several ranks", 2) == all_passed);
}

namespace {

// What tensor_parallel() says on each of two ranks that are not there.
template <class Make>
std::vector<std::string> said(Make make, std::function<models::TensorParallelOptions(int)> how) {
  return ThreadRanks::run(2, [&](dist::Communicator& world) {
    const std::shared_ptr<dist::Communicator> group(&world, [](dist::Communicator*) {});
    auto model = make(world.rank());
    models::tensor_parallel(*model, how(world.rank()), group);
  });
}

template <class Make>
void check_refused(const std::string& words, Make make,
                   const models::TensorParallelOptions& options = {}) {
  for (const std::string& one : said(make, [&](int) { return options; })) {
    CHECK_THAT(one, ContainsSubstring(words));
  }
}

}  // namespace

TEST_CASE("what cannot be spread is refused on every rank", "[models][tensor_parallel]") {
  const auto gpt2 = [](int) { return models::GPT2LMHeadModel(gpt2_options()); };
  check_refused(
      "degree is 3 in a run of 2 ranks, expected 0 (all of them) or a number that divides", gpt2,
      {.degree = 3});
  check_refused("degree is -1", gpt2, {.degree = -1});
  check_refused("the GPT-2 has n_head 3, which is to be shared by 2 ranks; expected a degree that",
                [](int) {
                  auto own = gpt2_options();
                  own.n_head = 3;
                  own.n_embd = 12;
                  return models::GPT2LMHeadModel(own);
                });
  check_refused("vocab_size 1, which is to be shared by 2 ranks, so that the last one", [](int) {
    auto own = gpt2_options();
    own.vocab_size = 1;
    return models::GPT2LMHeadModel(own);
  });
  check_refused("the Llama has num_key_value_heads 3", [](int) {
    auto own = llama_options(models::LlamaType::llama);
    own.num_attention_heads = 6;
    own.hidden_size = 24;
    own.num_key_value_heads = 3;
    return models::LlamaForCausalLM(own);
  });
  check_refused("intermediate_size 25", [](int) {
    auto own = bert_options();
    own.intermediate_size = 25;
    return models::BertForMaskedLM(own);
  });
  check_refused("reads 5 tokens, which sequence parallel is to cut over 2 ranks",
                [](int) { return models::VisionTransformer(vit_options()); },
                {.sequence = dist::SequenceParallel::yes});
  check_refused("expected GPT2LMHeadModel, LlamaForCausalLM",
                [](int) { return torch::nn::Linear(2, 2); });
  check_refused("rank 1 has [parameter transformer.wte.weight float [38, 16]] where rank 0 has",
                [](int rank) {
                  auto own = gpt2_options();
                  own.vocab_size += rank;
                  return models::GPT2LMHeadModel(own);
                });
  const auto different = said(gpt2, [](int rank) {
    return models::TensorParallelOptions{.sequence = rank == 0 ? dist::SequenceParallel::no
                                                               : dist::SequenceParallel::yes};
  });
  for (const std::string& one : different) {
    CHECK_THAT(one, ContainsSubstring("rank 1 has [degree 0, sequence parallel yes] where rank 0"));
  }
}

TEST_CASE("a model that is spread is not spread or changed again", "[models][tensor_parallel]") {
  using Said = std::array<std::string, 3>;
  std::array<Said, 2> by_rank;  // checked here, since other threads may not use Catch2
  const auto twice = ThreadRanks::run(2, [&](dist::Communicator& world) {
    const std::shared_ptr<dist::Communicator> group(&world, [](dist::Communicator*) {});
    auto model = models::GPT2LMHeadModel(gpt2_options());
    models::tensor_parallel(*model, {}, group);
    Said& said = by_rank.at(static_cast<std::size_t>(world.rank()));
    said[0] = message([&] {
      tutti::surgery::replace<tutti::nn::TransposedLinear>(*model, [](auto& layer) {
        return tutti::nn::twin<tutti::nn::PlainTransposedLinearImpl>(layer);
      });
    });
    said[1] = message([&] { model->clone(); });
    said[2] = message([&] {
      model->transformer->block(0).attn->set_position_bias(nullptr);
      models::tensor_parallel(*model, {}, group);
    });
  });
  CHECK(twice == std::vector<std::string>(2, "nothing"));
  for (const Said& said : by_rank) {
    CHECK_THAT(said[0], ContainsSubstring("is spread over ranks"));
    CHECK_THAT(said[1], ContainsSubstring("cannot be cloned"));
    CHECK_THAT(said[2], ContainsSubstring("spread over ranks already"));
  }
}

TEST_CASE("one rank, or a degree of 1, leaves a model as it is", "[models][tensor_parallel]") {
  auto model = models::GPT2LMHeadModel(gpt2_options());
  models::tensor_parallel(*model, {}, std::make_shared<dist::SingleProcess>());
  CHECK(models::spread_of(*model) == nullptr);
  CHECK_FALSE(model->spread());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
