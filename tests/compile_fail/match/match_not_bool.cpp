// error: match\(\) names this event but is not bool match\(Event
// culprit: Every10, BatchEnd
#include <tutti/core/recipe.hpp>

struct Every10 final {
  void apply(tutti::BatchEnd, tutti::State&) {}
#ifdef FIXED
  bool match(tutti::BatchEnd, const tutti::State&) const { return true; }
#else
  int match(tutti::BatchEnd, const tutti::State&) const { return 1; }
#endif
};

template struct tutti::Recipe<Every10>;
