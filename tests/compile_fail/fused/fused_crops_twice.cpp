// error: Order<tutti::fused::Crops, tutti::fused::Crops, tutti::fused::Scale>
// error: a fused pass crops once and flips once; keep one RandomCrop and one RandomFlip
// culprit: fused::Crops
// torch
#include <tutti/fused/pass.hpp>
#include <tutti/fused/stages.hpp>

using tutti::fused::Normalize;
using tutti::fused::RandomCrop;

#ifdef FIXED
inline void run(tutti::fused::Pass<RandomCrop, Normalize>& pass, const at::Tensor& images) {
  static_cast<void>(pass.plan(images));
}
#else
inline void run(tutti::fused::Pass<RandomCrop, RandomCrop, Normalize>& pass,
                const at::Tensor& images) {
  static_cast<void>(pass.plan(images));
}
#endif
