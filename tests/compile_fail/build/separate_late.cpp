// error: tutti: include <tutti/separate.hpp> before any other header of tutti
// flags: -DTUTTI_SEPARATE_COMPILATION
#ifndef FIXED
#include <tutti/config.hpp>
#include <tutti/separate.hpp>
#else
#include <tutti/config.hpp>
#endif
