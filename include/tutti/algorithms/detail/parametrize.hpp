// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include <tutti/checkpoint/glob.hpp>
#include <tutti/config.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/validate.hpp>
#include <tutti/fwd.hpp>
#include <tutti/nn/conv.hpp>
#include <tutti/nn/linear.hpp>
#include <tutti/nn/surgery.hpp>

// What the algorithms share that give layers another form of their weight.
namespace tutti::detail {

template <class Layer>
struct LayerKind {};

// Which of the layers are meant, by globs of their paths.
class ChosenLayers {
 public:
  explicit ChosenLayers(const Keys& globs) : globs_(globs), used_(16) {}

  bool contains(std::string_view path) {
    bool found = globs_.empty();
    std::size_t i = 0;
    for (const std::string_view glob : globs_) {
      if (checkpoint::glob_matches(glob, path)) {
        found = used_[i] = true;
      }
      ++i;
    }
    return found;
  }

  // Throws c10::Error (ValueError) with the first glob that has matched nothing.
  void check(std::string_view who) const {
    std::size_t i = 0;
    for (const std::string_view glob : globs_) {
      TUTTI_CHECK_VALUE(used_[i++], who, ": layers has \"", glob,
                        "\", which matches no Linear, Conv1d, Conv2d or Conv3d of the model; write "
                        "the path of one as in named_modules(), \"layer1.0.conv1\"");
    }
  }

 private:
  const Keys& globs_;
  std::vector<bool> used_;
};

// Puts `make(LayerKind<Layer>, layer)` in the place of the chosen layers.
// Wrapper: the base of what is put there, which is not wrapped again.
template <class Wrapper, class Make>
surgery::Report parametrize(torch::nn::Module& model, const Keys& layers, surgery::IfNone if_none,
                            const surgery::Options& how, Make&& make) {
  ChosenLayers chosen(layers);
  surgery::for_each<torch::nn::Module>(
      model, [&](torch::nn::Module& module, const surgery::Visit& where) {
        const auto is = [&]<class... Kinds>(types<Kinds...>) {
          return (... || (dynamic_cast<typename Kinds::Impl::Plain*>(&module) != nullptr));
        };
        if (is(types<nn::Linear, nn::Conv1d, nn::Conv2d, nn::Conv3d>{}) ||
            dynamic_cast<Wrapper*>(&module) != nullptr) {
          static_cast<void>(chosen.contains(where.path));
        }
      });
  chosen.check(how.who);
  surgery::Report report;
  const auto one = [&]<class Layer>(LayerKind<Layer> kind) {
    using Plain = typename Layer::Impl::Plain;
    auto wrapped = [&](Plain& layer, const surgery::Visit& where) -> surgery::Replacement {
      if (!chosen.contains(where.path)) {
        return surgery::Replacement::keep("not in the option layers");
      }
      return make(kind, layer);
    };
    report.add(surgery::replace<Layer>(model, wrapped, how));
  };
  one(LayerKind<nn::Linear>{});
  one(LayerKind<nn::Conv1d>{});
  one(LayerKind<nn::Conv2d>{});
  one(LayerKind<nn::Conv3d>{});
  if (report.replaced.empty()) {
    surgery::for_each<Wrapper>(model, [&](Wrapper&, const surgery::Visit& where) {
      report.kept.push_back({where.path, "has it already"});
    });
    surgery::report_none(if_none, "Linear, Conv1d, 2d or 3d", how.who, report.kept);
  }
  return report;
}

}  // namespace tutti::detail
