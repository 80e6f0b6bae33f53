// error: tutti: separate.hpp needs TUTTI_SEPARATE_COMPILATION in every source; link tutti::separate
#ifndef FIXED
#include <tutti/separate.hpp>
#else
#include <tutti/config.hpp>
#endif
