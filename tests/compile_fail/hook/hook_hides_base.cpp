// error: NameCheck<WatchMore>
// error: hides those of its base class
// culprit: WatchMore
#include <tutti/core/recipe.hpp>

struct Watch {
  void apply(tutti::BatchEnd, const tutti::State&) {}
};
struct WatchMore final : Watch {
#ifdef FIXED
  using Watch::apply;
#endif
  void apply(tutti::EpochEnd, const tutti::State&) {}
};

template struct tutti::Recipe<WatchMore>;
