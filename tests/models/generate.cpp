#include <tutti/models/generate.hpp>

#include <cmath>
#include <map>

#include "support/catch.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using models::generate;
using models::GenerationConfig;
using Tokens = std::vector<std::int64_t>;

namespace {

at::Tensor ids(std::initializer_list<Tokens> rows) {
  std::vector<at::Tensor> out;
  for (const Tokens& row : rows) {
    out.push_back(at::tensor(row, at::kLong));
  }
  return at::stack(out);
}

Tokens row(const at::Tensor& text, std::int64_t i = 0) {
  const at::Tensor one = text[i].contiguous();
  return {one.data_ptr<std::int64_t>(), one.data_ptr<std::int64_t>() + one.numel()};
}

/// One layer of attention: what it says depends on all that it has read.
struct Attention : torch::nn::Module, models::CausalLanguageModel {
  explicit Attention(std::int64_t vocabulary = 11) {
    at::manual_seed(3);
    table = register_parameter("table", at::randn({vocabulary, 8}));
    places = register_parameter("places", at::randn({64, 8}));
  }

  at::Tensor logits(const models::CausalInput& in) override {
    CHECK_FALSE(at::GradMode::is_enabled());
    CHECK_FALSE(is_training());
    ++calls;
    read += in.input_ids.size(1);
    const std::int64_t past = in.cache == nullptr ? 0 : in.cache->length();
    const std::int64_t fresh = in.input_ids.size(1);
    at::Tensor at = at::arange(past, past + fresh);
    if (in.attention_mask.defined()) {
      padded = true;
      at = in.attention_mask.cumsum(1).sub(1).clamp_min(0).slice(1, past);
    }
    const at::Tensor x = (table.index({in.input_ids}) + places.index({at})).unsqueeze(1);
    at::Tensor keys = x;
    if (in.cache != nullptr) {
      keys = in.cache->append(0, x, x).keys;
      in.cache->advance(fresh);
    }
    at::Tensor seen = at::ones({fresh, past + fresh}, at::kBool).tril(past);
    if (in.attention_mask.defined()) {
      seen = seen.logical_and(in.attention_mask.ne(0).unsqueeze(1).unsqueeze(1));
    }
    const at::Tensor weights =
        x.matmul(keys.transpose(-2, -1)).masked_fill(seen.logical_not(), -1e9).softmax(-1);
    const at::Tensor all = weights.matmul(keys).squeeze(1).matmul(table.t());
    return in.last_only ? all.slice(1, -1) : all;
  }
  nn::KeyValueCache make_cache(std::int64_t batch, std::int64_t length) const override {
    room = length;
    return {1, batch, length};
  }
  std::int64_t vocab_size() const override { return table.size(0); }

  Outputs forward(const Batch& batch) {
    models::CausalInput in{.input_ids = batch.inputs()};
    if (batch.contains("attention_mask")) {
      in.attention_mask = batch.at("attention_mask");
    }
    return logits(in);
  }
  static Loss loss(const Outputs& outputs, const Batch&) { return outputs.tensor().mean(); }

  at::Tensor table, places;
  int calls = 0;
  std::int64_t read = 0;
  mutable std::int64_t room = 0;
  bool padded = false;
};

/// The same without a cache, behind a module that has none.
struct Plain : torch::nn::Module {
  Plain() { inner = register_module("inner", std::make_shared<Attention>()); }
  Outputs forward(const Batch& batch) { return inner->forward(batch); }
  static Loss loss(const Outputs& outputs, const Batch&) { return outputs.tensor().mean(); }
  std::shared_ptr<Attention> inner;
};

/// After token i comes i + 1 of 6, or what `likely` says.
struct Alphabet : torch::nn::Module {
  Alphabet() { bias = register_parameter("bias", at::zeros({6})); }
  Outputs forward(const Batch& batch) {
    const at::Tensor next = batch.inputs().add(1).remainder(6).unsqueeze(-1);
    return at::zeros({next.size(0), next.size(1), 6}).scatter(2, next, 1.0) + bias;
  }
  static Loss loss(const Outputs& outputs, const Batch&) { return outputs.tensor().mean(); }
  at::Tensor bias;
};

}  // namespace

static_assert(models::CausalLM<Attention>);

TEST_CASE("a prompt is read once, then one token a step, and the texts are those without a cache",
          "[models][generation]") {
  Attention model;
  const at::Tensor prompts = ids({{1, 2, 3, 4}, {5, 6, 7, 8}});
  const GenerationConfig config{.max_new_tokens = 9};
  const at::Tensor text = generate(model, prompts, config);
  CHECK(text.sizes() == at::IntArrayRef{2, 13});
  CHECK(text.slice(1, 0, 4).equal(prompts));
  CHECK(model.calls == 9);
  CHECK(model.read == 4 + 8);
  CHECK(model.room == 13);
  CHECK_FALSE(model.padded);
  const auto plain = std::make_shared<Plain>();
  CHECK(generate(AnyModel(plain), prompts, config).equal(text));
  CHECK(plain->inner->read == 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12);
  const auto same = std::make_shared<Attention>();
  CHECK(generate(AnyModel(same), prompts, config).equal(text));
  CHECK(same->read == 12);
}

