// What trainer.cpp does, as it is written with LibTorch alone.
#include <cstdio>
#include <vector>

#include <torch/torch.h>

struct BlurImpl : torch::nn::Module {
  explicit BlurImpl(std::int64_t channels, std::int64_t stride) : stride_(stride) {
    const auto row = torch::tensor({1.0F, 2.0F, 1.0F});
    filter_ = register_buffer("filter", row.outer(row).div(16).repeat({channels, 1, 1, 1}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::nn::functional::conv2d(
        x, filter_,
        torch::nn::functional::Conv2dFuncOptions().stride(stride_).padding(1).groups(x.size(1)));
  }
  std::int64_t stride_;
  torch::Tensor filter_;
};
TORCH_MODULE(Blur);

void train(const torch::Tensor& images, const torch::Tensor& labels) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).stride(2)),
                            torch::nn::ReLU(),
                            torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2).stride(1)),
                            Blur(16, 2), torch::nn::Flatten(), torch::nn::Linear(784, 10));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<torch::Tensor> averages;
  for (const auto& parameter : net->parameters()) {
    averages.push_back(parameter.detach().clone());
  }
  for (int epoch = 0; epoch < 10; ++epoch) {
    double sum = 0;
    const auto order = torch::randperm(images.size(0));
    for (std::int64_t i = 0; i + 64 <= images.size(0); i += 64) {
      const auto rows = order.slice(0, i, i + 64);
      auto x = images.index_select(0, rows);
      auto y = torch::one_hot(labels.index_select(0, rows), 10).to(torch::kFloat);
      const double mixing = torch::rand({1}).item<double>() / 2;
      const auto partner = torch::randperm(64);
      x = x * (1 - mixing) + x.index_select(0, partner) * mixing;
      y = y * (1 - mixing) + y.index_select(0, partner) * mixing;
      y = y * 0.9 + 0.01;
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(net->forward(x), y);
      loss.backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      torch::NoGradGuard no_grad;
      for (std::size_t p = 0; p < averages.size(); ++p) {
        averages[p].lerp_(net->parameters()[p], 1e-3);
      }
      sum += loss.item<double>();
    }
    std::printf("epoch %d: %.4f\n", epoch, sum);
  }
}
