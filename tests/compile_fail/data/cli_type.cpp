// error: an option of this type cannot be read from a command line; make it a number, bool, text
// culprit: Size
// torch
#include <tutti/cli.hpp>

struct Size {
  int width = 32;
  int height = 32;
};

void options(tutti::cli::Program& program, Size& size) {
#ifdef FIXED
  program.add("--width", size.width, "of an image").add("--height", size.height, "of an image");
#else
  program.add("--size", size, "of an image");
#endif
}
