// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include <tutti/config.hpp>

namespace tutti::checkpoint::detail {

/// A tensor as a pickle of torch.save() describes it: a window of a storage, which is a file beside
/// the pickle.
struct PickledTensor {
  std::uint32_t storage = 0;  ///< the place of the storage's name
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::uint64_t storage_size = 0;  ///< elements
  std::uint64_t offset = 0;        ///< of the first element, in elements
  std::vector<std::int64_t> shape{};
  std::vector<std::int64_t> strides{};
  std::uint64_t extent = 0;  ///< elements from the first to the last one; 0: it has none
};

/// One value of a pickle. Values stand in a list and name one another by their places there, so
/// that a value that occurs often is kept once, and nothing walks through them by recursion.
struct PickledValue {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    number,
    text,
    bytes,
    tuple,
    list,
    dict,     // keys and values in turn
    global,   // a class or function that is known; never called
    storage,  // a tensor's memory: type, name and size
    tensor,
  };

  Kind kind = Kind::none;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of a storage
  std::int64_t integer = 0;  // also a bool, a storage's size, a tensor's place
  double number = 0;
  std::string text{};                  // also bytes, a global's name
  std::vector<std::uint32_t> items{};  // of a storage the place of its name
};

/// What a pickle holds.
struct Pickle {
  std::deque<PickledValue> values{};  // which grows without a copy
  std::vector<PickledTensor> tensors{};
  std::uint32_t root = 0;

  [[nodiscard]] const PickledValue& operator[](std::uint32_t place) const { return values[place]; }
};

/// "a tensor", "a dict", ... for messages.
std::string_view kind_text(PickledValue::Kind kind);

}  // namespace tutti::checkpoint::detail

#if TUTTI_BODIES

namespace tutti::checkpoint::detail {

TUTTI_INLINE std::string_view kind_text(PickledValue::Kind kind) {
  constexpr std::string_view texts[] = {
      "None",   "a bool", "an integer",          "a number",  "a text",  "bytes", "a tuple",
      "a list", "a dict", "a class or function", "a storage", "a tensor"};
  return texts[static_cast<std::size_t>(kind)];
}

}  // namespace tutti::checkpoint::detail

#endif
