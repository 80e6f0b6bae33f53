// error: returns a value that nobody reads
#include <tutti/core/on.hpp>

auto stop_early() {
#ifdef FIXED
  return tutti::on<tutti::EpochEnd>([](const tutti::State&) {});
#else
  return tutti::on<tutti::EpochEnd>([](const tutti::State&) { return true; });
#endif
}
