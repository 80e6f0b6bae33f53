// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/models/detail/compiled_package.hpp>

/// What a model was exported for, against what it gets.
namespace tutti::models::detail {

/// "float32 [batch, 3, 32, 32]", with symbols where any size will do.
std::string text_of(const ExportedTensor& tensor);

/// "float32 [8, 3, 32, 32]", and the layout of a tensor that is not dense.
std::string text_of(const at::Tensor& tensor);

/// Whether a weight has the type and the sizes that it was exported with.
bool same_sizes(const ExportedTensor& wanted, const at::Tensor& tensor);

/// A symbol and the size that an input before has given it.
using KnownSize = std::pair<const std::string*, std::int64_t>;

/// What to do so that the input is what was exported; empty: it is. known: the sizes of the inputs
/// before, to which this one's are added.
std::string cure_of(const ExportedTensor& wanted, const at::Tensor& input, at::Device device,
                    const std::map<std::string, SizeRange>& symbols, std::vector<KnownSize>& known);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <c10/core/Layout.h>
#include <c10/util/StringUtil.h>

namespace tutti::models::detail {

TUTTI_INLINE std::string text_of(const ExportedTensor& tensor) {
  std::string out = std::string(name_of(tensor.dtype)) + " [";
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    out += (i == 0 ? "" : ", ") +
           (tensor.sizes[i] < 0 ? tensor.symbols[i] : std::to_string(tensor.sizes[i]));
  }
  return out + "]";
}

TUTTI_INLINE std::string text_of(const at::Tensor& tensor) {
  std::string out = c10::str(name_of(tensor.scalar_type()), " ", tensor.sizes());
  return tensor.layout() == at::kStrided ? out : out + c10::str(" in the layout ", tensor.layout());
}

TUTTI_INLINE bool same_sizes(const ExportedTensor& wanted, const at::Tensor& tensor) {
  return tensor.scalar_type() == wanted.dtype && tensor.layout() == at::kStrided &&
         tensor.sizes() == at::IntArrayRef(wanted.sizes);
}

TUTTI_INLINE std::string cure_of(const ExportedTensor& wanted, const at::Tensor& input,
                                 at::Device device, const std::map<std::string, SizeRange>& symbols,
                                 std::vector<KnownSize>& known) {
  if (input.scalar_type() != wanted.dtype) {
    return "convert it";
  }
  if (input.device() != device) {
    return "move it";
  }
  if (input.layout() != at::kStrided) {
    return "make it dense with to_dense()";
  }
  if (input.dim() != static_cast<std::int64_t>(wanted.sizes.size())) {
    return "give it that many dimensions";
  }
  for (std::size_t d = 0; d < wanted.sizes.size(); ++d) {
    const std::int64_t size = input.size(static_cast<std::int64_t>(d));
    if (wanted.sizes[d] >= 0 && wanted.sizes[d] != size) {
      return "export it with that dimension dynamic, or set drop_last in the loader where it is "
             "the last batch";
    }
    if (wanted.sizes[d] >= 0) {
      continue;
    }
    const std::string& symbol = wanted.symbols[d];
    const SizeRange& range = symbols.at(symbol);
    if (size < range.least || (range.most >= 0 && size > range.most) ||
        (size - range.least) % range.step != 0) {
      return c10::str(symbol, " may be ", range.least, range.most < 0 ? " or more" : " to ",
                      range.most < 0 ? std::string() : std::to_string(range.most),
                      range.step == 1 ? std::string() : c10::str(" in steps of ", range.step),
                      "; export it with another --largest or --sizes");
    }
    for (const auto& [name, before] : known) {
      if (*name == symbol && before != size) {
        return c10::str(symbol, " is ", before, " in an input before it; give both the same size");
      }
    }
    known.emplace_back(&symbol, size);
  }
  return "";
}

}  // namespace tutti::models::detail

#endif
