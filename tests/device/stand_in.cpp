#include "device/stand_in.hpp"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "device/stand_in_memory.hpp"

namespace {

using stand_in::cuda;
using stand_in::device_memory;
using stand_in::Memory;
using stand_in::Open;
using stand_in::pinned_memory;

constexpr c10::DispatchKeySet cuda_key(c10::DispatchKey::CUDA);

// ---- What LibTorch asks a device -------------------------------------------------------------

struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(at::Generator numbers)
      : GeneratorImpl(cuda, cuda_key), host(std::move(numbers)) {}
  static at::DeviceType device_type() { return at::kCUDA; }

  void set_current_seed(std::uint64_t seed) override { host.set_current_seed(seed); }
  std::uint64_t current_seed() const override { return host.current_seed(); }
  std::uint64_t seed() override { return host.seed(); }
  void set_offset(std::uint64_t /*offset*/) override { TORCH_CHECK(false, "it has no offset"); }
  std::uint64_t get_offset() const override { TORCH_CHECK(false, "it has no offset"); }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  c10::GeneratorImpl* clone_impl() const override { return new DeviceGenerator(host.clone()); }

  at::Generator host;
};

at::Generator make_generator() {
  return at::make_generator<DeviceGenerator>(at::detail::createCPUGenerator());
}

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs /*none*/) {}
  void init() const override {}
  const at::Generator& getDefaultGenerator(at::DeviceIndex /*device*/) const override {
    static auto* const made = new at::Generator(make_generator());
    return *made;
  }
  at::Generator getNewGenerator(at::DeviceIndex /*device*/) const override {
    return make_generator();
  }
  at::Device getDeviceFromPtr(void* /*data*/) const override { return cuda; }
  bool isPinnedPtr(const void* data) const override { return pinned_memory().has(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex /*device*/) const override { return true; }
  int getNumGPUs() const override { return 1; }
  at::DeviceIndex deviceCount() const override { return 1; }
  at::DeviceIndex current_device() const override { return 0; }
  at::DeviceIndex getCurrentDevice() const override { return 0; }
  at::DeviceIndex exchangeDevice(at::DeviceIndex /*device*/) const override { return 0; }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex /*device*/) const override { return 0; }
  void setCurrentDevice(at::DeviceIndex /*device*/) const override {}
  void deviceSynchronize(at::DeviceIndex /*device*/) const override {}
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::kCUDA; }
  at::Device exchangeDevice(at::Device /*device*/) const override { return cuda; }
  at::Device getDevice() const override { return cuda; }
  void setDevice(at::Device /*device*/) const override {}
  void uncheckedSetDevice(at::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(at::Device /*device*/) const override {
    return c10::Stream(c10::Stream::DEFAULT, cuda);
  }
  c10::Stream getDefaultStream(at::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {}
  void record(void** event, const c10::Stream& /*stream*/, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    *event = const_cast<Guard*>(this);  // any that is not null
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeEvent(void* /*event*/) const override {}
  void synchronizeDevice(const c10::DeviceIndex /*device*/) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// ---- Operators ---------------------------------------------------------------------------------

// The same memory as a tensor of the host.
at::Tensor on_host(const at::Tensor& x) {
  if (!x.defined() || !x.is_cuda()) {
    return x;
  }
  c10::Storage storage(c10::Storage::use_byte_size_t{}, x.storage().nbytes(),
                       at::DataPtr(const_cast<void*>(x.storage().data()), at::kCPU));
  at::Tensor out(at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), x.dtype()));
  out.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides(), x.storage_offset());
  return out;
}

// A copy on the device.
at::Tensor on_device(const at::Tensor& x) {
  if (!x.defined() || !x.is_cpu()) {
    return x;
  }
  at::Tensor out = at::detail::empty_strided_generic(x.sizes(), x.strides(), &device_memory,
                                                     cuda_key, x.scalar_type());
  on_host(out).copy_(x);
  return out;
}

// What `f` makes of an argument's or result's tensors.
template <class F>
c10::IValue mapped(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    return f(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& each : value.toTensorVector()) {
      out.push_back(f(each));
    }
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      out.push_back(each ? std::optional(f(*each)) : std::nullopt);
    }
    return out;
  }
  return value;
}

// A number of the host is welcome beside tensors of the device, an index only for those that take
// it from there.
void check_devices(const std::string& name, const std::vector<c10::IValue>& arguments) {
  static const std::set<std::string> moves_indices = {"aten::index.Tensor", "aten::index_put_",
                                                      "aten::_index_put_impl_"};
  bool some = false;
  const auto each = [&](auto f) {
    for (const c10::IValue& argument : arguments) {
      mapped(argument, [&](const at::Tensor& x) { return f(x), x; });
    }
  };
  each([&](const at::Tensor& x) { some = some || (x.defined() && x.is_cuda()); });
  if (!some || (moves_indices.contains(name) && arguments[0].toTensor().is_cuda())) {
    return;
  }
  each([&](const at::Tensor& x) {
    TORCH_CHECK(!x.defined() || x.is_cuda() || x.dim() == 0, name, " got a tensor of ", x.sizes(),
                " on ", x.device().str(), " beside others on cuda:0");
  });
}

