// The smallest user of tutti: a recipe checked by the compiler, without LibTorch's headers.
#include <cstdio>

#include <tutti/core/recipe.hpp>

#include "counter.hpp"

int main() {
  static_assert(tutti::Recipe<Counter>::valid);
  std::printf("a recipe of %zu policy\n", tutti::Recipe<Counter>::size);
  return 0;
}
