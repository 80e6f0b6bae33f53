#include <tutti/tutti.hpp>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>

#include "support/catch.hpp"

int second_unit_version();  // of tutti_second.cpp, which includes the whole library too

namespace {

const std::string root = TUTTI_SOURCE_DIR "/include/";

// Adds a header, "tutti/trainer.hpp", and what it includes of tutti.
void reach(const std::string& header, std::set<std::string>& reached) {
  constexpr std::string_view start = "#include <tutti/";
  if (!reached.insert(header).second) {
    return;
  }
  std::ifstream file(root + header);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) {
      reach(line.substr(10, line.find('>') - 10), reached);
    }
  }
}

}  // namespace

TEST_CASE("the whole library links when two files include it", "[tutti]") {
  CHECK(second_unit_version() == TUTTI_VERSION_MINOR);
}

TEST_CASE("tutti.hpp has every public header but what needs a library or time", "[tutti]") {
  const std::set<std::string> left_out{
      "tutti/cli.hpp",                      // needs CLI11
      "tutti/data/image_decoder.hpp",       // these four need libjpeg or libpng
      "tutti/data/image_folder.hpp",        //
      "tutti/data/jpeg.hpp",                //
      "tutti/data/png.hpp",                 //
      "tutti/dist/launch_command.hpp",      // what tutti-run is made of
      "tutti/loggers/mlflow.hpp",           // needs cpp-httplib
      "tutti/profiler/torch_profiler.hpp",  // these two are slow to compile
      "tutti/profiler/torch_trace.hpp",     //
  };
  std::set<std::string> reached;
  reach("tutti/tutti.hpp", reached);
  std::set<std::string> missing;
  for (const auto& file : std::filesystem::recursive_directory_iterator(root + "tutti")) {
    const std::string name = std::filesystem::relative(file.path(), root).generic_string();
    if (name.ends_with(".hpp") && name.find("/detail/") == std::string::npos &&
        name.find("/gloo_shim/") == std::string::npos && !reached.contains(name)) {
      missing.insert(name);
    }
  }
  CHECK(missing == left_out);
}
