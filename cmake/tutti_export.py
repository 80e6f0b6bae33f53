#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports a PyTorch model once, to be trained without Python by tutti::load_compiled() (docs/compiled.md).

    python tutti_export.py --model timm:resnet18 --model-args '{"num_classes": 10}' --batch 8x3x64x64 --out resnet18.tutti
    python tutti_export.py --model hf:gpt2 --batch input_ids=4x64:int64 --dynamic input_ids:1=length --out gpt2.tutti
    python tutti_export.py --model my_model.py:MyModel --batch 8x32 --out mine.tutti

As a function: tutti_export.export(model, {"x": example}, "mine.tutti"). What it writes is a folder: model.safetensors has the
weights, forward.so, backward.so and eval.so are programs that inductor compiles for this kind of machine and this torch, and
compiled.json says what they take and give. Such a folder is a program: who loads it runs it.

With --data-only there are no .so files: compiled.json lists the calls of PyTorch's operators that forward, backward and evaluation
make. It is data, runs on any machine, and nothing is fused.

Needs torch 2.11 or newer and safetensors, a C++ compiler where programs are made, and what --model names: timm, torchvision, transformers.
"""
import argparse
import contextlib
import difflib
import functools
import hashlib
import importlib.util
import inspect
import json
import logging
import math
import operator
import os
import platform
import random
import re
import shutil
import struct
import sys
import tempfile
import traceback
import warnings

import torch
import torch.utils._pytree as pytree
import torch.utils.checkpoint

FORMAT = 1
OLDEST = (2, 11)
SMALL = 1 << 14  # elements of a tensor
# What takes a processor longer to compute again for the backward than to read from memory.
SLOW = {torch.ops.aten.tanh.default, torch.ops.aten.erf.default, torch.ops.aten.sigmoid.default}


class Refusal(Exception):
    """What cannot be exported, and why, in a sentence."""


def private(data_only):
    """The calls of torch that are no public interface, each in its place since torch 2.11."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise Refusal(f"this is torch {torch.__version__}, and the export needs {OLDEST[0]}.{OLDEST[1]} or newer, the version of "
                      "the LibTorch that trains the model")
    places = {
        "D": ("torch._functorch._aot_autograd.descriptors", None),
        "joint": ("torch._functorch.aot_autograd", "aot_export_joint_with_descriptors"),
        "partition": ("torch._functorch.partitioners", "default_partition" if data_only else "min_cut_rematerialization_partition"),
        "TracingContext": ("torch._guards", "TracingContext"),
        "tracing": ("torch._guards", "tracing"),
    }
    if not data_only:
        places |= {
            "config": ("torch._inductor.config", None),
            "compile": ("torch._inductor", "aot_compile"),
            "decomposition": ("torch._inductor.decomposition", None),
            "lowering": ("torch._inductor.lowering", None),
            "joint_passes": ("torch._inductor.fx_passes.joint_graph", "joint_graph_passes"),
            "V": ("torch._inductor.virtualized", "V"),
            "vector": ("torch._inductor.cpu_vec_isa", "pick_vec_isa"),
            "Runner": ("torch._C._aoti", "AOTIModelContainerRunnerCpu"),
        }
    found = argparse.Namespace()
    for name, (module, member) in places.items():
        try:
            value = importlib.import_module(module)
            setattr(found, name, value if member is None else getattr(value, member))
        except (ImportError, AttributeError) as error:
            raise Refusal(f"torch {torch.__version__} has no {module}{'.' + member if member else ''}, which the export calls; "
                          f"export with torch {OLDEST[0]}.{OLDEST[1]}") from error
    return found


def placeholders(graph):
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def output_node(graph):
    return next(node for node in graph.graph.nodes if node.op == "output")


def value(node):
    return node.meta.get("val")


def elements(tensor):
    """How many a tensor of the example batch has; SMALL for each size that only running the model tells."""
    return math.prod(s if isinstance(s, int) else s.node.hint if s.node.has_hint() else SMALL for s in tensor.shape)


def word(P, descriptor):
    """What a value of the joint graph is, as text; what is not known here is refused."""
    D = P.D
    match descriptor:
        case D.ParamAOTInput():
            return "parameter:" + descriptor.target
        case D.BufferAOTInput():
            return "buffer:" + descriptor.target
        case D.PlainAOTInput():
            return f"input:{descriptor.idx}"
        case D.TangentAOTInput():
            return "tangent:" + word(P, descriptor.output).removeprefix("output:")
        case D.PlainAOTOutput():
            return f"output:{descriptor.idx}"
        case D.GradAOTOutput():
            return "gradient:" + word(P, descriptor.grad_of).removeprefix("parameter:")
        case D.InputMutationAOTOutput():
            mutated = word(P, descriptor.mutated_input)
            if not mutated.startswith("buffer:"):
                raise Refusal(f"the model changes {mutated.replace(':', ' ')} in place in its forward; let it make a new tensor")
            return "mutated:" + mutated.removeprefix("buffer:")
    raise Refusal(f"the model needs {descriptor!r} of torch, which an exported model does not have")


def place_of(error):
    """The line of the model at which the export failed: the deepest one outside torch and this file."""
    inside = os.path.dirname(torch.__file__) + os.sep
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if not f.filename.startswith((inside, "<")) and os.path.abspath(f.filename) != os.path.abspath(__file__)
              and f"contextlib{os.extsep}py" not in f.filename]
    return f" at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


def captured(model, args, dynamic):
    """torch.export's graph. The choices of Python's and NumPy's random numbers are made when a model is exported, once for all
    steps, so a graph that depends on them is refused: it is captured twice with other seeds."""
    def capture(seed):
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        try:
            return torch.export.export(model, args, dynamic_shapes=dynamic, strict=False)
        except Exception as error:
            said = str(error).strip().split("\n\n")[0]
            hint = "" if dynamic is None else "\nIf the model allows only some sizes, name them with --sizes; if it needs these, export " \
                "it with --fixed."
            raise Refusal(f"torch.export refuses the model{place_of(error)}\n{type(error).__name__}: {said}{hint}") from error
    state = random.getstate()
    programs = [capture(seed) for seed in (0, 1, 2)]
    random.setstate(state)
    if len({program.graph_module.code for program in programs}) > 1:
        raise Refusal("the model's graph depends on Python's or NumPy's random numbers (LayerDrop is of this kind); one draw would "
                      "be kept for all steps. Draw with torch instead, or set its probability to 0")
    return programs[0]


def regions(module):
    """A graph and those of its regions, as of autocast; nothing where it has other graphs, as torch.cond's branches, whose results have to
    agree in their memory order."""
    found = [module]
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            inner = [getattr(module, arg.target, None) for arg in node.args if isinstance(arg, torch.fx.Node) and arg.op == "get_attr"]
            inner = [regions(part) for part in inner if isinstance(part, torch.fx.GraphModule)]
            if not node.target.name().startswith("wrap_with_") or not all(inner):
                return []
            found += [part for parts in inner for part in parts]
    return found


def order_images(module):
    """Puts the channels of images last where the convolution that reads them is faster so: its filters are 1 x 1 or have one channel each,
    which are the same in both orders, or have at most as many elements as its images, so that turning them costs less than it saves.

    The graph has to say so, and not only inductor: a program gives what it keeps for its backward in the memory order of the graph.
    """
    aten = torch.ops.aten
    convolutions = {aten.conv2d.default, aten.conv2d.padding, aten.conv_transpose2d.input}
    for part in regions(module):
        found = [node for node in part.graph.nodes if node.target in convolutions and value(node.args[0]).dim() == 4]
        for node in found:
            image, weight, made = value(node.args[0]), value(node.args[1]), value(node)
            turned = elements(weight) if weight.size(1) > 1 and math.prod(weight.shape[2:]) > 1 else 0
            order = torch.channels_last if turned <= elements(image) + elements(made) else torch.contiguous_format
            with part.graph.inserting_before(node):
                node.update_arg(0, part.graph.call_function(aten.contiguous.default, (node.args[0],), {"memory_format": order}))
        if found:
            end = output_node(part)
            with part.graph.inserting_before(end):
                end.args = pytree.tree_map(lambda out: part.graph.call_function(aten.contiguous.default, (out,))
                                           if isinstance(out, torch.fx.Node) and isinstance(value(out), torch.Tensor)
                                           and value(out).is_contiguous() else out, end.args)
            part.recompile()


