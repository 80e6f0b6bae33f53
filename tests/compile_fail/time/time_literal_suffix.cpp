// error: time_string_is_invalid__expected_like_10ep
// culprit: 10xyz
#include <tutti/core/time.hpp>

using namespace tutti::literals;

tutti::Time max_duration() {
#ifdef FIXED
  return "10ep"_t;
#else
  return "10xyz"_t;
#endif
}
