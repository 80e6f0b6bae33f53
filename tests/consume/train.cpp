// A program of a user: its own files, and what the headers only declare, through
// tutti_add_program().
#include <cstdio>

#include <tutti/core/batch.hpp>

tutti::Batch make_batch();  // product.cpp

int main() {
  const tutti::Batch batch = make_batch();
  const double sum = batch.inputs().sum().item<double>();
  std::printf("%lld examples, sum %g\n", static_cast<long long>(batch.num_samples()), sum);
  return batch.num_samples() == 2 && sum == 12.0 ? 0 : 1;
}
