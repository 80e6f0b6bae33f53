#include "support/example_algorithm.hpp"

#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

#include "support/catch.hpp"
#include "support/tiny.hpp"

static_assert(tutti::Algorithm<example::GradientNoise>);
static_assert(tutti::Algorithm<example::HalfBatches>);
static_assert(tutti::Recipe<example::GradientNoise, example::HalfBatches>::valid);

namespace {

template <class... Policies>
tutti::Trainer<Policies...> trainer_of(const std::shared_ptr<tiny::Net>& net,
                                       Policies... policies) {
  return tutti::Trainer<Policies...>(net,
                                     {.train = tiny::batches(4),
                                      .max_duration = "2ep",
                                      .optimizer = tutti::SGD{.lr = 0.1},
                                      .device = "cpu",
                                      .seed = 5,
                                      .progress_bar = false},
                                     std::move(policies)...);
}

}  // namespace

TEST_CASE("the smallest algorithm of a user's own changes training", "[example]") {
  const auto plain = tiny::net();
  const auto noisy = tiny::net();
  trainer_of(plain, example::GradientNoise{.stddev = 0}).fit();
  trainer_of(noisy, example::GradientNoise{.stddev = 0.1}).fit();
  CHECK(!tiny::flat(*plain).equal(tiny::flat(*noisy)));
}

TEST_CASE("the example with every member is seeded, asked, run and reported", "[example]") {
  auto trainer = trainer_of(tiny::net(), example::HalfBatches{.probability = 0.5});
  trainer.fit();
  const std::int64_t cut = trainer.get<example::HalfBatches>().cut;
  CHECK(cut > 0);
  CHECK(cut < 8);
  CHECK(trainer.state().timestamp.sample == 48);  // as they come from the loader

  auto again = trainer_of(tiny::net(), example::HalfBatches{.probability = 0.5});
  again.fit();
  CHECK(again.get<example::HalfBatches>().cut == cut);
  CHECK_THROWS_WITH(trainer_of(tiny::net(), example::HalfBatches{.probability = 2}),
                    Catch::Matchers::ContainsSubstring("probability is 2, expected"));
}
