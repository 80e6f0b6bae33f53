// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include <tutti/config.hpp>
#include <tutti/core/detail/json.hpp>

/// What compiled.json of an exported model says.
namespace tutti::models::detail {

/// A tensor as it was exported.
struct ExportedTensor {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::int64_t> sizes;   // -1: of any size, which has a name
  std::vector<std::string> symbols;  // that name, empty for other dimensions
  bool requires_grad = true;         // of a parameter
  bool persistent = true;            // of a buffer: Python's state_dict has it
  std::int64_t below = -1;           // of an input: its values are rows of a table of so many
};

/// A value that a program takes or gives.
struct Word {
  enum class Kind {
    parameter,
    buffer,
    input,
    target,
    saved,
    tangent,
    output,
    loss,
    mutated,
    gradient
  };
  Kind kind;
  std::size_t index;
};

/// One of the programs forward, backward, eval and step.
struct ExportedProgram {
  std::vector<Word> in, out;
  std::vector<Word> shares;            // parameters and buffers whose memory saved tensors have
  tutti::detail::Json calls, results;  // where it is data
  std::string xxh64, sha256;           // of its shared object, where it is code
};

/// The size that a symbol may have.
struct SizeRange {
  std::int64_t least = 1;
  std::int64_t most = -1;  // -1: no limit
  std::int64_t step = 1;   // from the least one
  std::int64_t least_in_training = 0;
};

/// All of compiled.json.
struct ExportedPackage {
  std::string torch, precision;
  bool is_code = false;                        // programs are shared objects, no lists of calls
  std::string device = "", architecture, isa;  // of code; data runs on any
  std::vector<std::string> cpu;                // instructions that code needs, as Linux names them
  bool random = false;                         // the forward in training draws random numbers
  bool has_eval = false;
  bool has_step = false;  // forward, loss and backward in one
  std::map<std::string, SizeRange> symbols;
  std::vector<ExportedTensor> inputs, outputs, parameters, buffers;
  std::map<std::string, std::string> tied;  // further names of parameters and buffers
  ExportedTensor targets;                   // of the step: indices of classes
  ExportedProgram forward, backward, eval, step;
  std::size_t saved = 0;    // tensors that the backward gets of the forward
  std::size_t mutated = 0;  // buffers that the forward gives new values
};

/// The type of that name in Python, as float32. Throws std::invalid_argument for others.
c10::ScalarType dtype_of(std::string_view name);

/// The text of a type as Python writes it.
std::string_view name_of(c10::ScalarType dtype);

/// The package that a JSON value describes, wholly checked: every index is in range.
/// Throws std::invalid_argument that says what is wrong.
ExportedPackage read_package(const tutti::detail::Json& json);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

namespace tutti::models::detail {

using tutti::detail::Json;

TUTTI_INLINE std::span<const std::pair<std::string_view, c10::ScalarType>> exported_dtypes() {
  static constexpr std::pair<std::string_view, c10::ScalarType> all[] = {
      {"float32", c10::ScalarType::Float}, {"float64", c10::ScalarType::Double},
      {"float16", c10::ScalarType::Half},  {"bfloat16", c10::ScalarType::BFloat16},
      {"int64", c10::ScalarType::Long},    {"int32", c10::ScalarType::Int},
      {"int16", c10::ScalarType::Short},   {"int8", c10::ScalarType::Char},
      {"uint8", c10::ScalarType::Byte},    {"bool", c10::ScalarType::Bool}};
  return all;
}

TUTTI_INLINE c10::ScalarType dtype_of(std::string_view name) {
  for (const auto& known : exported_dtypes()) {
    if (known.first == name) {
      return known.second;
    }
  }
  throw std::invalid_argument("the type \"" + std::string(name) +
                              "\" is not known; expected float32, float64, float16, bfloat16, "
                              "int64, int32, int16, int8, uint8 or bool");
}

TUTTI_INLINE std::string_view name_of(c10::ScalarType dtype) {
  for (const auto& known : exported_dtypes()) {
    if (known.second == dtype) {
      return known.first;
    }
  }
  return "another type";
}

/// Reads the package step by step.
class PackageReader {
 public:
  explicit PackageReader(const Json& json) : json_(json) {}