def joint_graph(P, model, args, dynamic, table, split=True):
    """Forward and backward graphs of the training mode, and the descriptors of the joint graph's outputs. split: False for one graph of
    both, whose backward starts with the gradient 1."""
    program = captured(model, args, dynamic)
    by_name = {node.name: node for node in placeholders(program)}
    fakes = tuple(value(by_name[name]) for name in program.graph_signature.user_inputs)
    mode = next(fake.fake_mode for fake in fakes if isinstance(fake, torch.Tensor))
    module = program.module(check_guards=False)
    if table is not None:
        order_images(module)
    with contextlib.ExitStack() as stack:
        stack.enter_context(P.tracing(P.TracingContext(mode)))
        stack.enter_context(mode)
        joint = P.joint(stack, module, fakes, decompositions=table).graph_module
        outs = output_node(joint).meta["desc"]
        draws = any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in joint.graph.nodes)
        if not split:
            for node in placeholders(joint):
                if isinstance(node.meta["desc"], P.D.TangentAOTInput):
                    with joint.graph.inserting_before(next(n for n in joint.graph.nodes if n.op != "placeholder")):
                        one = joint.graph.call_function(torch.ops.aten.full.default, ([], 1.0),
                                                        {"dtype": value(node).dtype, "device": value(node).device})
                    one.meta["val"] = value(node)
                    node.replace_all_uses_with(one)
                    joint.graph.erase_node(node)
            joint.recompile()
        if table is not None:
            with P.V.set_fake_mode(mode):
                P.joint_passes(joint)
        count = sum(d is not None and not isinstance(d, P.D.GradAOTOutput) for d in outs)
        static = [i for i, node in enumerate(placeholders(joint))
                  if isinstance(node.meta["desc"], (P.D.ParamAOTInput, P.D.BufferAOTInput))]
        if not split:
            return module, joint, outs
        if table is not None:
            for node in joint.graph.nodes:
                if node.target in SLOW:
                    node.meta["recompute"] = torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE
        forward, backward = P.partition(joint, [value(node) for node in placeholders(joint)], num_fwd_outputs=count,
                                        static_lifetime_input_indices=static)
    return program, module, forward, backward, outs, count, draws


def sizes_of_tensors(backward):
    """Programs take and give tensors only: sizes that the backward graph gets are made of the sizes of its tensors."""
    tensors = [node for node in placeholders(backward) if isinstance(value(node), torch.Tensor)]

    def symbol(name):
        for tensor in tensors:
            for i, size in enumerate(value(tensor).shape):
                expression = size.node.expr if isinstance(size, torch.SymInt) else None
                if expression is None or expression.free_symbols != {name}:
                    continue
                step, offset = expression.coeff(name), expression.subs(name, 0)
                if expression == step * name + offset and step.is_Integer and offset.is_Integer:
                    out = backward.graph.call_function(torch.ops.aten.sym_size.int, (tensor, i))
                    out = backward.graph.call_function(operator.sub, (out, int(offset))) if offset else out
                    return backward.graph.call_function(operator.floordiv, (out, int(step))) if step != 1 else out
        raise Refusal(f"the backward needs the size {name}, which none of its tensors has")

    def build(expression):
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return symbol(expression)
        def call(function, *arguments):
            return functools.reduce(lambda a, b: backward.graph.call_function(function, (a, b)), arguments)
        if expression.is_Add or expression.is_Mul:
            return call(operator.add if expression.is_Add else operator.mul, *map(build, expression.args))
        if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
            return call(operator.mul, *[build(expression.base)] * int(expression.exp))
        if expression.func.__name__ in ("FloorDiv", "Mod", "PythonMod"):
            return call(operator.floordiv if expression.func.__name__ == "FloorDiv" else operator.mod, *map(build, expression.args))
        raise Refusal(f"a size of the backward is {expression}, and only sums, products, quotients and remainders of the inputs' "
                      "sizes are known; export the model with --fixed")

    given = [node for node in placeholders(backward) if isinstance(value(node), torch.SymInt)]
    if not given:
        return
    first = next(node for node in backward.graph.nodes if node.op != "placeholder")
    for node in given:
        with backward.graph.inserting_before(first):
            size = build(value(node).node.expr)
        if not isinstance(size, int):
            size.meta["val"] = value(node)
        node.replace_all_uses_with(size)
        backward.graph.erase_node(node)


def base_of(node):
    """The placeholder whose memory a value of the graph has; None: memory of its own."""
    while node.op == "call_function":
        schema = getattr(node.target, "_schema", None)
        if schema is None or len(schema.returns) != 1 or schema.returns[0].alias_info is None:
            return None
        node = node.args[0]
    return node if node.op == "placeholder" else None


def wire(P, forward, backward, outs, count):
    """Takes out what need not travel (inputs, sizes, gradients that are not there), and says what is left, in order."""
    given = {node.name: word(P, node.meta["desc"]) for node in placeholders(forward)}
    sizes_of_tensors(backward)
    end = output_node(forward)
    saved = [v for v in end.args[0][count:] if v.name not in given and isinstance(value(v), torch.Tensor)]
    shared = {given[base.name] for base in map(base_of, saved) if base is not None}
    end.args = ((*end.args[0][:count], *saved),)
    end = output_node(backward)
    gradients = [(v, word(P, d)) for v, d in zip(end.args[0], outs[count:]) if v is not None and isinstance(d, P.D.GradAOTOutput)]
    gradients = [(v, w) for v, w in gradients if not w.startswith("gradient:input:")]
    end.args = (tuple(v for v, _ in gradients),)
    for graph in (forward, backward):
        graph.recompile()
    index = {v.name: f"saved:{i}" for i, v in enumerate(saved)}
    return {
        "forward": {"in": [given[node.name] for node in placeholders(forward)],
                    "out": [word(P, d) for d in outs[:count]] + list(index.values())},
        "backward": {"in": [given.get(node.name) or index.get(node.name) or word(P, node.meta["desc"])
                            for node in placeholders(backward)],
                     "out": [w for _, w in gradients], "shares": sorted(w for w in shared if not w.startswith("input:"))},
    }


def saved_bytes(forward, count):
    """What the backward graph gets from the forward beyond inputs and weights, in bytes for the example batch."""
    saved = [node for node in output_node(forward).args[0][count:] if base_of(node) is None]
    return sum(elements(value(node)) * value(node).element_size() for node in set(saved))


class WithLoss(torch.nn.Module):
    """The cross entropy of one of a model's outputs against the last argument, and all outputs, without gradients."""

    def __init__(self, model, which):
        super().__init__()
        self.model, self.which = model, which

    def forward(self, *args):
        out = values(self.model(*args[:-1]))
        logits = out[self.which]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return (torch.nn.functional.cross_entropy(logits, args[-1]), *(o.detach().clone() for o in out))


def wire_step(P, graph, outs, inputs):
    """The graph of forward, loss and backward with its results in their order, and what they are; inputs: how many the model has."""
    end = output_node(graph)
    found = {"mutated": [], "output": [], "loss": [], "gradient": []}
    for v, descriptor in zip(end.args[0], outs):
        text = word(P, descriptor) if v is not None and descriptor is not None else "gradient:input:"
        if text == "output:0":
            text = "loss:0"
        elif text.startswith("output:"):
            text = f"output:{int(text.removeprefix('output:')) - 1}"
        if not text.startswith("gradient:input:"):
            found[text.partition(":")[0]].append((v, text))
    pairs = [pair for kind in found.values() for pair in kind]
    end.args = (tuple(v for v, _ in pairs),)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())  # of plain arguments, not of a pair of lists
    graph.graph.eliminate_dead_code()
    graph = torch.fx.GraphModule(graph, graph.graph)  # which does not remember the pair
    given = [word(P, node.meta["desc"]) for node in placeholders(graph)]
    return graph, {"in": ["target:0" if w == f"input:{inputs}" else w for w in given], "out": [w for _, w in pairs]}


# --- The programs --------------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def inductor(P):
    """Inductor's settings and decompositions for programs that train on a CPU; what was set before comes back.

    Random numbers are ATen's, so that they are eager's for the same seed. Max-pooling is left to ATen, since inductor's backward of
    it is slow on a CPU. The number of threads is that of the process that trains. The memory order of images is order_images()'s.
    """
    tables = (P.lowering.lowerings, P.decomposition.decompositions, P.lowering.fallbacks)
    before = [table.copy() for table in tables]
    try:
        for op in (torch.ops.aten.max_pool2d_with_indices, torch.ops.aten.max_pool2d_with_indices_backward):
            for target in (op, *(getattr(op, overload) for overload in op.overloads())):
                P.lowering.lowerings.pop(target, None)
            P.decomposition.decompositions.pop(op.default, None)
            P.lowering.make_fallback(op.default, warn=False)
        with P.config.patch({"fallback_random": True, "cpp.dynamic_threads": True, "layout_optimization": False}):
            yield {k: v for k, v in P.decomposition.select_decomp_table().items() if "max_pool2d_with_indices" not in str(k)}
    finally:
        for table, kept in zip(tables, before):
            table.clear()
            table.update(kept)


