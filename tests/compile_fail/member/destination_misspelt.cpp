// error: MemberCheck<Lines, tutti::member::log_metric, tutti::member::log_metrics>
// error: give it the second
// culprit: Lines, log_metric
#include <tutti/core/logger.hpp>
#include <tutti/core/recipe.hpp>

struct Lines final {
#ifdef FIXED
  void log_metrics(std::span<const tutti::LoggedMetric>, std::int64_t) {}
#else
  void log_metric(std::span<const tutti::LoggedMetric>, std::int64_t) {}
#endif
  void log_hyperparameters(std::span<const tutti::Hyperparameter>) {}
};

template struct tutti::Recipe<Lines>;
