"""Makes torchmetrics.json and torchmetrics.safetensors, the values that the tests of this folder compare with.

    pip install torch torchvision torchmetrics pycocotools safetensors
    python tests/metrics/golden.py

Everything is drawn from fixed seeds. A case is a metric of torchmetrics, its arguments, and the name of its inputs, which
several cases share: `<inputs>/preds<i>` and `<inputs>/target<i>` of update i; for boxes, of all images of update i one
after the other, `boxes`, `scores`, `labels`, `iscrowd` and `area` and the number of boxes in each image, `count`. The
tensor `values` holds, case by case, `updates` times `size` numbers, the value after every update: one number, one for each
class, the matrix row by row, or the numbers of MeanAveragePrecision in the order of `keys`. A value is NaN where torchmetrics
raises for want of data.
"""

import itertools
import json
import pathlib
import warnings

import torch
import torchmetrics
from safetensors.torch import save_file
from torchmetrics import classification, detection, regression

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
HERE = pathlib.Path(__file__).parent
CLASSES = 4
LABELS = 3
IGNORED = -1

tensors = {}
cases = []
values_of_cases = []


def generator(*key):
    return torch.Generator().manual_seed(sum((i + 1) * ord(c) for i, c in enumerate("/".join(map(str, key)))))


def ignoring(target, g):
    target = target.clone()
    target[torch.rand(target.shape, generator=g) < 0.2] = IGNORED
    return target


def binary(kind, seed, shape=()):
    g = generator("binary", kind, seed)
    n = {"one": 1, "long": 60}.get(kind, 17)
    updates = []
    for _ in range(1 if kind in ("one", "negatives", "positives") else 3):
        preds = torch.rand((n, *shape), generator=g)
        target = (torch.rand(preds.shape, generator=g) < 0.4 * preds + 0.2).long()
        if kind == "logits":
            preds = torch.randn(preds.shape, generator=g) * 3
        elif kind == "ties":
            preds = (preds * 5).round() / 5
        elif kind == "negatives":
            target = torch.zeros_like(target)
        elif kind == "positives":
            target = torch.ones_like(target)
        elif kind == "labels":
            preds = (preds > 0.5).long()
        elif kind == "double":
            preds = preds.double()
        elif kind == "edges":
            preds = torch.tensor([0.0, 1.0, 0.5, 0.2, 0.4])[torch.randint(5, preds.shape, generator=g)]
        elif kind == "nan" and not updates:  # only one: torchmetrics' order of several is not defined
            preds[3] = float("nan")
        elif kind == "ignored":
            target = ignoring(target, g)
        elif kind == "mixed":
            target = ignoring(target, g)
            preds = torch.where(target == IGNORED, torch.full_like(preds, 7.0), preds)
        elif kind == "all_ignored":
            target = torch.full_like(target, IGNORED)
        updates.append((preds, target))
    return updates


def multilabel(kind, seed):
    updates = binary(kind.removesuffix("_deep"), seed, (LABELS, 2) if kind.endswith("_deep") else (LABELS,))
    if kind == "missing":
        for _, target in updates:
            target[:, 1] = 0
    return updates


def multiclass(kind, seed):
    g = generator("multiclass", kind, seed)
    n = {"one": 1}.get(kind, 19)
    deep = (2,) if kind == "deep" else ()
    updates = []
    for _ in range(1 if kind in ("one", "zeros") else 3):
        logits = torch.randn((n, CLASSES, *deep), generator=g) * 2
        target = torch.randint(CLASSES, (n, *deep), generator=g)
        logits.scatter_add_(1, target.unsqueeze(1), torch.ones_like(logits))
        preds = logits.softmax(1)
        if kind == "logits":
            preds = logits
        elif kind == "ties":
            preds = (preds * 4).round() / 4
        elif kind == "zeros":
            target = torch.zeros_like(target)
        elif kind == "missing":
            target = target.clamp_max(2)
        elif kind == "unseen":
            target = target.clamp_max(2)
            preds[:, 3] = 0
        elif kind == "labels":
            preds = preds.argmax(1)
        elif kind == "double":
            preds = preds.double()
        elif kind == "nan" and not updates:  # only one: torchmetrics' order of several is not defined
            preds[3] = float("nan")
        elif kind == "ignored":
            target = ignoring(target, g)
        elif kind == "mixed":
            target = ignoring(target, g)
            preds[target == IGNORED] = 7.0
        elif kind == "all_ignored":
            target = torch.full_like(target, IGNORED)
        updates.append((preds, target))
    return updates


