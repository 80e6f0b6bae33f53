// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <mutex>
#include <optional>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <tutti/core/detail/paged_calls.hpp>
#include <tutti/core/detail/recorded_init.hpp>

namespace tutti::detail {

TUTTI_INLINE thread_local RecordedInit* tape_here = nullptr;
TUTTI_INLINE thread_local int without_draws = 0;

TUTTI_INLINE void install_calls() {
  static const c10::RegistrationHandleRAII fallback = c10::Dispatcher::singleton().registerFallback(
      c10::DispatchKey::DeferredInit, c10::KernelFunction::makeFromBoxedFunction<&take_or_call>(),
      "tutti");
}

TUTTI_INLINE void take_or_call(const c10::OperatorHandle& op, c10::DispatchKeySet,
                               std::vector<c10::IValue>* stack) {
  const std::string& name = op.schema().name();
  if (without_draws > 0 && (name == "aten::normal_" || name == "aten::uniform_")) {
    torch::jit::drop(stack, op.schema().arguments().size() - 1);  // the tensor itself is returned
  } else if (tape_here == nullptr || !tape_here->take(op, *stack)) {
    const c10::impl::ExcludeDispatchKeyGuard no_tape(c10::DispatchKey::DeferredInit);
    bring_arguments(op, *stack);
    op.callBoxed(stack);
  }
}

TUTTI_INLINE WithoutDraws::WithoutDraws() : key_(c10::DispatchKey::DeferredInit) {
  install_calls();
  ++without_draws;
}

TUTTI_INLINE WithoutDraws::~WithoutDraws() {
  --without_draws;
}

TUTTI_INLINE at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

TUTTI_INLINE void set_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state.clone());
}

// The tensor that lies there.
TUTTI_INLINE at::Tensor lying_in(const at::Storage& storage, std::int64_t offset,
                                 at::IntArrayRef sizes, at::IntArrayRef strides,
                                 at::ScalarType type) {
  return at::empty({0}, at::TensorOptions(type).device(storage.device()))
      .set_(storage, offset, sizes, strides);
}

// The value with another tensor at a place of each_tensor(); a list is its own.
TUTTI_INLINE void put_tensor(c10::IValue& value, const std::optional<std::size_t>& element,
                             const at::Tensor& tensor) {
  if (element) {
    value.toList().set(*element, c10::IValue(tensor));
  } else {
    value = tensor;
  }
}

TUTTI_INLINE c10::IValue with_own_list(const c10::IValue& value) {
  return value.isList() ? c10::IValue(value.toList().copy()) : value;
}

// While it lives, operators are what they are on their device, and nothing else.
struct PlainCalls {
  c10::impl::ExcludeDispatchKeyGuard no_tape{c10::DispatchKey::DeferredInit};
  at::AutoDispatchBelowADInplaceOrView no_graph{};
  c10::NoGradGuard no_grad{};
};

// Puts the generator back to where it was.
class KeptGenerator {
 public:
  KeptGenerator() : state_(generator_state()) {}
  ~KeptGenerator() { set_generator_state(state_); }
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Tensor state_;
};

// A call of an operator; or a state of the generator, from which later calls draw; or a reader.
struct RecordedInit::Call {
  struct Argument {
    std::size_t index;
    std::optional<std::size_t> element;
    View view;
    bool written;
  };
  struct Result {
    std::size_t index;  // among all tensors that the call returns
    View view;
  };

  std::optional<c10::OperatorHandle> op{};
  std::vector<c10::IValue> values{};  // of all arguments; none where the tape's tensors were
  std::vector<Argument> arguments{};  // these
  std::vector<Result> results{};      // that lie in new storages
  at::Tensor generator{};
  Reader read{};
  bool draws = false;

  // The first argument, which is all of a storage of so many bytes, gets values that do not depend
  // on those before.
  [[nodiscard]] bool replaces(std::size_t bytes) const {
    constexpr std::string_view names[] = {"aten::copy_", "aten::fill_", "aten::zero_",
                                          "aten::normal_", "aten::uniform_"};
    if (arguments.empty() || !arguments.front().written ||
        !(read ||
          std::find(std::begin(names), std::end(names), op->schema().name()) != std::end(names))) {
      return false;
    }
    const View& view = arguments.front().view;
    std::size_t size = c10::elementSize(view.type);
    for (const std::int64_t one : view.sizes) {
      size *= static_cast<std::size_t>(one);
    }
    return size == bytes;
  }

  template <class F>
  void each_storage(F&& f) const {
    for (const Argument& one : arguments) {
      f(one.view.storage);
    }
    for (const Result& one : results) {
      f(one.view.storage);
    }
  }

