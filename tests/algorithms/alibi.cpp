#include <tutti/algorithms/alibi.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <tutti/algorithms/seq_length_warmup.hpp>
#include <tutti/core/recipe.hpp>
#include <tutti/core/with.hpp>
#include <tutti/models/bert.hpp>
#include <tutti/models/gpt2.hpp>
#include <tutti/optim/adam.hpp>
#include <tutti/trainer.hpp>

#include "models/language.hpp"
#include "support/temporary_folder.hpp"
#include "support/tiny.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::ALiBi;
using tutti::Batch;
using tutti::functional::alibi_bias;
using tutti::functional::alibi_slopes;
using tutti::functional::apply_alibi;
using tutti::functional::shorten_sequences;
namespace models = tutti::models;

static_assert(tutti::Supports<ALiBi, std::shared_ptr<models::GPT2LMHeadModelImpl>>);
static_assert(tutti::Algorithm<ALiBi>);
static_assert(tutti::Recipe<ALiBi>::valid);
static_assert(sizeof(tutti::With<ALiBi{.max_sequence_length = 512}>) > 0);
static_assert(
    std::is_same_v<tutti::Recipe<tutti::SeqLengthWarmup, ALiBi>::order<tutti::AfterDataloader>,
                   tutti::types<ALiBi, tutti::SeqLengthWarmup>>);

models::GPT2LMHeadModel gpt2(std::uint64_t seed = 1) {
  at::manual_seed(seed);
  return models::GPT2LMHeadModel(models::GPT2Options{.vocab_size = 11,
                                                     .n_positions = 16,
                                                     .n_embd = 16,
                                                     .n_layer = 2,
                                                     .n_head = 4,
                                                     .embd_pdrop = 0,
                                                     .attn_pdrop = 0,
                                                     .resid_pdrop = 0});
}
models::BertForMaskedLM bert() {
  at::manual_seed(2);
  return models::BertForMaskedLM(models::BertOptions{.vocab_size = 11,
                                                     .hidden_size = 12,
                                                     .num_hidden_layers = 2,
                                                     .num_attention_heads = 3,
                                                     .intermediate_size = 24,
                                                     .hidden_dropout_prob = 0,
                                                     .attention_probs_dropout_prob = 0,
                                                     .max_position_embeddings = 16});
}

