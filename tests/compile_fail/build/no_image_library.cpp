// error: this program reads images without a library for it; install libjpeg-dev and libpng-dev
// needs: jpeg
// torch
#ifdef FIXED
#define TUTTI_WITH_JPEG 1  // as the target tutti::jpeg does
#endif
#include <tutti/data/image_decoder.hpp>

at::Tensor pixels(const std::string& bytes) {
  return tutti::data::ImageDecoder{}(bytes, "photo");
}
