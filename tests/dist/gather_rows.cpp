#include <tutti/dist/gather_rows.hpp>

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/two_ranks.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti;

namespace {

// What both ranks get of their rows; undefined unless they get the same.
at::Tensor gathered(const at::Tensor& of_zero, const at::Tensor& of_one) {
  std::vector<at::Tensor> got(2);
  TwoRanks::run([&](const std::shared_ptr<dist::Communicator>& group) {
    got[static_cast<std::size_t>(group->rank())] =
        dist::gather_rows(*group, group->rank() == 0 ? of_zero : of_one);
  });
  return got[0].equal(got[1]) && got[0].scalar_type() == got[1].scalar_type() ? got[0]
                                                                              : at::Tensor{};
}

at::Tensor rows(std::int64_t from, std::int64_t to) {
  return at::arange(from, to, at::kDouble).view({-1, 1}).expand({to - from, 3}).contiguous();
}

}  // namespace

TEST_CASE("rows of all ranks are put one after the other, however many each has", "[dist][law]") {
  CHECK(gathered(rows(0, 2), rows(2, 7)).equal(rows(0, 7)));
  CHECK(gathered(rows(0, 5), rows(5, 6)).equal(rows(0, 6)));
  CHECK(gathered(rows(0, 3), rows(3, 6)).equal(rows(0, 6)));
  CHECK(gathered(at::arange(2), at::arange(2, 3)).equal(at::arange(3)));
}

TEST_CASE("a rank without rows takes the type and shape of the others'", "[dist][law]") {
  CHECK(gathered(at::empty({0}), rows(0, 2)).equal(rows(0, 2)));
  CHECK(gathered(rows(0, 2), at::empty({0, 5}, at::kLong)).equal(rows(0, 2)));
  CHECK(gathered(at::empty({0, 2}), at::empty({0, 2})).sizes() == at::IntArrayRef({0, 2}));
}

TEST_CASE("rows of different types or shapes are refused, with the ranks", "[dist]") {
  CHECK_THROWS_WITH(gathered(rows(0, 1), at::zeros({2, 3})),
                    ContainsSubstring("rank 1 has Float [2, 3] and rank 0 has Double [1, 3]"));
  CHECK_THROWS_WITH(gathered(rows(0, 1), at::zeros({2, 4}, at::kDouble)),
                    ContainsSubstring("expected rows of one type and size"));
  dist::SingleProcess alone;
  CHECK_THROWS_WITH(dist::gather_rows(alone, at::zeros({})),
                    ContainsSubstring("got a tensor without dimensions"));
  CHECK(dist::gather_rows(alone, rows(0, 4)).equal(rows(0, 4)));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
