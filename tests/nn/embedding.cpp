#include <tutti/nn/embedding.hpp>

#include "nn/replaceable.hpp"
#include "support/catch.hpp"

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

namespace nn = tutti::nn;
using Catch::Matchers::ContainsSubstring;
using replaceable::check_is_the_plain_layer;

static_assert(std::is_same_v<nn::Embedding::Impl, nn::Replaceable<torch::nn::EmbeddingImpl>>);

}  // namespace

TEST_CASE("the embedding is torch::nn's until something stands in", "[nn][slot][law]") {
  check_is_the_plain_layer(nn::Embedding(7, 3), torch::tensor({{0, 6, 2}, {1, 1, 5}}));
  check_is_the_plain_layer(nn::Embedding(torch::nn::EmbeddingOptions(7, 3).padding_idx(2)),
                           torch::tensor({2, 3}));
}

TEST_CASE("an embedding looks up the rows of its table", "[nn][law]") {
  nn::Embedding embedding(7, 3);
  CHECK(embedding->named_parameters().keys() == std::vector<std::string>{"weight"});
  const at::Tensor y = embedding(torch::tensor({{0, 6}, {1, 6}}));
  CHECK(y.sizes() == std::vector<std::int64_t>{2, 2, 3});
  CHECK(y[0][1].equal(embedding->weight[6]));
  CHECK(y[1][1].equal(embedding->weight[6]));
  CHECK(embedding(torch::tensor(4)).equal(embedding->weight[4]));
  CHECK(embedding(torch::empty({0}, torch::kLong)).sizes() == std::vector<std::int64_t>{0, 3});
  CHECK_THROWS_AS(embedding(torch::tensor({7})), c10::Error);
}

TEST_CASE("a pretrained embedding keeps its table and is frozen as torch's", "[nn][embedding]") {
  const at::Tensor table = torch::randn({4, 2});
  nn::Embedding embedding = nn::Embedding::from_pretrained(table);
  CHECK(embedding(torch::tensor({3, 0})).equal(table.index_select(0, torch::tensor({3, 0}))));
  CHECK_FALSE(embedding->weight.requires_grad());
  CHECK(embedding->options.num_embeddings() == 4);
  CHECK(embedding->options.embedding_dim() == 2);
  CHECK(embedding->named_parameters()["weight"].is_same(embedding->weight));

  embedding->slot() = nn::Slot(std::make_shared<replaceable::DoubleImpl>());
  CHECK(embedding(torch::tensor({3})).equal(torch::tensor({6})));
}

TEST_CASE("a pretrained embedding trains when asked to and keeps its other options",
          "[nn][embedding]") {
  const at::Tensor table = torch::randn({4, 2});
  nn::Embedding embedding = nn::Embedding::from_pretrained(
      table, torch::nn::EmbeddingFromPretrainedOptions().freeze(false).padding_idx(1));
  CHECK(embedding->weight.requires_grad());
  embedding(torch::tensor({1, 3})).sum().backward();
  CHECK(embedding->weight.grad().equal(
      torch::tensor({{0., 0.}, {0., 0.}, {0., 0.}, {1., 1.}}, torch::kFloat)));
}

TEST_CASE("a table that is no matrix is refused", "[nn][embedding]") {
  CHECK_THROWS_WITH(nn::Embedding::from_pretrained(torch::randn({4})),
                    ContainsSubstring("2-dimensional"));
}

}  // namespace UNITY_BUILD_UNIQUE_ID
