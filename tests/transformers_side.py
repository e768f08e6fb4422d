"""The part of a comparison that runs transformers, in its own process.

TensorFlow 2.20 and the default build of PyTorch abort in the same process when
transformers loads PyTorch's compiler.
"""

import pathlib

import numpy as np
import safetensors.torch
import torch
import transformers
import yaml

INDEX = {"input_ids": "input_ids", "attention_mask": "input_mask"}
INDEX |= {"token_type_ids": "segment_ids"}


def make(folder: str, values: dict, identity: bool) -> None:
    """Write a random model.

    With `identity`, the projection of its embeddings is the identity.
    """
    torch.manual_seed(3)
    model = transformers.AlbertForPreTraining(
        transformers.AlbertConfig(**values)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not ("embedding_hidden_mapping_in" in name and identity):
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif parameter.ndim == 2:
                parameter.copy_(torch.eye(len(parameter)))
            else:
                parameter.zero_()
    model.save_pretrained(folder)


def make_head(folder: str, name: str, values: dict) -> None:
    """Write a random model of the given class."""
    torch.manual_seed(4)
    model = getattr(transformers, name)(transformers.AlbertConfig(**values))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)


def pickle_weights(folder: str) -> None:
    """Write the weights in the older pickle format as well."""
    state = safetensors.torch.load_file(f"{folder}/model.safetensors")
    torch.save(state, f"{folder}/pytorch_model.bin")


def read_config(values: dict) -> dict:
    """Return the config that transformers reads from the given values."""
    return transformers.AlbertConfig(**values).to_dict()


def compute(folder: str, inputs: dict[str, np.ndarray]) -> dict:
    """Load a model; return its outputs and the gradients of the summed losses.

    Returns `loading`, the lists of names that did not match, and `mlm_logits`,
    `sop_logits`, `layers`, `loss` and `gradients` as arrays.
    """
    model, loading = transformers.AlbertForPreTraining.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    model.eval()
    batch = {n: torch.from_numpy(inputs[m]).long() for n, m in INDEX.items()}
    out = model(**batch, output_hidden_states=True, output_attentions=True)
    places = torch.from_numpy(inputs["masked_lm_positions"]).long()
    rows = zip(out.prediction_logits, places, strict=True)
    logits = torch.stack([row[p] for row, p in rows])
    entropy = torch.nn.functional.cross_entropy
    words = torch.from_numpy(inputs["masked_lm_ids"]).long()
    labels = torch.from_numpy(inputs["labels"]).long()
    loss = entropy(logits.flatten(0, 1), words.flatten())
    loss = loss + entropy(out.sop_logits, labels)
    loss.backward()
    named = model.named_parameters()
    return {
        "loading": {name: sorted(wrong) for name, wrong in loading.items()},
        "mlm_logits": logits.detach().numpy(),
        "sop_logits": out.sop_logits.detach().numpy(),
        "layers": [x.detach().numpy() for x in out.hidden_states[1:]],
        "loss": loss.item(),
        "gradients": {name: p.grad.numpy() for name, p in named},
    }


def ids(folder: str, texts: list[str]) -> list[list[int]]:
    """Return the ids that the tokenizer in a folder assigns to texts."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def save_tokenizer(folder: str, output: str) -> None:
    """Load a folder's tokenizer, and save it to another folder."""
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(output)


def packed(folder: str, first: list[str], second: list[str]) -> dict:
    """Return model inputs for pairs of texts, padded to the longest pair."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return dict(tokenizer(first, second, padding=True, return_tensors="np"))


def fill_masks(folder: str, text: str) -> list[tuple[str, float]]:
    """Return (piece, probability) for the five likeliest pieces at the mask."""
    fill = transformers.pipeline("fill-mask", model=folder, top_k=5)
    return [(row["token_str"], row["score"]) for row in fill(text)]


def labels(folder: str, text: str) -> dict[str, float]:
    """Return {label: probability} for a text."""
    classify = transformers.pipeline(
        "text-classification", model=folder, top_k=None
    )
    (rows,) = classify([text])
    return {row["label"]: row["score"] for row in rows}


def logits(folder: str, name: str, inputs: dict[str, np.ndarray]) -> tuple:
    """Return a model's outputs for the inputs, and the report on loading."""
    model, loading = getattr(transformers, name).from_pretrained(
        folder, output_loading_info=True
    )
    batch = {n: torch.from_numpy(inputs[m]).long() for n, m in INDEX.items()}
    with torch.no_grad():
        outputs = model.eval()(**batch)
    arrays = {k: v.numpy() for k, v in outputs.items() if v is not None}
    return arrays, {k: sorted(v) for k, v in loading.items()}