def without_umbrella(code):
    """A shared object that does not ask for libtorch.so, which has no functions: it would load all of CUDA where torch has it, and a
    C++ program need not have it."""
    code = bytearray(code)
    if code[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
        return bytes(code)
    (table,), (count,) = struct.unpack_from("<Q", code, 32), struct.unpack_from("<H", code, 56)
    segments = [struct.unpack_from("<IIQQQQQQ", code, table + 56 * i) for i in range(count)]
    load, dynamic, needed, strings, debug = 1, 2, 1, 5, 21
    _, _, at, _, _, size, _, _ = next(s for s in segments if s[0] == dynamic)
    entries = [(i, *struct.unpack_from("<qQ", code, i)) for i in range(at, at + size, 16)]
    names = next(v for _, tag, v in entries if tag == strings)
    names = next(s[2] + names - s[3] for s in segments if s[0] == load and s[3] <= names < s[3] + s[5])
    for i, tag, v in entries:
        if tag == needed and code[names + v:].startswith(b"libtorch.so\0"):
            struct.pack_into("<q", code, i, debug)  # which the loader ignores in a library
    return bytes(code)


def small(graph):
    """Whether no tensor that the graph makes of the example batch is worth a second thread: each parallel loop costs a microsecond, also
    with one thread, and saves less."""
    made = [v for node in graph.graph.nodes if node.op == "call_function" for v in pytree.tree_leaves(node.meta.get("val"))]
    return all(elements(v) < SMALL for v in made if isinstance(v, torch.Tensor))


def compiled(P, name, graph, path):
    """Compiles a graph to the shared object `path`; returns what runs it."""
    wanted = [value(node) for node in placeholders(graph)]
    cure = "export it with --data-only, which compiles nothing"
    cxx = os.environ.get("CXX", "g++")
    if shutil.which(cxx.split()[0]) is None:
        raise Refusal(f"there is no C++ compiler {cxx}, which inductor needs; name one in CXX, or {cure}")
    try:
        threads = {"cpp.dynamic_threads": False, "cpp.threads": 1} if name == "step" or small(graph) else {}
        made = P.compile(graph, tuple(wanted), options={"aot_inductor.package": False, **threads})
    except Exception as error:
        said = str(error).strip().split("\n\n")[0]
        raise Refusal(f"inductor cannot compile the program {name}: {type(error).__name__}: {said}; {cure}") from error
    with open(made, "rb") as file:
        code = without_umbrella(file.read())
    with open(path, "wb") as file:
        file.write(code)
    return P.Runner(path, 1).run


def refuse_layouts(P, wiring, forward, backward):
    """Programs trust the memory order of what they get: gradients of outputs come contiguous, and buffers as the forward left them."""
    for node in placeholders(backward):
        if isinstance(node.meta.get("desc"), P.D.TangentAOTInput) and not value(node).is_contiguous():
            raise Refusal(f"output {word(P, node.meta['desc']).removeprefix('tangent:')} of the model is not contiguous; call "
                          "contiguous() on it in forward, or export the model with --data-only")
    changed = {w.removeprefix("mutated:") for w in wiring["forward"]["out"] if w.startswith("mutated:")}
    for text in wiring["backward"]["in"]:
        if text.startswith("buffer:") and text.removeprefix("buffer:") in changed:
            raise Refusal(f"the backward reads the {text.replace(':', ' ')} as it was before the forward changed it; read a clone() of "
                          "it in forward")


def xxh64(data):
    """XXH64 with seed 0, as sixteen digits."""
    one, two, three, four, five = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
    most = 2**64 - 1

    def turn(x, n):
        return (x << n | x >> (64 - n)) & most

    def mix(lane, word):
        return turn((lane + word * two) & most, 31) * one & most
    whole = len(data) // 32 * 32
    out = five
    if whole:
        a, b, c, d = (one + two) & most, two, 0, -one & most
        for w, x, y, z in struct.iter_unpack("<4Q", memoryview(data)[:whole]):
            a, b, c, d = mix(a, w), mix(b, x), mix(c, y), mix(d, z)
        out = (turn(a, 1) + turn(b, 7) + turn(c, 12) + turn(d, 18)) & most
        for lane in (a, b, c, d):
            out = ((out ^ mix(0, lane)) * one + four) & most
    out = (out + len(data)) & most
    rest = data[whole:]
    while len(rest) >= 8:
        out = (turn(out ^ mix(0, int.from_bytes(rest[:8], "little")), 27) * one + four) & most
        rest = rest[8:]
    if len(rest) >= 4:
        out = (turn(out ^ int.from_bytes(rest[:4], "little") * one & most, 23) * two + three) & most
        rest = rest[4:]
    for byte in rest:
        out = turn(out ^ byte * five & most, 11) * one & most
    out = (out ^ out >> 33) * two & most
    out = (out ^ out >> 29) * three & most
    return f"{out ^ out >> 32:016x}"


def machine(P):
    """What the programs need of a machine: the compiler may have used each of its instruction sets."""
    used = re.compile(r"(pni|s?sse.*|popcnt|abm|movbe|bmi.|fma|f16c|avx.*|amx_.*|gfni|asimd.*|sve.*|bf16|i8mm)$")
    flags = []
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        line = next((line for line in file if line.startswith(("flags", "Features"))), ":")
        flags = sorted(flag for flag in line.partition(":")[2].split() if used.match(flag))
    return {"device": "cpu", "architecture": platform.machine(), "isa": str(P.vector()), "cpu": flags}


# --- The calls -----------------------------------------------------------------------------------------------------------------

INTEGERS = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.floordiv: "floordiv", operator.mod: "mod",
            torch.sym_max: "max", torch.sym_min: "min"}


def encoded(argument, registers):
    """An argument of an operator: null, true, 1, 1.5, "%7" for a value, [..], {"dtype": ..} and the like."""
    if argument is None or isinstance(argument, (bool, int)):
        return argument
    if isinstance(argument, float):
        return argument if math.isfinite(argument) else {"float": str(argument)}
    if isinstance(argument, torch.fx.Node):
        return f"%{registers[argument]}"
    if isinstance(argument, (list, tuple)):
        return [encoded(a, registers) for a in argument]
    for kind, name in ((torch.dtype, "dtype"), (torch.layout, "layout"), (torch.memory_format, "memory_format")):
        if isinstance(argument, kind):
            return {name: str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.device):
        return {"device": "model"}
    if isinstance(argument, str):
        return {"string": argument}
    raise Refusal(f"an operator of the model takes a {type(argument).__name__}, which is no data")


def positional(node):
    """All arguments in the order of the operator's schema, without those at the end that have their defaults."""
    schema = node.target._schema
    out = list(node.args)
    wanted = schema.arguments[len(out):]
    last = max((i for i, a in enumerate(wanted) if a.name in node.kwargs), default=-1)
    for argument in wanted[:last + 1]:
        out.append(node.kwargs.get(argument.name, argument.default_value))
    return out


def calls_of(graph, words, constant):
    """The calls of a graph; every value has a number: first the inputs, then what each call returns."""
    registers, calls = {}, []
    fixed = [node for node in graph.graph.nodes if node.op == "get_attr"]
    for node in fixed:
        held = operator.attrgetter(node.target)(graph)
        if not isinstance(held, torch.Tensor):
            raise Refusal("the model has branches or loops as operators of torch (cond, while_loop), which are no plain list of "
                          "calls; write them without a branch, with torch.where for instance")
        words.append("buffer:" + constant(held))
    for node in [*placeholders(graph), *fixed]:
        registers[node] = len(registers)
    following = len(registers)
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            source, index = node.args
            if len(source.target._schema.returns) > 1:
                registers[node] = registers[source] + index
                continue
            call = {"op": "item", "args": [encoded(source, registers), index]}
            results = 1
        elif node.target is torch.ops.aten.sym_size.int:
            call, results = {"op": "size", "args": [encoded(a, registers) for a in node.args]}, 1
        elif node.target in INTEGERS:
            call, results = {"op": INTEGERS[node.target], "args": [encoded(a, registers) for a in node.args]}, 1
        elif isinstance(node.target, torch._ops.OpOverload):
            if node.target.namespace != "aten":
                raise Refusal(f"the model calls {node.target}, which is no operator of LibTorch itself, so C++ would not find it")
            name = node.target._schema.name + ("." + node.target._schema.overload_name if node.target._schema.overload_name else "")
            call = {"op": name, "args": [encoded(a, registers) for a in positional(node)]}
            results = len(node.target._schema.returns)
        else:
            raise Refusal(f"the model calls {node.target}, which is no operator")
        registers[node] = following
        following += results
        calls.append(call)
    results = [encoded(v, registers) for v in output_node(graph).args[0]]
    return {"calls": calls, "results": results}


