// A small network trained with a recipe of five algorithms; its twin by_hand.cpp does the same by
// hand.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <tutti/algorithms/blurpool.hpp>
#include <tutti/algorithms/ema.hpp>
#include <tutti/algorithms/gradient_clipping.hpp>
#include <tutti/algorithms/label_smoothing.hpp>
#include <tutti/algorithms/mixup.hpp>
#include <tutti/data/tensor_loader.hpp>
#include <tutti/models/classifier.hpp>
#include <tutti/optim/sgd.hpp>
#include <tutti/trainer.hpp>

void train(const at::Tensor& images, const at::Tensor& labels) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).stride(2)),
                            torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                            torch::nn::Linear(784, 10));
  tutti::Trainer trainer{
      tutti::Classifier{net, {.num_classes = 10}},
      {.train = tutti::TensorLoader{images, labels, {.batch_size = 64, .shuffle = true}},
       .max_duration = "10ep",
       .optimizer = tutti::DecoupledSGDW{.lr = 0.1, .momentum = 0.9}},
      tutti::MixUp{},
      tutti::BlurPool{},
      tutti::LabelSmoothing{},
      tutti::GradientClipping{.clipping_type = tutti::ClippingType::norm,
                              .clipping_threshold = 1.0},
      tutti::EMA{}};
  trainer.fit();
}