  [[nodiscard]] bool writes(const std::vector<bool>& storages) const {
    return std::any_of(
               arguments.begin(), arguments.end(),
               [&](const Argument& one) { return one.written && storages[one.view.storage]; }) ||
           std::any_of(results.begin(), results.end(),
                       [&](const Result& one) { return storages[one.view.storage]; });
  }
};

// A call while it is taken.
struct RecordedInit::Taking {
  struct Twin {
    at::Tensor on_meta;
    at::Tensor given;
  };
  Call call{};
  std::vector<c10::IValue> on_meta{};  // its arguments there, then its results
  std::vector<Twin> twins{};
  std::optional<std::size_t> device_argument{};
  c10::Device device = at::kCPU;  // of results
  bool moves = false;             // the arguments are on another one
  std::string with_memory{};      // what it writes to that is not of the tape

  [[nodiscard]] bool says_device() const {
    return device_argument && !call.values[*device_argument].isNone();
  }
  // It takes nothing from tensors, and makes one on a device that is not said.
  [[nodiscard]] bool creates() const { return twins.empty() && device_argument && !says_device(); }
};

TUTTI_INLINE std::shared_ptr<InitTape> RecordedInit::current() {
  return tape_here == nullptr ? nullptr : tape_here->shared_from_this();
}

TUTTI_INLINE RecordedInit::View RecordedInit::view_of(const at::Tensor& tensor,
                                                      std::size_t storage) {
  return {storage, tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
          tensor.scalar_type()};
}

// A Recording of this thread.
struct RecordedInit::Scope {
  RecordedInit* before = tape_here;
  at::Tensor generator{};  // its state at the start; undefined within another one
  c10::impl::IncludeDispatchKeyGuard key{c10::DispatchKey::DeferredInit};
};

TUTTI_INLINE RecordedInit::RecordedInit() = default;
TUTTI_INLINE RecordedInit::~RecordedInit() = default;

TUTTI_INLINE void RecordedInit::begin() {
  install_calls();
  scopes_.push_back(std::make_unique<Scope>());
  if (scopes_.back()->before == nullptr) {
    const PlainCalls plain;
    scopes_.back()->generator = generator_state();
    generator_.reset();
  }
  tape_here = this;
}

TUTTI_INLINE void RecordedInit::end() {
  const std::unique_ptr<Scope> scope = std::move(scopes_.back());
  scopes_.pop_back();
  tape_here = scope->before;
  if (scope->generator.defined()) {
    const PlainCalls plain;
    set_generator_state(scope->generator);
  }
}

TUTTI_INLINE RecordedInit::Taking RecordedInit::arguments_of(
    const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack) const {
  Taking out{.call = {.op = op}};
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - arguments.size() + i];
    out.call.values.push_back(with_own_list(value));
    out.on_meta.push_back(with_own_list(value));
    if (arguments[i].name() == "device") {
      out.device_argument = i;
    }
    const auto* const alias = arguments[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    each_tensor(value, [&](const at::Tensor& given, const std::optional<std::size_t>& element) {
      if (!given.defined()) {
        return;
      }
      at::Tensor twin;
      if (const Place* const place = place_of(given)) {
        TUTTI_CHECK(place->tape.get() == this, "deferred_init: ", op.schema().name(),
                    " has a tensor that another deferred_init() made; make both in one");
        out.call.arguments.push_back({i, element, view_of(given, place->storage), written});
        put_tensor(out.call.values[i], element, {});
        twin = lying_in(memories_[place->storage].on_meta, given.storage_offset(), given.sizes(),
                        given.strides(), given.scalar_type());
      } else {
        out.with_memory = written ? arguments[i].name() : out.with_memory;
        twin = at::empty_strided(given.sizes(), given.strides(), given.options().device(at::kMeta));
        if (given.unsafeGetTensorImpl()->is_wrapped_number()) {
          twin.unsafeGetTensorImpl()->set_wrapped_number(true);
        }
      }
      put_tensor(out.on_meta[i], element, twin);
      out.twins.push_back({std::move(twin), given});
    });
  }
  return out;
}

