// error: tutti: this is no range of batches that can be gone through once per epoch
// error: used up after one pass\); give a container, or a type with void start
// culprit: Stream
// torch
#include <cstddef>
#include <iterator>

#include <tutti/data/loader.hpp>

// A stream: its begin() goes on where the last pass ended.
struct Stream {
  struct iterator {
#ifdef FIXED
    using iterator_category = std::forward_iterator_tag;
#else
    using iterator_category = std::input_iterator_tag;
#endif
    using value_type = tutti::Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = const tutti::Batch*;
    using reference = const tutti::Batch&;
    const tutti::Batch& operator*() const;
    iterator& operator++();
    iterator operator++(int);
    bool operator==(const iterator&) const;
  };
  iterator begin();
  iterator end();
};

std::int64_t length(tutti::AnyLoader loader) {
  return loader.size();
}
std::int64_t batches(Stream& stream) {
  return length(stream);
}
