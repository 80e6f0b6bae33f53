// error: MethodCheck<Lines, tutti::member::log_metrics>
// error: write void log_metrics(std::span<const tutti::LoggedMetric>, std::int64_t step)
// culprit: Lines, log_metrics
#include <tutti/core/logger.hpp>
#include <tutti/core/recipe.hpp>

struct Lines final {
#ifdef FIXED
  void log_metrics(std::span<const tutti::LoggedMetric>, std::int64_t) {}
#else
  void log_metrics(const std::vector<tutti::LoggedMetric>&, std::int64_t) {}
#endif
  void apply(tutti::FitEnd, const tutti::State&) const {}
};

template struct tutti::Recipe<Lines>;
