// error: StaticCheck<Watch, tutti::member::reads_batch>
// error: make it static constexpr and no function
// culprit: Watch, reads_batch
#include <tutti/core/recipe.hpp>

struct Watch final {
#ifdef FIXED
  static constexpr bool reads_batch = false;
#else
  bool reads_batch = false;
#endif
  void apply(tutti::BatchEnd, tutti::State&) {}
};

template struct tutti::Recipe<Watch>;
