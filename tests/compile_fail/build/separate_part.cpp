// error: tutti: TUTTI_SEPARATE_PART is 1 in one source and 2 in another
// flags: -DTUTTI_SEPARATE_COMPILATION
#ifndef FIXED
#define TUTTI_SEPARATE_PART 3
#include <tutti/separate.hpp>
#else
#include <tutti/config.hpp>
#endif
