#pragma once

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

namespace detail {

/// "torch::nn::Conv2d" for torch::nn::Conv2dImpl.
std::string layer_name(const std::type_info& type);

/// Names up to `most` paths: "conv1, conv2 and 7 more".
std::string listed(const std::vector<std::string>& paths, std::size_t most = 4);

/// Says which layers could not be replaced and what to change.
void warn_skipped(const std::vector<std::string>& skipped, const std::string& layer,
                  std::string_view who);

}  // namespace detail

/// Warns or throws c10::Error as `if_none` says; called when a surgery replaced nothing.
///
/// what: the layers that were looked for, "strided Conv2d". who: the surgery, "BlurPool".
void report_none(IfNone if_none, std::string_view what, std::string_view who);

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

TUTTI_INLINE void warn_skipped(const std::vector<std::string>& skipped, const std::string& layer,
                               std::string_view who) {
  if (skipped.empty()) {
    return;
  }
  const std::string_view plain = "torch::nn::";
  const std::string ours = layer.starts_with(plain) ? "tutti::nn::" + layer.substr(plain.size())
                                                    : "tutti::nn::Replaceable";
  TORCH_WARN(who, ": ", skipped.size(), " of the ", layer, " layers could not be replaced (",
             listed(skipped), "), because their parents call them directly; declare them as ", ours,
             " (same options, same parameter names; classes of your own derive from its Impl), or "
             "put them into a Sequential.");
}

}  // namespace tutti::surgery::detail

namespace tutti::surgery {

TUTTI_INLINE void report_none(IfNone if_none, std::string_view what, std::string_view who) {
  TUTTI_CHECK(if_none != IfNone::error, who, ": no ", what,
              " was replaced; check its options and that the model has such layers.");
  if (if_none == IfNone::warn) {
    TORCH_WARN(who, ": no ", what, " was replaced, so it has no effect on this model.");
  }
}

}  // namespace tutti::surgery

#endif
