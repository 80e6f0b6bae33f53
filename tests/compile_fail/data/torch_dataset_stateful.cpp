// error: tutti: this is no torch::data data set that gives examples by number; streams and stateful
// culprit: Pairs
// torch
#include <optional>
#include <vector>

#include <tutti/data/torch_dataset.hpp>

struct Pairs {
#ifdef FIXED
  static constexpr bool is_stateful = false;
#else
  static constexpr bool is_stateful = true;
#endif
  std::vector<std::pair<at::Tensor, at::Tensor>> get_batch(const std::vector<std::size_t>&) {
    return {};
  }
  [[nodiscard]] std::optional<std::size_t> size() const { return 0; }
};

std::int64_t examples() {
  return tutti::TorchDataset<Pairs>(Pairs{}).size();
}
