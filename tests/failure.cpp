#include <tutti/failure.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <tutti/core/detail/json_parse.hpp>

#include "support/catch.hpp"
#include "support/environment_variable.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

struct Reported {
  int status = -1;
  std::string text{};
};

// What is printed about `thrown`, and what a program ends with.
template <class T>
Reported report(const T& thrown) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  Reported made;
  try {
    throw thrown;
  } catch (...) {
    made.status = tutti::report_failure(out);
  }
  std::fclose(out);
  made.text.assign(text, size);
  std::free(text);
  return made;
}

c10::Error refused() {
  try {
    TORCH_CHECK(false, "there is no folder 'nowhere'");
  } catch (const c10::Error& error) {
    return error;
  }
}

}  // namespace

TEST_CASE("a failure is one sentence and the exit status of a failure", "[failure]") {
  const EnvironmentVariable untraced("TORCH_SHOW_CPP_STACKTRACES",
                                     GENERATE(as<const char*>{}, "0", nullptr));
  const Reported made = report(refused());
  CHECK(made.status == EXIT_FAILURE);
  CHECK(made.text == "there is no folder 'nowhere'\n");
  CHECK(report(std::runtime_error("no such flag")).text == "no such flag\n");
  CHECK(report(7).text == "an exception that is no std::exception\n");
  CHECK(report(7).status == EXIT_FAILURE);
}

TEST_CASE("a failure says where it comes from when LibTorch is told to", "[failure]") {
  const EnvironmentVariable traced("TORCH_SHOW_CPP_STACKTRACES", "1");
  const Reported made = report(refused());
  CHECK(made.status == EXIT_FAILURE);
  CHECK_THAT(made.text, StartsWith("there is no folder 'nowhere'\n"));
  CHECK_THAT(made.text, ContainsSubstring("failure.cpp"));
  CHECK(report(std::runtime_error("no such flag")).text == "no such flag\n");
}

TEST_CASE("no exception is no failure", "[failure]") {
  CHECK(tutti::report_failure() == EXIT_SUCCESS);
}

TEST_CASE("a failure is left where torchrun looks for it, once and only the rank's own",
          "[failure]") {
  const TemporaryFolder folder;
  const std::string path = (folder / "error.json").string();
  const EnvironmentVariable file("TORCHELASTIC_ERROR_FILE", path.c_str());
  report(std::runtime_error("no \"such\" flag"));
  const auto json = tutti::detail::parse_json(read_bytes(path));
  CHECK(json["message"]["message"].string() == "no \"such\" flag");
  CHECK(std::stoll(json["message"]["extraInfo"]["timestamp"].string()) > 1'700'000'000);
  std::remove(path.c_str());
  tutti::detail::follows_another().store(true);
  report(std::runtime_error("Connection closed by peer"));
  CHECK_FALSE(std::filesystem::exists(path));
  tutti::detail::follows_another().store(false);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
