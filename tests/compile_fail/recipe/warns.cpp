// error: CutMix.*CutOut
// error: these two policies work against each other
// flags: -Werror
#include <tutti/core/recipe.hpp>

struct CutOut final {
  void apply(tutti::AfterDataloader, tutti::State&) {}
};
struct CutMix final {
  static constexpr tutti::Rules rules{
      .warns_with = {{tutti::id<CutOut>, "a hole may cover what was pasted"}},
  };
  void apply(tutti::BeforeForward, tutti::State&) {}
};

#ifdef FIXED
static_assert(tutti::Recipe<CutMix, CutOut, tutti::accept<CutMix, CutOut>>::valid);
#else
static_assert(tutti::Recipe<CutMix, CutOut>::valid);
#endif
