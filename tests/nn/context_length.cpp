#include <tutti/nn/context_length.hpp>

#include "support/catch.hpp"

#include <memory>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace UNITY_BUILD_UNIQUE_ID {

namespace {

struct Embedded : torch::nn::Module, tutti::nn::PositionEmbedded {
  explicit Embedded(std::int64_t positions) {
    table = register_module("table", torch::nn::Embedding(positions, 2));
  }
  torch::nn::EmbeddingImpl& position_embedding() override { return *table; }
  torch::nn::Embedding table{nullptr};
};

struct Limited : torch::nn::Module, tutti::nn::ContextLimited {
  std::int64_t context_length() const override { return 12; }
};

struct Net : torch::nn::Module {};

}  // namespace

TEST_CASE("the context of a model is the least that its modules say", "[nn][context_length]") {
  using tutti::nn::context_length;
  Net net;
  CHECK(!context_length(net));
  net.register_module("linear", torch::nn::Linear(2, 2));
  CHECK(!context_length(net));
  const auto embedded = net.register_module("embedded", std::make_shared<Embedded>(16));
  CHECK(context_length(net) == 16);
  net.register_module("limited", std::make_shared<Limited>());
  CHECK(context_length(net) == 12);
  embedded->table->weight = at::zeros({8, 2});
  CHECK(context_length(net) == 8);
}

TEST_CASE("a model that is itself a limited module says its context", "[nn][context_length]") {
  Embedded embedded(16);
  CHECK(tutti::nn::context_length(embedded) == 16);
  Limited limited;
  CHECK(tutti::nn::context_length(limited) == 12);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
