// error: tutti: views::shuffle needs a random-access range with a size, which no range is behind
// error: filter, a map with threads or a list; put shuffle before them
// torch
#include <vector>

#include <tutti/views/filter.hpp>
#include <tutti/views/shuffle.hpp>

bool odd(const int& i) {
  return i % 2 == 1;
}

auto pipeline(const std::vector<int>& numbers) {
#ifdef FIXED
  return numbers | tutti::views::shuffle(17) | tutti::views::filter(odd);
#else
  return numbers | tutti::views::filter(odd) | tutti::views::shuffle(17);
#endif
}
