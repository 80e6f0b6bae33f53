// error: MethodCheck<Lines, tutti::member::log_metrics>
// error: cannot be called as tutti::Logger calls it, so it would receive nothing
// culprit: Lines, log_metrics
#include <tutti/core/logger.hpp>
#include <tutti/core/recipe.hpp>

struct Lines final {
#ifdef FIXED
  void log_metrics(std::span<const tutti::LoggedMetric> metrics, std::int64_t) {
    log_metrics(metrics);
  }
#else
  void log_metrics(const tutti::LoggedMetric&, std::int64_t) {}
#endif
  void log_metrics(std::span<const tutti::LoggedMetric>) {}
  void apply(tutti::FitEnd, const tutti::State&) const {}
};

template struct tutti::Recipe<Lines>;
