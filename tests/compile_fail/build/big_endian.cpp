// error: checkpoint files are little-endian and are read without swapping bytes; this machine is
// wrong flags: -U__BYTE_ORDER__ -D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__
#include <tutti/checkpoint/detail/little_endian.hpp>
