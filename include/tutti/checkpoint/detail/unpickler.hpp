// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include <tutti/checkpoint/detail/little_endian.hpp>
#include <tutti/checkpoint/detail/pickled_value.hpp>
#include <tutti/config.hpp>

namespace tutti::checkpoint::detail {

/// Reads the pickle of torch.save() without running anything.
///
/// What there may be: None, bools, numbers, texts, bytes, tuples, lists, dicts and OrderedDicts of
/// these, and tensors. A class or function is known by its name or the pickle is refused by that
/// name; none is imported or called. Memory is in proportion to the text, at most some 50 bytes for
/// each of its bytes. Throws std::invalid_argument with the place and the reason.
/// Source: Python, Lib/pickletools.py; PyTorch, torch/_weights_only_unpickler.py.
Pickle parse_pickle(std::string_view text);

}  // namespace tutti::checkpoint::detail

#if TUTTI_BODIES

namespace tutti::checkpoint::detail {

// The machine that a pickle is a program of: a stack of values, and a memo of those that come
// again.
class Unpickler {
 public:
  explicit Unpickler(std::string_view text)
      : text_(text), most_values_(100'000 + text.size() / 2) {}

  Pickle run();

 private:
  using Kind = PickledValue::Kind;
  using Place = std::uint32_t;

  [[noreturn]] void fail(const std::string& why) const {
    throw std::invalid_argument("pickle: " + why + " at byte " + std::to_string(at_) + " of " +
                                std::to_string(text_.size()));
  }

  std::string_view take(std::uint64_t size);
  std::string_view line();
  template <class T>
  T take() {
    T out{};
    std::memcpy(&out, take(sizeof out).data(), sizeof out);
    return out;
  }

  Place add(PickledValue value);
  void push(PickledValue value) { stack_.push_back(add(std::move(value))); }
  Place pop();
  Place top() const;
  std::vector<Place> pop_to_mark();
  std::vector<Place> pop_several(std::size_t count);
  const PickledValue& value(Place place) const { return out_.values[place]; }
  const PickledValue& item(const PickledValue& of, std::size_t i) const {
    return out_.values[of.items[i]];
  }

  bool literal(unsigned char code);
  bool text_or_bytes(unsigned char code);
  bool container(unsigned char code);
  bool memo(unsigned char code);
  bool object(unsigned char code);

  void long_integer(std::uint64_t size);
  void remember(std::uint64_t at);
  void recall(std::uint64_t at);
  void extend(Kind kind, const std::vector<Place>& items);
  void global(const std::string& module, const std::string& name);
  void persistent();
  void reduce();
  void build();

  Place rebuild_tensor(const PickledValue& arguments);
  Place latin1_bytes(const PickledValue& arguments) const;
  std::vector<std::int64_t> extents(const PickledValue& tuple, const char* what) const;
  void check_window(PickledTensor& tensor) const;
  std::uint64_t natural(const PickledValue& value, const char* what) const;

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t most_values_;
  std::vector<Place> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Place> memo_;
  std::size_t memoized_ = 0;
  std::size_t extents_ = 0;
  Pickle out_;
};

TUTTI_INLINE constexpr std::uint32_t no_place = 0xFFFFFFFF;

// Whose names torch.save() writes for the memory of tensors.
TUTTI_INLINE constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 12> storage_types{{
    {"FloatStorage", c10::ScalarType::Float},
    {"DoubleStorage", c10::ScalarType::Double},
    {"HalfStorage", c10::ScalarType::Half},
    {"BFloat16Storage", c10::ScalarType::BFloat16},
    {"LongStorage", c10::ScalarType::Long},
    {"IntStorage", c10::ScalarType::Int},
    {"ShortStorage", c10::ScalarType::Short},
    {"CharStorage", c10::ScalarType::Char},
    {"ByteStorage", c10::ScalarType::Byte},
    {"BoolStorage", c10::ScalarType::Bool},
    {"ComplexFloatStorage", c10::ScalarType::ComplexFloat},
    {"ComplexDoubleStorage", c10::ScalarType::ComplexDouble},
}};

TUTTI_INLINE constexpr std::array<std::string_view, 8> known_globals{
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_parameter",
    "torch.Size",
    "_codecs.encode",
    "__builtin__.bytes",
    "builtins.bytes"};

TUTTI_INLINE Pickle parse_pickle(std::string_view text) {
  return Unpickler(text).run();
}

TUTTI_INLINE std::string_view Unpickler::take(std::uint64_t size) {
  if (size > text_.size() - at_) {
    fail("it ends inside a value of " + std::to_string(size) + " bytes");
  }
  const std::string_view out = text_.substr(at_, size);
  at_ += out.size();
  return out;
}

TUTTI_INLINE std::string_view Unpickler::line() {
  const std::size_t end = text_.find('\n', at_);
  if (end == std::string_view::npos) {
    fail("it ends inside a name");
  }
  const std::string_view out = text_.substr(at_, end - at_);
  at_ = end + 1;
  return out;
}

TUTTI_INLINE Unpickler::Place Unpickler::add(PickledValue value) {
  if (out_.values.size() >= most_values_) {
    fail("it has more than " + std::to_string(most_values_) + " values, too many for its size");
  }
  out_.values.push_back(std::move(value));
  return static_cast<Place>(out_.values.size() - 1);
}

TUTTI_INLINE Unpickler::Place Unpickler::pop() {
  const Place out = top();
  stack_.pop_back();
  return out;
}

TUTTI_INLINE Unpickler::Place Unpickler::top() const {
  if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) {
    fail("a value is missing");
  }
  return stack_.back();
}

TUTTI_INLINE std::vector<Unpickler::Place> Unpickler::pop_to_mark() {
  if (marks_.empty()) {
    fail("a mark is missing");
  }
  const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Place> out(from, stack_.end());
  stack_.erase(from, stack_.end());
  marks_.pop_back();
  return out;
}

TUTTI_INLINE std::vector<Unpickler::Place> Unpickler::pop_several(std::size_t count) {
  std::vector<Place> out(count);
  for (std::size_t i = count; i-- > 0;) {
    out[i] = pop();
  }
  return out;
}

TUTTI_INLINE Pickle Unpickler::run() {
  if (text_.size() < 2 || text_[0] != '\x80') {
    fail("it does not begin as one of protocol 2 or later");
  }
  if (text_[1] < 2 || text_[1] > 5) {
    fail("it has the protocol " + std::to_string(static_cast<unsigned char>(text_[1])) +
         ", expected 2 to 5");
  }
  at_ = 2;
  while (true) {
    const auto code = take<unsigned char>();
    if (code == '.') {
      out_.root = pop();
      if (at_ != text_.size()) {
        fail("something follows its end");
      }
      return std::move(out_);
    }
    if (!literal(code) && !text_or_bytes(code) && !container(code) && !memo(code) &&
        !object(code)) {
      fail("it has the instruction " + std::to_string(code) +
           ", which builds what no state dict has");
    }
  }
}

TUTTI_INLINE bool Unpickler::literal(unsigned char code) {
  switch (code) {
    case 'N':
      push({.kind = Kind::none});
      return true;
    case 0x88:
    case 0x89:
      push({.kind = Kind::boolean, .integer = code == 0x88 ? 1 : 0});
      return true;
    case 'J':
      push({.kind = Kind::integer, .integer = take<std::int32_t>()});
      return true;
    case 'K':
      push({.kind = Kind::integer, .integer = take<std::uint8_t>()});
      return true;
    case 'M':
      push({.kind = Kind::integer, .integer = take<std::uint16_t>()});
      return true;
    case 0x8a:
      long_integer(take<std::uint8_t>());
      return true;
    case 0x8b:
      long_integer(take<std::uint32_t>());
      return true;
    case 'G': {
      auto bits = take<std::uint64_t>();  // big-endian, alone in the format
      std::uint64_t turned = 0;
      for (int i = 0; i < 8; ++i, bits >>= 8) {
        turned = turned << 8 | (bits & 0xFF);
      }
      push({.kind = Kind::number, .number = std::bit_cast<double>(turned)});
      return true;
    }
    default:
      return false;
  }
}

// Little-endian two's complement. What does not fit 64 bits, as the state of a generator, is kept
// as its bytes.
TUTTI_INLINE void Unpickler::long_integer(std::uint64_t size) {
  const std::string_view bytes = take(size);
  if (bytes.size() > 8) {
    push({.kind = Kind::bytes, .text = std::string(bytes)});
    return;
  }
  const bool negative = !bytes.empty() && static_cast<unsigned char>(bytes.back()) > 0x7F;
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  push({.kind = Kind::integer, .integer = static_cast<std::int64_t>(value)});
}

TUTTI_INLINE bool Unpickler::text_or_bytes(unsigned char code) {
  const auto put = [this](Kind kind, std::uint64_t size) {
    push({.kind = kind, .text = std::string(take(size))});
    return true;
  };
  switch (code) {
    case 'X':
      return put(Kind::text, take<std::uint32_t>());
    case 0x8c:
      return put(Kind::text, take<std::uint8_t>());
    case 0x8d:
      return put(Kind::text, take<std::uint64_t>());
    case 'T':  // the texts of Python 2
      return put(Kind::text, take<std::uint32_t>());
    case 'U':
      return put(Kind::text, take<std::uint8_t>());
    case 'B':
      return put(Kind::bytes, take<std::uint32_t>());
    case 'C':
      return put(Kind::bytes, take<std::uint8_t>());
    case 0x8e:
      return put(Kind::bytes, take<std::uint64_t>());
    default:
      return false;
  }
}

TUTTI_INLINE bool Unpickler::container(unsigned char code) {
  switch (code) {
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case ')':
      push({.kind = Kind::tuple});
      return true;
    case 0x85:
    case 0x86:
    case 0x87:
      push({.kind = Kind::tuple, .items = pop_several(code - 0x84U)});
      return true;
    case 't':
      push({.kind = Kind::tuple, .items = pop_to_mark()});
      return true;
    case ']':
      push({.kind = Kind::list});
      return true;
    case 'l':
      push({.kind = Kind::list, .items = pop_to_mark()});
      return true;
    case '}':
      push({.kind = Kind::dict});
      return true;
    case 'a':
      extend(Kind::list, pop_several(1));
      return true;
    case 'e':
      extend(Kind::list, pop_to_mark());
      return true;
    case 's':
      extend(Kind::dict, pop_several(2));
      return true;
    case 'u':
      extend(Kind::dict, pop_to_mark());
      return true;
    case '0':
      pop();
      return true;
    default:
      return false;
  }
}

TUTTI_INLINE void Unpickler::extend(Kind kind, const std::vector<Place>& items) {
  PickledValue& target = out_.values[top()];
  if (target.kind != kind || (kind == Kind::dict && items.size() % 2 != 0)) {
    fail("it adds to " + std::string(kind_text(target.kind)) + " as if that were " +
         std::string(kind_text(kind)));
  }
  target.items.insert(target.items.end(), items.begin(), items.end());
}

TUTTI_INLINE bool Unpickler::memo(unsigned char code) {
  switch (code) {
    case 'q':
      remember(take<std::uint8_t>());
      return true;
    case 'r':
      remember(take<std::uint32_t>());
      return true;
    case 0x94:
      remember(memoized_);
      return true;
    case 'h':
      recall(take<std::uint8_t>());
      return true;
    case 'j':
      recall(take<std::uint32_t>());
      return true;
    case 0x95:
      take<std::uint64_t>();  // the size of a frame, which says nothing else
      return true;
    default:
      return false;
  }
}

TUTTI_INLINE void Unpickler::remember(std::uint64_t at) {
  if (at > text_.size()) {  // each takes a byte at least, and they are counted from 0
    fail("it remembers a value under the number " + std::to_string(at));
  }
  if (at >= memo_.size()) {
    memo_.resize(at + 1, no_place);
  }
  memoized_ += memo_[at] == no_place ? 1U : 0U;
  memo_[at] = top();
}

TUTTI_INLINE void Unpickler::recall(std::uint64_t at) {
  if (at >= memo_.size() || memo_[at] == no_place) {
    fail("it recalls the value " + std::to_string(at) + ", which there is none of");
  }
  stack_.push_back(memo_[at]);
}

TUTTI_INLINE bool Unpickler::object(unsigned char code) {
  switch (code) {
    case 'c': {
      const std::string module(line());
      global(module, std::string(line()));
      return true;
    }
    case 0x93: {
      const Place name = pop();
      const Place module = pop();
      if (value(name).kind != Kind::text || value(module).kind != Kind::text) {
        fail("the name of a class is no text");
      }
      global(value(module).text, value(name).text);
      return true;
    }
    case 'Q':
      persistent();
      return true;
    case 'R':
      reduce();
      return true;
    case 'b':
      build();
      return true;
    case 0x81:  // an object of a class: what is known has none, so its class is refused above
      fail("it makes an object of a class, which no state dict has");
    default:
      return false;
  }
}

TUTTI_INLINE void Unpickler::global(const std::string& module, const std::string& name) {
  const std::string whole = module + '.' + name;
  for (const std::string_view known : known_globals) {
    if (whole == known) {
      push({.kind = Kind::global, .text = whole});
      return;
    }
  }
  for (const auto& [type, dtype] : storage_types) {
    if (module == "torch" && name == type) {
      push({.kind = Kind::global, .dtype = dtype, .text = whole});
      return;
    }
  }
  if (module == "torch._utils" && name.starts_with("_rebuild_")) {
    fail("it has a tensor that " + name.substr(0, 64) +
         "() makes: of float8 or unsigned numbers, sparse, nested or quantised; convert it, as by "
         ".to(torch.float32), .to_dense() or .dequantize(), or save float8 as safetensors");
  }
  fail("it names '" + whole.substr(0, 200) +
       "', which is not among what a state dict is made of (OrderedDict, tensors, numbers, texts "
       "and containers of these); save the state dict alone: "
       "torch.save(model.state_dict(), path)");
}

// ("storage", its type, its name, its device, its number of elements)
TUTTI_INLINE void Unpickler::persistent() {
  const PickledValue id = value(pop());
  if (id.kind != Kind::tuple || id.items.size() != 5 || item(id, 0).kind != Kind::text ||
      item(id, 0).text != "storage" || item(id, 1).kind != Kind::global ||
      item(id, 1).dtype == c10::ScalarType::Undefined || item(id, 2).kind != Kind::text) {
    fail("it refers to something outside that is no storage of a tensor");
  }
  const std::uint64_t size = natural(item(id, 4), "a storage's size");
  push({.kind = Kind::storage,
        .dtype = item(id, 1).dtype,
        .integer = static_cast<std::int64_t>(size),
        .items = {id.items[2]}});
}

TUTTI_INLINE void Unpickler::reduce() {
  const PickledValue arguments = value(pop());
  const PickledValue called = value(pop());
  if (called.kind != Kind::global || arguments.kind != Kind::tuple) {
    fail("it calls " + std::string(kind_text(called.kind)));
  }
  const std::string& name = called.text;
  if (name == "collections.OrderedDict" && arguments.items.empty()) {
    push({.kind = Kind::dict});
  } else if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_tensor") {
    stack_.push_back(rebuild_tensor(arguments));
  } else if (name == "torch._utils._rebuild_parameter" && arguments.items.size() == 3 &&
             item(arguments, 0).kind == Kind::tensor) {
    stack_.push_back(arguments.items[0]);
  } else if (name == "torch.Size" && arguments.items.size() == 1 &&
             item(arguments, 0).kind == Kind::tuple) {
    stack_.push_back(arguments.items[0]);
  } else if (name == "_codecs.encode") {
    stack_.push_back(latin1_bytes(arguments));
  } else if (name.ends_with(".bytes") && arguments.items.empty()) {
    push({.kind = Kind::bytes});
  } else {
    fail("it calls '" + name + "' with arguments that torch.save() does not write");
  }
}

