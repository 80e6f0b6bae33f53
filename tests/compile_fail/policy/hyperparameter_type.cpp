// error: a hyperparameter is a bool, an std::int64_t, a double or an std::string
// culprit: float
// torch
#include <tutti/core/hyperparameter.hpp>

bool is_number(const tutti::HyperparameterValue& value) {
#ifdef FIXED
  return value.get_if<double>() != nullptr;
#else
  return value.get_if<float>() != nullptr;
#endif
}
