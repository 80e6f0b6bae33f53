// error: gloo's headers are missing; link tutti::torch or add tutti/dist/gloo_shim
// flags: -DTUTTI_SEPARATE_COMPILATION
// right flags: -isystem include/tutti/dist/gloo_shim
// torch
#include <tutti/dist/process_group.hpp>
