#include <tutti/profiler/marker.hpp>

#include <memory>
#include <string>
#include <vector>

#include <tutti/core/detail/json_parse.hpp>

#include "support/catch.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using tutti::Marker;
using tutti::ProfilerAction;

namespace {

std::shared_ptr<tutti::detail::Recording> recording(ProfilerAction action) {
  auto out = std::make_shared<tutti::detail::Recording>();
  out->action = action;
  return out;
}

// The phases of what was recorded, in order: B, E, i, C. What names the process and its threads is
// left out.
std::string phases(tutti::detail::Recording& recording) {
  std::string out;
  const tutti::detail::Json events = tutti::detail::parse_json(recording.take({}));
  for (const tutti::detail::Json& event : events.array()) {
    const std::string& phase = event["ph"].string();
    out += phase == "M" ? "" : phase;
  }
  return out;
}

}  // namespace

TEST_CASE("a marker records spans, instants and counters", "[profiler][marker]") {
  const auto trace = recording(ProfilerAction::active);
  Marker marker(trace, "load", {});
  {
    const auto span = marker.scope();
  }
  marker.instant();
  marker.counter({{"x", 1.5}});
  CHECK(phases(*trace) == "BEiC");
}

TEST_CASE("instants go with the ends of a span where asked for", "[profiler][marker]") {
  const auto trace = recording(ProfilerAction::active);
  Marker marker(trace, "load", {.record_instant_on_start = true, .record_instant_on_finish = true});
  marker.start();
  marker.finish();
  CHECK(phases(*trace) == "BiEi");
}

TEST_CASE("a span ends as it began, whatever the schedule says by then", "[profiler][marker]") {
  const auto trace = recording(ProfilerAction::active);
  Marker marker(trace, "load", {});
  marker.start();
  trace->action = ProfilerAction::skip;
  marker.finish();
  marker.start();
  trace->action = ProfilerAction::active;
  marker.finish();
  CHECK(phases(*trace) == "BE");
}

TEST_CASE("a marker records during its actions only", "[profiler][marker]") {
  const auto trace = recording(ProfilerAction::warmup);
  Marker{trace, "load", {.actions = {ProfilerAction::active}}}.instant();
  CHECK(phases(*trace).empty());
  Marker{trace, "load", {}}.instant();
  CHECK(phases(*trace) == "i");
}

TEST_CASE("spans that are out of step are refused", "[profiler][marker]") {
  Marker marker(recording(ProfilerAction::active), "load", {});
  CHECK_THROWS_WITH(marker.finish(),
                    ContainsSubstring("\"load\" is finished, but was not started"));
  marker.start();
  CHECK_THROWS_WITH(marker.start(), ContainsSubstring("\"load\" is started twice"));
  marker.finish();
}

}  // namespace UNITY_BUILD_UNIQUE_ID
