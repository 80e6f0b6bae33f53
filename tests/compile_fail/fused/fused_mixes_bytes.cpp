// error: Order<tutti::fused::Mix, tutti::fused::Scale>
// error: bytes cannot be blended; put tutti::fused::Normalize before MixUp
// culprit: fused::Mix
// torch
#include <tutti/algorithms/mixup.hpp>
#include <tutti/fused/pass.hpp>
#include <tutti/fused/stages.hpp>

#ifdef FIXED
template class tutti::fused::Pass<tutti::fused::Normalize, tutti::MixUp>;
#else
template class tutti::fused::Pass<tutti::MixUp, tutti::fused::Normalize>;
#endif
