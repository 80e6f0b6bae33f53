// error: Order<tutti::fused::Mix>
// error: makes floats of bytes exactly once; put one tutti::fused::Normalize among its stages
// culprit: fused::Mix
// torch
#include <tutti/algorithms/mixup.hpp>
#include <tutti/fused/pass.hpp>
#include <tutti/fused/stages.hpp>

#ifdef FIXED
inline void run(tutti::fused::Pass<tutti::fused::Normalize, tutti::MixUp>& pass,
                const at::Tensor& images) {
  static_cast<void>(pass.plan(images));
}
#else
inline void run(tutti::fused::Pass<tutti::MixUp>& pass, const at::Tensor& images) {
  static_cast<void>(pass.plan(images));
}
#endif