# --- All of it -----------------------------------------------------------------------------------------------------------------

def output_names(spec):
    """The names of a forward's outputs: those of a dict or of a ModelOutput, else outputs, or output_0, output_1, ..."""
    count = spec.num_leaves
    try:
        keys = [key for key in spec.context] if spec.context is not None else []
    except TypeError:
        keys = []
    if len(keys) == count and all(isinstance(key, str) for key in keys):
        return keys
    return ["outputs"] if count == 1 else [f"output_{i}" for i in range(count)]


class Names:
    """The names of the weights: tied ones have the first, what a wrapper puts in front is left out."""

    def __init__(self, model, prefix):
        self.prefix, self.first, self.other, self.constants = prefix, {}, {}, []
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        seen = {}
        for name, tensor in named:
            first = seen.setdefault(id(tensor), name)
            self.first[name] = self.plain(first)
            if first != name:
                self.other[self.plain(name)] = self.plain(first)

    def plain(self, name):
        return name.removeprefix(self.prefix)

    def of(self, text):
        kind, _, name = text.partition(":")
        return f"{kind}:{self.first.get(name, name)}" if kind in ("parameter", "buffer", "gradient", "mutated") else text

    def constant(self, tensor):
        """The name under which a tensor is stored that the model's code made, no parameter and no buffer."""
        for i, held in enumerate(self.constants):
            if held.dtype == tensor.dtype and held.shape == tensor.shape and torch.equal(held, tensor):
                return f"constants.{i}"
        self.constants.append(tensor.detach().clone())
        return f"constants.{len(self.constants) - 1}"


def evaluation_graph(model, args, dynamic, names, table):
    """The graph of the evaluation mode and its words."""
    program = captured(model, args, dynamic)
    if table is not None:
        order_images(program.graph_module)
    program = program.run_decompositions(table or {})
    words, inputs = [], 0
    for spec in program.graph_signature.input_specs:
        match spec.kind.name:
            case "USER_INPUT":
                words.append(f"input:{inputs}")
                inputs += 1
            case "PARAMETER" | "BUFFER":
                words.append(("parameter:" if spec.kind.name == "PARAMETER" else "buffer:") + spec.target)
            case "CONSTANT_TENSOR":
                words.append("buffer:" + names.constant(program.constants[spec.target]))
            case kind:
                raise Refusal(f"the evaluation of the model takes a {kind} of torch.export, which an exported model does not have")
    outs = []
    for spec in program.graph_signature.output_specs:
        match spec.kind.name:
            case "USER_OUTPUT":
                outs.append(f"output:{sum(o.startswith('output:') for o in outs)}")
            case "BUFFER_MUTATION":
                outs.append("mutated:" + spec.target)
            case kind:
                raise Refusal(f"the evaluation of the model has a {kind} of torch.export, which an exported model does not have")
    return program.graph_module, {"in": words, "out": outs}


def described(tensor, symbols):
    def size(s):
        return s if isinstance(s, int) else symbols.get(str(s.node.expr), str(s))
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": [size(s) for s in tensor.shape]}


def rows_of(program):
    """By placeholder: the rows of the smallest table that is read with its values. A compiled program ends its process at a value beyond
    them, so that the one who calls it has to look."""
    out = {}
    same = ("aten::to", "aten::_to_copy", "aten::view", "aten::reshape", "aten::alias", "aten::clone", "aten::contiguous", "aten::unsqueeze")
    for node in program.graph.nodes:
        if node.op == "call_function" and str(getattr(node.target, "name", str)()).split(".")[0] == "aten::embedding":
            index = node.args[1]
            while index.op == "call_function" and str(getattr(index.target, "name", str)()).split(".")[0] in same:
                index = index.args[0]
            rows = value(node.args[0]).shape[0]
            if index.op == "placeholder" and isinstance(rows, int):
                out[index.name] = min(rows, out.get(index.name, rows))
    return out


def dimension(label, least, most, step):
    """A dynamic dimension of torch.export."""
    if not 1 <= least <= most or step < 1 or least % step:
        raise Refusal(f"the sizes of {label} are {least} to {most} in steps of {step}; the least has to be a multiple of the step, and "
                      "both at least 1")
    if step == 1:
        return torch.export.Dim(label, min=least, max=most)
    return step * torch.export.Dim(f"_{label}", min=least // step, max=most // step)


def symbols_of(program, wanted):
    """Torch's sizes by the names that the caller gave; for each name the least and the largest size, and their step; the names of the
    inputs' dimensions, one where the model wants two to be equal."""
    by_name = {node.name: node for node in placeholders(program)}
    symbols, ranges, labels = {}, {}, [{} for _ in wanted]
    for i, name in enumerate(program.graph_signature.user_inputs):
        for dimension, label in (wanted[i] or {}).items():
            size = value(by_name[name]).shape[dimension]
            if isinstance(size, int):
                raise Refusal(f"torch.export made dimension {dimension} of input {i} the constant {size}; the model does not allow "
                              f"another. Export it with --fixed, or leave {label} out of --dynamic")
            expression = size.node.expr
            label = labels[i][dimension] = symbols.setdefault(str(expression), label)
            if label in ranges:
                continue
            (symbol,) = expression.free_symbols
            step, offset = expression.coeff(symbol), expression.subs(symbol, 0)
            if expression != step * symbol + offset or not step.is_Integer or step < 1:
                raise Refusal(f"the model allows dimension {dimension} of input {i} to be {expression} alone, which is no plain step; "
                              f"export it with --fixed, or leave {label} out of --dynamic")
            found = program.range_constraints.get(symbol)
            low, high = (int(found.lower), found.upper) if found is not None else (2, None)
            ranges[label] = [int(step * low + offset), int(step * int(high) + offset) if high is not None and str(high).isdigit() else None]
            if step > 1:
                ranges[label].append(int(step))
    return symbols, ranges, labels


def resized(args, labels, ranges):
    """The example batch with more rows and with less in its other dynamic dimensions, where they may be; None: all are fixed."""
    rows = next((each[0] for each in labels if 0 in each), None)
    change = {}
    for label in {label for each in labels for label in each.values()}:
        size = next(t.shape[i] for t, each in zip(args, labels) for i, name in each.items() if name == label)
        low, high, step = (*ranges[label], 1)[:3]
        other = size + step if label == rows else size - step
        if low <= other <= (high or other):
            change[label] = other
    if not change:
        return None
    out = []
    for tensor, each in zip(args, labels):
        for dimension, label in each.items():
            if label in change:
                index = torch.arange(change[label], device=tensor.device) % tensor.shape[dimension]
                tensor = tensor.index_select(dimension, index).contiguous()
        out.append(tensor)
    return tuple(out)


def least_rows_in_training(model, run, args, labels, ranges):
    """{label: 2} where batch normalisation has one value per channel in a batch of one row, which PyTorch refuses in training and a
    program makes NaN of; else nothing."""
    rows = next((each[0] for each in labels if 0 in each), None)
    norms = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.instancenorm._InstanceNorm)
    if rows is None or ranges[rows][0] > 1 or not any(isinstance(layer, norms) for layer in model.modules()):
        return {}
    first = tuple(tensor.narrow(0, 0, 1) if each.get(0) == rows else tensor for tensor, each in zip(args, labels))
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    run.train()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            run(*first)
    except ValueError as error:
        return {rows: 2} if "more than 1" in str(error) else {}
    except RuntimeError:
        return {}  # other inputs have to have as many rows, perhaps
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
    return {}


