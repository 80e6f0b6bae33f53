// Feeds bytes to the reader of compiled.json, which an exported model's folder has.
//
//     fuzz_compiled [corpus folder] [-max_total_time=60] ...
//
// Whatever the bytes are, they are refused with std::invalid_argument or c10::Error, or the lists
// of operators are made. No operator is called and no program is loaded: what they do is up to
// those who wrote the package.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include <tutti/core/detail/json_parse.hpp>
#include <tutti/models/detail/compiled_checks.hpp>
#include <tutti/models/detail/compiled_code.hpp>
#include <tutti/models/detail/compiled_operators.hpp>
#include <tutti/models/detail/compiled_package.hpp>

namespace {

using namespace tutti::models::detail;

void read(std::string_view text) {
  const ExportedPackage package = read_package(tutti::detail::parse_json(text, {.values = 10'000}));
  for (const auto* list : {&package.inputs, &package.outputs, &package.parameters}) {
    for (const ExportedTensor& tensor : *list) {
      static_cast<void>(text_of(tensor));
    }
  }
  if (package.is_code) {
    check_machine(package, "fuzz.tutti", processor_flags("flags : avx avx2 fma"));
    return;
  }
  for (const ExportedProgram* each :
       {&package.forward, &package.backward, &package.eval, &package.step}) {
    if ((each != &package.eval || package.has_eval) &&
        (each != &package.step || package.has_step)) {
      const OperatorProgram program("fuzz", each->calls, each->results, each->in.size());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    read({reinterpret_cast<const char*>(data), size});
  } catch (const c10::Error&) {
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