TEST_CASE("a prompt padded on the left gives the text that it gives alone",
          "[models][generation]") {
  Attention model;
  const GenerationConfig config{.max_new_tokens = 7};
  const at::Tensor alone = generate(model, ids({{5, 6}}), config);
  const at::Tensor mask = ids({{1, 1, 1, 1}, {0, 0, 1, 1}});
  const at::Tensor together = generate(model, ids({{1, 2, 3, 4}, {9, 9, 5, 6}}), config, mask);
  CHECK(model.padded);
  CHECK(row(together.slice(1, 4), 1) == row(alone.slice(1, 2)));
  CHECK(row(together) == row(generate(model, ids({{1, 2, 3, 4}}), config)));
  const auto plain = std::make_shared<Plain>();
  CHECK(generate(AnyModel(plain), ids({{1, 2, 3, 4}, {9, 9, 5, 6}}), config, mask).equal(together));
}

TEST_CASE("the penalty of repetition does not count padding", "[models][generation]") {
  Attention model;
  const GenerationConfig config{.max_new_tokens = 7, .repetition_penalty = 3};
  const at::Tensor alone = generate(model, ids({{5, 6}}), config);
  const at::Tensor mask = ids({{1, 1, 1, 1}, {0, 0, 1, 1}});
  for (std::int64_t pad = 0; pad < 11; ++pad) {
    const at::Tensor prompts = ids({{1, 2, 3, 4}, {pad, pad, 5, 6}});
    CHECK(row(generate(model, prompts, config, mask).slice(1, 4), 1) == row(alone.slice(1, 2)));
  }
}

TEST_CASE("padding is found by the padding token, unless that ends texts", "[models][generation]") {
  Attention model;
  GenerationConfig config{.max_new_tokens = 7, .pad_token_id = 9};
  const at::Tensor prompts = ids({{1, 2, 3, 4}, {9, 9, 5, 6}});
  const at::Tensor given = generate(model, prompts, config, ids({{1, 1, 1, 1}, {0, 0, 1, 1}}));
  CHECK(generate(model, prompts, config).equal(given));
  model.padded = false;
  config.eos_token_id = {9};
  static_cast<void>(generate(model, prompts, config));
  CHECK_FALSE(model.padded);
}

TEST_CASE("a row that has ended is padded until all rows have", "[models][generation]") {
  const AnyModel model(std::make_shared<Alphabet>());
  GenerationConfig config{.max_new_tokens = 6, .eos_token_id = {5}};
  const at::Tensor prompts = ids({{0}, {3}});
  CHECK(generate(model, prompts, config).equal(ids({{0, 1, 2, 3, 4, 5}, {3, 4, 5, 5, 5, 5}})));
  config.pad_token_id = 2;
  const at::Tensor text = generate(model, prompts, config);
  CHECK(text.equal(ids({{0, 1, 2, 3, 4, 5}, {3, 4, 5, 2, 2, 2}})));
  CHECK(models::written_tokens(text, 1, config) == std::vector<Tokens>{{1, 2, 3, 4, 5}, {4, 5}});
  config.eos_token_id = {4, 2};
  CHECK(generate(model, prompts, config).equal(ids({{0, 1, 2}, {3, 4, 2}})));
  config.max_new_tokens = 1;
  CHECK(generate(model, prompts, config).equal(ids({{0, 1}, {3, 4}})));
}

TEST_CASE("a stop sequence ends a text, and tokens of the prompt do not count",
          "[models][generation]") {
  const AnyModel model(std::make_shared<Alphabet>());
  GenerationConfig config{
      .max_new_tokens = 9, .pad_token_id = 5, .stop_sequences = {{0, 1}, {2, 4}}};
  CHECK(generate(model, ids({{4}, {0}}), config)
            .equal(ids({{4, 5, 0, 1, 5, 5, 5, 5}, {0, 1, 2, 3, 4, 5, 0, 1}})));
  config.pad_token_id = {};
  CHECK(generate(model, ids({{4}}), config).equal(ids({{4, 5, 0, 1}})));
  CHECK_THROWS_WITH(generate(model, ids({{4}, {0}}), config),
                    ContainsSubstring("set pad_token_id"));
}

TEST_CASE("max_length counts the prompt, max_new_tokens does not, and without either it is 20",
          "[models][generation]") {
  const AnyModel model(std::make_shared<Alphabet>());
  CHECK(generate(model, ids({{1, 2}}), {.max_length = 5}).size(1) == 5);
  CHECK(generate(model, ids({{1, 2}}), {.max_new_tokens = 5, .max_length = 3}).size(1) == 7);
  CHECK(generate(model, ids({{1, 2}})).size(1) == 22);
  CHECK_THROWS_WITH(generate(model, ids({{1, 2}}), {.max_length = 2}),
                    ContainsSubstring("max_length is 2, which leaves no room"));
}

