// error: MethodCheck<Clip, tutti::member::validate>
// error: write constexpr void validate\(\) const
// culprit: Clip, validate
#include <tutti/core/recipe.hpp>

struct Clip final {
  double threshold = 1.0;
#ifdef FIXED
  constexpr void validate() const {}
#else
  void validate() {}
#endif
  void apply(tutti::AfterBackward, tutti::State&) {}
};

template struct tutti::Recipe<Clip>;
