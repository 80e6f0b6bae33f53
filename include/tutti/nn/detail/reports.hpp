// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

/// What surgery says about layers that it did not replace.
namespace tutti::surgery {

/// What a surgery does when it replaced nothing.
enum class IfNone {
  ignore,  ///< nothing; the report says so
  warn,    ///< a warning
  error,   ///< c10::Error
};

/// A layer that a surgery passed over.
struct Kept {
  std::string path;  ///< "layer1.0.conv1"
  std::string why;   ///< the reason as a word or two: "stride 1", "blurred already"
};

namespace detail {

/// "torch::nn::Conv2d" for torch::nn::Conv2dImpl.
std::string layer_name(const std::type_info& type);

/// Names up to `most` paths: "conv1, conv2 and 7 more".
std::string listed(const std::vector<std::string>& paths, std::size_t most = 4);

/// "tutti::nn::Conv2d" for "torch::nn::Conv2d": what to declare instead.
std::string replaceable_name(const std::string& layer);

/// "a, b (stride 1); c (blurred already)": layers with the same reason together.
std::string listed_with_reasons(const std::vector<Kept>& kept);

/// Says which layers could not be replaced and what to change.
void warn_skipped(const std::vector<std::string>& skipped, const std::string& layer,
                  std::string_view who);

}  // namespace detail

/// Warns or throws c10::Error as `if_none` says; called when a surgery replaced nothing.
///
/// what: the layers that were looked for, "strided Conv2d". who: the surgery, "BlurPool". kept: the
/// layers of that kind that the model has, each with the reason why it stays.
void report_none(IfNone if_none, std::string_view what, std::string_view who,
                 const std::vector<Kept>& kept = {});

}  // namespace tutti::surgery

#if TUTTI_BODIES

namespace tutti::surgery::detail {

TUTTI_INLINE std::string layer_name(const std::type_info& type) {
  std::string name = c10::demangle(type.name());
  if (name.ends_with("Impl")) {
    name.resize(name.size() - 4);
  }
  return name;
}

TUTTI_INLINE std::string listed(const std::vector<std::string>& paths, std::size_t most) {
  std::ostringstream text;
  for (std::size_t i = 0; i < paths.size() && i < most; ++i) {
    text << (i == 0 ? "" : ", ") << paths[i];
  }
  if (paths.size() > most) {
    text << " and " << paths.size() - most << " more";
  }
  return text.str();
}

TUTTI_INLINE std::string replaceable_name(const std::string& layer) {
  const std::string_view plain = "torch::nn::";
  return layer.starts_with(plain) ? "tutti::nn::" + layer.substr(plain.size())
                                  : "tutti::nn::Replaceable";
}

TUTTI_INLINE std::string listed_with_reasons(const std::vector<Kept>& kept) {
  std::vector<std::string> reasons;
  for (const Kept& layer : kept) {
    if (std::find(reasons.begin(), reasons.end(), layer.why) == reasons.end()) {
      reasons.push_back(layer.why);
    }
  }
  std::string text;
  for (const std::string& why : reasons) {
    std::vector<std::string> paths;
    for (const Kept& layer : kept) {
      if (layer.why == why) {
        paths.push_back(layer.path);
      }
    }
    text += (text.empty() ? "" : "; ") + listed(paths) + " (" + why + ")";
  }
  return text;
}

TUTTI_INLINE void warn_skipped(const std::vector<std::string>& skipped, const std::string& layer,
                               std::string_view who) {
  if (skipped.empty()) {
    return;
  }
  TORCH_WARN(who, ": ", skipped.size(), " of the ", layer, " layers could not be replaced (",
             listed(skipped), "), because their parents call them directly; declare them as ",
             replaceable_name(layer),
             " (same options, same parameter names; classes of your own derive from its Impl), or "
             "put them into a Sequential.");
}

}  // namespace tutti::surgery::detail

namespace tutti::surgery {

TUTTI_INLINE void report_none(IfNone if_none, std::string_view what, std::string_view who,
                              const std::vector<Kept>& kept) {
  const std::string why = kept.empty() ? "the model has none below its root"
                                       : "it passed over " + detail::listed_with_reasons(kept);
  TUTTI_CHECK(if_none != IfNone::error, who, ": no ", what, " was replaced: ", why, ".");
  if (if_none == IfNone::warn) {
    TORCH_WARN(who, ": no ", what, " was replaced, so it has no effect on this model: ", why, ".");
  }
}

}  // namespace tutti::surgery

#endif