TEST_CASE("a seed gives the same text, in any batch; another one another", "[models][generation]") {
  Attention model;
  GenerationConfig config{.max_new_tokens = 30, .do_sample = true, .temperature = 9, .seed = 5};
  const at::Tensor one = generate(model, ids({{1, 2}}), config);
  CHECK(generate(model, ids({{1, 2}}), config).equal(one));
  const at::Tensor two = generate(model, ids({{1, 2}, {1, 2}}), config);
  CHECK(row(two) == row(one));
  CHECK(row(two, 1) != row(one));
  config.seed = 6;
  CHECK_FALSE(generate(model, ids({{1, 2}}), config).equal(one));
  config.seed = {};
  at::manual_seed(4);
  const at::Tensor drawn = generate(model, ids({{1, 2}}), config);
  CHECK_FALSE(generate(model, ids({{1, 2}}), config).equal(drawn));
  at::manual_seed(4);
  CHECK(generate(model, ids({{1, 2}}), config).equal(drawn));
}

TEST_CASE("tokens are drawn as often as their probability says, and removed ones never",
          "[models][generation]") {
  const auto alphabet = std::make_shared<Alphabet>();
  constexpr std::int64_t count = 20000;
  GenerationConfig config{
      .max_new_tokens = count, .do_sample = true, .temperature = 0.5, .top_k = 0, .seed = 1};
  const auto follows = [&] {
    const Tokens text = row(generate(AnyModel(alphabet), ids({{0}}), config));
    std::map<std::int64_t, double> out;
    for (std::size_t i = 1; i < text.size(); ++i) {
      out[(text[i] - text[i - 1] + 6) % 6] += 1.0 / count;
    }
    return out;
  };
  const double likely = std::exp(2.0) / (std::exp(2.0) + 5);
  auto found = follows();
  CHECK(std::abs(found[1] - likely) < 5 * std::sqrt(likely * (1 - likely) / count));
  for (const std::int64_t other : {0, 2, 3, 4, 5}) {
    const double p = (1 - likely) / 5;
    CHECK(std::abs(found[other] - p) < 5 * std::sqrt(p * (1 - p) / count));
  }
  config.max_new_tokens = 500;
  config.top_k = 1;
  found = follows();
  CHECK(found.size() == 1);
  CHECK(found.contains(1));
}

TEST_CASE("new tokens are handed out as they are written", "[models][generation]") {
  const AnyModel model(std::make_shared<Alphabet>());
  std::vector<Tokens> steps;
  const auto note = [&](std::span<const std::int64_t> tokens) {
    steps.emplace_back(tokens.begin(), tokens.end());
  };
  static_cast<void>(
      generate(model, ids({{3}, {4}}), {.max_new_tokens = 3, .eos_token_id = {5}}, {}, note));
  CHECK(steps == std::vector<Tokens>{{4, 5}, {5, 5}});
}

TEST_CASE("every module has its mode back, also after an exception", "[models][generation]") {
  Attention model;
  const auto part = std::make_shared<Attention>();
  model.register_module("part", part);
  part->eval();
  const auto stop = [](std::span<const std::int64_t>) { throw std::runtime_error("stop"); };
  CHECK_THROWS_WITH(generate(model, ids({{1}}), {}, {}, stop), "stop");
  static_cast<void>(generate(model, ids({{1}})));
  CHECK(model.is_training());
  CHECK_FALSE(part->is_training());
  CHECK(at::GradMode::is_enabled());
}

TEST_CASE("what generate cannot take is refused", "[models][generation]") {
  Attention model;
  const auto refused = [&](const at::Tensor& prompt, const at::Tensor& mask) {
    return message([&] { static_cast<void>(generate(model, prompt, {}, mask)); });
  };
  CHECK_THAT(refused(at::zeros({2}, at::kLong), {}), ContainsSubstring("expected int64 [N, T]"));
  CHECK_THAT(refused(at::zeros({1, 2}), {}), ContainsSubstring("Float [1, 2]"));
  CHECK_THAT(refused(at::zeros({1, 0}, at::kLong), {}), ContainsSubstring("bos token"));
  CHECK_THAT(refused(ids({{1, 2}}), ids({{1}})), ContainsSubstring("expected the same shape"));
  CHECK_THAT(refused(ids({{1, 2}}), ids({{1, 0}})), ContainsSubstring("padding on its left"));
  CHECK_THROWS_WITH(generate(model, ids({{1}}), {.top_k = -1}), ContainsSubstring("top_k is -1"));
  CHECK_THROWS_AS(generate(model, ids({{1, 11}})), c10::IndexError);
  CHECK_THAT(refused(ids({{1, 2}, {12, 3}}), {}),
             ContainsSubstring("token id 12, but the model has 11 tokens, ids 0 to 10; encode "
                               "prompts with the tokenizer of this model"));
  CHECK_THAT(refused(ids({{-100, 2}}), {}), ContainsSubstring("token id -100, but the model has"));
  const AnyModel plain(std::make_shared<Plain>());
  CHECK_THAT(message([&] { static_cast<void>(generate(plain, ids({{-1}}))); }),
             ContainsSubstring("token id -1, expected 0 or more"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