def sentence_vectors(folder: str, texts: list[str]) -> np.ndarray:
    """Return sentence-transformers' vectors of texts."""
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(folder, device="cpu")
    return model.encode(texts, batch_size=3)


def pseudo_log_likelihoods(folder: str, texts: list[str], mask: int) -> list:
    """Return each text's sum of log p over its pieces, masked in turn."""
    model = transformers.AlbertForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    scores = []
    for row in tokenizer(texts)["input_ids"]:
        score = 0.0
        for place in range(1, len(row) - 1):
            ids = torch.tensor([row])
            ids[0, place] = mask
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, place]
            score += torch.log_softmax(logits, -1)[row[place]].item()
        scores.append(score)
    return scores


def states(model, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the last hidden states of an `AlbertModel`."""
    model.eval()
    with torch.no_grad():
        out = model(
            torch.from_numpy(ids).long(),
            attention_mask=torch.from_numpy(mask).int(),
        )
    return out.last_hidden_state.numpy()


def encode(folder: str, ids: np.ndarray, mask: np.ndarray):
    """Load an `AlbertModel`, and apply it to a batch.

    Return the names of unmatched weights and the last hidden states.
    """
    model, loading = transformers.AlbertModel.from_pretrained(
        folder, output_loading_info=True
    )
    wrong = {name: sorted(names) for name, names in loading.items()}
    return wrong, states(model, ids, mask)


def plbert_states(folder: str, ids: np.ndarray, mask: np.ndarray):
    """Load PL-BERT's files as StyleTTS 2 does; return the same as `encode`.

    StyleTTS 2 takes the file with the largest number, removes seven characters
    from each name, keeps the encoder's names, and fails without the position
    ids.
    """
    home = pathlib.Path(folder)
    sizes = yaml.safe_load((home / "config.yml").read_text())["model_params"]
    model = transformers.AlbertModel(transformers.AlbertConfig(**sizes))
    steps = {int(p.stem.split("_")[-1]): p for p in home.glob("step_*")}
    net = torch.load(steps[max(steps)], map_location="cpu")["net"]
    cut = {name[len("module.") :]: tensor for name, tensor in net.items()}
    mine = {n: t for n, t in cut.items() if n.startswith("encoder.")}
    mine = {n[len("encoder.") :]: tensor for n, tensor in mine.items()}
    del mine["embeddings.position_ids"]
    wrong = model.load_state_dict(mine, strict=False)
    names = {"missing": wrong.missing_keys, "other": wrong.unexpected_keys}
    return names, states(model, ids, mask)


def make_plbert(folder: str, words: int, step: int) -> None:
    """Write PL-BERT's files as its notebook does, with few layers."""
    sizes = {
        "vocab_size": 178,
        "hidden_size": 24,
        "num_attention_heads": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 32,
        "num_hidden_layers": 2,
        "dropout": 0.1,
    }
    torch.manual_seed(5)
    encoder = transformers.AlbertModel(transformers.AlbertConfig(**sizes))
    model = torch.nn.Module()
    model.encoder = encoder
    model.mask_predictor = torch.nn.Linear(24, 178)
    model.word_predictor = torch.nn.Linear(24, words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    net = {f"module.{n}": t for n, t in model.state_dict().items()}
    # At that time, transformers saved this buffer.
    net["module.encoder.embeddings.position_ids"] = torch.arange(32)[None]
    home = pathlib.Path(folder)
    home.mkdir()
    content = {"net": net, "step": step, "optimizer": optimizer.state_dict()}
    torch.save(content, home / f"step_{step}.t7")
    torch.save({"net": {}}, home / "step_9.t7")
    about = {"log_dir": "Checkpoint", "model_params": sizes}
    (home / "config.yml").write_text(yaml.safe_dump(about))
