// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/core/batch.hpp>
#include <tutti/core/detail/constants.hpp>
#include <tutti/core/detail/make.hpp>
#include <tutti/core/detail/pass.hpp>
#include <tutti/core/detail/throw.hpp>
#include <tutti/core/policy.hpp>
#include <tutti/data/detail/to_batch.hpp>
#include <tutti/fwd.hpp>

namespace tutti {

/// `L` gives batches epoch by epoch: `l.start(epoch, first_batch)` begins, `l.next()` gives a batch
/// or nothing at the end.
///
/// Optional: `size()` (batches per epoch on this rank, -1 unknown), `batch_size()` (examples per
/// full batch, 0 unknown), `dataset_size()` (examples of all ranks, -1 unknown), `repeated()`
/// (examples of the last batch given that other ranks or this one have seen before, to make all
/// ranks equally long), `shard(rank, world_size)` (deals the examples to ranks),
/// `follow_seed(seed)` (takes the run's seed, the same on every rank, if it has none of its own),
/// `set_batch_size(n)` (makes batches of another size, with which a run goes on with other ranks),
/// `set_global_batch_size(n)` (makes batches of n examples of all ranks, which need not divide n)
/// with `global_batch_size()` (that number), `transforms()` (the data::Transforms that it applies
/// to every image, for policies to add to).
template <class L>
concept Loader = requires(L& loader, std::int64_t n) {
  loader.start(n, n);
  { loader.next() } -> std::convertible_to<std::optional<Batch>>;
};

namespace detail {

template <class R>
concept GivesBatches = requires(R& range) {
  std::begin(range) != std::end(range);
  ++std::declval<decltype(std::begin(range))&>();
  { *std::begin(range) } -> BatchLike;
};

template <class R>
concept SaysRestartable = requires { requires R::restartable::value; };

template <class R>
concept TorchDataLoader = requires { typename R::BatchRequestType; };

template <class R>
concept Restarts = std::forward_iterator<decltype(std::begin(std::declval<R&>()))> ||
                   SaysRestartable<R> || TorchDataLoader<R>;

}  // namespace detail

/// `R` can be gone through again and again: its begin() makes a new pass over things that convert
/// to Batch. Forward ranges do; others say so with `using restartable = std::true_type`;
/// torch::data's loaders are recognised.
template <class R>
concept RestartableRange = detail::GivesBatches<R> && detail::Restarts<R>;

namespace detail {

template <class R>
inline constexpr bool begins_anew = RestartableRange<R>;  // no tour of the concepts in messages

template <class R>
concept AnyRange = requires(R& range) {
  std::begin(range);
  std::end(range);
};

// A restartable range as a Loader.
template <class R>
class RangeLoader {
 public:
  explicit RangeLoader(std::shared_ptr<R> range) : range_(std::move(range)) {}

  void start(std::int64_t epoch, std::int64_t first_batch) {
    finish_pass();
    if constexpr (requires { range_->set_epoch(epoch); }) {
      range_->set_epoch(epoch);
    }
    Pass pass{.epoch = epoch, .seed = seed_};
    const InPass in_pass(pass);  // for steps of tutti::views inside the range
    position_.emplace(std::begin(*range_));
    end_.emplace(std::end(*range_));
    for (std::int64_t i = 1; i < first_batch && *position_ != *end_; ++i) {
      ++*position_;
    }
    fresh_ = first_batch == 0;  // else next() moves on from the last one that is skipped
  }

  std::optional<Batch> next() {
    if (!position_ || *position_ == *end_) {
      return std::nullopt;
    }
    if (!std::exchange(fresh_, false)) {  // moves on only when asked: the next may be costly
      ++*position_;
      if (*position_ == *end_) {
        return std::nullopt;
      }
    }
    return to_batch(**position_);
  }

  void follow_seed(std::uint64_t seed) {
    seed_ = seed;
    if constexpr (requires { range_->follow_seed(seed); }) {
      range_->follow_seed(seed);
    }
  }

  // torch::data allows one pass at a time, and only to its end.
  void finish_pass() {
    if constexpr (TorchDataLoader<R>) {
      while (position_ && *position_ != *end_) {
        ++*position_;
      }
    }
    position_.reset();
  }

  [[nodiscard]] std::int64_t size() const {
    if constexpr (requires(const R& range) { std::size(range); }) {
      return static_cast<std::int64_t>(std::size(*range_));
    } else {
      return -1;
    }
  }

  [[nodiscard]] std::int64_t batch_size() const {
    if constexpr (requires(const R& range) { range.batch_size(); }) {
      return static_cast<std::int64_t>(range_->batch_size());
    } else if constexpr (requires(const R& range) { range.options().batch_size; }) {
      return static_cast<std::int64_t>(range_->options().batch_size);
    } else {
      return 0;
    }
  }

