// error: this policy has load(const Archive&) but no save(Archive&) const; write both
// culprit: Count
#include <tutti/core/recipe.hpp>

struct Count final {
  int batches = 0;
  void apply(tutti::BatchEnd, tutti::State&) { ++batches; }
  void load(const tutti::Archive&) {}
#ifdef FIXED
  void save(tutti::Archive&) const {}
#endif
};

template struct tutti::Recipe<Count>;