// Bytes are a text whose characters are below 256 in the older protocols.
TUTTI_INLINE Unpickler::Place Unpickler::latin1_bytes(const PickledValue& arguments) const {
  if (arguments.items.size() != 2 || item(arguments, 0).kind != Kind::text ||
      item(arguments, 1).text != "latin1") {
    fail("it calls '_codecs.encode' with arguments that Python does not write");
  }
  return arguments.items[0];  // kept as the text that it is written as: nothing here needs bytes
}

TUTTI_INLINE void Unpickler::build() {
  const Kind state = value(pop()).kind;
  const Kind target = value(top()).kind;
  if (target != Kind::dict || state != Kind::dict) {  // the _metadata of a state dict
    fail("it gives " + std::string(kind_text(target)) + " a state of its own");
  }
}

TUTTI_INLINE std::uint64_t Unpickler::natural(const PickledValue& value, const char* what) const {
  if (value.kind != Kind::integer || value.integer < 0) {
    fail(std::string(what) + " is " + std::string(kind_text(value.kind)) +
         ", expected an integer of 0 or more");
  }
  return static_cast<std::uint64_t>(value.integer);
}

TUTTI_INLINE std::vector<std::int64_t> Unpickler::extents(const PickledValue& tuple,
                                                          const char* what) const {
  constexpr std::size_t most = 64;
  if (tuple.kind != Kind::tuple || tuple.items.size() > most) {
    fail(std::string(what) + " of a tensor is no tuple of at most 64 integers");
  }
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < tuple.items.size(); ++i) {
    out.push_back(static_cast<std::int64_t>(natural(item(tuple, i), what)));
  }
  return out;
}

