#include <tutti/algorithms/detail/exchange.hpp>

#include <ATen/ATen.h>  // ahead of Catch2: it brings a CHECK of its own

#include "support/catch.hpp"

#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using tutti::detail::exchange;

// Exchanges copies of two tensors; says whether memory changed hands.
bool moves_memory(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor a_before = a.clone();
  const at::Tensor b_before = b.clone();
  const void* memory = a.const_data_ptr();
  exchange(a, b);
  CHECK(a.equal(b_before));
  CHECK(b.equal(a_before));
  const bool moved = b.const_data_ptr() == memory;
  exchange(a, b);
  CHECK(a.equal(a_before));
  CHECK(b.equal(b_before));
  return moved;
}

}  // namespace

TEST_CASE("whole tensors exchange their memory", "[algorithms][law]") {
  CHECK(moves_memory(at::randn({3, 4}), at::randn({3, 4})));
  CHECK(moves_memory(at::randn({}), at::randn({})));
  CHECK(moves_memory(at::arange(5), at::arange(5) + 7));
  const auto last = at::MemoryFormat::ChannelsLast;
  CHECK(moves_memory(at::randn({2, 3, 4, 4}).contiguous(last),
                     at::randn({2, 3, 4, 4}).contiguous(last)));
}

TEST_CASE("what shares memory, lies otherwise or belongs to somebody else is exchanged by value",
          "[algorithms][law]") {
  const at::Tensor all = at::randn({10});
  CHECK_FALSE(moves_memory(all.slice(0, 0, 5), at::randn({5})));
  CHECK_FALSE(moves_memory(all.slice(0, 5, 10), all.slice(0, 0, 5).clone()));
  CHECK_FALSE(moves_memory(at::randn({3, 4}), at::randn({4, 3}).t()));
  std::vector<float> own(6, 2.0F);
  CHECK_FALSE(moves_memory(at::from_blob(own.data(), {6}), at::randn({6})));
  CHECK(own == std::vector<float>(6, 2.0F));
  CHECK_FALSE(moves_memory(at::randn({1}).expand({3}).clone().slice(0, 0, 2), at::randn({2})));
}

TEST_CASE("an exchange shows through every view and leaves parameters leaves",
          "[algorithms][law]") {
  const at::Tensor parameter = at::randn({4}).requires_grad_();
  const at::Tensor view = parameter.detach();
  const at::Tensor other = at::randn({4});
  const at::Tensor expected = other.clone();
  exchange(parameter, other);
  CHECK(view.equal(expected));
  CHECK(parameter.is_leaf());
  CHECK(parameter.requires_grad());
  (parameter * 2).sum().backward();
  CHECK(parameter.grad().equal(at::full({4}, 2.0F)));

  // The same where it has to be by value.
  const at::Tensor shared = at::zeros({8});
  const at::Tensor half = shared.slice(0, 0, 4).detach().requires_grad_();
  exchange(half, other);
  CHECK(half.is_leaf());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