 private:
  std::shared_ptr<R> range_;
  std::uint64_t seed_ = 0;
  std::optional<decltype(std::begin(std::declval<R&>()))> position_;
  std::optional<decltype(std::end(std::declval<R&>()))> end_;
  bool fresh_ = true;
};

template <class S>
concept Source = Loader<S> || AnyRange<S>;

template <class P>
concept PointerToSource = requires(P& pointer) {
  *pointer;
  requires Source<typename P::element_type>;
};

template <class S>
concept NearLoader = !Source<S> && !PointerToSource<S> && requires(S& source) { source.next(); };

template <class L>
inline constexpr bool is_loader = Loader<L>;  // no tour of the concept in messages

}  // namespace detail

/// Any source of batches behind one type; copies share the source and its position.
///
/// Converts from a Loader, from a range of batches, and from a std::shared_ptr or std::unique_ptr
/// to one. A range is one epoch, the same every time; what is in it may be a Batch, anything that
/// converts to one, a pair of tensors, or a struct with members `data` and `target` such as
/// torch::data::Example.
class AnyLoader {
 public:
  AnyLoader() = default;

  /// Takes over a copy of the source; give a shared_ptr to keep a hand on it.
  template <class S>
    requires(!std::same_as<std::remove_cvref_t<S>, AnyLoader> &&
             detail::Source<std::remove_cvref_t<S>>)
  AnyLoader(S&& source)  // NOLINT: converts by design
      : AnyLoader(detail::make<std::remove_cvref_t<S>>(std::forward<S>(source))) {}

  /// Shares the source.
  template <detail::PointerToSource P>
  AnyLoader(P source)  // NOLINT: converts by design
      : AnyLoader(std::shared_ptr<typename P::element_type>(std::move(source))) {}

  /// Throws c10::ValueError when the pointer is null.
  template <class S>
  AnyLoader(std::shared_ptr<S> source) {  // NOLINT: converts by design
    TUTTI_CHECK_VALUE(source, "the pointer to a loader is null; make the loader first");
    if constexpr (Loader<S>) {
      self_ = detail::make<Holder<S>>(std::move(source));
    } else {
      static_assert(detail::begins_anew<S>,
                    "tutti: this is no range of batches that can be gone through once per epoch "
                    "(either its elements do not convert to tutti::Batch or it is used up after "
                    "one pass); give a container, or a type with void start(std::int64_t epoch, "
                    "std::int64_t first_batch) and std::optional<tutti::Batch> next().");
      using Range = detail::RangeLoader<S>;
      self_ = detail::make<Holder<Range>>(detail::make<Range>(std::move(source)));
    }
  }

  /// An iterator is refused: it has begun already and ends after one epoch.
  template <std::input_or_output_iterator I>
    requires(!detail::Source<I> && !detail::PointerToSource<I>)
  AnyLoader(I) {  // NOLINT: refuses by design
    static_assert(!std::input_or_output_iterator<I>,
                  "tutti: this is an iterator, which has begun already and ends after one epoch; "
                  "give the container or loader that it belongs to.");
  }

  /// Refuses a loader with functions of another form.
  template <class S>
    requires detail::NearLoader<std::remove_cvref_t<S>>
  AnyLoader(S&&) {  // NOLINT: refuses by design
    static_assert(detail::is_loader<std::remove_cvref_t<S>>,
                  "tutti: this has next(), as a loader has, and is none; a loader has void "
                  "start(std::int64_t epoch, std::int64_t first_batch) and "
                  "std::optional<tutti::Batch> next(), both public and not const.");
  }

  /// There is a source.
  explicit operator bool() const { return self_ != nullptr; }

  /// Begins epoch `epoch` (0 is the first) at its batch `first_batch` (0 is the first).
  void start(std::int64_t epoch, std::int64_t first_batch = 0) { self_->start(epoch, first_batch); }

  /// The next batch, or nothing when the epoch is over.
  [[nodiscard]] std::optional<Batch> next() { return self_->next(); }

  /// Batches per epoch on this rank; -1: unknown.
  [[nodiscard]] std::int64_t size() const { return self_->size(); }

  /// Examples in a full batch; 0: unknown.
  [[nodiscard]] std::int64_t batch_size() const { return self_->batch_size(); }

  /// Examples in an epoch of all ranks, each counted once; -1: unknown.
  [[nodiscard]] std::int64_t dataset_size() const { return self_->dataset_size(); }

  /// How many examples at the end of the batch that next() gave last were there only to make all
  /// ranks equally long; exact evaluation leaves them out.
  [[nodiscard]] std::int64_t repeated() const { return self_->repeated(); }

  /// What the source does to every single image; null when it has no such list.
  [[nodiscard]] data::Transforms* transforms() const { return self_->transforms(); }

  /// The name of the source's type.
  [[nodiscard]] std::string_view name() const { return self_->name(); }

  /// The source's options() with their values, where it has them; else its batch size.
  [[nodiscard]] detail::Constants constants() const { return self_->constants(); }

  /// Deals the examples to ranks, if the source can; returns whether it does now. A source that
  /// cannot gives every rank the same batches.
  bool shard(std::int64_t rank, std::int64_t world_size) { return self_->shard(rank, world_size); }

