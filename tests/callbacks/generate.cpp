#include <tutti/callbacks/generate.hpp>

#include <set>

#include <tutti/models/gpt2.hpp>

#include "callbacks/run.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

static_assert(role_of<Generate> == Role::callback);

namespace {

// A letter is a token: a is 0.
Generate::Tokens to_tokens(std::string_view text) {
  Generate::Tokens out;
  for (const char letter : text) {
    out.push_back(letter - 'a');
  }
  return out;
}
std::string to_text(std::span<const std::int64_t> tokens) {
  std::string out;
  for (const std::int64_t token : tokens) {
    out += static_cast<char>('a' + token);
  }
  return out;
}

/// Says that the next letter of the alphabet of 6 follows.
struct Alphabet : torch::nn::Module {
  Alphabet() { bias = register_parameter("bias", at::zeros({6})); }
  Outputs forward(const Batch& batch) {
    was_training = is_training();
    const at::Tensor next = batch.inputs().add(1).remainder(6).unsqueeze(-1);  // [N, T, 1]
    const at::Tensor one_hot = at::zeros({next.size(0), next.size(1), 6}).scatter(2, next, 1.0);
    return one_hot + bias;
  }
  Loss loss(const Outputs& outputs, const Batch&) { return outputs.tensor().square().mean(); }
  at::Tensor bias;
  bool was_training = true;
};

TrainerOptions text_options(int batches, Time length) {
  auto out = callback_run::options();
  out.train = std::vector<Batch>(static_cast<std::size_t>(batches),
                                 Batch{{"input_ids", at::ones({2, 3}, at::kLong)}});
  out.max_duration = length;
  return out;
}

/// Counts tables.
struct Tables final {
  std::vector<std::int64_t> steps{};
  std::vector<std::vector<std::string>> last{};
  void log_table(const LoggedTable& table, std::int64_t step) {
    CHECK(table.name == "generations");
    CHECK(std::vector<std::string>(table.columns.begin(), table.columns.end()) ==
          std::vector<std::string>{"prompt", "generation"});
    steps.push_back(step);
    last.assign(table.rows.begin(), table.rows.end());
  }
};

Generate generate(Time interval) {
  return {.prompts = {"a", "bcd"},
          .interval = interval,
          .encode = &to_tokens,
          .decode = &to_text,
          .generation = {.max_new_tokens = 4}};
}

}  // namespace

TEST_CASE("prompts are continued at the interval and at the end", "[callbacks][generate]") {
  auto model = std::make_shared<Alphabet>();
  Trainer trainer{model, text_options(5, "1ep"), generate("2ba"), Tables{}};
  trainer.fit();
  const auto& tables = trainer.get<Tables>();
  CHECK(tables.steps == std::vector<std::int64_t>{2, 4, 5});
  CHECK(tables.last == std::vector<std::vector<std::string>>{{"a", "bcde"}, {"bcd", "efab"}});
  CHECK_FALSE(model->was_training);
  CHECK(model->is_training());

  Trainer by_epoch{std::make_shared<Alphabet>(), text_options(2, "2ep"), generate("1ep"), Tables{}};
  by_epoch.fit();
  CHECK(by_epoch.get<Tables>().steps == std::vector<std::int64_t>{2, 4});  // the end was due anyway
}

TEST_CASE("a text ends with the token that says so", "[callbacks][generate]") {
  Generate policy = generate("1ep");
  policy.generation.eos_token_id = {5};
  Trainer trainer{std::make_shared<Alphabet>(), text_options(1, "1ep"), policy, Tables{}};
  trainer.fit();
  CHECK(trainer.get<Tables>().last ==
        std::vector<std::vector<std::string>>{{"a", "bcde"}, {"bcd", "ef"}});
}