def regressed(kind, seed):
    g = generator("regression", kind, seed)
    n = {"one": 1, "two": 2, "long": 100, "outlier": 3500}.get(kind, 15)
    shape = (n, 3) if kind.startswith("columns") else (n,)
    updates = []
    for _ in range(1 if kind in ("one", "two", "outlier") else 3):
        target = torch.randn(shape, generator=g)
        preds = 0.6 * target + 0.5 * torch.randn(shape, generator=g)
        if kind == "ties":
            preds, target = (preds * 2).round(), (target * 2).round()
        elif kind == "constant_target":
            target = torch.full_like(target, 0.5)
        elif kind == "constant_preds":
            preds = torch.full_like(preds, 0.5)
        elif kind == "exact":
            preds = target.clone()
        elif kind == "opposite":
            preds = -target
        elif kind == "offset":
            preds, target = preds.double() + 30, target.double() + 30
        elif kind == "double" or kind == "columns_double":
            preds, target = preds.double(), target.double()
        elif kind == "outlier":
            target[5] = preds[5] = 1000
        elif kind == "nan" and not updates:
            preds[2] = float("nan")
        updates.append((preds, target))
    return updates


def add_inputs(name, updates):
    if f"{name}/preds0" not in tensors:
        for i, (preds, target) in enumerate(updates):
            tensors[f"{name}/preds{i}"] = preds.contiguous()
            tensors[f"{name}/target{i}"] = target.contiguous()


def add_case(inputs, name, args, updates):
    """Runs a metric; what it refuses beforehand is no case."""
    module = next(m for m in (classification, regression) if hasattr(m, name))
    metric = getattr(module, name)(**args)
    values = []
    for preds, target in updates:
        metric.update(preds, target)
        metric._computed = None
        try:
            values.append(torch.as_tensor(metric.compute()).double().flatten())
        except (ValueError, IndexError, RuntimeError):
            values.append(None)
    size = max((v.numel() for v in values if v is not None), default=1)
    values_of_cases.extend(torch.full((size,), torch.nan).double() if v is None else v for v in values)
    add_inputs(inputs, updates)
    cases.append({"metric": name, "args": args, "inputs": inputs, "updates": len(updates), "size": size})