TUTTI_INLINE bool RecordedInit::take(const c10::OperatorHandle& op,
                                     std::vector<c10::IValue>& stack) {
  const PlainCalls plain;
  Taking taking = arguments_of(op, stack);
  Call& call = taking.call;
  if (call.arguments.empty() && !taking.creates()) {
    return false;
  }
  const std::string& name = op.schema().name();
  TUTTI_CHECK(taking.with_memory.empty(), "deferred_init: ", name, " writes into '",
              taking.with_memory,
              "', which has memory, what comes of a tensor without; make both in deferred_init()");
  if (!call.arguments.empty()) {
    taking.device = memories_[call.arguments.front().view.storage].device;
  }
  if (taking.says_device()) {
    const c10::Device device = call.values[*taking.device_argument].toDevice();
    taking.moves = device != taking.device;
    taking.device = device;
  }
  if (taking.says_device() || taking.creates()) {
    taking.on_meta[*taking.device_argument] = c10::Device(at::kMeta);
  }
  call.draws = op.hasTag(at::Tag::nondeterministic_seeded);
  if (call.draws) {
    note_draw();
  }
  try {
    op.callBoxed(taking.on_meta);
  } catch (const c10::Error& error) {
    TUTTI_CHECK(false, "deferred_init: ", name,
                " cannot be put off: ", error.what_without_backtrace(),
                "\nDo it before or after deferred_init(), or build the model without.");
  }
  std::size_t index = 0;
  for (c10::IValue& result : taking.on_meta) {
    result = with_own_list(result);
    const c10::IValue made = with_own_list(result);
    each_tensor(made, [&](const at::Tensor& one, const std::optional<std::size_t>& element) {
      if (one.defined()) {
        put_tensor(result, element, taken_result(taking, one, index));
      }
      ++index;
    });
  }
  stack.erase(stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()),
              stack.end());
  stack.insert(stack.end(), taking.on_meta.begin(), taking.on_meta.end());
  const bool writes = std::any_of(call.arguments.begin(), call.arguments.end(),
                                  [](const Call::Argument& one) { return one.written; });
  if (writes || !call.results.empty()) {
    calls_.push_back(std::make_shared<Call>(std::move(call)));
  }
  return true;
}

// What stands for a tensor that a call made on the meta device.
TUTTI_INLINE at::Tensor RecordedInit::taken_result(Taking& taking, const at::Tensor& on_meta,
                                                   std::size_t index) {
  at::Tensor made = on_meta;
  auto known = known_.find(made.storage().unsafeGetStorageImpl());
  if (known != known_.end() && taking.moves) {
    made = made.clone();
    known = known_.end();
  }
  at::Storage storage;
  for (const Taking::Twin& twin : taking.twins) {
    if (twin.on_meta.is_same(made)) {
      TUTTI_CHECK(
          made.sizes() == twin.given.sizes() && made.strides() == twin.given.strides() &&
              made.storage_offset() == twin.given.storage_offset(),
          "deferred_init: ", taking.call.op->schema().name(),
          " gives a tensor other sizes or strides, which cannot be put off; make a new one");
      return twin.given;
    }
    if (known != known_.end() && twin.on_meta.storage().is_alias_of(made.storage())) {
      storage = twin.given.storage();
    }
  }
  if (known == known_.end()) {
    storage = new_storage(made, taking.device);
    taking.call.results.push_back({index, view_of(made, memories_.size() - 1)});
  }
  const auto key = c10::computeDispatchKey(made.scalar_type(), at::kStrided, storage.device());
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                            c10::DispatchKeySet(key), made.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(),
                                                   made.storage_offset());
  return out;
}

TUTTI_INLINE at::Storage RecordedInit::new_storage(const at::Tensor& on_meta, c10::Device device) {
  const std::size_t number = memories_.size();
  const std::size_t bytes = on_meta.storage().nbytes();
  memories_.push_back({on_meta.storage(), bytes, device});
  known_.emplace(on_meta.storage().unsafeGetStorageImpl(), number);
  c10::DataPtr none(nullptr, new Place{shared_from_this(), number}, &forget, device);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       std::move(none), /*allocator=*/nullptr,
                                                       /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "this tensor has no memory yet, since deferred_init() made it, and is read or written. A "
      "Trainer gives memory to the parameters and buffers of its model, as nn::materialize() does; "
      "register it, or wait until then");
  return at::Storage(std::move(storage));
}

TUTTI_INLINE void RecordedInit::fill(const at::Tensor& tensor, Reader read) {
  Call call{.read = std::move(read)};
  call.arguments.push_back({0, {}, view_of(tensor, place_of(tensor)->storage), true});
  calls_.push_back(std::make_shared<Call>(std::move(call)));
}

// A call draws: notes from what, unless it goes on from the last one that did. The generator is
// moved on, so that a seed that is set again is seen.
TUTTI_INLINE void RecordedInit::note_draw() {
  const at::Tensor now = generator_state();
  if (!generator_.defined() || !generator_.equal(now)) {
    calls_.push_back(std::make_shared<Call>(Call{.generator = now}));
  }
  at::empty({}, at::kLong).random_();
  generator_ = generator_state();
}

TUTTI_INLINE std::vector<at::Tensor> RecordedInit::generator_states() const {
  std::vector<at::Tensor> out;
  for (const auto& call : calls_) {
    if (call->generator.defined()) {
      out.push_back(call->generator);
    }
  }
  return out;
}