TEST_CASE("prompts of different lengths are read in one batch by a model with a cache",
          "[callbacks][generate]") {
  /// Says how many tokens a row has, without its padding.
  struct Lengths : Alphabet, models::CausalLanguageModel {
    at::Tensor logits(const models::CausalInput& in) override {
      rows.push_back(in.input_ids.size(0));
      const std::int64_t past = in.cache->length();
      in.cache->append(0, at::zeros({in.input_ids.size(0), 1, in.input_ids.size(1), 1}),
                       at::zeros({in.input_ids.size(0), 1, in.input_ids.size(1), 1}));
      in.cache->advance(in.input_ids.size(1));
      const at::Tensor length =
          in.attention_mask.defined()
              ? in.attention_mask.sum(1, /*keepdim=*/true)
              : at::full({in.input_ids.size(0), 1}, past + in.input_ids.size(1));
      return at::zeros({length.size(0), 6}).scatter(1, length.to(at::kLong), 1.0).unsqueeze(1);
    }
    nn::KeyValueCache make_cache(std::int64_t batch, std::int64_t length) const override {
      return {1, batch, length};
    }
    std::vector<std::int64_t> rows;
  };
  const auto model = std::make_shared<Lengths>();
  Generate policy = generate("1ep");
  policy.generation.max_new_tokens = 2;
  Trainer trainer{model, text_options(1, "1ep"), policy, Tables{}};
  trainer.fit();
  CHECK(model->rows == std::vector<std::int64_t>{2, 2});
  CHECK(trainer.get<Tables>().last ==
        std::vector<std::vector<std::string>>{{"a", "bc"}, {"bcd", "de"}});
  policy.batch_size = 1;
  Trainer one_by_one{model, text_options(1, "1ep"), policy, Tables{}};
  model->rows.clear();
  one_by_one.fit();
  CHECK(model->rows == std::vector<std::int64_t>{1, 1, 1, 1});
  CHECK(one_by_one.get<Tables>().last == trainer.get<Tables>().last);
}

TEST_CASE("tokens are drawn from the likeliest", "[callbacks][generate]") {
  const auto model = std::make_shared<Alphabet>();
  State state;
  state.model = model;
  state.task = model;
  Generate policy = generate("1ep");
  policy.generation = {.max_new_tokens = 300, .do_sample = true, .temperature = 0.5};
  policy.rng = Rng::for_policy(3, "Generate");
  const auto drawn = policy.continue_from(state, {{0}}).at(0);
  int follows = 0;
  for (std::size_t i = 1; i < drawn.size(); ++i) {
    follows += drawn[i] == (drawn[i - 1] + 1) % 6 ? 1 : 0;
  }
  // e^2 / (e^2 + 5) = 0.596 of the tokens are the next letter; within five deviations
  CHECK(follows > 299 * 0.596 - 5 * 8.5);
  CHECK(follows < 299 * 0.596 + 5 * 8.5);
  CHECK(std::set<std::int64_t>(drawn.begin(), drawn.end()).size() == 6);
  Generate again = policy;  // the stream goes on
  CHECK(again.continue_from(state, {{0}}).at(0) != drawn);
  policy.generation.top_k = 1;
  CHECK(to_text(policy.continue_from(state, {{4}}).at(0)).substr(0, 4) == "fabc");
}

TEST_CASE("generating changes nothing of the training of a GPT-2", "[callbacks][generate][law]") {
  const auto run = [](auto... policies) {
    at::manual_seed(1);
    auto model = models::GPT2LMHeadModel(models::GPT2Options{
        .vocab_size = 6, .n_positions = 16, .n_embd = 8, .n_layer = 1, .n_head = 2});
    auto options = text_options(0, "4ba");
    const at::Tensor ids = at::arange(24).remainder(6).reshape({4, 6});
    options.train = std::vector<Batch>(2, Batch{{"input_ids", ids}, {"labels", ids}});
    Trainer trainer{model.ptr(), options, std::move(policies)..., Tables{}};
    trainer.fit();
    return tiny::flat(*model);
  };
  Generate policy = generate("1ba");
  policy.generation.do_sample = true;
  CHECK(run(policy).equal(run()));
}

TEST_CASE("only rank 0 generates", "[callbacks][generate]") {
  const auto model = std::make_shared<Alphabet>();
  State state;
  state.model = model;
  state.task = model;
  Tables tables;
  state.logger.add(tables);
  state.timestamp = state.timestamp.to_next_batch(1);
  Generate policy = generate("1ba");
  policy.apply(FitStart{}, state);
  for (const int rank : {1, 0}) {
    state.rank = rank;
    policy.apply(BatchEnd{}, state);
    CHECK(tables.steps.size() == (rank == 0 ? 1 : 0));
  }
}

