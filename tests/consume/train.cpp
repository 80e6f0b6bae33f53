// A user of the installed package who links LibTorch through tutti::tutti.
#include <cstdio>

#include <tutti/core/batch.hpp>
#include <ATen/ATen.h>

int main() {
  const at::Tensor product = at::mm(at::ones({2, 3}), at::ones({3, 2}));
  std::printf("sum %g\n", product.sum().item<double>());
  return product.sum().item<double>() == 12.0 ? 0 : 1;
}
