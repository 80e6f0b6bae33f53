// error: Order<tutti::fused::Scale, tutti::fused::Mix, tutti::fused::Mix>
// error: a fused pass blends once; keep one MixUp
// culprit: fused::Mix
// torch
#include <tutti/algorithms/mixup.hpp>
#include <tutti/fused/pass.hpp>
#include <tutti/fused/stages.hpp>

#ifdef FIXED
template class tutti::fused::Pass<tutti::fused::Normalize, tutti::MixUp>;
#else
template class tutti::fused::Pass<tutti::fused::Normalize, tutti::MixUp, tutti::MixUp>;
#endif