  ExportedPackage read() {
    head();
    symbols();
    out_.inputs = tensors("inputs", true);
    out_.outputs = tensors("outputs", true);
    out_.parameters = tensors("parameters", false);
    out_.buffers = tensors("buffers", false);
    refuse_shared_names();
    tied();
    const Json& programs = json_.at("programs");
    out_.forward = program(programs.at("forward"));
    check_forward(out_.forward, "forward", &out_.saved);
    out_.backward = program(programs.at("backward"));
    check_backward();
    out_.has_eval = programs.contains("eval");
    if (out_.has_eval) {
      out_.eval = program(programs.at("eval"));
      check_forward(out_.eval, "eval", nullptr);
    }
    out_.has_step = programs.contains("step");
    if (out_.has_step) {
      out_.targets = tensor(json_.at("targets"), "targets", true);
      if (out_.targets.dtype != c10::ScalarType::Long || out_.targets.below < 1) {
        fail("\"targets\" are no int64 numbers of classes");
      }
      out_.step = program(programs.at("step"));
      check_step();
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] static void fail(const std::string& why) { throw std::invalid_argument(why); }

  void head() {
    if (json_.at("format").integer() != 1) {
      fail("its format is " + std::to_string(json_.at("format").integer()) +
           ", and this version of tutti reads 1; export the model with the tutti_export.py of this "
           "version");
    }
    const std::string& kind = json_.at("kind").string();
    if (kind != "data" && kind != "code") {
      fail("its kind is \"" + kind +
           "\", and this version of tutti reads \"data\" and \"code\"; export the model with the "
           "tutti_export.py of this version");
    }
    out_.is_code = kind == "code";
    out_.torch = json_.at("torch").string();
    if (out_.is_code) {
      out_.device = json_.at("device").string();
      if (out_.device != "cpu" && out_.device != "cuda") {
        fail("its device is \"" + out_.device + "\", expected \"cpu\" or \"cuda\"");
      }
      out_.architecture = json_.at("architecture").string();
      out_.isa = json_.at("isa").string();
      for (const Json& flag : json_.at("cpu").array()) {
        out_.cpu.push_back(flag.string());
      }
    }
    out_.precision = json_.at("precision").string();
    out_.random = json_.at("random").boolean();
  }

  void symbols() {
    for (const auto& [name, range] : json_.at("symbols").object()) {
      SizeRange& out = out_.symbols[name];
      out.least = range.at(0).integer();
      out.most = range.at(1).is_null() ? -1 : range.at(1).integer();
      out.step = range.size() > 2 ? range.at(2).integer() : 1;
      if (out.least < 0 || (out.most >= 0 && out.most < out.least) || out.step < 1) {
        fail("the range of the size " + name + " is empty");
      }
    }
    if (const Json* least = json_.find("least_in_training")) {
      for (const auto& [name, size] : least->object()) {
        const auto known = out_.symbols.find(name);
        if (known == out_.symbols.end()) {
          fail("\"least_in_training\" has a size " + name + " that \"symbols\" does not have");
        }
        known->second.least_in_training = size.integer();
      }
    }
  }

  // given: shapes may have symbols, and of outputs also expressions of symbols.
  std::vector<ExportedTensor> tensors(const char* list, bool given) const {
    std::vector<ExportedTensor> out;
    for (const Json& each : json_.at(list).array()) {
      out.push_back(tensor(each, list, given));
    }
    return out;
  }

  ExportedTensor tensor(const Json& json, std::string_view list, bool given) const {
    ExportedTensor out;
    out.name = json.at("name").string();
    if (out.name.empty()) {
      fail("one of the " + std::string(list) + " has no name");
    }
    out.dtype = dtype_of(json.at("dtype").string());
    for (const Json& size : json.at("shape").array()) {
      const bool symbol = given && size.is_string();
      out.sizes.push_back(symbol ? -1 : size.integer());
      out.symbols.push_back(symbol ? size.string() : "");
      if (!symbol && size.integer() < 0) {
        fail(out.name + " has the size " + std::to_string(size.integer()));
      }
      if (symbol && list != "outputs" && !out_.symbols.contains(size.string())) {
        fail(out.name + " has a size " + size.string() + " that \"symbols\" does not have");
      }
    }
    if (const Json* flag = json.find("requires_grad")) {
      out.requires_grad = flag->boolean();
    }
    if (const Json* flag = json.find("persistent")) {
      out.persistent = flag->boolean();
    }
    if (const Json* rows = json.find("below")) {
      out.below = rows->integer();
      if (out.below < 1 || !c10::isIntegralType(out.dtype, /*includeBool=*/false)) {
        fail(out.name + " cannot be rows of a table of " + std::to_string(out.below));
      }
    }
    return out;
  }

  void refuse_shared_names() {
    for (const auto& lists : {std::pair(&out_.inputs, &out_.inputs),
                              {&out_.outputs, &out_.outputs},
                              {&out_.parameters, &out_.buffers}}) {
      std::set<std::string_view> seen;
      for (const auto* list : {lists.first, lists.second}) {
        for (const ExportedTensor& tensor : *list) {
          if (!seen.insert(tensor.name).second && lists.first != lists.second) {
            fail("two tensors are named " + tensor.name);
          }
        }
        if (lists.first == lists.second && seen.size() != list->size()) {
          fail("two inputs or two outputs have one name");
        }
      }
    }
    for (const auto* list : {&out_.parameters, &out_.buffers}) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        (list == &out_.parameters ? parameter_ : buffer_)[(*list)[i].name] = i;
      }
    }
  }

