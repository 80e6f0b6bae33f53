// error: this LibTorch's c10d::Reducer has a constructor that is not known; use LibTorch
// culprit: Reducer
// torch
#include <tutti/dist/detail/reducer.hpp>

struct Reducer {
#ifdef FIXED
  explicit Reducer(int buckets, bool = false, bool = false, bool = false);
#else
  explicit Reducer(int buckets, const char* name);
#endif
};

std::unique_ptr<Reducer> make() {
  return tutti::dist::detail::make_with<Reducer>(3);
}
