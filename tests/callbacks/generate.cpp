#include <tutti/callbacks/generate.hpp>

#include <set>

#include <tutti/models/gpt2.hpp>

#include "callbacks/run.hpp"
#include "support/message.hpp"

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
          .max_new_tokens = 4};
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
  policy.eos_token_id = 5;
  Trainer trainer{std::make_shared<Alphabet>(), text_options(1, "1ep"), policy, Tables{}};
  trainer.fit();
  CHECK(trainer.get<Tables>().last ==
        std::vector<std::vector<std::string>>{{"a", "bcde"}, {"bcd", "ef"}});
}

TEST_CASE("tokens are drawn from the likeliest", "[callbacks][generate]") {
  const auto model = std::make_shared<Alphabet>();
  State state;
  state.model = model;
  state.task = model;
  Generate policy = generate("1ep");
  policy.do_sample = true;
  policy.max_new_tokens = 300;
  policy.rng = Rng::for_policy(3, "Generate");
  policy.temperature = 0.5;
  const auto drawn = policy.continue_from(state, {0});
  int follows = 0;
  for (std::size_t i = 1; i < drawn.size(); ++i) {
    follows += drawn[i] == (drawn[i - 1] + 1) % 6 ? 1 : 0;
  }
  // e^2 / (e^2 + 5) = 0.596 of the tokens are the next letter; within five deviations
  CHECK(follows > 299 * 0.596 - 5 * 8.5);
  CHECK(follows < 299 * 0.596 + 5 * 8.5);
  CHECK(std::set<std::int64_t>(drawn.begin(), drawn.end()).size() == 6);
  Generate all = policy;
  all.top_k = 0;
  policy.top_k = 6;
  CHECK(policy.continue_from(state, {0}) == all.continue_from(state, {0}));
  policy.top_k = 1;
  CHECK(to_text(policy.continue_from(state, {4})).substr(0, 4) == "fabc");
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
  policy.do_sample = true;
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
  CHECK_THAT(refused([](Generate& policy) { policy.max_new_tokens = 0; }),
             ContainsSubstring("max_new_tokens is 0, expected at least 1"));
  CHECK_THAT(refused([](Generate& policy) { policy.temperature = 0; }),
             ContainsSubstring("temperature is 0, expected more than 0"));
  CHECK_THAT(refused([](Generate& policy) { policy.top_k = -1; }),
             ContainsSubstring("top_k is -1, expected 0 or more"));
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
  CHECK_THROWS_WITH(policy.continue_from(state, {}), ContainsSubstring("a prompt has no tokens"));
}
