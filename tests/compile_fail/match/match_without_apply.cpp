// error: match\(\) stands beside no apply\(\) for the same event
// culprit: Every10, BatchStart
#include <tutti/core/recipe.hpp>

struct Every10 final {
  void apply(tutti::BatchEnd, tutti::State&) {}
#ifdef FIXED
  bool match(tutti::BatchEnd, const tutti::State&) const { return true; }
#else
  bool match(tutti::BatchStart, const tutti::State&) const { return true; }
#endif
};

template struct tutti::Recipe<Every10>;
