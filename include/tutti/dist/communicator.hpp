// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tutti/config.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/dist/environment.hpp>
#include <tutti/fwd.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

/// What ranks say to each other, as an interface that costs no more than the tensor header.
/// `dist/process_group.hpp` implements it with c10d; one process needs only this file.

namespace tutti::dist {

/// How values of several ranks become one. `mean` is for floating values only.
enum class ReduceOp { sum, mean, product, minimum, maximum, bit_and, bit_or, bit_xor };

/// A group of ranks that call the same functions in the same order.
///
/// Every function is a collective: all ranks call it or all wait until the group's timeout.
/// Throws c10::Error, naming the call and the rank, when another rank is gone or does not answer.
class Communicator {
 public:
  explicit Communicator(Environment environment) : environment_(std::move(environment)) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Environment& environment() const noexcept { return environment_; }
  int rank() const noexcept { return environment_.rank; }
  int size() const noexcept { return environment_.world_size; }
  bool is_rank_zero() const noexcept { return environment_.rank == 0; }

  /// Who carries the messages: "none", "gloo" or "nccl".
  virtual std::string backend() const = 0;

  /// Replaces `tensor`, on every rank, by the reduction of all ranks' tensors.
  ///
  /// tensor: any shape, the same on every rank; strided. Gradients are not recorded.
  virtual void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) = 0;

  /// The same for host numbers, all of them in one message.
  virtual void all_reduce(std::span<double> values, ReduceOp op = ReduceOp::sum) = 0;
  virtual void all_reduce(std::span<std::int64_t> values, ReduceOp op = ReduceOp::sum) = 0;

  /// Replaces `tensor` by that of rank `source`. tensor: the same shape and dtype on every rank.
  virtual void broadcast(const at::Tensor& tensor, int source = 0) = 0;

  /// The same for many tensors in few messages; they are copied through buffers of 250 MiB.
  virtual void broadcast(const std::vector<at::Tensor>& tensors, int source = 0) = 0;

  /// Returns every rank's tensor in rank order. tensor: the same shape and dtype on every rank.
  virtual std::vector<at::Tensor> all_gather(const at::Tensor& tensor) = 0;

  /// Fills `output` with every rank's `input` in rank order.
  ///
  /// input: n elements, the same n and dtype on every rank. output: n * size() elements, and no
  /// memory of input's. Both contiguous.
  /// Throws c10::Error when the sizes, the dtypes or the layouts do not fit.
  void all_gather_into(const at::Tensor& output, const at::Tensor& input) {
    start_all_gather_into(output, input)();
  }

  /// Begins the same. Returns what waits for its end, to be called once; until then neither tensor
  /// may be touched.
  [[nodiscard]] virtual std::function<void()> start_all_gather_into(const at::Tensor& output,
                                                                    const at::Tensor& input);

  /// Fills `output` with this rank's part of the sum of all ranks' `input`, added in rank order.
  ///
  /// input: n * size() elements, part r for rank r. output: n elements of the same dtype. Both
  /// contiguous. Throws as all_gather_into().
  void reduce_scatter_into(const at::Tensor& output, const at::Tensor& input) {
    start_reduce_scatter_into(output, input)();
  }

  /// Begins the same, as start_all_gather_into().
  [[nodiscard]] virtual std::function<void()> start_reduce_scatter_into(const at::Tensor& output,
                                                                        const at::Tensor& input);

  /// Gives part r of `input` to rank r, and fills part r of `output` with what rank r gives here.
  ///
  /// Both: size() parts of the same number of elements, contiguous, of one dtype, and no memory of
  /// each other's. Throws as all_gather_into().
  virtual void all_to_all_into(const at::Tensor& output, const at::Tensor& input);

  /// Whether start_exchange() can be called: ranks of Gloo can, and a process alone.
  [[nodiscard]] virtual bool exchanges() const { return false; }

  /// Memory that goes to a rank or comes from it.
  struct Piece {
    at::Tensor memory;  ///< contiguous
    int rank = 0;
  };

  /// Begins to send all of `sent` and to fill all of `received`; between two ranks the first that
  /// one sends is the first that the other receives, of the same size, and so on.
  ///
  /// call: what a failure is told of, it must outlive the exchange. Returns what waits for the end,
  /// as start_all_gather_into(). Throws c10::Error when exchanges() is false.
  [[nodiscard]] virtual std::function<void()> start_exchange(const char* call,
                                                             std::vector<Piece> sent,
                                                             std::vector<Piece> received);

