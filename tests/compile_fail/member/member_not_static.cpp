// error: ValueCheck<Watch, tutti::member::about>
// error: write static constexpr tutti::About about
// culprit: Watch, about
#include <tutti/core/recipe.hpp>

struct Watch final {
#ifdef FIXED
  static constexpr tutti::About about{.reads_batch = false};
#else
  tutti::About about{.reads_batch = false};
#endif
  void apply(tutti::BatchEnd, tutti::State&) {}
};

template struct tutti::Recipe<Watch>;
