// error: tutti: <tutti/cli.hpp> needs CLI11; link tutti::cli11, which tutti_find_cli11\(\) makes
// flags: -DTUTTI_SEPARATE_COMPILATION
// wrong flags: -nostdinc -nostdinc++
// wrong without: cli11
// torch
#include <tutti/cli.hpp>
