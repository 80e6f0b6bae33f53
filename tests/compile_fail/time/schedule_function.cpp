// error: tutti: this function is no schedule; a schedule is called with const tutti::Progress&
// torch
#include <tutti/optim/schedule.hpp>

tutti::Schedule halved() {
#ifdef FIXED
  return [](const tutti::Progress& p) { return p.timestamp.batch < 100 ? 1.0 : 0.5; };
#else
  return [](int batch) { return batch < 100 ? 1.0 : 0.5; };
#endif
}
