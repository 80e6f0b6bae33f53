#include <tutti/models/generation_config.hpp>

#include <fstream>

#include <sys/stat.h>

#include "support/catch.hpp"
#include "support/message.hpp"
#include "support/temporary_folder.hpp"

namespace UNITY_BUILD_UNIQUE_ID {

using namespace tutti;
using Catch::Matchers::ContainsSubstring;
using models::GenerationConfig;

namespace {

void put(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

GenerationConfig read(const std::string& text) {
  const TemporaryFolder folder;
  put(folder.path() / "generation_config.json", text);
  return GenerationConfig::read(folder.path().string());
}

}  // namespace

TEST_CASE("generation_config.json gives every option that it names", "[models][generation]") {
  const GenerationConfig config = read(R"({
    "_from_model_config": true, "bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": 0,
    "do_sample": true, "temperature": 0.6, "top_k": 40, "top_p": 0.9, "min_p": 0.05,
    "repetition_penalty": 1.1, "max_length": 4096, "max_new_tokens": 30, "num_beams": 1,
    "transformers_version": "5.23.0"})");
  CHECK(*config.bos_token_id == 1);
  CHECK(config.eos_token_id == std::vector<std::int64_t>{2, 7});
  CHECK(*config.pad_token_id == 0);
  CHECK(config.do_sample);
  CHECK(config.temperature == 0.6);
  CHECK(config.top_k == 40);
  CHECK(config.top_p == 0.9);
  CHECK(config.min_p == 0.05);
  CHECK(config.repetition_penalty == 1.1);
  CHECK(*config.max_length == 4096);
  CHECK(*config.max_new_tokens == 30);
  CHECK_FALSE(config.seed);
}

TEST_CASE("what generation_config.json does not say has its default", "[models][generation]") {
  const GenerationConfig lists =
      read(R"({"bos_token_id": [1], "eos_token_id": [2], "pad_token_id": [0]})");
  CHECK(*lists.bos_token_id == 1);
  CHECK(*lists.pad_token_id == 0);
  CHECK_THROWS_WITH(read(R"({"pad_token_id": [0, 1]})"),
                    ContainsSubstring("pad_token_id is [0,1], expected one token"));
  const GenerationConfig config = read(R"({"eos_token_id": 2, "pad_token_id": -1})");
  CHECK(config.eos_token_id == std::vector<std::int64_t>{2});
  CHECK_FALSE(config.pad_token_id);
  CHECK_FALSE(config.bos_token_id);
  CHECK_FALSE(config.max_length);
  CHECK_FALSE(config.do_sample);
  CHECK(config.top_k == 50);
  CHECK(read(R"({"top_k": null})").top_k == 0);
}

TEST_CASE("without generation_config.json the ids are those of config.json",
          "[models][generation]") {
  const TemporaryFolder folder;
  put(folder.path() / "config.json",
      R"({"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": null})");
  const GenerationConfig config = GenerationConfig::read(folder.path().string());
  CHECK(*config.bos_token_id == 1);
  CHECK(config.eos_token_id == std::vector<std::int64_t>{2});
  CHECK_FALSE(config.pad_token_id);
  const TemporaryFolder empty;
  CHECK_THROWS_WITH(GenerationConfig::read(empty.path().string()),
                    ContainsSubstring("config.json"));
}

TEST_CASE("a generation_config.json that is a named pipe is refused, not waited for",
          "[models][generation]") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder.path() / "generation_config.json").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(GenerationConfig::read(folder.path().string()),
                    ContainsSubstring("generation_config.json") &&
                        ContainsSubstring("it is a named pipe, not a regular file"));
}

TEST_CASE("a key that changes the text and is not supported is refused by name and value",
          "[models][generation]") {
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {R"({"num_beams": 4})", "num_beams is 4"},
           {R"({"penalty_alpha": 0.6})", "penalty_alpha is 0.6"},
           {R"({"no_repeat_ngram_size": 3})", "no_repeat_ngram_size is 3"},
           {R"({"suppress_tokens": [1, 2]})", "suppress_tokens is [1,2]"},
           {R"({"forced_eos_token_id": 2})", "forced_eos_token_id is 2"},
           {R"({"stop_strings": ["."]})", "stop_strings is [\".\"]"},
           {R"({"guidance_scale": 1.5})", "guidance_scale is 1.5"},
           {R"({"min_new_tokens": 5})", "min_new_tokens is 5"},
           {R"({"temperature": 0.0})", "temperature is 0"},
           {R"({"top_p": 1.5})", "top_p is 1.5"},
           {R"({"do_sample": 1})", "do_sample is 1, expected true or false"},
           {R"({"eos_token_id": "two"})", "eos_token_id is \"two\""}}) {
    const std::string error = message([&, &file = text] { read(file); });
    CHECK_THAT(error, ContainsSubstring(said));
    CHECK_THAT(error, ContainsSubstring("generation_config.json"));
  }
  CHECK_NOTHROW(
      read(R"({"num_beams": 1, "penalty_alpha": null, "suppress_tokens": [], "use_cache": true})"));
}

TEST_CASE("a written generation_config.json reads back as it was", "[models][generation]") {
  const TemporaryFolder folder;
  const GenerationConfig config{.max_new_tokens = 12,
                                .do_sample = true,
                                .repetition_penalty = 1.25,
                                .top_k = 0,
                                .eos_token_id = {2, 3},
                                .pad_token_id = 0};
  config.write(folder.path().string());
  const GenerationConfig back = GenerationConfig::read(folder.path().string());
  CHECK(to_string(back) == to_string(config));
  CHECK(to_string(config) ==
        R"({"do_sample":true,"eos_token_id":[2,3],"max_new_tokens":12,"pad_token_id":0,)"
        R"("repetition_penalty":1.25,"top_k":0})");
  CHECK(to_string(GenerationConfig{.seed = 3}) == R"({"seed":"3"})");
}

TEST_CASE("options of generation out of range are refused", "[models][generation]") {
  const auto refused = [](const GenerationConfig& config) {
    return message([&] { config.validate(); });
  };
  CHECK_THAT(refused({.max_new_tokens = 0}), ContainsSubstring("max_new_tokens is 0"));
  CHECK_THAT(refused({.max_length = 0}), ContainsSubstring("max_length is 0"));
  CHECK_THAT(refused({.repetition_penalty = 0}), ContainsSubstring("repetition_penalty is 0"));
  CHECK_THAT(refused({.temperature = 0}), ContainsSubstring("do_sample to false"));
  CHECK_THAT(refused({.top_k = -1}), ContainsSubstring("top_k is -1"));
  CHECK_THAT(refused({.min_p = -0.1}), ContainsSubstring("min_p is -0.1"));
  CHECK_THAT(refused({.pad_token_id = -2}), ContainsSubstring("pad_token_id is -2"));
  CHECK_THAT(refused({.stop_sequences = {{}}}), ContainsSubstring("has no tokens"));
  CHECK_NOTHROW(GenerationConfig{}.validate());
}

}  // namespace UNITY_BUILD_UNIQUE_ID
