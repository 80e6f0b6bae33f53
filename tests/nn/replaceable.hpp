// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <type_traits>

#include <torch/nn/modules/container/any.h>

#include <tutti/nn/slot.hpp>

#include "support/catch.hpp"

/// What the tests of the replaceable layers share.
namespace replaceable {

struct DoubleImpl : tutti::nn::Substitute {
  at::Tensor forward(const at::Tensor& x) { return x * 2; }
};

/// A layer of ours and its torch::nn form over the same tensors agree in names and result, and the
/// slot decides who is called.
template <class Holder>
void check_is_the_plain_layer(Holder layer, const at::Tensor& x) {
  using Plain = typename Holder::Impl::Plain;
  static_assert(std::is_base_of_v<Plain, typename Holder::Impl>);
  const auto plain = std::make_shared<Plain>(static_cast<const Plain&>(*layer));
  CHECK(layer->named_parameters().keys() == plain->named_parameters().keys());
  CHECK(layer->named_buffers().keys() == plain->named_buffers().keys());
  layer->eval();
  plain->eval();
  CHECK(layer->forward(x).equal(plain->forward(x)));

  layer->slot() = tutti::nn::Slot(std::make_shared<DoubleImpl>());
  CHECK(layer->forward(x).equal(x * 2));
  CHECK(layer(x).equal(x * 2));
  CHECK(torch::nn::AnyModule(layer).forward(x).equal(x * 2));
  CHECK(layer->compute(x).equal(plain->forward(x)));
  layer->slot() = {};
  CHECK(layer->forward(x).equal(plain->forward(x)));
}

}  // namespace replaceable
