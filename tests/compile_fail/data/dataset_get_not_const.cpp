// error: DatasetCheck<Numbers>
// error: tutti: this is no data set with numbered examples; give it std::int64_t size\(\) const
// culprit: Numbers
// torch
#include <tutti/data/data_loader.hpp>

struct Numbers {
  [[nodiscard]] std::int64_t size() const { return 3; }
#ifdef FIXED
  [[nodiscard]] at::Tensor get(std::int64_t) const { return {}; }
#else
  [[nodiscard]] at::Tensor get(std::int64_t) { return {}; }
#endif
};

std::int64_t batches() {
  return tutti::DataLoader<Numbers>(Numbers{}).size();
}
