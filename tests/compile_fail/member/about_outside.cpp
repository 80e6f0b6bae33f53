// error: FieldCheck<Clip, tutti::member::reads_batch, tutti::About>
// error: or static constexpr tutti::About about
// culprit: Clip, reads_batch
#include <tutti/core/recipe.hpp>

struct Clip final {
#ifdef FIXED
  static constexpr tutti::About about{.reads_batch = false};
#else
  static constexpr bool reads_batch = false;
#endif
  void apply(tutti::AfterBackward, tutti::State&) {}
};

template struct tutti::Recipe<Clip>;