// What is done at each call so that these storages get their values. live: they, by number.
TUTTI_INLINE std::vector<RecordedInit::Step> RecordedInit::plan(std::vector<bool> live) const {
  std::vector<Step> out(calls_.size());
  std::vector<bool> given = live;  // of whom no later call is
  bool drawn_later = false;
  for (std::size_t i = calls_.size(); i-- > 0;) {
    const Call& call = *calls_[i];
    Step& step = out[i];
    if (call.generator.defined()) {
      step.runs = std::exchange(drawn_later, false);
      continue;
    }
    step.runs = call.writes(live) || (call.draws && drawn_later);
    if (!step.runs) {
      continue;
    }
    drawn_later = drawn_later || call.draws;
    call.each_storage([&](std::size_t storage) {
      if (given[storage]) {
        given[storage] = false;
        step.gives.push_back(storage);
      }
      if (!live[storage]) {
        step.drops.push_back(storage);
      }
    });
    for (const Call::Result& one : call.results) {
      live[one.view.storage] = false;
    }
    for (std::size_t k = 0; k < call.arguments.size(); ++k) {
      const std::size_t storage = call.arguments[k].view.storage;
      live[storage] = k > 0 || !call.replaces(memories_[storage].bytes);
    }
  }
  return out;
}

// The storages that have values, while these are made.
struct RecordedInit::Making {
  const RecordedInit& tape;
  std::unordered_map<std::size_t, at::Storage> there{};

  at::Tensor tensor(const View& view) {
    at::Storage& storage = there[view.storage];
    if (!storage) {
      const Memory& memory = tape.memories_[view.storage];
      storage = at::empty({static_cast<std::int64_t>(memory.bytes)},
                          at::TensorOptions(at::kByte).device(memory.device))
                    .storage();
    }
    return lying_in(storage, view.offset, view.sizes, view.strides, view.type);
  }

  void run(const Call& call) {
    if (call.generator.defined()) {
      set_generator_state(call.generator);
      return;
    }
    if (call.read) {
      call.read(0, tensor(call.arguments.front().view));
      return;
    }
    torch::jit::Stack stack;
    for (const c10::IValue& value : call.values) {
      stack.push_back(with_own_list(value));
    }
    for (const Call::Argument& one : call.arguments) {
      put_tensor(stack[one.index], one.element, tensor(one.view));
    }
    call.op->callBoxed(stack);
    std::vector<at::Tensor> made;
    for (const c10::IValue& result : stack) {
      each_tensor(result, [&](const at::Tensor& one, const auto&) { made.push_back(one); });
    }
    for (const Call::Result& one : call.results) {
      const at::Tensor& result = made[one.index];
      const bool as_said = result.storage_offset() == one.view.offset &&
                           result.strides() == at::IntArrayRef(one.view.strides) &&
                           result.storage().nbytes() >= tape.memories_[one.view.storage].bytes;
      if (as_said) {
        there[one.view.storage] = result.storage();
      } else {
        tensor(one.view).copy_(result);
      }
    }
  }
};

TUTTI_INLINE void RecordedInit::make(
    const std::vector<at::Tensor>& tensors,
    const std::function<void(std::size_t, const Values&)>& take) const {
  const PlainCalls plain;
  const KeptGenerator kept;
  std::vector<std::vector<std::size_t>> takers(memories_.size());
  std::vector<bool> live(memories_.size(), false);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Place* const place = place_of(tensors[i]);
    TUTTI_CHECK(place != nullptr && place->tape.get() == this,
                "deferred_init: the model has tensors of several calls of deferred_init(); build "
                "it in one");
    takers[place->storage].push_back(i);
    live[place->storage] = true;
  }
  const std::vector<Step> steps = plan(std::move(live));
  Making making{*this};
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = *calls_[i];
    const Step& step = steps[i];
    if (!step.runs) {
      continue;
    }
    const bool waits =
        call.read && !step.gives.empty() && call.replaces(memories_[step.gives.front()].bytes);
    if (!waits) {
      making.run(call);
    }
    for (const std::size_t storage : step.gives) {
      for (const std::size_t one : takers[storage]) {
        const View view = view_of(tensors[one], storage);
        const auto whole = [&] {
          if (waits && !making.there.contains(storage)) {
            making.run(call);
          }
          return making.tensor(view);
        };
        const bool reads = waits && view.sizes == call.arguments.front().view.sizes;
        take(one, Values(whole, reads ? &call.read : nullptr));
      }
      making.there.erase(storage);
    }
    for (const std::size_t storage : step.drops) {
      making.there.erase(storage);
    }
  }
}

}  // namespace tutti::detail
