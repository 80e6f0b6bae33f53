// error: EventId
// error: Clip
// culprit: Clip
#include <tutti/core/recipe.hpp>

struct Clip final {
  void apply(tutti::AfterBackward, tutti::State&) {}
};
struct Warmup final {
#ifdef FIXED
  static constexpr tutti::Rules rules{.runs_first = {tutti::id<tutti::AfterBackward>}};
#else
  static constexpr tutti::Rules rules{.runs_first = {tutti::id<Clip>}};
#endif
  void apply(tutti::AfterBackward, tutti::State&) {}
};
