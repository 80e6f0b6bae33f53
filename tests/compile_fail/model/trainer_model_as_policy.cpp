// error: tutti: this is a model, which is no policy; give it to the trainer as the first argument
// culprit: Net
// torch
#include <tutti/trainer.hpp>

struct Net : torch::nn::Module {
  tutti::Outputs forward(const tutti::Batch& batch) { return batch.inputs(); }
  tutti::Loss loss(const tutti::Outputs& outputs, const tutti::Batch&) {
    return outputs.tensor().mean();
  }
};

void run(tutti::TrainerOptions options) {
#ifdef FIXED
  tutti::Trainer<>(std::make_shared<Net>(), std::move(options)).fit();
#else
  tutti::Trainer<Net>(std::make_shared<Net>(), std::move(options)).fit();
#endif
}
