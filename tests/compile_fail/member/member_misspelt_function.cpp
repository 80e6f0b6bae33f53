// error: MemberCheck<Clip, tutti::member::vaildate, tutti::member::validate>
// error: give it the second
// culprit: Clip, vaildate
#include <tutti/core/recipe.hpp>

struct Clip final {
  double threshold = 1.0;
#ifdef FIXED
  constexpr void validate() const {}
#else
  constexpr void vaildate() const {}
#endif
  void apply(tutti::AfterBackward, tutti::State&) {}
};

template struct tutti::Recipe<Clip>;
