// error: this compiler is too old; use (Clang 14|GCC 12) or newer, or (Clang 14|GCC 12) or newer
// wrong flags: -U__GNUC__ -D__GNUC__=11 -U__clang_major__ -D__clang_major__=13
#include <tutti/config.hpp>
