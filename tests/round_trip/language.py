# SPDX-License-Identifier: Apache-2.0
"""Language models of Transformers and adapters of PEFT for round_trip/language.cpp.

make FOLDER: one folder for each model, as Transformers saves it, with what 20 steps of AdamW have as
losses in PyTorch. io.safetensors has the batch, its logits, the rate and the losses.
make_adapters FOLDER: one folder for each adapter: base/, the model; start/, the adapter as PEFT makes
it; trained/, the same after some steps there. io.safetensors has the logits of both, those of the
model that trained/ is merged into, and what 20 steps from start/ have as losses.
check FOLDER, check_adapters FOLDER: load what tutti wrote beside it; the logits have to be those in
tutti.safetensors within 5e-5 of the largest.
"""
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.simplefilter("ignore", FutureWarning)

import torch
import transformers
from safetensors.torch import load_file, save_file

STEPS = 20
VOCABULARY = 61


def models():
    """Names, and the class and config of each; nothing drops out, so that losses can be compared."""
    gpt2 = dict(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
                attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    bert = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                max_position_embeddings=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    llama = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, pad_token_id=None)
    t = transformers
    return {
        "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(**gpt2)),
        "gpt2_untied": (t.GPT2LMHeadModel, t.GPT2Config(**gpt2, n_inner=40, tie_word_embeddings=False,
                                                        scale_attn_by_inverse_layer_idx=True)),
        "bert_masked": (t.BertForMaskedLM, t.BertConfig(**bert)),
        "bert_classes": (t.BertForSequenceClassification, t.BertConfig(**bert, num_labels=5)),
        "llama": (t.LlamaForCausalLM, t.LlamaConfig(**llama)),
        "llama_tied": (t.LlamaForCausalLM, t.LlamaConfig(
            **llama, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
            rope_parameters={"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 16})),
        "mistral": (t.MistralForCausalLM, t.MistralConfig(**llama, head_dim=16, sliding_window=4)),
        "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(**llama, use_sliding_window=True, sliding_window=5,
                                                    max_window_layers=1)),
        "qwen3": (t.Qwen3ForCausalLM, t.Qwen3Config(**llama, head_dim=16, tie_word_embeddings=True)),
    }


def adapters():
    """Names, the model that each stands beside, and the options of LoRA in PEFT."""
    causal = dict(task_type="CAUSAL_LM")
    return {
        "llama": ("llama", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], **causal)),
        "llama_all": ("llama", dict(r=3, lora_alpha=5, target_modules="all-linear", use_rslora=True,
                                    rank_pattern={"k_proj": 2}, alpha_pattern={r"layers\.1\.mlp\.up_proj": 12}, **causal)),
        "llama_tables": ("llama", dict(r=4, lora_alpha=6, target_modules=["embed_tokens", "o_proj", "lm_head"], **causal)),
        "mistral": ("mistral", dict(r=4, lora_alpha=4, target_modules=r".*\.1\.self_attn\.[qk]_proj", **causal)),
        "qwen2": ("qwen2", dict(r=2, lora_alpha=8, target_modules=["k_proj", "down_proj"], bias="all",
                                layers_to_transform=[0], **causal)),
        "qwen3_dora": ("qwen3", dict(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], use_dora=True, **causal)),
        "gpt2": ("gpt2_untied", dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc", "wte"], fan_in_fan_out=True,
                                     **causal)),
        "gpt2_dora": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True,
                                   use_dora=True, use_rslora=True, **causal)),
        "bert_classes": ("bert_classes", dict(r=4, lora_alpha=8, target_modules=["query", "value"], bias="lora_only",
                                              task_type="SEQ_CLS")),
        "bert_masked": ("bert_masked", dict(r=4, lora_alpha=8, target_modules=["query", "intermediate.dense"],
                                            modules_to_save=["transform"])),
    }


