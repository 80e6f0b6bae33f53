// Every header, and programs that make the templates in them: recipes for images and for text, with
// a command line.
#include <tutti/tutti.hpp>

#include <tutti/cli.hpp>
#include <tutti/data/data_loader.hpp>
#include <tutti/loggers/mlflow.hpp>
#include <tutti/profiler/profiler.hpp>
#if __has_include(<httplib.h>)
#include <tutti/loggers/dashboard_command.hpp>
#endif

using namespace tutti;

void images(int argc, char** argv) {
  TrainerOptions options{.max_duration = "3ep"};
  cli::Program program{"images", "trains"};
  program.add(options).parse(argc, argv);
  options.train =
      TensorLoader{at::ones({8, 3, 8, 8}), at::zeros({8}, at::kLong), {.batch_size = 4}};
  options.optimizer = DecoupledSGDW{.lr = 0.1, .momentum = 0.9};
  options.schedule = CosineAnnealingWithWarmup{.t_warmup = "1ep"};
  Classifier model{models::cifar_resnet({.blocks = {1, 1, 1}}), {.num_classes = 10}};
  Trainer trainer{model,      options,          MixUp{},
                  BlurPool{}, LabelSmoothing{}, ChannelsLast{},
                  EMA{},      SpeedMonitor{},   GradientClipping{.clipping_threshold = 1.0}};
  trainer.fit();
}

void text(Trainer<ALiBi, GatedLinearUnits, SeqLengthWarmup, LRMonitor, MLflowLogger>& trainer) {
  trainer.fit();
  trainer.eval();
}
