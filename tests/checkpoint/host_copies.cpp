#include <tutti/checkpoint/host_copies.hpp>

#include <vector>

#include <ATen/ATen.h>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using tutti::checkpoint::HostCopies;
using tutti::checkpoint::NamedTensor;

namespace {

std::vector<NamedTensor> sample() {
  return {{"matrix", at::randn({5, 7})},
          {"transposed", at::randn({5, 7}).t()},
          {"channels_last", at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
          {"strided", at::randn({6, 8}).slice(1, 0, 8, 2)},
          {"expanded", at::randn({1, 4}).expand({3, 4})},
          {"scalar", at::scalar_tensor(3, at::kLong)},
          {"empty", at::empty({0, 3})},
          {"bool", at::ones({3}, at::kBool)},
          {"half", at::randn({9}).to(at::kHalf)},
          {"conjugated", at::randn({3}, at::kComplexFloat).conj()}};
}

}  // namespace

TEST_CASE("copies have the values and types of the tensors, and memory of their own",
          "[checkpoint][host_copies]") {
  HostCopies copies;
  const std::vector<NamedTensor> first = sample();
  std::vector<NamedTensor> model = first;
  std::vector<NamedTensor> state{{"momentum", at::ones({4})}};
  copies.take({&model, &state});
  for (std::size_t i = 0; i < first.size(); ++i) {
    INFO(first[i].first);
    CHECK(model[i].first == first[i].first);
    CHECK(model[i].second.scalar_type() == first[i].second.scalar_type());
    CHECK(at::equal(model[i].second, first[i].second));
    CHECK((first[i].second.numel() == 0 ||
           model[i].second.const_data_ptr() != first[i].second.const_data_ptr()));
  }
  CHECK(model[2].second.is_contiguous(at::MemoryFormat::ChannelsLast));
  const at::Tensor before = model[0].second.clone();
  first[0].second.add_(1);  // training goes on
  CHECK(at::equal(model[0].second, before));
  CHECK(at::equal(state[0].second, at::ones({4})));
}

TEST_CASE("the memory of copies is used again and grows when it must",
          "[checkpoint][host_copies]") {
  HostCopies copies;
  CHECK(copies.capacity() == 0);
  std::vector<NamedTensor> list{{"a", at::ones({100})}};
  copies.take({&list});
  const void* const place = list[0].second.const_data_ptr();
  const std::size_t capacity = copies.capacity();
  CHECK(capacity >= 400);
  list = {{"a", at::zeros({50})}};
  copies.take({&list});
  CHECK(list[0].second.const_data_ptr() == place);
  CHECK(copies.capacity() == capacity);
  list = {{"a", at::zeros({1000})}};
  copies.take({&list});
  CHECK(copies.capacity() >= 4000);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
