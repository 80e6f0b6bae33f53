#include <tutti/nn/key_value_cache.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

using Catch::Matchers::ContainsSubstring;
using tutti::nn::KeyValueCache;
using tutti::nn::KeyValues;

at::Tensor numbers(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t size) {
  return at::randn({batch, heads, length, size});
}

}  // namespace

TEST_CASE("a cache gives back what came in, layer by layer, in order", "[nn][law]") {
  torch::manual_seed(1);
  KeyValueCache cache(2, 3, 8);
  const at::Tensor k = numbers(3, 2, 6, 4);
  const at::Tensor v = numbers(3, 2, 6, 5);
  for (const std::int64_t count : {4, 1, 1}) {
    const std::int64_t before = cache.length();
    for (const std::int64_t layer : {0, 1}) {
      const KeyValues all = cache.append(layer, k.narrow(2, before, count) + layer,
                                         v.narrow(2, before, count) + layer);
      CHECK(all.first == 0);
      CHECK(all.keys.equal(k.narrow(2, 0, before + count) + layer));
      CHECK(all.values.equal(v.narrow(2, 0, before + count) + layer));
    }
    CHECK(cache.length() == before);
    cache.advance(count);
  }
  CHECK(cache.length() == 6);
  CHECK(cache.at(1).values.equal(v + 1));
}

TEST_CASE("a cache writes into memory that it allocates once", "[nn]") {
  KeyValueCache cache(1, 1, 4);
  const at::Tensor x = at::ones({1, 1, 1, 2});
  const void* first = cache.append(0, x, x).keys.data_ptr();
  cache.advance(1);
  const KeyValues second = cache.append(0, x.mul(2), x);
  CHECK(second.keys.data_ptr() == first);
  CHECK(second.keys.flatten().equal(at::tensor({1.0F, 1.0F, 2.0F, 2.0F})));
}

TEST_CASE("with a window a cache gives the keys that new positions may see", "[nn][law]") {
  torch::manual_seed(2);
  KeyValueCache cache(1, 1, 16);
  const at::Tensor k = numbers(1, 1, 10, 2);
  cache.append(0, k.narrow(2, 0, 7), k.narrow(2, 0, 7), 3);
  cache.advance(7);
  const KeyValues one = cache.append(0, k.narrow(2, 7, 1), k.narrow(2, 7, 1), 3);
  CHECK(one.first == 5);
  CHECK(one.keys.equal(k.narrow(2, 5, 3)));
  const KeyValues three = cache.append(0, k.narrow(2, 7, 3), k.narrow(2, 7, 3), 3);
  CHECK(three.keys.equal(k.narrow(2, 5, 5)));
  KeyValueCache small(1, 1, 16);
  CHECK(small.append(0, k.narrow(2, 0, 2), k.narrow(2, 0, 2), 3).keys.size(2) == 2);
}

TEST_CASE("rows of a cache can be chosen again, and positions be forgotten", "[nn]") {
  torch::manual_seed(3);
  KeyValueCache cache(1, 3, 5);
  const at::Tensor k = numbers(3, 1, 2, 2);
  const at::Tensor v = numbers(3, 1, 2, 2);
  cache.append(0, k, v);
  cache.advance(2);
  const at::Tensor rows = at::tensor({2, 0, 0, 1}, at::kLong);
  cache.reorder(rows);
  CHECK(cache.batch() == 4);
  CHECK(cache.at(0).keys.equal(k.index_select(0, rows)));
  CHECK(cache.at(0).values.equal(v.index_select(0, rows)));
  const at::Tensor more = numbers(4, 1, 1, 2);
  CHECK(cache.append(0, more, more).keys.narrow(2, 2, 1).equal(more));

  cache.truncate(1);
  CHECK(cache.length() == 1);
  CHECK(cache.at(0).keys.equal(k.index_select(0, rows).narrow(2, 0, 1)));
  CHECK_THROWS_WITH(cache.truncate(2), ContainsSubstring("1 positions"));
}

TEST_CASE("a cache says what does not fit", "[nn]") {
  CHECK_THROWS_AS(KeyValueCache(0, 1, 1), c10::ValueError);
  CHECK_THROWS_AS(KeyValueCache(1, 1, 0), c10::ValueError);
  KeyValueCache cache(1, 2, 3);
  const at::Tensor x = at::ones({2, 1, 2, 4});
  CHECK_THROWS_WITH(cache.at(0), ContainsSubstring("no keys yet"));
  CHECK_THROWS_WITH(cache.append(1, x, x), ContainsSubstring("no layer 1"));
  CHECK_THROWS_WITH(cache.append(0, x.slice(0, 1), x.slice(0, 1)),
                    ContainsSubstring("[2, K, T, D]"));
  CHECK_THROWS_WITH(cache.append(0, x.clone().requires_grad_(), x),
                    ContainsSubstring("NoGradGuard"));
  cache.append(0, x, x);
  cache.advance(2);
  CHECK_THROWS_WITH(cache.append(0, x, x), ContainsSubstring("max_length 3"));
  CHECK_THROWS_WITH(cache.advance(2), ContainsSubstring("max_length 3"));
  const at::Tensor other = at::ones({2, 1, 1, 4}, at::kDouble);
  CHECK_THROWS_WITH(cache.append(0, other, other), ContainsSubstring("the cache holds"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
