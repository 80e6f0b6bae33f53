// error: DocumentsCheck<Texts>
// error: tutti: this gives no documents that are the same each time; give it std::int64_t size
// culprit: Texts
// torch
#include <tutti/core/rng.hpp>
#include <tutti/data/packing.hpp>

struct Texts {
  [[nodiscard]] std::int64_t size() const { return 3; }
#ifdef FIXED
  [[nodiscard]] tutti::Batch get(std::int64_t) const { return {}; }
#else
  [[nodiscard]] tutti::Batch get(std::int64_t, tutti::Rng&) const { return {}; }
#endif
};

std::int64_t examples() {
  return tutti::data::PackedDataset<Texts>(Texts{}).size();
}
