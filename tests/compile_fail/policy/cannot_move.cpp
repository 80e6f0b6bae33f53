// error: cannot be moved into the trainer
// culprit: Writer
#include <tutti/core/recipe.hpp>

struct Writer final {
  Writer() = default;
#ifdef FIXED
  Writer(Writer&&) = default;
#else
  Writer(const Writer&) = delete;
#endif
  void apply(tutti::BatchEnd, const tutti::State&) {}
};

template struct tutti::Recipe<Writer>;
