// Kind mds: shards of MDSWriter of Python, read, and written again where they are not compressed.

#include "golden_interop/runner.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/data/mds.hpp>
#include <tutti/data/mds_writer.hpp>

#include "support/temporary_folder.hpp"

namespace golden_interop {

namespace {

namespace data = tutti::data;

std::string from_base64(const std::string& text) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0;
  int count = 0;
  for (const char letter : text.substr(0, text.find('='))) {
    bits = bits << 6 | static_cast<unsigned>(letters.find(letter));
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return out;
}

bool same_array(const at::Tensor& got, const Json& want) {
  const auto* number = data::detail::mds_number(want["dtype"].string());
  std::vector<std::int64_t> shape;
  for (const Json& extent : want["shape"].array()) {
    shape.push_back(extent.integer());
  }
  return number != nullptr && got.scalar_type() == number->type &&
         got.sizes() == at::IntArrayRef(shape) &&
         data::detail::bytes_of(got) == from_base64(want["data"].string());
}

// Pixels [C, H, W]; a grey image has three equal channels where a decoder made them.
bool same_image(const at::Tensor& got, const Json& want, int most) {
  const std::string pixels = from_base64(want["data"].string());
  const std::int64_t channels = want["mode"].string() == "L" ? 1 : 3;
  const std::vector<std::int64_t> shape{want["height"].integer(), want["width"].integer(),
                                        channels};
  const at::Tensor expected = data::detail::tensor_of(pixels, at::kByte, shape).permute({2, 0, 1});
  return got.size(1) == shape[0] && got.size(2) == shape[1] &&
         (got.narrow(0, 0, channels).to(at::kInt) - expected.to(at::kInt))
                 .abs()
                 .max()
                 .item<int>() <= most;
}

bool same_images(const std::vector<at::Tensor>& got, const Json& want, int most) {
  bool same = got.size() == want.size();
  for (std::size_t i = 0; same && i < got.size(); ++i) {
    same = same_image(got[i], want[i], most);
  }
  return same;
}

bool same_number(const data::MDSSample& sample, const std::string& name,
                 const std::string& encoding, const Json& want) {
  if (const Json* real = want.find("float")) {
    const double value = std::strtod(real->string().c_str(), nullptr);
    return sample.number(name) == value && std::signbit(sample.number(name)) == std::signbit(value);
  }
  const std::string& digits = want["int"].string();
  if (encoding == "str_int") {
    return sample.text(name) == digits;  // of any length
  }
  if (encoding == "uint64") {
    return std::to_string(
               *static_cast<const std::uint64_t*>(sample.tensor(name).const_data_ptr())) == digits;
  }
  return std::to_string(sample.integer(name)) == digits;
}

bool same_value(const data::MDSSample& sample, const data::MDSColumn& column, const Json& want) {
  const std::string& name = column.name;
  const std::string& encoding = column.encoding;
  if (encoding == "str") {
    return sample.text(name) == want.string();
  }
  if (encoding == "bytes") {
    return sample.bytes(name) == from_base64(want["bytes"].string()) &&
           data::detail::bytes_of(sample.tensor(name)) == sample.bytes(name);
  }
  if (encoding == "json") {
    return tutti::detail::parse_json(sample.text(name)) == want["json"];
  }
  if (encoding == "str_decimal") {
    return sample.text(name) == want["decimal"].string();
  }
  if (encoding.starts_with("ndarray")) {
    return same_array(sample.tensor(name), want);
  }
  if (encoding == "pil" || encoding == "png" || encoding == "jpeg") {
    return same_image(sample.tensor(name), want, encoding == "jpeg" ? 2 : 0);
  }
  if (encoding == "list[png]" || encoding == "jpeg_array") {
    const std::vector<at::Tensor> images = sample.tensors(name);
    if (encoding == "list[png]") {
      return same_images(images, want.is_array() ? want : want["json"], 0);
    }
    bool same = images.size() == want.size();
    return same;
  }
  return same_number(sample, name, encoding, want);
}

void check_samples(const Case& c, const data::MDSReader& reader, const Json& expected) {
  c.check(reader.size() == static_cast<std::int64_t>(expected.size()), "number of samples");
  for (std::int64_t i = 0; i < reader.size(); ++i) {
    const data::MDSSample sample = reader.sample(i);
    for (const data::MDSColumn& column : sample.columns()) {
      c.check(same_value(sample, column, expected[static_cast<std::size_t>(i)][column.name]),
              "sample " + std::to_string(i) + ", column " + column.name);
    }
  }
}

// A value of a sample that was read, to be written again.
data::MDSValue value_of(const data::MDSSample& sample, const data::MDSColumn& column) {
  const std::string& encoding = column.encoding;
  if (data::detail::mds_scalar(encoding) != nullptr || encoding.starts_with("ndarray") ||
      encoding == "pil") {
    return sample.tensor(column.name);
  }
  if (encoding == "jpeg_array" || encoding == "list[png]") {
    std::vector<std::string> out;
    for (const std::string_view file : data::detail::read_mds_list(
             sample.bytes(column.name), encoding != "jpeg_array", "the case: ")) {
      out.emplace_back(file);
    }
    return out;
  }
  return std::string(sample.bytes(column.name));
}

// What is written of the values is the case's files, byte for byte; where they are compressed, what
// is decompressed.
void check_written(const Case& c, const data::MDSReader& reader) {
  const TemporaryFolder folder;
  const Json index = c.read("index.json");
  const Json& first = index["shards"][0];
  data::MDSWriterOptions options;
  for (const data::MDSColumn& column : reader.shards()[0]->columns) {
    options.columns[column.name] = column.encoding;
  }
  for (const Json& hash : first["hashes"].array()) {
    options.hashes.push_back(hash.string());
  }
  if (!first["compression"].is_null()) {
    options.compression = first["compression"].string();
  }
  options.size_limit = std::nullopt;
  if (!first["size_limit"].is_null()) {
    options.size_limit = first["size_limit"].integer();
  }
  data::MDSWriter writer((folder / "set").string(), options);
  for (std::int64_t i = 0; i < reader.size(); ++i) {
    const data::MDSSample sample = reader.sample(i);
    std::map<std::string, data::MDSValue> values;
    for (const data::MDSColumn& column : sample.columns()) {
      values.emplace(column.name, value_of(sample, column));
    }
    writer.write(values);
  }
  writer.finish();
  if (options.compression.empty()) {
    for (const std::string& name : sorted_names(folder / "set")) {
      c.check(read_bytes(folder / "set" / name) == read_bytes(c.folder / name), "file " + name);
    }
    return;
  }
  const data::MDSReader again((folder / "set").string());
  c.check(again.shards().size() == reader.shards().size(), "number of shards written");
  for (std::size_t k = 0; k < std::min(again.shards().size(), reader.shards().size()); ++k) {
    c.check(again.shards()[k]->raw.hashes == reader.shards()[k]->raw.hashes &&
                again.shards()[k]->raw.bytes == reader.shards()[k]->raw.bytes,
            "what is in shard " + std::to_string(k));
  }
  check_samples(c, again, c.read("expected.json")["samples"]);
}

void run_mds(const Case& c) {
  try {
    const data::MDSReader reader(c.folder.string());
    check_samples(c, reader, c.read("expected.json")["samples"]);
    check_written(c, reader);
  } catch (const c10::NotImplementedError& error) {
    throw Skipped(error.what_without_backtrace());
  }
}

const bool mds_registered = register_kind("mds", run_mds);

}  // namespace

}  // namespace golden_interop
