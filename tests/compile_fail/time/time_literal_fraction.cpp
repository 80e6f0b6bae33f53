// error: time_string_needs_a_whole_number
// culprit: 1.5ep
#include <tutti/core/time.hpp>

tutti::Time max_duration() {
#ifdef FIXED
  return "2ep";
#else
  return "1.5ep";
#endif
}
