#pragma once

/// Every schedule of the library.
///
/// From PyTorch's: StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR and
/// CosineAnnealingWarmRestarts are Step, MultiStep, Exponential, CosineAnnealing and
/// CosineAnnealingWarmRestarts with their epochs written as "30ep"; LinearLR is Linear, OneCycleLR
/// and CyclicLR are OneCycle and Cyclic; ReduceLROnPlateau looks at a metric, so it is a callback.
/// These follow the batches inside an epoch; for a rate that only changes between epochs wrap one:
///
///     [s = tutti::CosineAnnealing{}](tutti::Progress p, double ssr) {
///       p.timestamp.batch -= p.timestamp.batch_in_epoch;
///       return s(p, ssr);
///     }

#include <tutti/optim/annealing.hpp>
#include <tutti/optim/cyclic.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/optim/step.hpp>
#include <tutti/optim/warmup.hpp>