def near(name, got, want, tolerance, or_false=False):
    """Refuses what is not the model's, by the norm of the difference relative to the norm of what the model gives."""
    got, want = got.detach().double(), want.detach().double()
    if got.shape == want.shape:
        worst = (got - want).norm().item()
        if worst <= tolerance * max(want.norm().item(), 1e-3 * math.sqrt(max(want.numel(), 1))):
            return True
        said = f"differs by {worst:.3g} of {want.norm().item():.3g}"
    else:
        said = f"is {list(got.shape)} where the model's is {list(want.shape)}"
    if or_false:
        return False
    raise Refusal(f"{name} of what was exported {said}; this model cannot be exported")


def refuse_counters(model, run, args):
    """A number that forward changes at each call would be what it was in the export, for all steps."""
    def numbers():
        return {f"{name}.{key}" if name else key: kept for name, module in model.named_modules() for key, kept in vars(module).items()
                if isinstance(kept, (int, float)) and not key.startswith("_")}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        seen = []
        for _ in range(3):  # the first call may fill a cache
            run(*args)
            seen.append(numbers())
    for name, kept in seen[2].items():
        if seen[1].get(name) != kept:
            raise Refusal(f"forward changes the number {name}, {seen[1].get(name)} after one call and {kept} after the next; what was "
                          "exported would have one value for all steps. Make it a buffer that forward changes with add_()")


def targets_of(results, names, symbols):
    """Which output a cross entropy is of, and the targets that it takes: indices of classes."""
    which = names.index("logits") if "logits" in names else 0
    logits = results[which]
    if len(names) > 1 and names[which] != "logits" or not logits.is_floating_point() or logits.dim() < 2 or \
            not isinstance(logits.shape[1], int):
        raise Refusal(f"a cross entropy takes the only output, or that named logits, of floats [N, C, ...]; the outputs are "
                      f"{', '.join(names)}; leave --loss out")
    dynamic = {}
    shape = [logits.shape[0], *logits.shape[2:]]
    for i, size in enumerate(shape):
        if not isinstance(size, int):
            if str(size.node.expr) not in symbols:
                raise Refusal(f"the targets of a cross entropy would have the size {size}, which no input has; leave --loss out")
            dynamic[i] = symbols[str(size.node.expr)]
    return which, {"name": "targets", "dtype": "int64", "shape": [dynamic.get(i, size) for i, size in enumerate(shape)],
                   "below": logits.shape[1], "dynamic": dynamic}


def example_targets(logits):
    """Indices of classes for logits [N, C, ...]."""
    return torch.randint(0, logits.shape[1], (logits.shape[0], *logits.shape[2:]))


def values(result):
    return [o for o in pytree.tree_leaves(result) if isinstance(o, torch.Tensor)]


def check(model, run, wiring, runs, names, args, draws, tolerance, which=None, rounding=0.0):
    """What was exported computes what the model does, gradients, changed buffers and evaluation included. run: calls the model.
    rounding: of the model's sums, relative; below 16 of its weights' roundings these count.

    Where the training draws random numbers, a seed gives the same ones as a rule; where it does not, the training is not compared.
    """
    tensors = {names.first[k]: v for k, v in [*model.named_parameters(), *model.named_buffers()]}
    before = {k: v.detach().clone() for k, v in tensors.items()}
    parameters = {names.first[k]: v for k, v in model.named_parameters() if v.requires_grad}

    def restore():
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(before[name])
    at, tangents = {}, []

    def find(text):
        kind, _, name = text.partition(":")
        if kind in ("parameter", "buffer"):
            name = names.first.get(name, name)
            return tensors[name].detach() if name in tensors else names.constants[int(name.split(".")[1])]
        if kind == "target":
            return targets
        return args[int(name)] if kind == "input" else tangents[int(name)] if kind == "tangent" else at[text]

    def program(part):
        for text, result in zip(wiring[part]["out"], runs[part]([find(w) for w in wiring[part]["in"]])):
            at[text] = at[text] + result if text.startswith("gradient") and text in at else result  # tied weights have several

    def gradients_of(outputs, given=None):
        pairs = [(o, t) for o, t in zip(outputs, given or [None] * len(outputs)) if o.requires_grad]
        return torch.autograd.grad([o for o, _ in pairs], list(parameters.values()), [t for _, t in pairs], allow_unused=True)

    def compare_gradients(where, wanted, again):
        """again: computes wanted once more. Where the model's own gradients move when weights are moved by a few roundings, as those
        of deep networks with ReLU and batch normalisation over little do, what was exported, which rounds elsewhere, may differ by
        twice as much, and by no more than 30 %. A gradient that moves by more than 30 % itself is what roundings leave of zero, as
        that of a bias before a batch normalisation: it may differ by twice as much where that is little of the whole gradient."""
        bound, moved = min(20 * tolerance, 0.3), []
        whole = math.sqrt(sum(gradient.double().norm().item() ** 2 for gradient in wanted if gradient is not None))
        for name, gradient in zip(parameters, wanted):
            if gradient is None:
                continue
            if f"gradient:{name}" not in at:
                raise Refusal(f"the gradient of {name}{where} is not in what was exported; this model cannot be exported")
            got, text = at[f"gradient:{name}"], f"the gradient of {name}{where}"
            if near(text, got, gradient, bound, or_false=True):
                continue
            for seed in range(2 - len(moved)):
                with torch.random.fork_rng(devices=[]):
                    restore()
                    torch.manual_seed(1 + seed)
                    with torch.no_grad():
                        for weight in parameters.values():
                            weight.mul_(1 + max(16 * torch.finfo(weight.dtype).eps, rounding) * torch.randn_like(weight))
                    torch.manual_seed(0)
                    moved.append(dict(zip(parameters, again())))
                    restore()
            moves = max((other[name] - gradient).norm().item() for other in moved)
            own = moves / max(gradient.norm().item(), 1e-30)
            if own > 0.3 and got.shape == gradient.shape and (got - gradient).norm().item() <= min(2 * moves, tolerance * whole):
                continue
            near(text, got, gradient, max(bound, min(2 * own, 0.3)))
    refuse_counters(model, run, args)
    restore()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wanted = values(run(*args))
        tangents = [torch.randn_like(o, memory_format=torch.contiguous_format) if o.is_floating_point() else None for o in wanted]
        grads = gradients_of(wanted, tangents)
        changed = {k: v.detach().clone() for k, v in tensors.items()}
        restore()
        torch.manual_seed(0)
        with torch.no_grad():
            program("forward")
            program("backward")
    same = [near(f"output {i}", at[f"output:{i}"], output, tolerance, or_false=draws) for i, output in enumerate(wanted)]
    if all(same):
        compare_gradients("", grads, lambda: gradients_of(values(run(*args)), tangents))
        for text in wiring["forward"]["out"]:
            if text.startswith("mutated:"):
                name = text.removeprefix("mutated:")
                near(f"the changed buffer {name}", at[text], changed[names.first.get(name, name)], tolerance)
    if "step" in runs:
        targets = example_targets(wanted[which])
        step = WithLoss(run, which)
        with torch.random.fork_rng(devices=[]):
            restore()
            torch.manual_seed(0)
            loss = step(*args, targets)[0]
            grads = gradients_of([loss])
            restore()
            torch.manual_seed(0)
            for text in [text for text in at if text.startswith("gradient")]:
                del at[text]
            with torch.no_grad():
                program("step")
        if near("the loss", at["loss:0"], loss, tolerance, or_false=draws):
            compare_gradients(" in a step", grads, lambda: gradients_of([step(*args, targets)[0]]))
    if "eval" in runs:
        run.eval()
        with torch.no_grad():
            wanted = values(run(*args))
            restore()
            program("eval")
        run.train()
        for i, output in enumerate(wanted):
            near(f"output {i} in evaluation", at[f"output:{i}"], output, tolerance)


