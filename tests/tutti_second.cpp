#include <tutti/tutti.hpp>

namespace second_unit {
int version() {
  return TUTTI_VERSION_MINOR;
}
}  // namespace second_unit
