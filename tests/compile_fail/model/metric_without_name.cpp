// error: tutti: the metric has no name; write metric<[\\]?"MAE[\\]?">\(function\)
// torch
#include <tutti/metrics/metric.hpp>

auto error = [](const at::Tensor& outputs, const at::Tensor& targets) {
  return outputs.sub(targets).abs();
};
#ifdef FIXED
auto metric = tutti::metric<"MAE">(error);
#else
auto metric = tutti::metric<"">(error);
#endif