  /// Makes a group of some of this group's ranks; a collective of those ranks.
  ///
  /// ranks: of this group, ascending, the same on each of them; with this rank.
  /// Throws c10::Error when they are not, or the backend cannot.
  [[nodiscard]] virtual std::shared_ptr<Communicator> subgroup(const std::vector<int>& ranks);

  /// Returns rank `source`'s bytes; what other ranks pass is ignored.
  virtual std::string broadcast_bytes(const std::string& bytes, int source = 0) = 0;

  /// Returns every rank's bytes in rank order; lengths may differ.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes) = 0;

  /// Returns on every rank only after all have called it.
  virtual void barrier() = 0;

  /// Reduces one host number and returns the result.
  template <class T>
    requires std::integral<T> || std::floating_point<T>
  T all_reduce_value(T value, ReduceOp op = ReduceOp::sum) {
    if constexpr (std::floating_point<T>) {
      double wide = value;
      all_reduce(std::span<double>(&wide, 1), op);
      return static_cast<T>(wide);
    } else {
      auto wide = static_cast<std::int64_t>(value);
      all_reduce(std::span<std::int64_t>(&wide, 1), op);
      return static_cast<T>(wide);
    }
  }

 protected:
  /// Refuses tensors that do not fit together: `whole` has size() times as much as `part`.
  void check_parts(const char* call, const at::Tensor& whole, const at::Tensor& part) const;

  /// Refuses tensors that are no size() parts each, of one size and type.
  void check_exchange(const at::Tensor& output, const at::Tensor& input) const;

  /// Refuses ranks that make no group with this one.
  void check_ranks(const std::vector<int>& ranks) const;

 private:
  Environment environment_;
};

/// One process alone: reductions and broadcasts do nothing, gathers return one element.
class SingleProcess final : public Communicator {
 public:
  ~SingleProcess() override;
  SingleProcess() : Communicator(Environment{}) {}

  std::string backend() const override { return "none"; }
  bool exchanges() const override { return true; }
  void all_reduce(const at::Tensor&, ReduceOp) override {}
  void all_reduce(std::span<double>, ReduceOp) override {}
  void all_reduce(std::span<std::int64_t>, ReduceOp) override {}
  void broadcast(const at::Tensor&, int) override {}
  void broadcast(const std::vector<at::Tensor>&, int) override {}
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override { return {tensor}; }
  std::string broadcast_bytes(const std::string& bytes, int) override { return bytes; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override { return {bytes}; }
  void barrier() override {}
};

namespace detail {

inline std::shared_ptr<Communicator>& default_slot() {
  static std::shared_ptr<Communicator> slot;
  return slot;
}

}  // namespace detail

/// Whether `dist::initialize` has made the default group of this process.
inline bool is_initialized() {
  return detail::default_slot() != nullptr;
}

/// The default group.
///
/// Returns the group made by `dist::initialize`; before that, in a run of one process, a
/// SingleProcess, so that code which calls collectives runs unchanged on one process.
/// Throws c10::Error when the environment speaks of several ranks and no group exists yet.
inline std::shared_ptr<Communicator> default_group() {
  if (is_initialized()) {
    return detail::default_slot();
  }
  const Environment environment = Environment::read();
  TUTTI_CHECK(environment.world_size == 1, "tutti::dist: this is ", environment.describe(),
              " by its environment (", environment.source,
              "), but no process group exists; call tutti::dist::initialize(device) of "
              "<tutti/dist/process_group.hpp> first, or construct the Trainer, which does");
  return ::tutti::detail::make<SingleProcess>();
}

/// The place of this process: the default group's, else what the environment says.
inline Environment here() {
  return is_initialized() ? detail::default_slot()->environment() : Environment::read();
}

/// The number of this process among all, from 0 on: here().rank.
inline int rank() {
  return here().rank;
}
/// How many processes there are: here().world_size.
inline int world_size() {
  return here().world_size;
}
/// The number of this process among those of its machine: here().local_rank.
inline int local_rank() {
  return here().local_rank;
}
/// How many processes this machine has: here().local_world_size.
inline int local_world_size() {
  return here().local_world_size;
}
/// The number of this machine: here().node_rank.
inline int node_rank() {
  return here().node_rank;
}

}  // namespace tutti::dist

#if TUTTI_BODIES
#include <tutti/dist/communicator.inl.hpp>
#endif