// An argument as the CPU's operator takes it.
c10::IValue host_argument(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isGenerator() || (value.isNone() && argument.name() == "generator")) {
    const auto& generator =
        value.isNone() ? at::globalContext().defaultGenerator(cuda) : value.toGenerator();
    TORCH_CHECK(generator.device().is_cuda(), "got a generator of the CPU, expected one of cuda");
    return generator.get<DeviceGenerator>()->host;
  }
  if (value.isDevice()) {
    return at::Device(at::kCPU);
  }
  if (argument.is_out() && value.isTensor() && value.toTensor().numel() == 0) {
    return at::empty({0}, value.toTensor().options().device(at::kCPU));  // which it may resize
  }
  return mapped(value, on_host);
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  const std::vector<c10::IValue> given(stack->end() - static_cast<std::ptrdiff_t>(count),
                                       stack->end());
  check_devices(c10::toString(op.operator_name()), given);
  const Open open;
  std::vector<c10::IValue> taken;  // outlives the call: out variants return references to it
  for (std::size_t i = 0; i < count; ++i) {
    taken.push_back(host_argument(schema.arguments()[i], given[i]));
  }
  stack->resize(stack->size() - count);
  stack->insert(stack->end(), taken.begin(), taken.end());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);

  for (std::size_t i = 0; i < count; ++i) {
    if (schema.arguments()[i].is_out() && given[i].isTensor() &&
        given[i].toTensor().numel() != taken[i].toTensor().numel()) {
      const at::Tensor moved = on_device(taken[i].toTensor());
      auto* const out = given[i].toTensor().unsafeGetTensorImpl();
      out->set_storage_keep_dtype(moved.storage());
      out->set_sizes_and_strides(moved.sizes(), moved.strides(), 0);
    }
  }
  const std::size_t first = stack->size() - schema.returns().size();
  for (std::size_t r = 0; r < schema.returns().size(); ++r) {
    const c10::AliasInfo* const alias = schema.returns()[r].alias_info();
    TORCH_CHECK(alias == nullptr || alias->isWrite(), op.operator_name(), " gives a view");
    c10::IValue& result = (*stack)[first + r];
    result = mapped(result, on_device);
    for (std::size_t i = 0; alias != nullptr && i < count; ++i) {
      const c10::AliasInfo* const own = schema.arguments()[i].alias_info();
      result = own != nullptr && *own == *alias ? given[i] : result;
    }
  }
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                 std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "only tensors of the host can be pinned");
  return at::detail::empty_generic(size, &device_memory, cuda_key, type.value_or(at::kFloat),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> /*device*/, std::optional<bool> /*pin*/) {
  return at::detail::empty_strided_generic(size, stride, &device_memory, cuda_key,
                                           type.value_or(at::kFloat));
}

// A GPU's softmax makes floats of halves in the same kernel.
template <auto op>
at::Tensor softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float) {
  const Open open;
  return on_device(op(on_host(x).to(half_to_float ? at::kFloat : x.scalar_type()), dim, false));
}
template <auto op>
at::Tensor softmax_backward(const at::Tensor& dy, const at::Tensor& y, std::int64_t dim,
                            at::ScalarType type) {
  const Open open;
  return on_device(op(on_host(dy), on_host(y), dim, dy.scalar_type()).to(type));
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  const Open open;
  on_host(to).copy_(on_host(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& x, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  const Open open;
  at::native::resize_impl_cpu_(x.unsafeGetTensorImpl(), size, std::nullopt);
  if (format) {
    x.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return x;
}

at::Tensor& set(at::Tensor& x, at::Storage storage, std::int64_t offset, at::IntArrayRef size,
                at::IntArrayRef stride) {
  x.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  x.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return x;
}
at::Tensor& set_to(at::Tensor& x, const at::Tensor& other) {
  return set(x, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

}  // namespace

namespace stand_in {

void limit_memory(std::size_t bytes) {
  Memory::get().most = bytes;
}
std::size_t memory_in_use() {
  return Memory::get().in_use;
}
MemoryLimit::~MemoryLimit() {
  limit_memory(Memory::capacity);
}

}  // namespace stand_in

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  c10::SetAllocator(at::kCUDA, &device_memory);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy);
  m.impl("resize_", &resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Storage_storage_offset", &set);
  m.impl("set_.source_Tensor", &set_to);
  m.impl("_softmax", &softmax<&at::_softmax>);
  m.impl("_log_softmax", &softmax<&at::_log_softmax>);
  m.impl("_softmax_backward_data", &softmax_backward<&at::_softmax_backward_data>);
  m.impl("_log_softmax_backward_data", &softmax_backward<&at::_log_softmax_backward_data>);
  for (const char* name : {"convolution", "convolution_backward"}) {  // a GPU's have their own
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}