def shake(model):
    """Weights that are nobody's start: biases are not 0 and scales not 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def new_model(name):
    kind, config = models()[name]
    return shake(kind(config))


def new_batch(name):
    ids = torch.randint(1, VOCABULARY, (4, 12))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    mask[3, 5:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    if name.startswith("bert"):
        batch["token_type_ids"] = (torch.arange(12) > 6).long().expand(4, 12).contiguous()
    if name == "bert_masked":
        batch["labels"] = batch["labels"].masked_fill(torch.rand(4, 12) < 0.6, -100)
    if name == "bert_classes":
        batch["labels"] = torch.tensor([3, 0, 4, 1])
    return batch


def inputs_of(io):
    return {k: io[k] for k in ("input_ids", "attention_mask", "token_type_ids", "labels") if k in io}


def logits_of(model, batch):
    """Those of tokens; padding has none that count."""
    model.eval()
    with torch.no_grad():
        logits = model(**{k: v for k, v in inputs_of(batch).items() if k != "labels"}).logits
    if logits.dim() == 3:
        logits = logits * batch["attention_mask"].unsqueeze(-1)
    return logits.clone()


def train(model, batch, steps, lr):
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    for _ in range(steps):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def make(root):
    torch.manual_seed(7)
    for name in models():
        folder = os.path.join(root, name)
        model, io = new_model(name), new_batch(name)
        model.save_pretrained(folder)
        io["logits"] = logits_of(model, io)
        io["lr"] = torch.tensor(1e-3, dtype=torch.float64)
        io["losses"] = train(model, inputs_of(io), STEPS, io["lr"].item())
        save_file(io, os.path.join(folder, "io.safetensors"))


def make_adapters(root):
    import peft

    torch.manual_seed(8)
    for name, (base, options) in adapters().items():
        folder = os.path.join(root, name)
        model, io = new_model(base), new_batch(base)
        model.save_pretrained(os.path.join(folder, "base"))
        model = peft.get_peft_model(model, peft.LoraConfig(**options))
        model.save_pretrained(os.path.join(folder, "start"))
        io["lr"] = torch.tensor(5e-3, dtype=torch.float64)
        io["logits_start"] = logits_of(model, io)
        io["losses"] = train(model, inputs_of(io), STEPS, io["lr"].item())
        io["logits_trained"] = logits_of(model, io)
        model.save_pretrained(os.path.join(folder, "trained"))
        io["logits_merged"] = logits_of(model.merge_and_unload(), io)
        save_file(io, os.path.join(folder, "io.safetensors"))


def compare(what, got, want):
    difference = (got - want).abs().max().item() / want.abs().max().item()
    print(f"{what}: largest difference {difference:.1e} of the largest logit", flush=True)
    return not difference <= 5e-5


def load_model(kind, folder):
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model


def check(root):
    bad = 0
    for name, (kind, _) in models().items():
        folder = os.path.join(root, name)
        want = load_file(os.path.join(folder, "tutti.safetensors"))
        batch = load_file(os.path.join(folder, "io.safetensors"))
        bad += compare(name, logits_of(load_model(kind, os.path.join(folder, "saved")), batch), want["logits"])
    return bad


def check_adapters(root):
    import peft

    bad = 0
    for name, (base, _) in adapters().items():
        folder = os.path.join(root, name)
        kind = models()[base][0]
        want = load_file(os.path.join(folder, "tutti.safetensors"))
        batch = load_file(os.path.join(folder, "io.safetensors"))
        for adapter in ("saved", "made_here"):
            if not os.path.exists(os.path.join(folder, adapter)):
                continue
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*missing adapter keys.*")
                model = peft.PeftModel.from_pretrained(load_model(kind, os.path.join(folder, "base")),
                                                       os.path.join(folder, adapter))
            bad += compare(f"{name}, {adapter}", logits_of(model, batch), want[adapter])
            bad += compare(f"{name}, {adapter}, merged", logits_of(model.merge_and_unload(), batch), want[adapter + "_merged"])
        model = load_model(kind, os.path.join(folder, "merged"))
        bad += compare(f"{name}, folder of the merged model", logits_of(model, batch), want["saved_merged"])
    return bad


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    sys.exit({"make": make, "make_adapters": make_adapters, "check": check, "check_adapters": check_adapters}[sys.argv[1]](
        sys.argv[2]))
