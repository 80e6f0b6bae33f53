#include <tutti/data/detail/rows.hpp>

#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::data::detail::take_rows;
using tutti::detail::BatchMemory;

namespace {

const std::vector<std::int64_t> rows{4, 0, 2, 2, 1};

void check_rows(const at::Tensor& x) {
  BatchMemory memory;
  const at::Tensor taken = take_rows(x, rows, memory);
  INFO(x.scalar_type() << x.sizes() << x.strides());
  CHECK(taken.scalar_type() == x.scalar_type());
  CHECK(taken.equal(x.index_select(0, at::tensor(rows))));
}

}  // namespace

TEST_CASE("rows are those of index_select, of every type and shape", "[data][law]") {
  for (const auto type : {at::kByte, at::kChar, at::kBool, at::kShort, at::kHalf, at::kBFloat16,
                          at::kInt, at::kFloat, at::kLong, at::kDouble, at::kComplexDouble}) {
    for (const std::vector<std::int64_t>& sizes :
         std::vector<std::vector<std::int64_t>>{{5}, {5, 1}, {5, 3}, {5, 2, 7}, {5, 3, 4, 4}}) {
      check_rows(at::randint(2, sizes, at::kLong).to(type));
    }
  }
  check_rows(at::zeros({5, 0}));
}

TEST_CASE("rows that are not plain memory are taken as well", "[data]") {
  check_rows(at::randn({3, 5}).t());
  check_rows(at::randn({5, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast));
  check_rows(at::randn({10, 3}).slice(0, 0, 10, 2));
  check_rows(at::randn({5, 2}, at::kComplexFloat).conj());
  const at::Tensor learned = at::randn({5, 3}).requires_grad_();
  BatchMemory memory;
  std::vector<std::int64_t> mine = rows;
  const at::Tensor taken = take_rows(learned, mine, memory);
  mine.assign(mine.size(), 3);  // which the backward pass does not see
  taken.sum().backward();
  CHECK(learned.grad().sum(1).equal(at::tensor({3.0F, 3.0F, 6.0F, 0.0F, 3.0F})));
}

TEST_CASE("rows are taken straight into pinned memory", "[data][cuda]") {
  BatchMemory memory;
  const at::Tensor x = at::randn({5, 3});
  const at::Tensor taken = take_rows(x, rows, memory, /*pins=*/at::hasCUDA());
  CHECK(taken.equal(x.index_select(0, at::tensor(rows))));
  CHECK(taken.is_pinned() == at::hasCUDA());
}

TEST_CASE("no rows are an empty batch", "[data]") {
  BatchMemory memory;
  CHECK(take_rows(at::randn({5, 3}), {}, memory).sizes() == at::IntArrayRef{0, 3});
  CHECK(take_rows(at::randn({5, 3}).t(), {}, memory).sizes() == at::IntArrayRef{0, 5});
}

TEST_CASE("large rows are copied by several threads alike", "[data]") {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const at::Tensor x = at::randint(256, {5, 3, 512, 700}, at::kByte);
  check_rows(x);
  at::set_num_threads(before);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
