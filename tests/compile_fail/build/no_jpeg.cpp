// error: this program reads JPEG images without a library for it; install libjpeg-dev
// needs: jpeg
// torch
#ifdef FIXED
#define TUTTI_WITH_JPEG 1  // as the target tutti::jpeg does
#endif
#include <tutti/data/jpeg.hpp>

at::Tensor pixels(std::string_view bytes) {
  return tutti::data::decode_jpeg(bytes);
}