  /// Gives the run's seed to a source that can follow it and has no seed of its own.
  void follow_seed(std::uint64_t seed) { self_->follow_seed(seed); }

  /// Has the source make batches of another size, from the next start() on; returns whether it can.
  bool set_batch_size(std::int64_t batch_size) {
    const std::int64_t given = given_batch_size();
    const bool can = self_->set_batch_size(batch_size);
    self_->given_batch_size = can ? given : 0;
    return can;
  }

  /// batch_size() before it was set here, or in a copy of this.
  [[nodiscard]] std::int64_t given_batch_size() const {
    return self_->given_batch_size > 0 ? self_->given_batch_size : batch_size();
  }

  /// Examples of all ranks in a full batch; 0: the source does not say.
  [[nodiscard]] std::int64_t global_batch_size() const { return self_->global_batch_size(); }

  /// Has the source make batches of so many examples of all ranks, from the next start() on, some
  /// ranks with one more than others where it must be; returns whether it can.
  bool set_global_batch_size(std::int64_t global_batch_size) {
    const std::int64_t given = given_batch_size();
    const bool can = self_->set_global_batch_size(global_batch_size);
    self_->given_batch_size = can ? given : self_->given_batch_size;
    return can;
  }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual void start(std::int64_t, std::int64_t) = 0;
    virtual std::optional<Batch> next() = 0;
    virtual std::int64_t size() const = 0;
    virtual std::int64_t batch_size() const = 0;
    virtual std::int64_t dataset_size() const = 0;
    virtual std::int64_t repeated() const = 0;
    virtual bool shard(std::int64_t, std::int64_t) = 0;
    virtual void follow_seed(std::uint64_t) = 0;
    virtual bool set_batch_size(std::int64_t) = 0;
    virtual std::int64_t global_batch_size() const = 0;
    virtual bool set_global_batch_size(std::int64_t) = 0;
    virtual data::Transforms* transforms() = 0;
    virtual std::string_view name() const = 0;
    virtual detail::Constants constants() const = 0;

    std::int64_t given_batch_size = 0;  // what the source had; 0: it has that still
  };

  template <class L>
  struct Holder final : Interface {
    explicit Holder(std::shared_ptr<L> l) : loader(std::move(l)) {}

    void start(std::int64_t epoch, std::int64_t first) override { loader->start(epoch, first); }
    std::optional<Batch> next() override { return loader->next(); }
    std::int64_t size() const override {
      if constexpr (requires(const L& l) { l.size(); }) {
        return static_cast<std::int64_t>(std::as_const(*loader).size());
      } else {
        return -1;
      }
    }
    std::int64_t batch_size() const override {
      if constexpr (requires(const L& l) { l.batch_size(); }) {
        return static_cast<std::int64_t>(std::as_const(*loader).batch_size());
      } else {
        return 0;
      }
    }
    std::int64_t dataset_size() const override {
      if constexpr (requires(const L& l) { l.dataset_size(); }) {
        return static_cast<std::int64_t>(std::as_const(*loader).dataset_size());
      } else {
        return -1;
      }
    }
    std::int64_t repeated() const override {
      if constexpr (requires(const L& l) { l.repeated(); }) {
        return static_cast<std::int64_t>(std::as_const(*loader).repeated());
      } else {
        return 0;
      }
    }
    bool shard(std::int64_t rank, std::int64_t world_size) override {
      if constexpr (requires { loader->shard(rank, world_size); }) {
        loader->shard(rank, world_size);
        return true;
      } else {
        return world_size == 1;
      }
    }
    std::string_view name() const override { return detail::type_name<L>(); }
    detail::Constants constants() const override {
      detail::Constants out;
      if constexpr (requires(const L& l) { l.options(); }) {
        detail::add_constants(out, "", std::as_const(*loader).options());
      }
      if (out.empty() && batch_size() > 0) {
        out.emplace_back("batch_size", batch_size());
      }
      return out;
    }
    void follow_seed(std::uint64_t seed) override {
      if constexpr (requires { loader->follow_seed(seed); }) {
        loader->follow_seed(seed);
      }
    }
    bool set_batch_size(std::int64_t batch_size) override {
      if constexpr (requires { loader->set_batch_size(batch_size); }) {
        loader->set_batch_size(batch_size);
        return true;
      } else {
        return false;
      }
    }
    std::int64_t global_batch_size() const override {
      if constexpr (requires(const L& l) { l.global_batch_size(); }) {
        return static_cast<std::int64_t>(std::as_const(*loader).global_batch_size());
      } else {
        return 0;
      }
    }
    bool set_global_batch_size(std::int64_t global_batch_size) override {
      if constexpr (requires { loader->set_global_batch_size(global_batch_size); }) {
        loader->set_global_batch_size(global_batch_size);
        return true;
      } else {
        return false;
      }
    }
    data::Transforms* transforms() override {
      if constexpr (requires { loader->transforms(); }) {
        return &loader->transforms();
      } else {
        return nullptr;
      }
    }

    std::shared_ptr<L> loader;
  };

  std::shared_ptr<Interface> self_;
};

}  // namespace tutti
