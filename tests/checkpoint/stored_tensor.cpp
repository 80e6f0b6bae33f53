#include <tutti/checkpoint/stored_tensor.hpp>

#include <cstring>
#include <string>

#include <ATen/ATen.h>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using namespace tutti::checkpoint;

namespace {

// A safetensors file whose header is not padded, so that its data begin anywhere.
std::string unpadded(const std::string& dtype, const std::string& shape, const std::string& data,
                     std::size_t spaces) {
  const std::string header = "{\"a\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
                             ",\"data_offsets\":[0," + std::to_string(data.size()) + "]}}" +
                             std::string(spaces, ' ');
  const std::uint64_t length = header.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header + data;
}

}  // namespace

TEST_CASE("a stored tensor is looked at where it is and stays after its file is gone",
          "[checkpoint][weights]") {
  const TemporaryFolder folder;
  const at::Tensor want = at::arange(6, at::kFloat).reshape({2, 3});
  write_safetensors(folder / "a", {{"x", want}, {"none", at::empty({0, 2})}});
  at::Tensor view;
  {
    const auto stored = stored_in_safetensors(folder / "a");
    REQUIRE(stored.size() == 2);
    const auto& x = stored[0].name == "x" ? stored[0] : stored[1];
    CHECK(x.shape == std::vector<std::int64_t>{2, 3});
    CHECK(x.dtype == at::kFloat);
    view = x.view();
    CHECK(view.equal(want));
    CHECK((&x == &stored[0] ? stored[1] : stored[0]).view().sizes() == at::IntArrayRef{0, 2});
  }
  const std::string before = read_bytes(folder / "a");
  view.add_(1);  // of a private copy of the page
  CHECK(view.equal(want + 1));
  CHECK(read_bytes(folder / "a") == before);
}

TEST_CASE("a stored tensor is copied into any type and strides", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  const at::Tensor want = at::arange(100'000, at::kFloat).reshape({100, 1000});
  write_safetensors(folder / "a", {{"x", want}});
  const StoredTensor stored = stored_in_safetensors(folder / "a").at(0);
  at::Tensor same = at::zeros({100, 1000});
  at::Tensor transposed = at::zeros({1000, 100}).t();
  at::Tensor half = at::zeros({100, 1000}, at::kBFloat16);
  const auto version = same._version();
  for (const at::Tensor& target : {same, transposed, half}) {
    stored.copy_to(target);
  }
  CHECK(same.equal(want));
  CHECK(same._version() > version);  // autograd sees that it was written into
  CHECK(transposed.equal(want));
  CHECK(half.equal(want.to(at::kBFloat16)));
  at::Tensor leaf = at::zeros({100, 1000}).requires_grad_();
  stored.copy_to(leaf.detach());
  CHECK(leaf.equal(want));
  CHECK_THROWS(stored.copy_to(at::zeros({7})));
}

TEST_CASE("data at an odd address are read all the same", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  const float values[2] = {1.5F, -2.0F};
  std::string data(sizeof values, '\0');
  std::memcpy(data.data(), values, sizeof values);
  for (std::size_t spaces = 0; spaces < 4; ++spaces) {
    write_bytes(folder / "a", unpadded("F32", "[2]", data, spaces));
    const StoredTensor stored = stored_in_safetensors(folder / "a").at(0);
    CHECK(stored.view().equal(at::tensor({1.5F, -2.0F})));
    at::Tensor target = at::zeros({2});
    stored.copy_to(target);
    CHECK(target.equal(at::tensor({1.5F, -2.0F})));
  }
}

TEST_CASE("a stored bool that is neither 0 nor 1 is refused", "[checkpoint][weights]") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", unpadded("BOOL", "[2]", {1, 2}, 0));
  const StoredTensor stored = stored_in_safetensors(folder / "a").at(0);
  CHECK_THROWS_WITH(stored.view(), ContainsSubstring("bytes other than 0 and 1"));
  at::Tensor target = at::zeros({2}, at::kBool);
  CHECK_THROWS_WITH(stored.copy_to(target), ContainsSubstring("bytes other than 0 and 1"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
