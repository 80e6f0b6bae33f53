// error: time_string_is_invalid__expected_like_10ep
// culprit: 10xyz
#include <tutti/core/time.hpp>

tutti::Time max_duration() {
#ifdef FIXED
  return "10ep";
#else
  return "10xyz";
#endif
}
