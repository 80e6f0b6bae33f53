// error: ValueCheck<Hardest, tutti::member::run>
// error: write struct Run { ... } run{}, or give an option another name
// culprit: Hardest, run
#include <tutti/core/recipe.hpp>

struct Hardest final {
#ifdef FIXED
  struct Run {
    double loss = 0;
  } run{};
#else
  double run = 0;
#endif
  void apply(tutti::AfterLoss, const tutti::State&) {}
};

template struct tutti::Recipe<Hardest>;
