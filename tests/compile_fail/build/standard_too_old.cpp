// error: C\+\+20 is needed; compile with -std=c\+\+20 or set CMAKE_CXX_STANDARD to 20
// wrong flags: -std=c++17
#include <tutti/config.hpp>
