// error: takes a Model or a module with at::Tensor forward\(at::Tensor\); for others write
// torch
#include <tutti/models/export_onnx.hpp>

struct Net : torch::nn::Module {
#ifdef FIXED
  at::Tensor forward(const at::Tensor& x) { return x; }
#else
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return x + y; }
#endif
};
void write(std::shared_ptr<Net> net, const at::Tensor& x) {
  tutti::export_onnx(net, x, "net.onnx");
}
