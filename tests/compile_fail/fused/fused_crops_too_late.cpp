// error: Order<tutti::fused::Scale, tutti::fused::Crops>
// error: RandomCrop and RandomFlip move the images before they are a batch
// culprit: fused::Scale, fused::Crops
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
inline void run(tutti::fused::Pass<Normalize, RandomCrop>& pass, const at::Tensor& images) {
  static_cast<void>(pass.plan(images));
}
#endif
