// error: MethodCheck<Ends, tutti::member::log_result>
// error: write void log_result(const tutti::LoggedResult&)
// culprit: Ends, log_result
#include <tutti/core/logger.hpp>
#include <tutti/core/recipe.hpp>

struct Ends final {
#ifdef FIXED
  void log_result(const tutti::LoggedResult&) {}
#else
  void log_result(int) {}
#endif
  void log_hyperparameters(std::span<const tutti::Hyperparameter>) {}
};

template struct tutti::Recipe<Ends>;