bool holds(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& other : group.params()) {
      if (other.is_same(parameter)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

TEST_CASE("slopes are powers of two, of heads between powers too", "[functional][alibi]") {
  std::vector<double> eight;
  for (int i = 1; i <= 8; ++i) {
    eight.push_back(std::exp2(-i));
  }
  CHECK(alibi_slopes(8) == eight);
  std::vector<double> twelve = eight;
  for (const double exponent : {0.5, 1.5, 2.5, 3.5}) {
    twelve.push_back(std::exp2(-exponent));
  }
  CHECK(alibi_slopes(12) == twelve);
  CHECK(alibi_slopes(1) == std::vector<double>{std::exp2(-8)});
  CHECK(alibi_slopes(3) == std::vector<double>{std::exp2(-4), std::exp2(-8), std::exp2(-2)});
  CHECK_THROWS_AS(alibi_slopes(0), c10::ValueError);
}

TEST_CASE("a causal bias by key position is one by distance", "[functional][alibi][law]") {
  at::manual_seed(3);
  const at::Tensor scores = at::randn({2, 4, 9, 9});
  const at::Tensor future = at::ones({9, 9}, at::kBool).triu(1);
  const at::Tensor by_key =
      scores.add(alibi_bias(4, 9, true)).masked_fill(future, -1e9).softmax(-1);
  const at::Tensor by_distance =
      scores.add(alibi_bias(4, 9, false)).masked_fill(future, -1e9).softmax(-1);
  CHECK(by_key.allclose(by_distance, 1e-5, 1e-6));
}

TEST_CASE("position embeddings are zero, frozen and out of the optimizer, and lengths grow",
          "[alibi]") {
  auto model = gpt2();
  auto optimizer = tutti::DecoupledAdamW{.lr = 1e-3}.build(model->parameters());
  const at::Tensor wpe = model->transformer->wpe->weight;
  const at::Tensor wte = model->transformer->wte->weight;
  const auto step = [&](std::int64_t length) {
    optimizer->zero_grad();
    const at::Tensor ids = at::randint(11, {2, length}, at::kLong);
    const Batch batch{{"input_ids", ids}, {"labels", ids}};
    model->loss(model->forward(batch), batch).total().backward();
    optimizer->step();
  };
  step(16);
  auto report = apply_alibi(*model, 24, *optimizer);
  CHECK(report.attentions == 2);
  CHECK(report.tables == 1);
  CHECK(wpe.is_same(model->transformer->wpe->weight));
  CHECK(wpe.sizes() == at::IntArrayRef{24, 16});
  CHECK(wpe.eq(0).all().item<bool>());
  CHECK_FALSE(wpe.requires_grad());
  CHECK_FALSE(holds(*optimizer, wpe));
  CHECK(optimizer->state().count(wpe.unsafeGetTensorImpl()) == 0);
  step(24);
  CHECK(wpe.eq(0).all().item<bool>());

  report = apply_alibi(*model, 48, *optimizer);
  CHECK(report.attentions == 2);
  const at::Tensor table = wte.detach().clone();
  step(48);
  CHECK_FALSE(wte.equal(table));
  CHECK_THROWS_WITH(step(49), ContainsSubstring("length 49 and the model 48 positions"));
}

TEST_CASE("the table of tokens stays tied to the logits and goes on learning", "[alibi]") {
  auto model = bert();
  auto optimizer = torch::optim::Adam(
      {torch::optim::OptimizerParamGroup({model->bert->embeddings->word_embeddings->weight}),
       torch::optim::OptimizerParamGroup({model->bert->embeddings->position_embeddings->weight})},
      torch::optim::AdamOptions(0.01));
  const at::Tensor words = model->bert->embeddings->word_embeddings->weight;
  apply_alibi(*model, 16, optimizer);
  CHECK(holds(optimizer, words));
  CHECK(optimizer.param_groups()[1].params().empty());
  CHECK(model->bert->embeddings->word_embeddings->weight.is_same(words));
  const at::Tensor before = words.detach().clone();
  const Batch batch{{"input_ids", at::full({1, 4}, 3, at::kLong)},
                    {"labels", at::full({1, 4}, 5, at::kLong)}};
  model->loss(model->forward(batch), batch).total().backward();
  optimizer.step();
  CHECK_FALSE(words[5].equal(before[5]));  // only the logits know of token 5
}

TEST_CASE("with ALiBi only distances count", "[alibi][law]") {
  auto model = gpt2(4);
  apply_alibi(*model, 16);
  model->eval();
  const at::Tensor ids = at::randint(11, {1, 6}, at::kLong);
  // Padding in front moves every position and changes nothing.
  const at::Tensor moved = at::cat({at::zeros({1, 5}, at::kLong), ids}, 1);
  const at::Tensor mask = at::cat({at::zeros({1, 5}), at::ones({1, 6})}, 1);
  const Batch batch{{"input_ids", moved}, {"attention_mask", mask}};
  CHECK(model->forward(batch).tensor().slice(1, 5).allclose(model->forward(ids).tensor(), 1e-4,
                                                            1e-5));
  const at::Tensor biased = model->forward(ids).tensor();
  model->transformer->block(1).attn->set_position_bias(nullptr);
  CHECK_FALSE(model->forward(ids).tensor().allclose(biased));

  auto both = bert();
  apply_alibi(*both, 16);
  const at::Tensor logits = both->forward(ids).tensor();
  CHECK(both->forward(ids.flip(1)).tensor().flip(1).allclose(logits, 1e-4, 1e-5));
  CHECK_FALSE(both->forward(ids.roll(2, 1)).tensor().roll(-2, 1).allclose(logits, 1e-4, 1e-5));
}

TEST_CASE("attention in bf16 and with dropout has the biases as well", "[alibi]") {
  auto model = gpt2(5);
  apply_alibi(*model, 16);
  model->eval();
  const at::Tensor ids = at::randint(11, {2, 7}, at::kLong);
  const at::Tensor exact = model->forward(ids).tensor();
  {
    const tutti::Autocast low(at::kCPU, at::kBFloat16);
    CHECK(model->forward(ids).tensor().to(at::kFloat).allclose(exact, 0.1, 0.05));
  }
  model->train();
  for (int i = 0; i < 2; ++i) {
    model->transformer->block(static_cast<std::size_t>(i)).attn->attn_dropout->options.p(1e-300);
  }
  CHECK(model->forward(ids).tensor().allclose(exact, 1e-4, 1e-5));
}

TEST_CASE("the biases of long sequences stay accurate in low precision", "[alibi]") {
  // Attention alone: the rest of a model rounds too.
  struct Attention : torch::nn::Module, tutti::nn::PositionBiased {
    using tutti::nn::PositionBiased::PositionBiased;
    at::Tensor forward(const at::Tensor& x, const at::Tensor& past, double p) const {
      tutti::nn::Dropout dropout(p);
      const at::Tensor heads = split_heads(x);
      return attend(heads, split_heads(past), split_heads(past), {}, dropout);
    }
  };
  at::manual_seed(12);
  for (const bool causal : {true, false}) {
    Attention net(8, causal);
    apply_alibi(net, 1024);
    for (const std::int64_t length : {512, 1024}) {
      const at::Tensor past = at::randn({1, length, 8 * 16});
      for (const std::int64_t queries : {length, std::int64_t{1}}) {
        if (queries < length && !causal) {
          continue;  // has no past
        }
        for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
          for (const double p : {0.0, 1e-300}) {  // one kernel, and written out
            INFO("causal " << causal << ", " << queries << " of " << length << ", " << type
                           << ", dropout " << p);
            const at::Tensor low = past.to(type);
            const at::Tensor last = low.slice(1, length - queries);
            const at::Tensor exact = net.forward(last.to(at::kFloat), low.to(at::kFloat), p);
            const at::Tensor rounded = net.forward(last, low, p);
            CHECK(rounded.scalar_type() == type);
            // Means of numbers around 1, whose weights have 8 bits, or 11. A bias rounded by key
            // position is off by 0.3 to 1.4 in bf16, over all queries.
            const double tolerance = type == at::kBFloat16 ? 0.05 : 0.008;
            CHECK(rounded.to(at::kFloat).sub(exact).abs().max().item<double>() < tolerance);
            const tutti::Autocast on(at::kCPU, type);
            const at::Tensor cast = net.forward(last.to(at::kFloat), low.to(at::kFloat), p);
            CHECK(cast.to(at::kFloat).sub(exact).abs().max().item<double>() < tolerance);
          }
        }
      }
    }
  }
}

TEST_CASE("sequences become several shorter ones, in order", "[functional][alibi]") {
  const Batch batch{{"input_ids", at::arange(16).view({2, 8})},
                    {"labels", at::arange(16).view({2, 8})}};
  const Batch four = shorten_sequences(batch, 0.25);
  CHECK(four.at("input_ids").equal(at::arange(16).view({8, 2})));
  CHECK(four.at("labels").equal(at::arange(16).view({8, 2})));
  CHECK(shorten_sequences(batch, 1.0).at("input_ids").is_same(batch.at("input_ids")) == false);
  CHECK(shorten_sequences(batch, 1.0).at("input_ids").equal(batch.at("input_ids")));
  CHECK_THROWS_WITH(shorten_sequences(at::zeros({4, 30}), 0.25),
                    ContainsSubstring("16 sequences of 7.5"));
  CHECK_THROWS_WITH(
      shorten_sequences({{"input_ids", at::zeros({4, 8})}, {"labels", at::zeros({4})}}, 0.5),
      ContainsSubstring("\"labels\" is [4]"));
  CHECK_THROWS_AS(shorten_sequences(batch, 0.0), c10::ValueError);
  CHECK_THROWS_AS(shorten_sequences(at::zeros({8}), 0.5), c10::ValueError);
}

TEST_CASE("a run with ALiBi trains on short sequences, warms up below them and resumes",
          "[alibi][trainer][resume]") {
  const TemporaryFolder folder;
  at::manual_seed(6);
  const auto data = language::counting(16, 11, 4);
  const auto options = [&](const std::string& load) {
    tutti::TrainerOptions o{.train = data,
                            .max_duration = "2ep",
                            .optimizer = tutti::DecoupledAdamW{.lr = 1e-2},
                            .device = "cpu",
                            .seed = 3,
                            .progress_bar = false};
    if (load.empty()) {
      o.save_folder = folder.path().string();
    } else {
      o.load_path = load;
    }
    return o;
  };
  struct Lengths final {
    std::vector<std::int64_t> seen{};
    void apply(tutti::BeforeForward, const tutti::State& state) {
      seen.push_back(state.batch.inputs().size(0));
      seen.push_back(state.batch.inputs().size(1));
    }
  };
  const ALiBi alibi{.max_sequence_length = 32, .train_sequence_length_scaling = 0.5};
  const tutti::SeqLengthWarmup warmup{
      .duration = 0.5, .min_seq_length = 4, .max_seq_length = 8, .step_size = 4};
  auto whole = gpt2();
  tutti::Trainer first{whole.ptr(), options(""), warmup, alibi, Lengths{}};
  first.fit();
  CHECK(first.get<Lengths>().seen ==
        std::vector<std::int64_t>{16, 4, 16, 4, 16, 4, 16, 4, 16, 8, 16, 8, 16, 8, 16, 8});

  auto part = gpt2(9);
  tutti::Trainer second{part.ptr(), options(folder.path().string() + "/ep1-ba4"), warmup, alibi};
  second.fit();
  CHECK(tiny::flat(*part).equal(tiny::flat(*whole)));
}

TEST_CASE("sequences beyond max_sequence_length are refused, whoever gives them", "[alibi]") {
  // Attention of a model without a table of positions, which would say so first.
  struct Attention : torch::nn::Module, tutti::nn::PositionBiased {
    Attention() : tutti::nn::PositionBiased(2, /*causal=*/true) {}
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor heads = split_heads(x);
      tutti::nn::Dropout none{nullptr};
      return attend(heads, heads, heads, {}, none);
    }
  } net;
  CHECK(apply_alibi(net, 8).attentions == 1);
  CHECK_NOTHROW(net.forward(at::ones({1, 8, 4})));
  CHECK_THROWS_WITH(net.forward(at::ones({1, 9, 4})),
                    ContainsSubstring("the sequences have length 9 and max_sequence_length is 8"));
  CHECK(apply_alibi(net, 9).attentions == 1);
  CHECK_NOTHROW(net.forward(at::ones({1, 9, 4})));

  const ALiBi alibi{.max_sequence_length = 2, .train_sequence_length_scaling = 0.5};
  tutti::Trainer trainer{gpt2().ptr(),
                         {.train = language::counting(16, 11, 4),  // 8 tokens each
                          .max_duration = "1ep",
                          .optimizer = tutti::DecoupledAdamW{.lr = 1e-2},
                          .device = "cpu",
                          .progress_bar = false},
                         alibi};
  CHECK_THROWS_WITH(trainer.fit(), ContainsSubstring("a larger max_sequence_length"));
}

TEST_CASE("ALiBi refuses models without such attention and numbers out of range", "[alibi]") {
  const auto net = tiny::net();
  CHECK_THROWS_WITH(apply_alibi(*net, 16), ContainsSubstring("tutti::nn::PositionBiased"));
  CHECK(apply_alibi(*net, 16, {}, tutti::surgery::IfNone::ignore).attentions == 0);
  CHECK_THROWS_AS(apply_alibi(*net, 0), c10::ValueError);
  CHECK_THROWS_WITH(ALiBi{}.validate(), ContainsSubstring("there is no default"));
  CHECK_THROWS_WITH(
      (ALiBi{.max_sequence_length = 8, .train_sequence_length_scaling = 1.5}.validate()),
      ContainsSubstring("train_sequence_length_scaling is 1.5"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
