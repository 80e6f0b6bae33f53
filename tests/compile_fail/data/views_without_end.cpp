// error: tutti: this range has no end, so an epoch of it would have none; put
// error: ranges::views::take_exactly(n) behind it
// torch
#include <range/v3/view/iota.hpp>
#include <range/v3/view/take_exactly.hpp>

#include <tutti/views/examples.hpp>
#include <tutti/views/shuffle.hpp>

auto pipeline() {
#ifdef FIXED
  return ranges::views::iota(0) | ranges::views::take_exactly(9) | tutti::views::shuffle(17);
#else
  return ranges::views::iota(0) | tutti::views::shuffle(17);
#endif
}
