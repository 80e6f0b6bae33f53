// error: MethodCheck<Twice, tutti::member::step>
// error: void step(tutti::State&, Closure&& closure, Update&& update)
// culprit: Twice, step
#include <tutti/core/recipe.hpp>

struct Twice final {
  void apply(tutti::Init, tutti::State&) {}
#ifdef FIXED
  template <class Closure, class Update>
  void step(tutti::State&, Closure&&, Update&&) {}
#else
  template <class Closure>
  void step(tutti::State&, Closure&&) {}
#endif
};

template struct tutti::Recipe<Twice>;
