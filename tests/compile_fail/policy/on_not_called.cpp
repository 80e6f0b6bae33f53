// error: takes a tutti::State&, or a const tutti::State&
#include <tutti/core/on.hpp>

auto stop_early() {
#ifdef FIXED
  return tutti::on<tutti::EpochEnd>([](tutti::State&) {});
#else
  return tutti::on<tutti::EpochEnd>([](int) {});
#endif
}
