// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <tutti/config.hpp>
#include <tutti/core/detail/init_tape.hpp>
#include <tutti/core/detail/paged_memory.hpp>
#include <tutti/core/detail/set_gradient.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/detail/unit_slot.hpp>
#include <tutti/dist/detail/flat_unit.hpp>
#include <tutti/dist/detail/module_state.hpp>
#include <tutti/dist/detail/rank_groups.hpp>
#include <tutti/dist/detail/sharded_unit.hpp>
#include <tutti/dist/detail/sharding_options.hpp>
#include <tutti/dist/detail/unit_parameters.hpp>
#include <tutti/dist/sharding.hpp>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/nn/module.h>

/// Sharded data-parallel training (ZeRO): each rank keeps a part of the optimizer's state, of
/// gradients and of parameters.

namespace tutti::dist {

/// A module that is sharded over ranks. Its parameters stay the module's own tensors, with their
/// names and sizes; the optimizer gets the shards. The module is called as usual.
///
/// With ShardStage::parameters the memory of parameters that belong to a unit is given back while
/// the unit does not run: read them within summon(). Those outside of units are always there. Units
/// are what is an nn::Unit, and what ShardingOptions::units names.
/// Source: Rajbhandari et al., "ZeRO", SC 2020; PyTorch's `torch.distributed.fsdp.fully_shard`.
class ShardedDataParallel final : public Sharding {
 public:
  /// Checks that all ranks have the same model and options, sends rank 0's parameters and buffers
  /// to all, and shards. Those that nn::deferred_init() has made get their values here, a rank's
  /// part of them, as rank 0 draws them. A collective.
  ///
  /// module: with a parameter that requires a gradient; outlives this. group: of all ranks.
  /// Throws c10::Error on all ranks, saying what differs or does not fit.
  ShardedDataParallel(torch::nn::Module& module, std::shared_ptr<Communicator> group,
                      const ShardingOptions& options);

  /// Lets go of the module. Shards stay where they are: summon(), and copy, what is wanted of
  /// parameters that are not there.
  ~ShardedDataParallel() override;

  void before_forward(bool last) override;
  void before_backward(const at::Tensor& loss) override;
  void after_backward() override;
  void after_step() override;
  void broadcast_buffers() override { group_->broadcast(buffers_, 0); }
  void reset() override;
  [[nodiscard]] bool meets_in_every_pass() const override {
    return options_.stage >= ShardStage::gradients && !options_.reduce_at_end;
  }

  [[nodiscard]] const std::vector<ShardedParameter>& parameters() const override {
    return parameters_;
  }
  [[nodiscard]] at::Tensor shard_of(const at::Tensor& parameter) const override;
  [[nodiscard]] Communicator& shard_group() const override { return *groups_.copy; }
  [[nodiscard]] bool keeps_whole() const override {
    return options_.stage != ShardStage::parameters && !options_.param_dtype &&
           !options_.cpu_offload;
  }
  [[nodiscard]] bool meets_in_forward() const override {
    return options_.stage == ShardStage::parameters;
  }
  [[nodiscard]] std::unique_ptr<Summoned> summon(bool write_back = false) override;
  [[nodiscard]] at::Tensor part_of(const ShardedParameter& like,
                                   const at::Tensor& whole) const override;
  [[nodiscard]] at::Tensor whole_of(const ShardedParameter& like,
                                    const at::Tensor& part) const override;

 private:
  using FlatUnit = detail::FlatUnit;
  class Bracket;
  class AfterUnit;
  class AfterGradient;
  class BeforeUnit;
  struct Place {
    FlatUnit* part;
    std::size_t index;
  };

  ShardedDataParallel(std::shared_ptr<Communicator> group, const ShardingOptions& options);

  void find_units(const std::vector<detail::UnitModule>& modules);
  void shard(const torch::nn::Module& module, const std::vector<detail::UnitModule>& modules,
             const detail::ModuleState& state);
  void watch_parameters();
  void take_values(const std::vector<at::Tensor>& deferred, const std::vector<at::Tensor>& before);
  void check_ranks(const std::string& model) const;
  [[nodiscard]] FlatUnit::How how(bool stays) const;
  [[nodiscard]] bool reduces_in_backward() const {
    return averaging_ && options_.stage >= ShardStage::gradients && !options_.reduce_at_end;
  }
  [[nodiscard]] bool keeps_until_gradients() const { return in_pass_ && kept_among_ == 1; }
  [[nodiscard]] const detail::FlatParameter& flat_of(const ShardedParameter& one,
                                                     const FlatUnit** part) const;
  [[nodiscard]] std::vector<FlatUnit*> parts() const;

  at::Tensor enter(Bracket& bracket, const at::Tensor& x);
  at::Tensor leave(Bracket& bracket, const at::Tensor& y);
  void gradients_arrive(Bracket& bracket);
  void gradients_complete(Bracket& bracket);
  void note_run(Bracket& bracket);
  void make_room(std::size_t together);
  void pass_by();
  void go(detail::ShardedUnit& unit) const;
  void bring(Bracket& bracket, std::size_t together);
  void gradient_added(Bracket& bracket);
  void reduce_in_order(bool all);
  void finish_reducing() {
    if (reducing_ != nullptr) {
      std::exchange(reducing_, nullptr)->reduce();
    }
  }

  std::shared_ptr<Communicator> group_;
  ShardingOptions options_;
  detail::RankGroups groups_;
  int kept_among_ = 0;  // so many keep a unit together between its passes; 0: all
  detail::ShardedUnit root_;
  std::vector<std::unique_ptr<Bracket>> brackets_;
  std::vector<ShardedParameter> parameters_;
  std::unordered_map<const void*, Place> places_;  // by parameter
  std::vector<at::Tensor> buffers_;
  std::vector<Bracket*> order_;   // units whose gradients are still to come, first run first
  std::vector<Bracket*> recent_;  // the last ones that operators brought, latest last; null: others
  Bracket* last_entered_ = nullptr;
  std::size_t to_reduce_ = 0;  // as many units, from the first on, are not reduced yet
  detail::ShardedUnit* reducing_ = nullptr;  // whose reduction goes on
  bool came_again_ = false;                  // gradients did, of a unit that had all of them
  bool overlaps_ = false;                    // reductions go on while gradients are computed
  bool averaging_ = false;
  bool in_pass_ = false;  // one with gradients
  bool in_backward_ = false;
  bool buffers_are_old_ = true;
};

/// Shards `module` over `group`; also in one process, which then has all parts.
///
/// Arguments and errors as in ShardedDataParallel.
std::unique_ptr<Sharding> shard(torch::nn::Module& module, std::shared_ptr<Communicator> group,
                                const ShardingOptions& options);

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/sharded.inl.hpp>
#endif
