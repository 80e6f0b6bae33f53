// error: tutti: separate.hpp needs TUTTI_SEPARATE_COMPILATION in every source; link tutti::separate
// flags: -UTUTTI_SEPARATE_COMPILATION
#ifndef FIXED
#include <tutti/separate.hpp>
#else
#include <tutti/config.hpp>
#endif
