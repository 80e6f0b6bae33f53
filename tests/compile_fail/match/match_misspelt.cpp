// error: NameCheck<Clip>
// error: but is not called match
// culprit: Clip
#include <tutti/core/recipe.hpp>

struct Clip final {
#ifdef FIXED
  bool match(tutti::BatchEnd, const tutti::State&) const { return true; }
#else
  bool matches(tutti::BatchEnd, const tutti::State&) const { return true; }
#endif
  void apply(tutti::BatchEnd, tutti::State&) {}
};

template struct tutti::Recipe<Clip>;
