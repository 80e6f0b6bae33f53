#include <tutti/train/rank_state.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/warnings.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using Names = std::vector<std::string>;
using train::PolicyStates;

namespace {

// The last of several ranks, when what the others say is known.
class Last final : public FakeCommunicator {
 public:
  explicit Last(std::vector<std::string> others)
      : FakeCommunicator(static_cast<int>(others.size()), static_cast<int>(others.size()) + 1),
        said(std::move(others)) {}

  std::vector<std::string> said;  // by rank, its own after a gather

  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    said.push_back(bytes);
    return said;
  }
};

// What one rank draws from: policies' streams and LibTorch's.
struct Rank {
  explicit Rank(std::uint64_t seed) : mixup(Rng::for_policy(seed, "MixUp")), cutout(seed) {
    at::manual_seed(seed);
  }
  Rng mixup;
  Rng cutout;

  PolicyStates policies() {
    return {
        {.name = "MixUp", .rng = &mixup}, {.name = "NoDraws"}, {.name = "CutOut", .rng = &cutout}};
  }
};

// Two ranks' streams, each after some draws; the next draws of both in `next`.
Archive saved_by_two(std::vector<std::vector<double>>& next) {
  std::vector<std::string> said;
  Archive archive;
  for (const std::uint64_t seed : {11U, 12U}) {
    Rank rank(seed);
    rank.mixup.uniform();
    at::rand({3});
    Last world(said);
    archive = Archive();
    train::save_rank_states(rank.policies(), world, archive);
    said = world.said;
    next.push_back({rank.mixup.uniform(), rank.cutout.uniform(), at::rand({1}).item<double>()});
  }
  return archive;
}

State state_of(int rank, int world_size) {
  State state;
  state.rank = rank;
  state.world_size = world_size;
  return state;
}

}  // namespace

TEST_CASE("every rank's streams are saved by all and come back to each", "[train][rank_state]") {
  std::vector<std::vector<double>> next;
  const Archive archive = saved_by_two(next);
  CHECK(archive.names() == Names{"0", "1"});
  CHECK(archive.child("1/policies").names() == Names{"MixUp", "CutOut"});
  const Warnings warnings;
  for (const int rank : {0, 1}) {
    Rank mine(99);
    const double undisturbed = at::rand({1}).item<double>();
    at::manual_seed(99);
    const auto restore = train::load_rank_state(mine.policies(), state_of(rank, 2), archive);
    REQUIRE(restore);
    const std::vector<double>& want = next[static_cast<std::size_t>(rank)];
    CHECK(mine.mixup.uniform() == want[0]);
    CHECK(mine.cutout.uniform() == want[1]);
    CHECK(at::rand({1}).item<double>() == undisturbed);  // LibTorch's only when it is called
    restore();
    CHECK(at::rand({1}).item<double>() == want[2]);
  }
  CHECK(warnings.texts.empty());
}

TEST_CASE("a rank that the saved run did not have keeps its streams, with a warning",
          "[train][rank_state]") {
  std::vector<std::vector<double>> next;
  const Archive archive = saved_by_two(next);
  const Warnings warnings;
  Rank third(5);
  const auto position = third.mixup.position();
  CHECK(train::load_rank_state(third.policies(), state_of(2, 3), archive) == nullptr);
  CHECK(third.mixup.seed() == Rng::for_policy(5, "MixUp").seed());
  CHECK(third.mixup.position() == position);
  REQUIRE(warnings.texts.size() == 1);
  CHECK_THAT(warnings.texts[0],
             ContainsSubstring("was saved by 2 ranks and is loaded by 3; random draws"));
  Rank first(5);
  CHECK(train::load_rank_state(first.policies(), state_of(0, 3), archive) != nullptr);
  CHECK(first.mixup.uniform() == next[0][0]);
}

TEST_CASE("a policy without a saved stream keeps its own", "[train][rank_state]") {
  std::vector<std::vector<double>> next;
  const Archive archive = saved_by_two(next);
  Rng other(3);
  Rng renamed(4);
  const double want = Rng(3).uniform();
  train::load_rank_state({{.name = "Other", .rng = &other}, {.name = "MixUp", .rng = &renamed}},
                         state_of(0, 2), archive);
  CHECK(other.uniform() == want);
  CHECK(renamed.uniform() == next[0][0]);
}

TEST_CASE("streams that are damaged or of another machine are told of", "[train][rank_state]") {
  Rank rank(11);
  const PolicyStates policies = rank.policies();
  const auto load = [&](const Archive& archive) {
    return train::load_rank_state(policies, state_of(0, 1), archive);
  };
  Archive whole;
  checkpoint::save_rng(whole.child("0/libtorch"));
  SECTION("a position of two numbers") {
    whole.put("0/policies/MixUp", at::zeros({16}, at::kByte));
    CHECK_THROWS_WITH(load(whole), ContainsSubstring("a random stream in 2 numbers, expected 3"));
  }
  SECTION("a position that is no whole numbers") {
    whole.put("0/policies/MixUp", at::zeros({23}, at::kByte));
    CHECK_THROWS_AS(load(whole), c10::Error);
  }
  SECTION("no generators of LibTorch") {
    Archive archive;
    archive.put("0/policies/MixUp", at::zeros({24}, at::kByte));
    CHECK_THROWS_WITH(load(archive), ContainsSubstring("libtorch"));
  }
  SECTION("a device that this machine lacks") {
    const auto lacking = std::to_string(checkpoint::detail::cuda_devices());
    whole.put("0/libtorch/cuda/" + lacking, at::zeros({16}, at::kByte));
    const Warnings warnings;
    load(whole)();
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts[0],
               ContainsSubstring("not restored from the checkpoint: the generator of cuda:" +
                                 lacking + ", a device that this machine lacks"));
  }
}

}  // namespace UNITY_BUILD_UNIQUE_ID
