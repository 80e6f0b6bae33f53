// error: Order<tutti::fused::Crops, tutti::fused::Crops, tutti::fused::Scale>
// error: a fused pass crops once and flips once; keep one RandomCrop and one RandomFlip
// culprit: fused::Crops
// torch
#include <tutti/fused/pass.hpp>
#include <tutti/fused/stages.hpp>

using tutti::fused::Normalize;
using tutti::fused::RandomCrop;

#ifdef FIXED
template class tutti::fused::Pass<RandomCrop, Normalize>;
#else
template class tutti::fused::Pass<RandomCrop, RandomCrop, Normalize>;
#endif
