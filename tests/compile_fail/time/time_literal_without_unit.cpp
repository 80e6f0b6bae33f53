// error: time_string_needs_a_unit
// culprit: 10
#include <tutti/core/time.hpp>

struct Options {
  tutti::Time max_duration;
};

Options options() {
#ifdef FIXED
  return {.max_duration = "10ep"};
#else
  return {.max_duration = "10"};
#endif
}
