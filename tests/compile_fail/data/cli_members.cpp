// error: this struct has more than 20 members, or a base class, and cannot be listed; bind
// culprit: Options
// torch
#include <tutti/cli.hpp>

struct Options {
  int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t;
#ifndef FIXED
  int u;
#endif
};

void bind(tutti::cli::Program& program, Options& options) {
  program.add(options);
}
