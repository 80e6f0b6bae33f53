#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <nvrtc.h>
#include <unistd.h>

#include "device/runtime.hpp"
#include "fused/host_shim.hpp"

// NVRTC and the runtime's libraries of kernels: the text of a kernel becomes C++ and runs on the
// host, one thread after the other.
namespace {

// Behind a text that has one kernel, which KERNEL is the name of.
constexpr std::string_view behind = R"cpp(
#include <utility>
  template <class... A>
  unsigned long size_of(void (*)(A...), unsigned argument) {
    const unsigned long sizes[] = {sizeof(A)..., 0};
    return sizes[argument];
  }
  template <class... A, std::size_t... I>
  void call(void (*kernel)(A...), void* const* arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
  }
  template <class... A>
  void call(void (*kernel)(A...), void* const* arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>());
  }
  extern "C" unsigned long argument_size(unsigned argument) {  // 0 behind the last
    return size_of(KERNEL, argument);
  }
  extern "C" void run(void* const* arguments, const unsigned* block, const unsigned* grid) {
    for_threads(block, grid, [&] { call(KERNEL, arguments); });
  }
)cpp";

std::string name_of_kernel(std::string_view text) {
  constexpr std::string_view before = "extern \"C\" __global__ void ";
  text.remove_prefix(std::min(text.find(before), text.size() - before.size()) + before.size());
  return std::string(text.substr(0, text.find('(')));
}

struct Program {
  std::string source, code, log;
};
Program& program_of(nvrtcProgram program) {
  return *reinterpret_cast<Program*>(program);
}

struct Kernel {
  unsigned long (*argument_size)(unsigned);
  void (*run)(void* const*, const unsigned*, const unsigned*);
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A file that is there.
std::string new_file() {
  std::string path = "/tmp/stand_in_XXXXXX";
  ::close(::mkstemp(path.data()));
  return path;
}

nvrtcResult give_text(const std::string& text, char* out) {
  std::memcpy(out, text.data(), text.size());
  return NVRTC_SUCCESS;
}

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  // Of no real one, so that nobody takes what is kept for a GPU's code, nor for that of others.
  const std::size_t text =
      std::hash<std::string>()(std::string(host_kernels::shim) + std::string(behind) +
                               std::string(host_kernels::compile_command));
  *major = 0;
  *minor = static_cast<int>(text % 1000000000);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetSupportedArchs(int* out) {
  *out = 90;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* out, const char* source, const char* /*name*/,
                               int /*headers*/, const char* const* /*headers*/,
                               const char* const* /*names*/) {
  *out = reinterpret_cast<nvrtcProgram>(new Program{source, {}, {}});
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete &program_of(*program);
  *program = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  constexpr std::string_view definition = "--define-macro=";
  const std::string base = new_file();
  std::ofstream(base + ".cpp") << host_kernels::shim << program_of(program).source << behind;
  std::string command = "LD_PRELOAD= " + std::string(host_kernels::compile_command) +
                        " -DKERNEL=" + name_of_kernel(program_of(program).source);
  for (int i = 0; i < count; ++i) {
    if (const std::string_view option = options[i]; option.starts_with(definition)) {
      command.append(" -D").append(option.substr(definition.size()));
    }
  }
  command += " -o " + base + ".so " + base + ".cpp > " + base + " 2>&1";
  const bool made = std::system(command.c_str()) == 0;
  program_of(program).log = content(base);
  program_of(program).code = content(base + ".so");
  for (const char* end : {"", ".cpp", ".so"}) {
    ::unlink((base + end).c_str());
  }
  return made ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* size) {
  *size = program_of(program).log.size();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* out) {
  return give_text(program_of(program).log, out);
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* size) {
  *size = program_of(program).code.size();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* out) {
  return give_text(program_of(program).code, out);
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* out, const void* code, cudaJitOption* /*jit*/,
                                void** /*values*/, unsigned /*count*/,
                                cudaLibraryOption* /*library*/, void** /*values*/,
                                unsigned /*count*/) {
  // How long the code is it says itself: an ELF file ends with its table of sections.
  const auto number = [code]<class T>(int at, T value) {
    std::memcpy(&value, static_cast<const char*>(code) + at, sizeof value);
    return static_cast<std::streamsize>(value);
  };
  const std::streamsize size =
      number(40, std::uint64_t{}) + number(58, std::uint16_t{}) * number(60, std::uint16_t{});
  const std::string path = new_file();
  std::ofstream(path, std::ios::binary).write(static_cast<const char*>(code), size);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ::unlink(path.c_str());
  if (library == nullptr) {
    return stand_in::say(cudaErrorInvalidKernelImage);
  }
  host_kernels::set_round_to_half(library);
  *out = static_cast<cudaLibrary_t>(library);
  return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* out, cudaLibrary_t library, const char* name) {
  if (::dlsym(library, name) == nullptr) {
    return stand_in::say(cudaErrorSymbolNotFound);
  }
  auto* const made = new Kernel;
  made->argument_size =
      reinterpret_cast<decltype(made->argument_size)>(::dlsym(library, "argument_size"));
  made->run = reinterpret_cast<decltype(made->run)>(::dlsym(library, "run"));
  *out = reinterpret_cast<cudaKernel_t>(made);
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t /*shared*/, cudaStream_t stream) {
  const stand_in::Lock lock;
  constexpr unsigned most = 65535;
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y - 1 >= most ||
      grid.z - 1 >= most) {
    return stand_in::say(cudaErrorInvalidConfiguration);
  }
  const auto* const kernel = static_cast<const Kernel*>(function);
  std::vector<std::vector<void*>> values;
  while (const std::size_t size = kernel->argument_size(static_cast<unsigned>(values.size()))) {
    std::vector<void*> value((size + sizeof(void*) - 1) / sizeof(void*));
    std::memcpy(value.data(), arguments[values.size()], size);
    for (void*& word : value) {  // some are addresses
      word = stand_in::own_address(word);
    }
    values.push_back(std::move(value));
  }
  return stand_in::give(stream, [=] {
    std::vector<void*> at;
    for (const std::vector<void*>& value : values) {
      at.push_back(const_cast<void**>(value.data()));
    }
    const unsigned blocks[] = {grid.x, grid.y, grid.z};
    const unsigned each[] = {block.x, block.y, block.z};
    kernel->run(at.data(), each, blocks);
  });
}

}  // extern "C"
