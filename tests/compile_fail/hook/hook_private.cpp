// error: ActsCheck<Clip>
// error: this policy's apply() is private or protected
// culprit: Clip
#include <tutti/core/recipe.hpp>

struct Clip {
#ifdef FIXED
 public:
#else
 private:
#endif
  void apply(tutti::AfterBackward, tutti::State&) {}
};

template struct tutti::Recipe<Clip>;