  void tied() {
    for (const auto& [name, first] : json_.at("tied").object()) {
      if (!parameter_.contains(first.string()) && !buffer_.contains(first.string())) {
        fail(name + " is tied to " + first.string() + ", which is not there");
      }
      out_.tied[name] = first.string();
    }
  }

  static std::size_t number(const std::string& text, std::size_t below, const std::string& word) {
    std::size_t value = 0;
    for (const char c : text) {
      value = c >= '0' && c <= '9' && value < 10'000'000
                  ? value * 10 + static_cast<std::size_t>(c - '0')
                  : below;
      if (value >= below) {
        break;
      }
    }
    if (text.empty() || value >= below) {
      fail("\"" + word + "\" names what is not there");
    }
    return value;
  }

  std::size_t named(const std::map<std::string, std::size_t>& names, const std::string& name,
                    const std::string& word) const {
    const auto found = names.find(name);
    if (found == names.end()) {
      fail("\"" + word + "\" names what is not there");
    }
    return found->second;
  }

  Word word(const std::string& text) const {
    const auto colon = text.find(':');
    const std::string kind = text.substr(0, colon);
    const std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
    constexpr std::size_t most = 1'000'000;
    if (kind == "parameter" || kind == "gradient") {
      return {kind == "parameter" ? Word::Kind::parameter : Word::Kind::gradient,
              named(parameter_, rest, text)};
    }
    if (kind == "buffer" || kind == "mutated") {
      return {kind == "buffer" ? Word::Kind::buffer : Word::Kind::mutated,
              named(buffer_, rest, text)};
    }
    if (kind == "input") {
      return {Word::Kind::input, number(rest, out_.inputs.size(), text)};
    }
    if (kind == "output" || kind == "tangent") {
      return {kind == "output" ? Word::Kind::output : Word::Kind::tangent,
              number(rest, out_.outputs.size(), text)};
    }
    if (kind == "target" || kind == "loss") {
      return {kind == "target" ? Word::Kind::target : Word::Kind::loss, number(rest, 1, text)};
    }
    if (kind == "saved") {
      return {Word::Kind::saved, number(rest, most, text)};
    }
    fail("\"" + text + "\" is no value of a program");
  }

  std::vector<Word> words(const Json& list) const {
    std::vector<Word> out;
    for (const Json& each : list.array()) {
      out.push_back(word(each.string()));
    }
    return out;
  }

