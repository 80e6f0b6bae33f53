// error: this program reads PNG images without a library for it; install libpng-dev
// needs: png
// torch
#ifdef FIXED
#define TUTTI_WITH_PNG 1  // as the target tutti::png does
#endif
#include <tutti/data/png.hpp>

at::Tensor pixels(std::string_view bytes) {
  return tutti::data::decode_png(bytes);
}
