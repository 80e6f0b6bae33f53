#include <tutti/losses/binary_cross_entropy.hpp>
#include <tutti/losses/dice.hpp>
#include <tutti/losses/soft_cross_entropy.hpp>
#include <tutti/metrics/binary_f1.hpp>
#include <tutti/metrics/cross_entropy.hpp>
#include <tutti/metrics/dice.hpp>
#include <tutti/metrics/language.hpp>
#include <tutti/metrics/masked_accuracy.hpp>
#include <tutti/metrics/miou.hpp>

#include "golden/runner.hpp"

namespace golden {
namespace {

using tutti::Reduction;

Reduction reduction_of(const Arguments& a, Reduction otherwise) {
  if (!a.has("reduction")) {
    return otherwise;
  }
  const std::string text = a.text("reduction", "");
  if (text != "none" && text != "sum" && text != "mean") {
    throw std::invalid_argument(a.what() + ": no reduction is called " + text);
  }
  return text == "none" ? Reduction::none : text == "sum" ? Reduction::sum : Reduction::mean;
}

at::Tensor in_or_none(const Case& c, const std::string& key) {
  return c.has_in(key) ? c.in(key) : at::Tensor();
}

// The loss of `x` and its gradient; `loss_of` gets x.
template <class F>
void check_loss(const Case& c, Verdict& verdict, F&& loss_of) {
  const at::Tensor x = c.in("x").requires_grad_();
  at::Tensor loss;
  if (!verdict.raises_as_reference([&] { loss = loss_of(x); })) {
    return;
  }
  verdict.tensor("loss", loss);
  (c.has_in("g") ? loss.mul(c.in("g")).sum() : loss).backward();
  verdict.tensor("grad", x.grad());
}

void soft_cross_entropy(const Case& c, Verdict& verdict) {
  const Arguments a(c.params["args"], "soft_cross_entropy");
  const std::int64_t ignore_index = a.integer("ignore_index", -100);
  const Reduction reduction = reduction_of(a, Reduction::mean);
  a.done();
  check_loss(c, verdict, [&](const at::Tensor& x) {
    return tutti::functional::soft_cross_entropy(x, c.in("y"), in_or_none(c, "weight"),
                                                 ignore_index, reduction);
  });
}

void binary_cross_entropy(const Case& c, Verdict& verdict) {
  const Arguments a(c.params["args"], "binary_cross_entropy_with_logits");
  tutti::BinaryCrossEntropyWithLogits options;
  options.weight = in_or_none(c, "weight");
  options.pos_weight = in_or_none(c, "pos_weight");
  options.reduction = reduction_of(a, options.reduction);
  const bool given = c.params["args"].find("scale_by_batch_size") != nullptr;
  options.scale_by_batch_size = a.flag("scale_by_batch_size", !given);  // null is false
  a.done();
  check_loss(c, verdict, [&](const at::Tensor& x) {
    return tutti::functional::binary_cross_entropy_with_logits(x, c.in("y"), options);
  });
}

void dice_loss(const Case& c, Verdict& verdict) {
  const Arguments a(c.params["args"], "DiceLoss");
  tutti::DiceLoss loss;
  loss.sigmoid = a.flag("sigmoid", loss.sigmoid);
  loss.softmax = a.flag("softmax", loss.softmax);
  loss.squared_pred = a.flag("squared_pred", loss.squared_pred);
  loss.jaccard = a.flag("jaccard", loss.jaccard);
  loss.batch = a.flag("batch", loss.batch);
  loss.ignore_absent_classes = a.flag("ignore_absent_classes", loss.ignore_absent_classes);
  loss.reduction = reduction_of(a, loss.reduction);
  a.done();
  check_loss(c, verdict, [&](const at::Tensor& x) { return loss(x, c.in("y")); });
}

// The value after each update; the counts accumulate.
void check_metric(const Case& c, Verdict& verdict, tutti::Metric&& metric) {
  const std::int64_t updates = c.params["updates"].integer();
  const at::Tensor values = at::empty({updates}, at::kDouble);
  for (std::int64_t i = 0; i < updates; ++i) {
    metric.update(c.in("preds" + std::to_string(i)), c.in("target" + std::to_string(i)));
    values[i] = metric.compute();
  }
  verdict.tensor("values", values);
}

void metric(const Case& c, Verdict& verdict) {
  const std::string name = c.function.substr(std::string("metric_").size());
  const Arguments a(c.params["args"], name);
  const std::int64_t ignore_index = a.integer("ignore_index", name == "MIoU" ? -1 : -100);
  const std::int64_t classes = a.integer("num_classes", 0);
  a.flag("dist_sync_on_step", false);  // changes nothing in one process
  a.done();
  if (name == "CrossEntropy") {
    check_metric(c, verdict, tutti::CrossEntropy(ignore_index));
  } else if (name == "MIoU") {
    check_metric(c, verdict, tutti::MIoU(classes, ignore_index));
  } else if (name == "Dice") {
    check_metric(c, verdict, tutti::Dice(classes));
  } else if (name == "LanguageCrossEntropy") {
    check_metric(c, verdict, tutti::LanguageCrossEntropy(ignore_index));
  } else if (name == "LanguagePerplexity") {
    check_metric(c, verdict, tutti::LanguagePerplexity(ignore_index));
  } else if (name == "MaskedAccuracy") {
    check_metric(c, verdict, tutti::MaskedAccuracy(ignore_index));
  } else if (name == "BinaryF1Score") {
    check_metric(c, verdict, tutti::BinaryF1Score());
  } else {
    throw Skipped("no metric is called " + name);
  }
}

}  // namespace

Handlers loss_handlers() {
  return {{"soft_cross_entropy", soft_cross_entropy},
          {"binary_cross_entropy_with_logits", binary_cross_entropy},
          {"DiceLoss", dice_loss},
          {"metric_CrossEntropy", metric},
          {"metric_MIoU", metric},
          {"metric_Dice", metric},
          {"metric_LanguageCrossEntropy", metric},
          {"metric_LanguagePerplexity", metric},
          {"metric_MaskedAccuracy", metric},
          {"metric_BinaryF1Score", metric}};
}

}  // namespace golden
