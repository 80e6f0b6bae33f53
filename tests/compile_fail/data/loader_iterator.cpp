// error: tutti: this is an iterator, which has begun already and ends after one epoch; give
// error: the container or loader that it belongs to
// culprit: __normal_iterator
// torch
#include <vector>

#include <tutti/data/loader.hpp>

std::int64_t length(tutti::AnyLoader loader) {
  return loader.size();
}

std::int64_t batches(std::vector<tutti::Batch> data) {
#ifdef FIXED
  return length(data);
#else
  return length(data.begin());
#endif
}