def classification_cases():
    scores = ("Precision", "Recall", "F1Score")
    curves = ("AUROC", "AveragePrecision")
    skipping = ("ignored", "mixed", "all_ignored")

    def arguments(task, family, kind):
        base = {"Multiclass": {"num_classes": CLASSES}, "Multilabel": {"num_labels": LABELS}}.get(task, {})
        if kind in skipping:
            base["ignore_index"] = IGNORED
        averages = ("micro", "macro", "weighted", "none") if family == scores else ("macro", "weighted", "none")
        if family == curves and task == "Multilabel":
            averages = ("micro", *averages)
        out = [base] if task == "Binary" else [{**base, "average": a} for a in averages]
        if family == scores:
            if task != "Multiclass":
                out.append({**out[0], "threshold": 0.3})
            elif kind != "labels":
                out += [{**out[1], "top_k": 2}, {**out[3], "top_k": 3}]
            out.append({**out[-1], "zero_division": 1})
        if family == curves and task == "Binary":
            out += [{**base, "max_fpr": x} for x in (0.3, 0.5, 0.9)]
        return out

    for task, data, kinds in (
        ("Binary", binary, ("probs", "logits", "ties", "edges", "double", "nan", "one", "negatives", "positives",
                            "labels", "ignored", "mixed", "all_ignored", "long")),
        ("Multilabel", multilabel, ("probs", "probs_deep", "logits", "ties", "one", "missing", "negatives", "positives",
                                    "labels", "ignored", "all_ignored")),
        ("Multiclass", multiclass, ("probs", "deep", "logits", "ties", "double", "nan", "one", "zeros", "missing",
                                    "unseen", "labels", "ignored", "mixed", "all_ignored"))):
        for kind in kinds:
            for seed in range(3 if kind in ("probs", "ties", "logits", "ignored") else 1):
                inputs = f"{task}_{kind}_{seed}"
                updates = data(kind, seed)
                for metric in scores:
                    # all ignored, top_k > 1: torchmetrics indexes its matrix of classes out of range
                    for args in arguments(task, scores, kind):
                        if kind in skipping and args.get("top_k", 1) > 1:
                            continue
                        if kind == "nan" and args.get("top_k", 1) > 1:
                            continue  # the order of NaN in topk is not defined
                        if kind == "ties" and args.get("top_k", 1) > 1:
                            continue  # nor that of equal scores
                        add_case(inputs, task + metric, args, updates)
                if kind != "labels":
                    for metric, args in itertools.product(curves, arguments(task, curves, kind)):
                        if "max_fpr" in args and metric != "AUROC":
                            continue
                        add_case(inputs, task + metric, args, updates)
                base = {k: v for k, v in arguments(task, scores, kind)[0].items() if k != "average"}
                for normalize in (None, "true", "pred", "all"):
                    add_case(inputs, task + "ConfusionMatrix", {**base, "normalize": normalize}, updates)
                if task != "Multilabel" and kind != "labels":
                    for norm, bins in itertools.product(("l1", "l2", "max"), (15, 4)):
                        add_case(inputs, task + "CalibrationError", {**base, "norm": norm, "n_bins": bins}, updates)


def regression_cases():
    for kind in ("plain", "ties", "long", "one", "two", "exact", "opposite", "constant_target", "constant_preds", "offset",
                 "double", "nan", "outlier", "columns", "columns_double"):
        for seed in range(3 if kind in ("plain", "ties", "columns") else 1):
            inputs = f"regression_{kind}_{seed}"
            updates = regressed(kind, seed)
            outputs = {"num_outputs": 3} if kind.startswith("columns") else {}
            for metric in ("SpearmanCorrCoef", "PearsonCorrCoef", "MeanSquaredError", "MeanAbsoluteError"):
                add_case(inputs, metric, outputs, updates)
            add_case(inputs, "MeanSquaredError", {**outputs, "squared": False}, updates)
            if outputs:
                add_case(inputs, "MeanSquaredError", {}, updates)
                add_case(inputs, "MeanAbsoluteError", {}, updates)
            for adjusted, how in ((0, "uniform_average"), (2, "uniform_average"), (0, "variance_weighted"),
                                  (3, "raw_values"), (200, "uniform_average")):
                add_case(inputs, "R2Score", {"adjusted": adjusted, "multioutput": how}, updates)


def boxes_of(kind, g):
    """One image: detections and objects, xyxy."""
    n = int(torch.randint(0 if kind != "crowded" else 12, 7 if kind != "crowded" else 20, (1,), generator=g))
    if kind == "no_objects":
        n = 0
    side = torch.tensor([12.0, 45.0, 150.0])[torch.randint(3, (n,), generator=g)]
    corner = torch.rand((n, 2), generator=g) * 200
    size = side.unsqueeze(1) * (0.6 + 0.8 * torch.rand((n, 2), generator=g))
    truth = {"boxes": torch.cat([corner, corner + size], 1), "labels": torch.randint(3, (n,), generator=g)}
    if kind in ("crowd", "area"):
        truth["iscrowd"] = (torch.rand(n, generator=g) < 0.3).long()
    if kind == "area":
        truth["area"] = (size.prod(1) * (0.2 + torch.rand(n, generator=g))).where(torch.rand(n, generator=g) < 0.8,
                                                                                torch.zeros(n))
    times = {"many": 30}.get(kind, 2)
    boxes = truth["boxes"].repeat(times, 1)
    boxes = boxes + torch.randn(boxes.shape, generator=g) * side.repeat(times).unsqueeze(1) * 0.12
    labels = truth["labels"].repeat(times)
    labels = torch.where(torch.rand(labels.shape, generator=g) < 0.85, labels, (labels + 1) % 4)
    keep = torch.rand(labels.shape, generator=g) < 0.75
    extra = torch.rand((int(torch.randint(3, (1,), generator=g)), 2), generator=g) * 200
    boxes = torch.cat([boxes[keep], torch.cat([extra, extra + 30], 1)])
    labels = torch.cat([labels[keep], torch.randint(3, (len(extra),), generator=g)])
    if kind == "no_detections":
        boxes, labels = boxes[:0], labels[:0]
    scores = torch.rand(len(labels), generator=g)
    if kind == "ties":
        scores = (scores * 4).round() / 4
    return {"boxes": boxes, "scores": scores, "labels": labels}, truth


