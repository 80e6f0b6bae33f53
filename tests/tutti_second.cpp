#include <tutti/tutti.hpp>

int second_unit_version() {
  return TUTTI_VERSION_MINOR;
}
