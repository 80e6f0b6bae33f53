#include <tutti/core/detail/batch_memory.hpp>

#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::detail::BatchMemory;

TEST_CASE("memory is used again only when nobody holds the batch", "[core][batch_memory][law]") {
  BatchMemory memory;
  at::Tensor first = memory.tensor({5, 1 << 16}, at::kFloat).fill_(3);
  const void* where = first.const_data_ptr();
  const at::Tensor second = memory.tensor({5, 1 << 16}, at::kFloat);
  CHECK(second.const_data_ptr() != where);
  const at::Tensor view = first.select(0, 1).slice(0, 0, 2);
  first.reset();
  const at::Tensor third = memory.tensor({5, 1 << 16}, at::kFloat).fill_(4);
  CHECK(third.const_data_ptr() != where);
  CHECK(view.equal(at::full({2}, 3.0F)));
}

TEST_CASE("memory that is used again is a new tensor", "[core][batch_memory][law]") {
  BatchMemory memory;
  at::Tensor first = memory.tensor({2, 3, 128, 64}, at::kFloat);
  const void* where = first.const_data_ptr();
  first.fill_(1).unsqueeze_(0).requires_grad_();
  first.reset();
  at::Tensor again = memory.tensor({2, 3, 128, 64}, at::kFloat, at::MemoryFormat::ChannelsLast);
  CHECK(again.const_data_ptr() == where);
  CHECK_FALSE(again.requires_grad());
  CHECK(again.sizes() == at::IntArrayRef({2, 3, 128, 64}));
  CHECK(again.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK_FALSE(again.is_contiguous());
  again.reset();
  again = memory.tensor({2, 3, 128, 64}, at::kInt);  // as many bytes
  CHECK(again.const_data_ptr() == where);
  CHECK(again.scalar_type() == at::kInt);
  CHECK(again.is_contiguous());
  const at::Tensor other = memory.tensor({2, 3, 128, 64}, at::kDouble);
  CHECK(other.scalar_type() == at::kDouble);
  CHECK(other.const_data_ptr() != where);
}

TEST_CASE("small batches and the fifth large one take new memory", "[core][batch_memory]") {
  BatchMemory memory;
  CHECK(memory.tensor({0, 3}, at::kFloat).sizes() == at::IntArrayRef({0, 3}));
  CHECK(memory.tensor({2}, at::kLong).numel() == 2);
  at::Tensor oldest = memory.tensor({1 << 17}, at::kByte);
  const void* where = oldest.const_data_ptr();
  std::vector<at::Tensor> held;
  for (int i = 0; i < 4; ++i) {
    held.push_back(memory.tensor({1 << 17}, at::kByte));
    CHECK(held.back().const_data_ptr() != where);
  }
  const at::Tensor kept = oldest.fill_(7).clone();  // forgotten by now, and its holder's alone
  held.clear();
  for (int i = 0; i < 4; ++i) {
    held.push_back(memory.tensor({1 << 17}, at::kByte).fill_(0));
    CHECK(held.back().const_data_ptr() != where);
  }
  CHECK(oldest.equal(kept));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
