// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <tutti/config.hpp>
#include <tutti/core/autocast.hpp>
#include <tutti/core/detail/throw.hpp>
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

/// Throws c10::ValueError when a size is less than training needs.
void check_training(const std::map<std::string, SizeRange>& symbols,
                    const std::vector<KnownSize>& known);

/// Throws c10::IndexError when an input on the CPU has numbers beyond the rows of the table that is
/// read with them.
void check_rows(const ExportedTensor& wanted, const at::Tensor& input);

/// Throws c10::Error when a weight has another type, size, order of memory or device than it was
/// exported with.
void check_weight(const ExportedTensor& wanted, const at::Tensor& now, at::Device device);

/// Throws c10::Error when the caller's precision is not the one of the export, fp32 or amp_bf16.
void check_precision(const std::string& exported, at::Device device, const std::string& folder);

/// Whether a program that trains with targets of one class each may be given these.
bool takes_targets(const ExportedTensor& wanted, const at::Tensor& targets, at::Device device,
                   const std::map<std::string, SizeRange>& symbols, std::vector<KnownSize>& known);

/// Each tensor in the order of its dimensions; a copy where it is in another.
std::vector<at::Tensor> contiguous(const std::vector<at::Tensor>& tensors);

}  // namespace tutti::models::detail

#if TUTTI_BODIES

#include <ATen/ops/aminmax.h>
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

TUTTI_INLINE void check_training(const std::map<std::string, SizeRange>& symbols,
                                 const std::vector<KnownSize>& known) {
  for (const auto& [symbol, size] : known) {
    const std::int64_t least = symbols.at(*symbol).least_in_training;
    TUTTI_CHECK_VALUE(size >= least, "CompiledNet: ", *symbol, " is ", size,
                      " in training, where batch normalisation needs ", least,
                      " or more to have more than one value per channel; set drop_last in the "
                      "loader where it is the last batch, or larger microbatches");
  }
}

TUTTI_INLINE void check_rows(const ExportedTensor& wanted, const at::Tensor& input) {
  if (wanted.below < 0 || !input.is_cpu() || input.numel() == 0) {  // a GPU would be waited for
    return;
  }
  const auto [least, most] = at::aminmax(input);
  TUTTI_CHECK_INDEX(least.item<std::int64_t>() >= 0 && most.item<std::int64_t>() < wanted.below,
                    "CompiledNet: the input ", wanted.name, " has values from ",
                    least.item<std::int64_t>(), " to ", most.item<std::int64_t>(),
                    ", and the model reads a table of ", wanted.below,
                    " rows with them; give it 0 to ", wanted.below - 1);
}

TUTTI_INLINE void check_weight(const ExportedTensor& wanted, const at::Tensor& now,
                               at::Device device) {
  TUTTI_CHECK(now.defined() && same_sizes(wanted, now) && now.is_contiguous(),
              "CompiledNet: ", wanted.name, " is ",
              now.defined() ? text_of(now) : std::string("undefined"),
              now.defined() && !now.is_contiguous() ? " in another order of memory" : "",
              ", and this model was exported with ", text_of(wanted),
              ", contiguous; take out what changes the weights' types, sizes or memory order "
              "(ChannelsLast, module.to(type))");
  TUTTI_CHECK(now.device() == device, "CompiledNet: ", wanted.name, " is on ", now.device().str(),
              " and the first parameter on ", device.str(), "; move the whole network");
}

TUTTI_INLINE void check_precision(const std::string& exported, at::Device device,
                                  const std::string& folder) {
  const bool is_on = at::autocast::is_autocast_enabled(device.type());
  const bool is_bf16 = is_on && at::autocast::get_autocast_dtype(device.type()) == at::kBFloat16;
  const char* const now = !is_on ? "fp32" : is_bf16 ? "amp_bf16" : "amp_fp16";
  TUTTI_CHECK(exported == now, "CompiledNet: the precision is ", now, ", and '", folder,
              "' was exported in ", exported, ", which decides; set .precision to ", exported,
              exported == "fp32" ? "" : " (in a loop of your own, hold a tutti::Autocast)",
              ", or export the model with --precision ", is_bf16 || !is_on ? now : "amp_bf16");
}

TUTTI_INLINE bool takes_targets(const ExportedTensor& wanted, const at::Tensor& targets,
                                at::Device device, const std::map<std::string, SizeRange>& symbols,
                                std::vector<KnownSize>& known) {
  if (!targets.defined() || !targets.is_cpu() || targets.requires_grad() ||
      !cure_of(wanted, targets, device, symbols, known).empty()) {
    return false;
  }
  const at::Tensor plain = targets.contiguous();
  const std::span<const std::int64_t> all(plain.const_data_ptr<std::int64_t>(),
                                          static_cast<std::size_t>(plain.numel()));
  return std::all_of(all.begin(), all.end(), [&](std::int64_t target) {
    return (target >= 0 && target < wanted.below) || target == -100;
  });
}

TUTTI_INLINE std::vector<at::Tensor> contiguous(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  out.reserve(tensors.size() + 1);  // one for targets
  for (const at::Tensor& tensor : tensors) {
    out.push_back(tensor.contiguous());
  }
  return out;
}

}  // namespace tutti::models::detail

#endif