// (storage, offset, shape, strides, requires_grad, hooks, metadata); the older form ends after the
// strides.
TUTTI_INLINE Unpickler::Place Unpickler::rebuild_tensor(const PickledValue& arguments) {
  const std::size_t count = arguments.items.size();
  if (count < 4 || count > 7 || item(arguments, 0).kind != Kind::storage) {
    fail("a tensor has " + std::to_string(count) + " parts, expected 4 to 7 with a storage first");
  }
  if (count == 7 && !item(arguments, 6).items.empty()) {
    fail("a tensor is a conjugated or negated view, which is not read; save its clone()");
  }
  const PickledValue& storage = item(arguments, 0);
  PickledTensor tensor{.storage = storage.items.at(0),
                       .dtype = storage.dtype,
                       .storage_size = static_cast<std::uint64_t>(storage.integer),
                       .offset = natural(item(arguments, 1), "the offset of a tensor"),
                       .shape = extents(item(arguments, 2), "the shape"),
                       .strides = extents(item(arguments, 3), "the strides")};
  extents_ += tensor.shape.size();
  if (extents_ > most_values_) {
    fail("its tensors have more than " + std::to_string(most_values_) +
         " dimensions, too many for its size");
  }
  check_window(tensor);
  out_.tensors.push_back(std::move(tensor));
  return add({.kind = Kind::tensor, .integer = static_cast<std::int64_t>(out_.tensors.size() - 1)});
}

