// error: this layer has no slot, so it cannot be replaced; name the layer's holder in tutti::nn
// culprit: torch::nn::Conv2d
// torch
#include <torch/nn/modules/conv.h>

#include <tutti/nn/conv.hpp>
#include <tutti/nn/surgery.hpp>

std::int64_t convolutions(torch::nn::Module& model) {
  const auto keep = [](torch::nn::Conv2dImpl&) { return nullptr; };
#ifdef FIXED
  return tutti::surgery::replace<tutti::nn::Conv2d>(model, keep).visited;
#else
  return tutti::surgery::replace<torch::nn::Conv2d>(model, keep).visited;
#endif
}