  ExportedProgram program(const Json& json) const {
    ExportedProgram out;
    out.in = words(json.at("in"));
    out.out = words(json.at("out"));
    if (const Json* shares = json.find("shares")) {
      out.shares = words(*shares);
      for (const Word& each : out.shares) {
        if (each.kind != Word::Kind::parameter && each.kind != Word::Kind::buffer) {
          fail("\"shares\" of a program lists what is no parameter and no buffer");
        }
      }
    }
    if (out_.is_code) {
      out.xxh64 = json.at("xxh64").string();
      out.sha256 = json.at("sha256").string();
      return out;
    }
    out.calls = json.at("calls");
    out.results = json.at("results");
    if (out.results.array().size() != out.out.size()) {
      fail("a program gives " + std::to_string(out.results.size()) + " values, and \"out\" lists " +
           std::to_string(out.out.size()));
    }
    return out;
  }

  // Takes weights and inputs; gives changed buffers, then all outputs, then what is saved.
  void check_forward(const ExportedProgram& program, const std::string& name, std::size_t* saved) {
    for (const Word& in : program.in) {
      if (!takes_weights(in)) {
        fail("the program " + name + " takes what is no parameter, buffer or input");
      }
    }
    std::size_t at = 0, count = 0;
    const auto next = [&](Word::Kind kind) {
      return at < program.out.size() && program.out[at].kind == kind;
    };
    while (next(Word::Kind::mutated)) {
      ++at;
    }
    if (saved != nullptr) {
      out_.mutated = at;
    }
    for (; next(Word::Kind::output) && program.out[at].index == count; ++at) {
      ++count;
    }
    std::size_t kept = 0;
    for (; saved != nullptr && next(Word::Kind::saved) && program.out[at].index == kept; ++at) {
      ++kept;
    }
    if (count != out_.outputs.size() || at != program.out.size()) {
      fail("the program " + name +
           " does not give its changed buffers, all outputs and what is "
           "saved, in that order");
    }
    if (saved != nullptr) {
      *saved = kept;
    }
  }

  static bool takes_weights(const Word& in) {
    return in.kind == Word::Kind::parameter || in.kind == Word::Kind::buffer ||
           in.kind == Word::Kind::input;
  }

  // Takes weights, inputs and targets; gives changed buffers, all outputs, the loss and gradients.
  void check_step() const {
    for (const Word& in : out_.step.in) {
      if (!takes_weights(in) && in.kind != Word::Kind::target) {
        fail("the program step takes what is no parameter, buffer, input or target");
      }
    }
    auto at = out_.step.out.begin();
    const auto next = [&](Word::Kind kind) {
      return at != out_.step.out.end() && at->kind == kind;
    };
    while (next(Word::Kind::mutated)) {
      ++at;
    }
    std::size_t count = 0;
    for (; next(Word::Kind::output) && at->index == count; ++at) {
      ++count;
    }
    const bool has_loss = next(Word::Kind::loss);
    at += has_loss ? 1 : 0;
    while (next(Word::Kind::gradient)) {
      ++at;
    }
    if (!has_loss || count != out_.outputs.size() || at != out_.step.out.end()) {
      fail(
          "the program step does not give its changed buffers, all outputs, the loss and "
          "gradients, in that order");
    }
  }

  void check_backward() {
    for (const Word& in : out_.backward.in) {
      const bool saved = in.kind == Word::Kind::saved;
      if (saved ? in.index >= out_.saved : !takes_weights(in) && in.kind != Word::Kind::tangent) {
        fail("the program backward takes what the program forward does not give");
      }
    }
    for (const Word& out : out_.backward.out) {
      if (out.kind != Word::Kind::gradient) {
        fail("the program backward gives what is no gradient");
      }
    }
  }

  const Json& json_;
  ExportedPackage out_;
  std::map<std::string, std::size_t> parameter_, buffer_;
};

TUTTI_INLINE ExportedPackage read_package(const Json& json) {
  return PackageReader(json).read();
}

}  // namespace tutti::models::detail

#endif
