// error: this is not a replacement policy; make it callable as policy(layer)
// culprit: Blur
// torch
#include <torch/nn/modules/conv.h>

#include <tutti/nn/conv.hpp>
#include <tutti/nn/surgery.hpp>

struct Blur {
#ifdef FIXED
  std::shared_ptr<torch::nn::Conv2dImpl> operator()(torch::nn::Conv2dImpl&) const {
#else
  std::shared_ptr<torch::nn::Conv2dImpl> operator()(torch::nn::Conv1dImpl&) const {
#endif
      return std::make_shared<torch::nn::Conv2dImpl>(torch::nn::Conv2dOptions(3, 8, 3));
}
}
;

std::int64_t blurred(torch::nn::Module& model) {
  return tutti::surgery::replace<tutti::nn::Conv2d>(model, Blur{}).count();
}