def export(model, inputs, folder, *, dynamic=None, evaluation=True, precision="fp32", outputs=None, prefix="",
           largest=4096, sizes=None, loss=None, verify=True, data_only=False):
    """Exports `model` to the new folder `folder`; returns what compiled.json says and, as "saved_bytes", what the backward keeps of a
    forward of the example batch beyond inputs and weights.

    inputs: example tensors by name, in the order of forward's arguments; dimensions are 2 or more, and different where they may
    differ. dynamic: {input: {dimension: name}}; default: dimension 0 of each is "batch"; {}: nothing is dynamic. precision: fp32, or
    amp_bf16 to export the forward under autocast. outputs: names of what forward returns; default: the keys of a dict or ModelOutput.
    prefix: what a wrapper puts before the names of the weights.
    largest: the largest size of a dynamic dimension; sizes: {name: (least, largest, step)} where a model allows only some. loss:
    "cross_entropy" for one more program, of forward, that loss of the only output (or of "logits") and backward, for networks whose
    steps are mostly calls. data_only: lists of calls instead of compiled programs. Raises Refusal.
    """
    P = private(data_only)
    if os.path.exists(folder):
        raise Refusal(f"'{folder}' is there already; remove it, or give another name")
    names_in, args = list(inputs), tuple(inputs.values())
    for name, tensor in inputs.items():
        varies = [0] if dynamic is None else dynamic.get(name, {})
        if any(tensor.shape[i] < 2 for i in varies):
            raise Refusal(f"the example of {name} is {list(tensor.shape)}; torch.export treats sizes 0 and 1 as constants, so give a "
                          "dynamic dimension 2 or more")
    if dynamic is None:
        dynamic = {name: {0: "batch"} for name in names_in}
    for name in dynamic:
        if name not in inputs:
            raise Refusal(f"a dynamic dimension of \"{name}\" is asked for; the inputs are {', '.join(names_in)}")
    wanted = [dynamic.get(name, {}) for name in names_in]
    sizes = sizes or {}
    for label in sizes:
        if not any(label in each.values() for each in wanted):
            raise Refusal(f"sizes are given for \"{label}\", which is no dynamic dimension")
    dims = {label: dimension(label, *sizes.get(label, (1, largest, 1))) for each in wanted for label in each.values()}
    shapes = tuple({i: dims[label] for i, label in each.items()} or None for each in wanted) if dims else None
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if not tensor.is_contiguous():
                tensor.data = tensor.data.contiguous()
    names = Names(model, prefix)
    low = precision == "amp_bf16"
    if precision not in ("fp32", "amp_bf16"):
        raise Refusal(f"precision is {precision}, expected fp32 or amp_bf16")
    if loss not in (None, "cross_entropy"):
        raise Refusal(f"the loss is {loss}, expected cross_entropy")
    run = Autocast(model) if low else model
    inner = "model." if low else ""
    if shapes and any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(run.forward).parameters.values()):
        shapes = (shapes,)  # of forward(*args), whose argument is one tuple

    was_training = model.training
    parent = os.path.dirname(os.path.abspath(folder))
    os.makedirs(parent, exist_ok=True)
    made = tempfile.mkdtemp(prefix=".tutti_export-", dir=parent)
    try:
        with contextlib.nullcontext() if data_only else inductor(P) as table:
            run.train()
            program, module, forward, backward, outs, count, draws = joint_graph(P, run, args, shapes, table)
            wiring = wire(P, forward, backward, outs, count)
            saved = saved_bytes(forward, count)
            if not data_only:
                refuse_layouts(P, wiring, forward, backward)
            buffers = dict(module.named_buffers(remove_duplicate=False))

            def canonical(text, buffers=buffers, inner=inner):
                kind, _, name = text.partition(":")
                if kind not in ("parameter", "buffer", "gradient", "mutated"):
                    return text
                name = name.removeprefix(inner)
                if name in names.first:
                    return names.of(f"{kind}:{name}")
                return "buffer:" + names.constant(buffers[inner + name if inner + name in buffers else name])
            symbols, ranges, labels = symbols_of(program, wanted)
            results = [value(v) for v, d in zip(output_node(forward).args[0], outs) if isinstance(d, P.D.PlainAOTOutput)]
            given_names = outputs or output_names(program.call_spec.out_spec)
            if len(given_names) != len(results):
                raise Refusal(f"forward returns {len(results)} tensors, and {len(given_names)} names were given: {', '.join(given_names)}")
            parts = {"forward": forward, "backward": backward}
            if evaluation:
                run.eval()
                parts["eval"], wiring["eval"] = evaluation_graph(run, args, shapes, names, table)
                run.train()
            for part in wiring.values():
                for side, words in part.items():
                    part[side] = [canonical(w) for w in words]
            which = targets = None
            if loss is not None:
                which, targets = targets_of(results, given_names, symbols)
                step = WithLoss(run, which)
                plain = [{i: dims[label] for i, label in each.items()} or None for each in [*labels, targets["dynamic"]]]
                with torch.no_grad():
                    example = example_targets(values(run(*args))[which])
                step_module, graph, step_outs = joint_graph(P, step, (*args, example), (tuple(plain),) if dims else None, table, False)
                held = dict(step_module.named_buffers(remove_duplicate=False))
                parts["step"], step_words = wire_step(P, graph, step_outs, len(args))
                wiring["step"] = {side: [canonical(w, held, "model." + inner) for w in words] for side, words in step_words.items()}
            runs = {}
            for name, graph in parts.items():
                if data_only:
                    count = len(placeholders(graph))
                    runs[name] = lambda given, graph=graph, count=count: graph(*given[:count])
                    wiring[name].update(calls_of(graph, wiring[name]["in"], names.constant))
                else:
                    path = os.path.join(made, name + ".so")
                    runs[name] = compiled(P, name, graph, path)
                    with open(path, "rb") as file:
                        code = file.read()
                    wiring[name].update({"xxh64": xxh64(code), "sha256": hashlib.sha256(code).hexdigest()})
        run.train()
        if verify:
            tolerance = (1e-4 if data_only else 1e-3) if not low else 3e-2  # programs round to bfloat16 at fewer places
            for batch in (args, resized(args, labels, ranges)):
                if batch is not None:
                    check(model, run, wiring, runs, names, batch, draws, tolerance, which, torch.finfo(torch.bfloat16).eps / 2 if low else 0.0)
        least = least_rows_in_training(model, run, args, labels, ranges)
        model.train(was_training)
        by_name = {node.name: node for node in placeholders(program)}
        persistent = {names.first[k] for k in model.state_dict() if k in names.first}
        weights = {}
        parameters, held = [], []
        for key, tensor in model.named_parameters():
            weights[names.first[key]] = tensor
            parameters.append({"name": names.first[key], **described(tensor, {}), "requires_grad": tensor.requires_grad})
        for key, tensor in model.named_buffers():
            weights[names.first[key]] = tensor
            held.append({"name": names.first[key], **described(tensor, {}), "persistent": names.first[key] in persistent})
        for i, tensor in enumerate(names.constants):
            weights[f"constants.{i}"] = tensor
            held.append({"name": f"constants.{i}", **described(tensor, {}), "persistent": False})
        rows = rows_of(program)
        package = {
            "format": FORMAT, "kind": "data" if data_only else "code", "torch": torch.__version__.split("+")[0],
            **({} if data_only else machine(P)),
            "precision": precision, "random": draws,
            "symbols": ranges, **({"least_in_training": least} if least else {}),
            "inputs": [{"name": n, **described(value(by_name[u]), symbols), **({"below": rows[u]} if u in rows else {})}
                       for n, u in zip(names_in, program.graph_signature.user_inputs)],
            "outputs": [{"name": n, **described(v, symbols)} for n, v in zip(given_names, results)],
            **({"targets": {k: v for k, v in targets.items() if k != "dynamic"}} if targets else {}),
            "parameters": parameters, "buffers": held, "tied": names.other, "programs": wiring,
        }
        from safetensors.torch import save_file
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in weights.items()}, os.path.join(made, "model.safetensors"),
                  metadata={"format": "pt"})
        with open(os.path.join(made, "compiled.json"), "w", encoding="utf-8") as file:
            file.write(text_of(package))
        os.chmod(made, 0o755)
        for name in os.listdir(made):
            os.chmod(os.path.join(made, name), 0o644)
        os.rename(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return {**package, "saved_bytes": saved}


def text_of(package):
    """JSON with a line for each call and each tensor, so that a change shows in a diff."""
    text = json.dumps(package, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace('{"op"', '\n{"op"').replace('{"name"', '\n{"name"').replace('"programs"', '\n"programs"') + "\n"


class Autocast(torch.nn.Module):
    """The forward under autocast to bfloat16, so that its casts are exported."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args):
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(*args)


class HuggingFace(torch.nn.Module):
    """A model of Transformers that takes the tensors of a batch and gives outputs of these names; the loss is left to tutti."""

    def __init__(self, model, names, *outputs):
        super().__init__()
        self.model, self.names, self.outputs = model, names, outputs

    def forward(self, *args):
        found = self.model(**dict(zip(self.names, args)))
        return found[self.outputs[0]] if len(self.outputs) == 1 else {name: found[name] for name in self.outputs}


# --- Algorithms that replace layers ----------------------------------------------------------------------------------------------

def replace_layers(model, algorithm, kind, made):
    """Puts made(layer) in the place of each layer of `kind` for which that is another module; those inside such a one stay."""
    def walk(module):
        count = 0
        for name, child in module.named_children():
            new = made(child) if isinstance(child, kind) else child
            if new is not child:
                setattr(module, name, new)
                count += 1
            elif not isinstance(child, Replaced):
                count += walk(child)
        return count
    if walk(model) == 0:
        raise Refusal(f"{algorithm} finds no layer to replace in the model; leave it out, or lower its least number of channels in "
                      "the model's own code")


class Replaced(torch.nn.Module):
    """A layer that an algorithm has put in the place of another."""


def blur_filter(channels):
    row = torch.tensor([1.0, 2.0, 1.0])
    return (row[:, None] * row / 16).repeat(channels, 1, 1, 1)


class BlurConv2d(Replaced):
    """A strided convolution and a blur, before it or, with the stride, behind it."""

    def __init__(self, conv, blur_first=True):
        super().__init__()
        self.conv, self.blur_first, self.stride = conv, blur_first, 1
        if not blur_first:
            self.stride, conv.stride = conv.stride, (1, 1)
        self.register_buffer("blur_filter", blur_filter(conv.in_channels if blur_first else conv.out_channels).to(conv.weight))

    def forward(self, x):
        x = x if self.blur_first else self.conv(x)
        x = torch.nn.functional.conv2d(x, self.blur_filter.to(x.dtype), stride=self.stride, padding=1, groups=x.shape[1])
        return self.conv(x) if self.blur_first else x


class BlurMaxPool2d(Replaced):
    """Max-pooling with stride 1, then a blur with the pool's stride."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.register_buffer("filt2d", blur_filter(1))

    def forward(self, x):
        pool = self.pool
        x = torch.nn.functional.max_pool2d(x, pool.kernel_size, 1, pool.padding, pool.dilation, pool.ceil_mode)
        weight = self.filt2d.to(x.dtype).repeat(x.shape[1], 1, 1, 1)
        return torch.nn.functional.conv2d(x, weight, stride=pool.stride, padding=1, groups=x.shape[1])


class SqueezeExciteConv2d(Replaced):
    """A convolution and a gate on its channels."""

    def __init__(self, conv, latent=64):
        super().__init__()
        nn, channels = torch.nn, conv.out_channels
        latent = int(latent if latent >= 1 else latent * channels)
        self.conv, self.se = conv, nn.Module()
        self.se.pool_and_mlp = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, latent, bias=False), nn.ReLU(),
                                             nn.Linear(latent, channels, bias=False), nn.Sigmoid())
        self.to(conv.weight)

    def forward(self, x):
        x = self.conv(x)
        return x * self.se.pool_and_mlp(x)[:, :, None, None]


