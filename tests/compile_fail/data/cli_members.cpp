// error: this struct has more than 16 members, or a base class, and cannot be listed; bind
// culprit: Options
// torch
#include <tutti/cli.hpp>

struct Options {
  int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p;
#ifndef FIXED
  int q;
#endif
};

void bind(tutti::cli::Program& program, Options& options) {
  program.add(options);
}
