// error: MemberCheck<Clip, tutti::member::read_batch, tutti::member::reads_batch>
// error: give it the second
// culprit: Clip, read_batch
#include <tutti/core/recipe.hpp>

struct Clip final {
#ifdef FIXED
  static constexpr bool reads_batch = false;
#else
  static constexpr bool read_batch = false;
#endif
  void apply(tutti::AfterBackward, tutti::State&) {}
};

template struct tutti::Recipe<Clip>;
