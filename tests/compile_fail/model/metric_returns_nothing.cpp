// error: tutti: this function of a metric returns no number and no tensor; return at::Tensor
// torch
#include <tutti/metrics/metric.hpp>

auto length = [](const at::Tensor& outputs, const at::Tensor&) {
#ifdef FIXED
  return outputs.norm();
#else
  return outputs.sizes();
#endif
};
auto metric = tutti::metric<"length">(length);
