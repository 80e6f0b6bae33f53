// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <tutti/config.hpp>

#include <torch/nn/module.h>

/// Walking a model with the parents and names of its modules.
namespace tutti::surgery {

/// One registration of a module: `parent` has it as its child `name`.
struct Site {
  torch::nn::Module* parent = nullptr;
  std::string name;  ///< the child's own name, "conv1"
};

/// One distinct module of a model, below the root.
struct Visit {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<Site> sites;                    ///< every registration; the first one found first
  std::string path;                           ///< name from the root, "layer1.0.conv1"
  std::vector<torch::nn::Module*> ancestors;  ///< on that path: root first, direct parent last
  std::int64_t index = 0;                     ///< how many of the searched type came before it

  /// One of its ancestors is an `M`.
  template <class M>
  [[nodiscard]] bool inside() const {
    for (torch::nn::Module* ancestor : ancestors) {
      if (dynamic_cast<M*>(ancestor) != nullptr) {
        return true;
      }
    }
    return false;
  }
};

namespace detail {

class Walker {
 public:
  void descend(torch::nn::Module& parent, const std::string& prefix) {
    ancestors_.push_back(&parent);
    for (const auto& child : parent.named_children()) {
      if (child.value() == nullptr) {
        continue;
      }
      if (!seen_.insert(child.value().get()).second) {
        visit_of(child.value()).sites.push_back({&parent, child.key()});
        continue;
      }
      const std::string path = prefix.empty() ? child.key() : prefix + "." + child.key();
      visits_.push_back({child.value(), {{&parent, child.key()}}, path, ancestors_, 0});
      descend(*child.value(), path);
    }
    ancestors_.pop_back();
  }

  std::vector<Visit> take() && { return std::move(visits_); }

 private:
  Visit& visit_of(const std::shared_ptr<torch::nn::Module>& module) {
    std::size_t i = 0;
    while (visits_[i].module != module) {
      ++i;
    }
    return visits_[i];
  }

  std::vector<Visit> visits_;
  std::vector<torch::nn::Module*> ancestors_;
  std::unordered_set<const void*> seen_;
};

template <class M>
struct Contained {
  using type = M;
};
template <class M>
  requires requires { typename M::ContainedType; }
struct Contained<M> {
  using type = typename M::ContainedType;
};

}  // namespace detail

/// The modules below `root`, depth first, parents before children; a module that is registered
/// several times appears once, with all its sites.
inline std::vector<Visit> walk(torch::nn::Module& root) {
  detail::Walker walker;
  walker.descend(root, "");
  return std::move(walker).take();
}

/// Calls `visit(module, where)` for every distinct `M` below `root`, in the order of walk().
///
/// M: a module, a holder of one (torch::nn::Linear) or any interface that modules implement.
/// Returns how many there were.
template <class M, class F>
  requires std::invocable<F&, typename detail::Contained<M>::type&, const Visit&>
std::int64_t for_each(torch::nn::Module& root, F&& visit) {
  std::int64_t index = 0;
  for (Visit& where : walk(root)) {
    auto* module = dynamic_cast<typename detail::Contained<M>::type*>(where.module.get());
    if (module != nullptr) {
      where.index = index++;
      visit(*module, std::as_const(where));
    }
  }
  return index;
}

/// How many distinct `M` there are below `root`; derived classes count.
///
/// count<torch::nn::Conv2d> counts plain and replaceable convolutions, count<tutti::nn::Conv2d>
/// only those that surgery can replace anywhere.
template <class M>
std::int64_t count(torch::nn::Module& root) {
  return for_each<M>(root, [](auto&, const Visit&) {});
}

}  // namespace tutti::surgery
