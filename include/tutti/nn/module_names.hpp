// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/detail/pattern.hpp>

/// Choosing modules of a model by their names.
namespace tutti::surgery {

/// Names of modules, or one regular expression.
///
///     ModuleNames some = {"q_proj", "v_proj"};          // names, or ends of names behind a dot
///     ModuleNames some = ".*\\.[0-3]\\.mlp\\..*_proj";  // an expression for the whole name
///
/// Names are paths from the root, "model.layers.0.mlp". The expression is one of Python's `re`.
/// Source: PEFT, `peft.tuners.tuners_utils.check_target_module_exists`.
class ModuleNames {
 public:
  ModuleNames() = default;
  ModuleNames(std::initializer_list<std::string> names) : names_(names) {}
  ModuleNames(std::vector<std::string> names) : names_(std::move(names)) {}

  /// Throws c10::Error (ValueError) for an expression that is wrong or has what is not known.
  ModuleNames(std::string expression)
      : names_{std::move(expression)},
        expression_(std::make_shared<const ::tutti::detail::Pattern>(names_.front())) {}
  ModuleNames(const char* expression) : ModuleNames(std::string(expression)) {}

  /// It is an expression.
  [[nodiscard]] bool is_expression() const { return expression_ != nullptr; }

  /// The names, or the expression alone.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] auto begin() const { return names_.begin(); }
  [[nodiscard]] auto end() const { return names_.end(); }
  [[nodiscard]] bool empty() const { return names_.empty(); }

  /// The name of a module is one of these: it, or its end behind a dot, is in the list, or the
  /// expression matches the whole of it.
  [[nodiscard]] bool contains(std::string_view module) const {
    if (expression_ != nullptr) {
      return expression_->matches(module);
    }
    return std::any_of(names_.begin(), names_.end(), [&](const std::string& name) {
      return module == name || ends_with(module, name);
    });
  }

  /// The whole name of a module is in the list.
  [[nodiscard]] bool lists(std::string_view module) const {
    return !is_expression() && std::find(names_.begin(), names_.end(), module) != names_.end();
  }

  /// The same names, or the same expression.
  friend bool operator==(const ModuleNames& a, const ModuleNames& b) {
    return a.names_ == b.names_ && a.is_expression() == b.is_expression();
  }

 private:
  static bool ends_with(std::string_view module, std::string_view name) {
    return module.size() > name.size() && module.ends_with(name) &&
           module[module.size() - name.size() - 1] == '.';
  }

  std::vector<std::string> names_;
  std::shared_ptr<const ::tutti::detail::Pattern> expression_;
};

}  // namespace tutti::surgery
