// error: the name is empty; write named<[\\]?"second[\\]?">\(policy\)
#include <tutti/core/switch.hpp>

struct Watch final {
  void apply(tutti::BatchEnd, tutti::State&) {}
};

#ifdef FIXED
auto watch = tutti::named<"second">(Watch{});
#else
auto watch = tutti::named<"">(Watch{});
#endif