class GhostBatchNorm(Replaced):
    """Batch normalisation of parts of a batch, each on its own, in training."""

    def __init__(self, norm, size=32):
        super().__init__()
        self.batchnorm, self.size = norm, size

    def forward(self, x):
        if not self.training or x.shape[0] <= self.size:
            return self.batchnorm(x)
        parts = x.chunk(math.ceil(x.shape[0] / self.size))
        momentum = self.batchnorm.momentum
        self.batchnorm.momentum = momentum and momentum / len(parts)
        try:
            return torch.cat([self.batchnorm(part) for part in parts])
        finally:
            self.batchnorm.momentum = momentum


class Standardized(torch.nn.Module):
    def forward(self, weight):
        rows = weight.flatten(1)
        return torch.nn.functional.layer_norm(rows, rows.shape[1:], eps=1e-10).view_as(weight)


def blurpool(model, replace_convs=True, replace_maxpools=True, blur_first=True, min_channels=16):
    """Source: Composer's apply_blurpool."""
    def made(layer):
        if isinstance(layer, torch.nn.MaxPool2d):
            return BlurMaxPool2d(layer) if replace_maxpools else layer
        wanted = replace_convs and layer.in_channels >= min_channels and max(layer.stride) > 1
        return BlurConv2d(layer, blur_first) if wanted else layer
    replace_layers(model, "blurpool", (torch.nn.Conv2d, torch.nn.MaxPool2d), made)


def squeeze_excite(model, latent_channels=64, min_channels=128):
    """Source: Composer's apply_squeeze_excite."""
    def made(layer):
        return SqueezeExciteConv2d(layer, latent_channels) if min(layer.in_channels, layer.out_channels) >= min_channels else layer
    replace_layers(model, "squeeze_excite", torch.nn.Conv2d, made)


def ghost_batchnorm(model, ghost_batch_size=32):
    """Source: Composer's apply_ghost_batchnorm."""
    nn = torch.nn
    replace_layers(model, "ghost_batchnorm", (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
                   lambda layer: GhostBatchNorm(layer, ghost_batch_size))


def weight_standardization(model, n_last_layers_ignore=0):
    """Source: Composer's apply_weight_standardization."""
    layers = [layer for layer in model.modules() if isinstance(layer, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d))
              and layer.weight[0].numel() > 1]
    layers = layers[:max(len(layers) - n_last_layers_ignore, 0)]
    if not layers:
        raise Refusal("weight_standardization finds no convolution in the model; leave it out")
    for layer in layers:
        torch.nn.utils.parametrize.register_parametrization(layer, "weight", Standardized())


OURS = {"squeeze_excite": squeeze_excite, "blurpool": blurpool, "ghost_batchnorm": ghost_batchnorm,
        "weight_standardization": weight_standardization}
COMPOSERS = ("factorization", "alibi", "gated_linear_units", "low_precision_groupnorm", "low_precision_layernorm", "stochastic_depth")
CANNOT = {"channels_last": "an exported model has weights of one order of memory",
          "gyro_dropout": "its masks follow a counter of Python, which an exported model does not have",
          "lora": "wrap the model with peft before the export, and export that"}
ORDER = ["alibi", "gated_linear_units", "squeeze_excite", "factorization", "blurpool", "ghost_batchnorm", "low_precision_groupnorm",
         "low_precision_layernorm", "stochastic_depth", "weight_standardization"]


def apply_algorithms(model, names, composer=None):
    """Applies algorithms that replace layers to `model`, in tutti's order: Composer's functional form of each where mosaicml is
    installed, else the one of this file. Raises Refusal for what neither has."""
    if composer is None:
        with contextlib.suppress(ImportError):
            import composer.functional as composer
    for name in names:
        if name in CANNOT:
            raise Refusal(f"{name} cannot be applied before an export: {CANNOT[name]}")
        if name not in ORDER:
            raise Refusal(f"{name} is no algorithm that replaces layers; those are {', '.join(ORDER)}. Others work on batches, losses, "
                          "gradients or weights and go into the recipe in C++")
        if not hasattr(composer, f"apply_{name}") and name not in OURS:
            raise Refusal(f"{name} needs Composer (pip install mosaicml); without it there are {', '.join(OURS)}")
    for name in sorted(set(names), key=ORDER.index):
        if hasattr(composer, f"apply_{name}"):
            getattr(composer, f"apply_{name}")(model)
        else:
            OURS[name](model)


# --- The command ---------------------------------------------------------------------------------------------------------------

def examples(text, integers, high):
    """Example tensors of --batch: "8x3x64x64" or "input_ids=4x64:int64,attention_mask=4x64:int64"."""
    out = {}
    for i, part in enumerate(text.split(",")):
        name, _, rest = part.rpartition("=")
        shape, _, dtype = rest.partition(":")
        try:
            sizes = [int(size) for size in shape.split("x")]
            kind = getattr(torch, dtype) if dtype else (torch.int64 if integers else torch.float32)
            made = torch.randn(sizes).to(kind) if kind.is_floating_point else \
                torch.randint(0, 2 if "mask" in name or kind == torch.bool else high, sizes).to(kind)
        except (ValueError, AttributeError, RuntimeError) as error:
            raise Refusal(f"--batch {part}: {error}; expected NAME=8x3x64x64 or NAME=4x64:int64, several with commas") from error
        out[name or ("" if i == 0 else f"input_{i}")] = made
    return out


