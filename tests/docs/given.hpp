// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the code in docs/ takes for granted. docs_code.py makes each block a member function of a
// class derived from Given.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <range/v3/view/transform.hpp>

#include <torch/torch.h>

#include <tutti/tutti.hpp>

struct Given {
  at::Tensor images, labels, image, x, y, mask, inputs, targets, out;
  tutti::TensorLoader loader{images, labels};
  tutti::TensorLoader test_loader{images, labels};
  tutti::Batch batch;
  std::vector<tutti::Batch> batches;

  // Of a recipe.
  tutti::Classifier<tutti::models::ResNetImpl> model{tutti::models::resnet18(),
                                                     {.num_classes = 10}};
  tutti::TrainerOptions options;

  // Of a loop written by hand.
  tutti::models::ResNet net;
  torch::optim::SGD optimizer{net->parameters(), 0.1};
  torch::nn::CrossEntropyLoss criterion;
  double elapsed = 0;  // of the run
  std::int64_t batch_in_epoch = 0;
};
