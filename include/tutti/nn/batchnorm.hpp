#pragma once

#include <tutti/nn/slot.hpp>

#include <torch/nn/modules/batchnorm.h>

/// Batch normalisation that surgery can replace.
namespace tutti::nn {

/// torch::nn::BatchNorm1d, replaceable: [N, C] or [N, C, L], same shape out.
///
/// Parameters `weight`, `bias`; buffers `running_mean`, `running_var`, `num_batches_tracked`.
using BatchNorm1dImpl = Replaceable<torch::nn::BatchNorm1dImpl>;
TORCH_MODULE(BatchNorm1d);

/// torch::nn::BatchNorm2d, replaceable: [N, C, H, W], same shape out; tensors as BatchNorm1d.
using BatchNorm2dImpl = Replaceable<torch::nn::BatchNorm2dImpl>;
TORCH_MODULE(BatchNorm2d);

/// torch::nn::BatchNorm3d, replaceable: [N, C, D, H, W], same shape out; tensors as BatchNorm1d.
using BatchNorm3dImpl = Replaceable<torch::nn::BatchNorm3dImpl>;
TORCH_MODULE(BatchNorm3d);

}  // namespace tutti::nn
