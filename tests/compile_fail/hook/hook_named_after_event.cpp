// error: NameCheck<Watch>
// error: this policy has a method named after an event
// culprit: Watch
#include <tutti/core/recipe.hpp>

struct Watch final {
#ifdef FIXED
  void apply(tutti::BatchEnd, const tutti::State&) {}
#else
  void batch_end(const tutti::State&) {}
#endif
};

template struct tutti::Recipe<Watch>;