TEST_CASE("what Generate cannot do is refused", "[callbacks][generate]") {
  CHECK_THROWS_WITH((Generate{.encode = &to_tokens, .decode = &to_text}.validate()),
                    ContainsSubstring("prompts is empty"));
  CHECK_THROWS_WITH((Generate{.prompts = {"a"}}.validate()),
                    ContainsSubstring("encode or decode is not set"));
  CHECK_THROWS_WITH((Generate{.prompts = {"a"}, .encode = &to_tokens}.validate()),
                    ContainsSubstring("encode or decode is not set"));
  const auto refused = [](auto change) {
    Generate policy = generate("1ep");
    CHECK_NOTHROW(policy.validate());
    change(policy);
    return message([&] { policy.validate(); });
  };
  CHECK_THAT(refused([](Generate& policy) { policy.generation.max_new_tokens = 0; }),
             ContainsSubstring("max_new_tokens is 0, expected at least 1"));
  CHECK_THAT(refused([](Generate& policy) { policy.generation.seed = 3; }),
             ContainsSubstring("generation.seed is set"));
  CHECK_THAT(refused([](Generate& policy) { policy.batch_size = -1; }),
             ContainsSubstring("batch_size is -1, expected 0 or more"));
  const auto prompts = [](std::vector<std::string> texts, std::int64_t more, bool ends) {
    Generate policy = generate("1ep");
    policy.prompts = std::move(texts);
    policy.generation.max_new_tokens = more;
    policy.generation.pad_token_id = 5;
    policy.generation.eos_token_id.assign(ends ? 1 : 0, 5);
    const auto model = std::make_shared<models::GPT2LMHeadModelImpl>(models::GPT2Options{
        .vocab_size = 6, .n_positions = 8, .n_embd = 8, .n_layer = 1, .n_head = 2});
    TrainerOptions labelled = text_options(1, "1ep");
    labelled.train = std::vector<Batch>{
        {{"input_ids", at::ones({2, 3}, at::kLong)}, {"labels", at::ones({2, 3}, at::kLong)}}};
    Trainer trainer{model, labelled, std::move(policy)};
    return message([&] { trainer.fit(); });
  };
  CHECK(prompts({"a", "abcd"}, 4, false) == "nothing");
  CHECK_THAT(prompts({"a", "abcde"}, 4, false),
             ContainsSubstring("prompts[1]: it has 5 tokens, 4 are to follow, and the model has "
                               "room for 8; shorten it"));
  CHECK_THAT(prompts({"abcdeabc"}, 4, true), ContainsSubstring("prompts[0]: it has 8 tokens"));
  CHECK_THAT(prompts({"ab", ""}, 4, true),
             ContainsSubstring("prompts[1]: Generate: a prompt has no tokens"));
  CHECK_THAT(prompts({"abz"}, 4, true), ContainsSubstring("prompts[0]: generate: a prompt has the "
                                                          "token id 25"));
  struct Odd : Alphabet {
    Outputs eval_forward(const Batch&) { return outputs; }
    at::Tensor outputs;
  };
  for (const auto& [sizes, text] : std::vector<std::pair<std::vector<std::int64_t>, std::string>>{
           {{6}, "[6]"}, {{1, 6}, "[1, 6]"}, {{2, 3, 6}, "[2, 3, 6]"}}) {
    const auto model = std::make_shared<Odd>();
    model->outputs = at::zeros(sizes);
    Trainer trainer{model, text_options(1, "1ep"), generate("1ba"), Tables{}};
    CHECK_THROWS_WITH(trainer.fit(),
                      ContainsSubstring("the model's outputs are " + text + ", expected"));
  }
  State state;
  Generate policy = generate("1ba");
  CHECK_THROWS_WITH(policy.continue_from(state, {{}}), ContainsSubstring("a prompt has no tokens"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
