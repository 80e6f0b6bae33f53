// A user of the installed package who links LibTorch, and what headers only declare, through
// tutti::separate.
#include <cstdio>

#include <tutti/core/batch.hpp>
#include <ATen/ATen.h>

int main() {
  const tutti::Batch batch{at::mm(at::ones({2, 3}), at::ones({3, 2}))};
  const double sum = batch.inputs().sum().item<double>();
  std::printf("%lld examples, sum %g\n", static_cast<long long>(batch.num_samples()), sum);
  return batch.num_samples() == 2 && sum == 12.0 ? 0 : 1;
}
