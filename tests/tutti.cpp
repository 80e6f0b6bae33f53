#include <tutti/tutti.hpp>

#include <filesystem>
#include <set>
#include <string>

#include "support/catch.hpp"
#include "support/headers.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

// That the whole library links when two files include it is the test tutti_twice of CMakeLists.txt.

TEST_CASE("tutti.hpp has every public header but what needs a library or time", "[tutti]") {
  const std::set<std::string> left_out{
      "tutti/checkpoint/convert_command.hpp",  // what tutti-checkpoint is made of
      "tutti/cli.hpp",                         // needs CLI11
      "tutti/data/image_decoder.hpp",          // these five need libjpeg or libpng
      "tutti/data/image_folder.hpp",           //
      "tutti/data/image_folder_dataset.hpp",   //
      "tutti/data/jpeg.hpp",                   //
      "tutti/data/mds.hpp",                    // these two need what compressed the shards
      "tutti/data/mds_writer.hpp",             //
      "tutti/data/parquet.hpp",                // needs libarrow
      "tutti/data/png.hpp",                    // as jpeg.hpp
      "tutti/data/shard_writer.hpp",           // these four follow image_decoder.hpp
      "tutti/data/web_sample.hpp",             //
      "tutti/data/webdataset.hpp",             //
      "tutti/data/webdataset_loader.hpp",      //
      "tutti/data/streaming_dataset.hpp",      // as mds.hpp
      "tutti/dist/launch_command.hpp",         // what tutti-run is made of
      "tutti/loggers/dashboard_command.hpp",   // what tutti-dashboard is made of
      "tutti/loggers/mlflow.hpp",              // needs cpp-httplib
      "tutti/separate.hpp",                    // is for one source of a program
      "tutti/sweep/metric.hpp",                // these six are what tutti-sweep is made of
      "tutti/sweep/settings.hpp",              //
      "tutti/sweep/space.hpp",                 //
      "tutti/sweep/sweep.hpp",                 //
      "tutti/sweep/sweep_command.hpp",         //
      "tutti/sweep/trials.hpp",                //
      "tutti/models/tensor_parallel.hpp",      // has every family, for models over several ranks
      "tutti/profiler/torch_profiler.hpp",     // these two are slow to compile
      "tutti/profiler/torch_trace.hpp",        //
      "tutti/text/chat_template.hpp",          // these three are for programs with tokenizers,
      "tutti/text/decode_stream.hpp",          // which need libutf8proc
      "tutti/text/tokenizer.hpp",              //
  };
  std::set<std::string> reached;
  headers::reach("tutti/tutti.hpp", reached);
  std::set<std::string> missing;
  for (const auto& file : std::filesystem::recursive_directory_iterator(headers::root + "tutti")) {
    const std::string name = std::filesystem::relative(file.path(), headers::root).generic_string();
    if (name.ends_with(".hpp") && !name.ends_with(".inl.hpp") &&
        name.find("/detail/") == std::string::npos &&
        name.find("/gloo_shim/") == std::string::npos && !reached.contains(name)) {
      missing.insert(name);
    }
  }
  CHECK(missing == left_out);
}

}  // namespace UNITY_BUILD_UNIQUE_ID