// The tensor's elements have to be inside its storage, and their number below 2^62.
TUTTI_INLINE void Unpickler::check_window(PickledTensor& tensor) const {
  constexpr std::uint64_t limit = std::uint64_t{1} << 58;  // times 16 bytes at most
  if (tensor.shape.size() != tensor.strides.size()) {
    fail("a tensor has a shape of " + std::to_string(tensor.shape.size()) + " dimensions and " +
         std::to_string(tensor.strides.size()) + " strides");
  }
  std::uint64_t elements = 1;
  std::uint64_t last = 0;
  bool empty = false;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const auto extent = static_cast<std::uint64_t>(tensor.shape[i]);
    const auto stride = static_cast<std::uint64_t>(tensor.strides[i]);
    empty = empty || extent == 0;
    const std::uint64_t steps = extent == 0 ? 0 : extent - 1;
    if (extent > limit / elements || (stride != 0 && steps > (limit - last) / stride)) {
      fail("a tensor has more elements than fit any memory");
    }
    elements *= extent == 0 ? 1 : extent;
    last += steps * stride;
  }
  tensor.extent = empty ? 0 : last + 1;
  if (tensor.offset > tensor.storage_size || tensor.extent > tensor.storage_size - tensor.offset) {
    fail("a tensor reaches from element " + std::to_string(tensor.offset) + " over " +
         std::to_string(tensor.extent) + " elements of a storage of " +
         std::to_string(tensor.storage_size));
  }
}

}  // namespace tutti::checkpoint::detail

#endif
