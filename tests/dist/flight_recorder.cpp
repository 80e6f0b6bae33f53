#include <tutti/dist/flight_recorder.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <tutti/core/detail/json_parse.hpp>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using dist::FlightRecorder;
using dist::RecordedCall;

TEST_CASE("the recorder keeps the last 256 collectives, oldest first", "[dist][flight]") {
  FlightRecorder recorder;
  CHECK(recorder.last().number == 0);
  CHECK(recorder.entries().empty());
  CHECK(recorder.where() == "before its first collective");
  for (int i = 0; i < 300; ++i) {
    recorder.end(recorder.begin("all_reduce"));
  }
  const std::vector<RecordedCall> all = recorder.entries();
  REQUIRE(all.size() == 256);
  CHECK(all.front().number == 45);
  CHECK(all.back().number == 300);
  CHECK(all.back().ended_ns >= all.back().started_ns);
  CHECK(all.back().started_ns >= all.front().ended_ns);
}

TEST_CASE("a call says where this rank is", "[dist][flight]") {
  FlightRecorder recorder;
  recorder.begin_batch(17);
  CHECK(recorder.where() == "in batch 17");
  constexpr std::array<std::int64_t, 2> sizes{3, 4};
  const std::uint64_t number = recorder.begin("all_reduce", sizes, "Float");
  CHECK(recorder.where() == "in all_reduce, call 1, in batch 17");
  CHECK(recorder.last().dimensions == 2);
  CHECK(recorder.last().sizes[1] == 4);
  CHECK(recorder.last().batch == 17);
  recorder.end(number);
  CHECK(recorder.where() == "behind all_reduce, call 1, in batch 17");
  recorder.end(recorder.begin("barrier"), true);
  CHECK(recorder.where() == "in barrier, call 2, in batch 17");  // it failed there
  recorder.end(number, true);                                    // it is over already
  CHECK_FALSE(recorder.entries().front().failed);
  const std::vector<std::int64_t> many(9, 1);
  recorder.begin("all_gather", many);
  CHECK(recorder.last().dimensions == RecordedCall::most_sizes);
}

TEST_CASE("a call says what it is for", "[dist][flight]") {
  FlightRecorder recorder;
  {
    const dist::CallPurpose unit("layers.3");
    recorder.end(recorder.begin("all_gather_into"));
    CHECK(recorder.where() == "behind all_gather_into (layers.3), call 1");
    {
      const dist::CallPurpose clipping("clipping");
      recorder.begin("all_reduce");
      CHECK(recorder.where() == "in all_reduce (clipping), call 2");
      std::thread([&] { recorder.begin("barrier"); }).join();  // which is for nothing of these
      CHECK(recorder.where() == "in barrier, call 3");
    }
    const dist::CallPurpose none("");
    recorder.begin("barrier");
    CHECK(recorder.where() == "in barrier, call 4");
  }
  const std::string long_name(100, 'n');
  const dist::CallPurpose named(long_name);
  recorder.begin("all_reduce");
  CHECK(recorder.where() ==
        "in all_reduce (" + long_name.substr(0, RecordedCall::most_letters - 1) + "), call 5");
  CHECK_THAT(recorder.json(),
             Catch::Matchers::ContainsSubstring("\"profiling_name\": \"all_reduce\", "
                                                "\"purpose\": \"clipping\", "));
}

TEST_CASE("a scope ends its call, as failed when an exception leaves it", "[dist][flight]") {
  {
    const dist::detail::Recorded call("scope");
  }
  CHECK_FALSE(dist::flight_recorder().last().failed);
  CHECK(dist::flight_recorder().last().ended_ns > 0);
  try {
    const dist::detail::Recorded call("scope");
    throw std::runtime_error("lost");
  } catch (const std::runtime_error&) {
  }
  CHECK(dist::flight_recorder().last().failed);
}

TEST_CASE("the last collectives are written as JSON where the launcher says", "[dist][flight]") {
  const TemporaryFolder folder;
  FlightRecorder recorder;
  dist::Environment place;
  place.rank = 3;
  place.restart_count = 2;
  recorder.belongs_to(place, nullptr);
  constexpr std::array<std::int64_t, 1> sizes{5};
  recorder.end(recorder.begin("all_gather_into", sizes, "Half"));
  recorder.begin("all_reduce");
  {
    const EnvironmentVariable none("TUTTI_FLIGHT_FOLDER", nullptr);
    CHECK(recorder.dump().empty());
  }
  {
    const EnvironmentVariable gone("TUTTI_FLIGHT_FOLDER", (folder / "no" / "such").c_str());
    CHECK(recorder.dump().empty());
  }
  const EnvironmentVariable there("TUTTI_FLIGHT_FOLDER", (folder / "new").c_str());
  const std::string path = recorder.dump();
  CHECK(std::filesystem::path(path).filename() == "attempt2_rank3.json");
  const auto json = tutti::detail::parse_json(read_bytes(path));
  CHECK(json.at("rank").integer() == 3);
  REQUIRE(json["entries"].size() == 2);
  const auto& first = json["entries"][0];
  CHECK(first.at("profiling_name").string() == "all_gather_into");
  CHECK(first["sizes"][0].integer() == 5);
  CHECK(first.at("dtype").string() == "Half");
  CHECK(first.at("state").string() == "completed");
  CHECK(json["entries"][1].at("state").string() == "started");
}

}  // namespace UNITY_BUILD_UNIQUE_ID
