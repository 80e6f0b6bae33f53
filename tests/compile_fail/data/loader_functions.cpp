// error: tutti: this has next\(\), as a loader has, and is none; a loader has void start
// culprit: Once
// torch
#include <optional>

#include <tutti/data/loader.hpp>

struct Once {
#ifdef FIXED
  void start(std::int64_t, std::int64_t first_batch) { over = first_batch > 0; }
#else
  void start(std::int64_t) { over = false; }
#endif
  std::optional<tutti::Batch> next() {
    return std::exchange(over, true) ? std::nullopt : std::optional(tutti::Batch(at::Tensor()));
  }
  bool over = true;
};

tutti::AnyLoader loader() {
  return Once{};
}