def to_format(boxes, form):
    corner, size = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    return {"xyxy": boxes, "xywh": torch.cat([corner, size], 1),
            "cxcywh": torch.cat([corner + size / 2, size], 1)}[form]


def box_cases():
    variants = ({}, {"average": "micro"}, {"class_metrics": True})
    more = ({"box_format": "xywh"}, {"box_format": "cxcywh"}, {"iou_thresholds": [0.4, 0.75]},
            {"rec_thresholds": [0.0, 0.3, 0.6, 1.0]}, {"max_detection_thresholds": [1, 2, 100]},
            {"average": "micro", "class_metrics": True})
    for kind, seeds in (("plain", 4), ("ties", 3), ("crowd", 3), ("area", 3), ("many", 1), ("crowded", 2),
                        ("no_objects", 1), ("no_detections", 1)):
        for seed in range(seeds):
            g = generator("boxes", kind, seed)
            updates = [[boxes_of(kind, g) for _ in range(3)] for _ in range(1 if kind == "many" else 2)]
            for args in variants + (more if kind == "plain" and seed == 0 else ()):
                form = args.get("box_format", "xyxy")
                inputs = f"boxes_{kind}_{seed}_{form}"
                metric = detection.MeanAveragePrecision(**args)
                metric.warn_on_many_detections = False
                keys, values = None, []
                for i, images in enumerate(updates):
                    preds = [{**p, "boxes": to_format(p["boxes"], form)} for p, _ in images]
                    target = [{**t, "boxes": to_format(t["boxes"], form)} for _, t in images]
                    metric.update(preds, target)
                    metric._computed = None
                    result = metric.compute()
                    labels = result.pop("classes").reshape(-1).tolist()
                    flat = {}
                    for key, value in result.items():
                        if not key.endswith("per_class"):
                            flat[key] = float(value)
                        elif args.get("class_metrics"):
                            flat.update({f"{key}_{c}": float(v) for c, v in zip(labels, value.reshape(-1))})
                    if i + 1 == len(updates):
                        keys = sorted(flat)
                    values.append(flat)
                    for side, group in (("preds", preds), ("target", target)):
                        add = lambda name, x: tensors.setdefault(f"{inputs}/{side}{i}/{name}", x.contiguous())
                        add("count", torch.tensor([len(x["labels"]) for x in group]))
                        for name in group[0]:
                            add(name, torch.cat([x[name] for x in group]))
                values_of_cases.extend(torch.tensor([v.get(k, torch.nan) for k in keys]).double() for v in values)
                cases.append({"metric": "MeanAveragePrecision", "args": args, "inputs": inputs,
                              "updates": len(updates), "size": len(keys), "keys": keys})


if __name__ == "__main__":
    classification_cases()
    regression_cases()
    box_cases()
    head = {"versions": {"torchmetrics": torchmetrics.__version__, "torch": torch.__version__.split("+")[0]}}
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (HERE / "torchmetrics.json").write_text(f'{json.dumps(head)[:-1]},\n"cases": [\n{lines}\n]}}\n')
    tensors["values"] = torch.cat(values_of_cases)
    save_file(tensors, HERE / "torchmetrics.safetensors")
    print(f"{len(cases)} cases, {len(tensors)} tensors")
