// Kind webdataset: samples of tar files, their decoded values, lists of shards and how they are
// dealt, exactly.

#include "golden_interop/runner.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/data/webdataset.hpp>

namespace golden_interop {

namespace {

using tutti::data::WebDataset;
using tutti::data::WebSample;

std::string base64(std::string_view bytes) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      three = three << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += i + j > bytes.size() ? '=' : letters[three >> (18 - 6 * j) & 63U];
    }
  }
  return out;
}

std::vector<std::string> strings(const Json& list) {
  std::vector<std::string> out;
  for (const Json& value : list.array()) {
    out.push_back(value.string());
  }
  return out;
}

void check_fields(const Case& c, const WebSample& sample, const Json& want,
                  const std::string& what) {
  c.check(sample.key() == want["__key__"].string(), "key " + sample.key() + " of " + what);
  const Json& fields = want["fields"];
  std::vector<std::string> names;
  for (const auto& [name, bytes] : fields.object()) {
    names.push_back(name);
    c.check(sample.contains(name) && base64(sample.bytes(name)) == bytes.string(),
            "field " + name + " of " + what);
  }
  c.check(sample.fields() == names, "names of the fields of " + what);
}

void check_decoded(const Case& c, const WebSample& sample, const Json& want,
                   const std::string& what) {
  for (const auto& [name, value] : want.object()) {
    const bool same = name == "__key__" ? sample.key() == value.string()
                      : name == "txt"   ? sample.text(name) == value.string()
                      : name == "cls"
                          ? sample.integer(name) == value.integer() &&
                                sample.tensor(name).item<std::int64_t>() == value.integer()
                      : name == "json" ? sample.json(name) == value
                                       : base64(sample.bytes(name)) == value.string();
    c.check(same, "decoded " + name + " of " + what);
  }
}

void run_file(const Case& c, const Json& one) {
  const std::string& file = one["file"].string();
  const std::string path = (c.folder / file).string();
  if (const Json* error = one.find("error")) {
    std::string said;
    try {
      const WebDataset set(path);
    } catch (const c10::Error& thrown) {
      said = thrown.what_without_backtrace();
    }
    c.check(said.find(error->string()) != std::string::npos, file + " is refused: " + said);
    return;
  }
  const WebDataset set(path);
  const Json& samples = one["samples"];
  c.check(set.size() == static_cast<std::int64_t>(samples.size()), "number of samples of " + file);
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const std::string what = "sample " + std::to_string(i) + " of " + file;
    const WebSample sample = set.sample(i);
    check_fields(c, sample, samples[static_cast<std::size_t>(i)], what);
    if (const Json* decoded = one.find("decoded")) {
      check_decoded(c, sample, decoded->at(static_cast<std::size_t>(i)), what);
    }
  }
}

void run_webdataset(const Case& c) {
  const Json expected = c.read("expected.json");
  for (const Json& one : expected["cases"].array()) {
    run_file(c, one);
  }
  for (const auto& [urls, want] : expected["urls"].object()) {
    const std::vector<std::string> all = tutti::data::shard_paths(urls);
    c.check(all == strings(want), "the shards of " + urls);
    for (const Json& split : expected["split_by_node_then_by_worker"].array()) {
      const auto of_rank =
          tutti::data::detail::dealt(all, split["rank"].integer(), split["world"].integer());
      const auto of_worker = tutti::data::detail::dealt(of_rank, split["worker"].integer(),
                                                        split["workers"].integer());
      c.check(of_worker == strings(split["shards"]),
              "shards of rank " + std::to_string(split["rank"].integer()) + ", worker " +
                  std::to_string(split["worker"].integer()));
    }
  }
}

const bool webdataset_registered = register_kind("webdataset", run_webdataset);

}  // namespace

}  // namespace golden_interop