def hugging_face(where, args, names, outputs):
    import transformers
    if os.path.exists(where):
        config = transformers.AutoConfig.from_pretrained(where, local_files_only=True, **args)
    else:
        try:
            config = transformers.AutoConfig.for_model(where, **args)
        except ValueError as error:
            raise Refusal(f"hf:{where} is no folder, no config.json and no model type of Transformers") from error
    if hasattr(config, "use_cache"):
        config.use_cache = False
    architecture = (config.architectures or [None])[0]
    kind = getattr(transformers, architecture, None) if architecture else None
    folder = os.path.isdir(where) and any(n.endswith(".safetensors") for n in os.listdir(where))
    automatic = transformers.AutoModelForSeq2SeqLM if getattr(config, "is_encoder_decoder", False) else transformers.AutoModelForCausalLM
    made = kind or automatic
    if folder:
        model = made.from_pretrained(where, config=config, local_files_only=True)
    else:
        model = kind(config) if kind else automatic.from_config(config)
    names = [n or model.main_input_name for n in names]
    return HuggingFace(model, names, *outputs), names


def unknown_model(text, library, known, error):
    """What is raised for an error of a library that makes a model by its name: a Refusal when it knows no such name."""
    if "nknown model" not in str(error):
        return error
    close = difflib.get_close_matches(text.partition(":")[2].partition(".")[0], known, 3, 0.5)
    return Refusal(f"--model is {text}, and {library} has no such model" + (f"; near it are {', '.join(close)}" if close else "")
                   + f"; {library}{'' if library == 'timm' else '.models'}.list_models() lists them")


def model_of(text, args, pretrained, names, outputs):
    """The model of --model, the names of its inputs, and a wrapper's prefix."""
    kind, _, where = text.partition(":")
    if not where:
        raise Refusal(f"--model is {text}, expected timm:NAME, torchvision:NAME, hf:FOLDER or file.py:NAME")
    if kind == "timm":
        import timm
        try:
            return timm.create_model(where, pretrained=pretrained, **args), names, ""
        except RuntimeError as error:
            raise unknown_model(text, "timm", timm.list_models(), error) from error
    if kind == "torchvision":
        import torchvision
        try:
            return torchvision.models.get_model(where, weights="DEFAULT" if pretrained else None, **args), names, ""
        except ValueError as error:
            raise unknown_model(text, "torchvision", torchvision.models.list_models(), error) from error
    if kind == "hf":
        model, names = hugging_face(where, args, names, outputs)
        return model, names, "model."
    if not os.path.exists(kind):
        raise Refusal(f"--model is {text}, and there is no file {kind}; expected timm:NAME, torchvision:NAME, hf:FOLDER or file.py:NAME")
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(kind))[0], kind)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, where):
        raise Refusal(f"{kind} has no {where}, a class of a model or a function that makes one")
    return getattr(module, where)(**args), names, ""


def needs_other_sizes(package):
    """Algorithms that need sizes which the model is not exported with, and what to export it with."""
    out = []
    if not all(isinstance(given["shape"][0], str) for given in package["inputs"] if given["shape"]):
        out.append("microbatches, their automatic size and SelectiveBackprop need batches of any size: export without --fixed")
    for given in package["inputs"]:
        name, shape = given["name"], given["shape"]
        if len(shape) == 4 and not all(isinstance(size, str) for size in shape[2:]):
            out.append("ProgressiveResizing and ColOut need images of any size: export with "
                       f"--dynamic {name}:2=height --dynamic {name}:3=width")
        if len(shape) == 2 and "int" in given["dtype"] and not isinstance(shape[1], str):
            out.append(f"SeqLengthWarmup needs sequences of any length: export with --dynamic {name}:1=length")
    return out


def arguments_of(text):
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        raise Refusal(f"--model-args is {text}, which is no JSON ({error}); expected an object, as '{{\"num_classes\": 10}}'") from None
    if not isinstance(arguments, dict):
        raise Refusal(f"--model-args is {text}, expected an object, as '{{\"num_classes\": 10}}'")
    return arguments


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="timm:NAME, torchvision:NAME, hf:FOLDER (or config.json, or a model type), "
                        "file.py:NAME, a class or a function that makes the model")
    parser.add_argument("--model-args", default="{}", help="what the model is made with, as JSON: '{\"num_classes\": 10}'")
    parser.add_argument("--batch", required=True, help="an example batch: 8x3x64x64, or NAME=4x64:int64,NAME=...")
    parser.add_argument("--out", required=True, help="the new folder")
    parser.add_argument("--outputs", help="the names of what forward returns, in order: logits,features (of hf: those of its outputs that "
                        "are exported, logits otherwise)")
    parser.add_argument("--algorithms", default="", help="algorithms that replace layers, applied to the model: blurpool,squeeze_excite; "
                        "Composer's where mosaicml is installed")
    parser.add_argument("--weights", help="a safetensors file that is loaded into the model, strictly")
    parser.add_argument("--pretrained", action="store_true", help="with the weights that timm or torchvision download")
    parser.add_argument("--dynamic", action="append", default=[], metavar="NAME:DIMENSION=LABEL",
                        help="a further dimension of any size; the same label means the same size")
    parser.add_argument("--fixed", action="store_true", help="nothing is dynamic, the batch neither")
    parser.add_argument("--largest", type=int, default=4096, help="the largest size of a dynamic dimension (default: %(default)s)")
    parser.add_argument("--sizes", action="append", default=[], metavar="LABEL=LEAST:LARGEST[:STEP]",
                        help="the sizes of a dynamic dimension, where the model allows only some: height=64:512:32")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "amp_bf16"])
    parser.add_argument("--data-only", action="store_true", help="a list of PyTorch's operators instead of compiled programs: runs on "
                        "any machine and loads no code")
    parser.add_argument("--loss", choices=["cross_entropy"], help="one more program, of forward, this loss and backward: for small "
                        "networks, whose steps are mostly calls")
    parser.add_argument("--no-eval", action="store_true", help="without a program for evaluation")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    given = parser.parse_args(arguments)
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)  # of torch about torch
    try:
        torch.manual_seed(given.seed)
        is_hugging_face = given.model.startswith("hf:")
        batch = examples(given.batch, is_hugging_face, 2)
        outputs = given.outputs.split(",") if given.outputs else ["logits"] if is_hugging_face else None
        model, names, prefix = model_of(given.model, arguments_of(given.model_args), given.pretrained, list(batch), outputs)
        apply_algorithms(model, [name.strip() for name in given.algorithms.split(",") if name.strip()])
        if given.weights:
            from safetensors.torch import load_file
            target = model.model if prefix else model
            target.load_state_dict(load_file(given.weights), strict=True)
        own = [p for p in inspect.signature(model.forward).parameters if p not in ("args", "kwargs")]
        names = [name or (own[i] if i < len(own) else "x") for i, name in enumerate(names)]
        inputs = dict(zip(names, batch.values()))
        dynamic = {} if given.fixed else {name: {0: "batch"} for name in inputs}
        for text in given.dynamic:
            where, _, label = text.partition("=")
            name, _, dimension = where.partition(":")
            if not label or not dimension.isdigit():
                raise Refusal(f"--dynamic is {text}, expected NAME:DIMENSION=LABEL, as input_ids:1=length")
            dynamic.setdefault(name, {})[int(dimension)] = label
        sizes = {}
        for text in given.sizes:
            label, _, numbers = text.partition("=")
            parts = numbers.split(":")
            if len(parts) not in (2, 3) or not all(part.isdigit() for part in parts):
                raise Refusal(f"--sizes is {text}, expected LABEL=LEAST:LARGEST or LABEL=LEAST:LARGEST:STEP, as height=64:512:32")
            sizes[label] = tuple(int(part) for part in (*parts, "1")[:3])
        package = export(model, inputs, given.out, dynamic=dynamic, evaluation=not given.no_eval,
                         precision=given.precision, outputs=outputs, prefix=prefix, largest=given.largest,
                         sizes=sizes, loss=given.loss, data_only=given.data_only)
    except (Refusal, ImportError, json.JSONDecodeError) as refusal:
        print(f"tutti_export: {refusal}", file=sys.stderr)
        return 1
    count = sum(math.prod(p["shape"]) for p in package["parameters"])
    print(f"{given.out}: exported with torch {package['torch']}, {count:,} parameters in {len(package['parameters'])} tensors, "
          f"{len(package['buffers'])} buffers")
    with open(os.path.join(given.out, "compiled.json"), "rb") as file:
        print(f"  SHA-256 of compiled.json, for expect_sha256: {hashlib.sha256(file.read()).hexdigest()}")
    for side in ("inputs", "outputs"):
        print(f"  {side}: " + "; ".join(f"{t['name']} {t['dtype']} [{', '.join(map(str, t['shape']))}]" for t in package[side]))
    batch = next(iter(inputs.values())).shape[0]
    print(f"  kept for the backward: {package['saved_bytes'] // batch:,} bytes per example")
    for line in needs_other_sizes(package):
        print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
