#include <tutti/dist/spread_model.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/fake_communicator.hpp"
#include "support/message.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A rank of several, of which a test says what the others have.
class Others final : public FakeCommunicator {
 public:
  using FakeCommunicator::FakeCommunicator;
  std::vector<at::Tensor> all_gather(const at::Tensor& own) override {
    return parts.empty() ? FakeCommunicator::all_gather(own) : parts;
  }
  std::vector<at::Tensor> parts{};
};

}  // namespace

TEST_CASE("parts of all ranks are the whole again", "[dist][tensor_parallel]") {
  const at::Tensor whole = at::arange(7 * 12).view({7, 12});
  struct How {
    std::int64_t dim, tensors;
    int copies;
  };
  for (const How& how : {How{0, 1, 1}, How{1, 1, 1}, How{1, 3, 1}, How{1, 1, 2}, How{1, 3, 4}}) {
    CAPTURE(how.dim, how.tensors, how.copies);
    std::vector<at::Tensor> parts;
    for (const bool gathers : {false, true}) {
      for (int rank = 0; rank < 4; ++rank) {
        const auto world = std::make_shared<Others>(rank, 4);
        dist::SpreadModel model(world, 4);
        const at::Tensor parameter = whole.clone();
        model.cut(
            {.parameter = parameter, .dim = how.dim, .tensors = how.tensors, .copies = how.copies});
        const dist::SpreadParameter* one = model.find(parameter);
        REQUIRE(one != nullptr);
        CHECK(parameter.sizes() == at::IntArrayRef(model.part_sizes(*one)));
        CHECK(parameter.equal(model.part_of(*one, whole)));
        CHECK(model.ranks_with(parameter) == how.copies);
        if (!gathers) {
          parts.push_back(parameter);
          if (how.dim == 0 && rank == 3) {  // the last rank has less, and sends as much
            CHECK(parameter.size(0) == 1);
            parts.back() = at::cat({parameter, at::zeros({1, 12}, at::kLong)});
          }
          continue;
        }
        world->parts = parts;
        CHECK(model.whole_of(*one, parameter).equal(whole));
        {
          const auto summoned = model.summon(/*write_back=*/true);
          CHECK(model.summoned());
          CHECK(parameter.equal(whole));
          CHECK_THAT(message([&] { static_cast<void>(model.summon()); }),
                     ContainsSubstring("in the model already"));
          parameter.add_(1);
        }
        CHECK(parameter.equal(model.part_of(*one, whole + 1)));
      }
    }
  }
}

TEST_CASE("a tied parameter is cut once, and one of every rank is known to be",
          "[dist][tensor_parallel]") {
  dist::SpreadModel model(std::make_shared<FakeCommunicator>(1, 2), 2);
  const at::Tensor tied = at::arange(4);
  model.cut({.parameter = tied});
  model.cut({.parameter = tied});
  CHECK(tied.equal(at::arange(2, 4)));
  CHECK(model.parameters().size() == 1);
  const at::Tensor whole = at::arange(4);
  CHECK(model.find(whole) == nullptr);
  CHECK(model.ranks_with(whole) == 2);
  CHECK_THAT(
      message([&] { static_cast<void>(model.part_of(model.parameters().front(), at::arange(5))); }),
      ContainsSubstring("a tensor [5] is to be cut as a parameter of [4]"));
}

TEST_CASE("copies of a model read different examples", "[dist][tensor_parallel]") {
  const auto world = std::make_shared<FakeCommunicator>(3, 4);
  State state;
  state.rank = 3;
  state.world_size = 4;
  state.communicator = world;
  CHECK(dist::data_group(state) == world);
  CHECK(dist::data_rank(state) == 3);
  CHECK(dist::data_ranks(state) == 4);
  const dist::SpreadModel model(world, 4);  // one copy
  state.spread = &model;
  CHECK(dist::data_rank(state) == 0);
  CHECK(dist::data_ranks(state) == 1);
}

TEST_CASE("a degree divides the ranks", "[dist][tensor_parallel]") {
  CHECK_THAT(message([] { dist::SpreadModel(std::make_shared<FakeCommunicator>(0, 4), 3); }),
             ContainsSubstring("degree is 3 in a run of 4 ranks"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
