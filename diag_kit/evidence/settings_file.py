"""Settings from a JSON or YAML file that the run left: arguments, DeepSpeed and accelerate configs, a model's
config.json.

Nothing in such a file is trusted: YAML by the safe loader, a size limit, and a budget of nodes, so that neither deep
nesting nor aliases that multiply can hang the reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from .facts import Fact, Setting, Snapshot, Source
from .names import canonical

MAX_BYTES = 4 << 20
_NODES = 20_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(path: str, text: str) -> tuple[list[Fact], list[str]]:
    """Facts of one settings file, and notes on what could not be read.

    Args:
        path: as the user named it; becomes the source of each fact.
        text: the whole file.
    """
    try:
        if path.lower().endswith(".json"):
            data = json.loads(text, parse_constant=lambda _: None)  # NaN and Infinity are no settings
        else:
            data = yaml.load(text, _LOADER)  # noqa: S506 (a safe loader, in C where it is there)
    except json.JSONDecodeError as error:
        return [], [f"not valid JSON (line {error.lineno}: {error.msg.lower()}); nothing was taken from it"]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        return [], [f"not valid YAML{f' (line {place.line + 1})' if place else ''}; nothing was taken from it"]
    if segments := _segments(data):
        return [_snapshot(path, label, rows) for label, rows in segments], []
    facts: list[Fact] = []
    if isinstance(data, dict) and (model := model_shape(data)):
        facts.append(Setting(source=_source(path, text, "hidden_size", "n_embd", "hidden"), name="model", value=model))
    budget = [_NODES]
    for key, value in _flat(data, "", budget):
        for name, known in canonical(key, value):
            leaf = key.rpartition(".")[2]
            facts.append(
                Setting(source=_source(path, text, leaf), name=name, value=known, raw=f"{key} = {value}"[:200])
            )
    notes = ["nested or repeated too deeply; only its first part was read"] if budget[0] <= 0 else []
    return facts, notes


def model_shape(data: dict[str, Any]) -> dict[str, Any] | None:
    """Architecture numbers of a transformers config, or of the same numbers under plain names; None where it is
    neither.

    Keys: n_layers, hidden, heads, kv_heads, ffn, gated_ffn, vocab, tied_embeddings, model_type. Source: field names of
    ``transformers`` configuration classes (llama, mistral, qwen2, gpt2, bert, opt).
    """
    inner = data.get("model")
    data = inner if isinstance(inner, dict) and ("n_layers" in inner or "num_hidden_layers" in inner) else data
    text = data.get("text_config")
    data = {**data, **text} if isinstance(text, dict) else data

    def first(*names: str) -> Any:
        return next(
            (data[name] for name in names if isinstance(data.get(name), int) and not isinstance(data.get(name), bool)),
            None,
        )

    layers = first("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
    hidden = first("hidden_size", "n_embd", "hidden", "d_model", "dim")
    heads = first("num_attention_heads", "n_head", "heads", "n_heads", "num_heads")
    if not (layers and hidden and heads):
        return None
    named = data.get("architectures")
    classes = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    kind = str(data.get("model_type") or (classes or [""])[0]).lower()
    ffn = first("intermediate_size", "n_inner", "ffn", "ffn_dim", "ffn_hidden_size") or 4 * hidden
    gated = data.get("gated_ffn")
    if gated is None:
        gated = data.get("hidden_act") in ("silu", "swiglu") or any(
            word in kind for word in ("llama", "mistral", "qwen", "gemma", "phi3")
        )
    tied = data.get("tie_word_embeddings", data.get("tied_embeddings"))
    return {
        "n_layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": first("num_key_value_heads", "kv_heads", "n_kv_heads") or heads,
        "ffn": ffn,
        "gated_ffn": bool(gated),
        "vocab": first("vocab_size", "vocab", "padded_vocab_size") or 0,
        "tied_embeddings": bool(tied if tied is not None else "gpt2" in kind),
        "model_type": kind or None,
        "architectures": classes or None,
    }


def _flat(node: Any, prefix: str, budget: list[int]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and scalar values, until the budget of visited nodes is used up."""
    stack = [(prefix, node)]
    while stack and budget[0] > 0:
        budget[0] -= 1
        key, value = stack.pop()
        if isinstance(value, dict):
            stack.extend(
                (f"{key}.{name}" if key else str(name), inner) for name, inner in reversed(list(value.items())[:2000])
            )
        elif isinstance(value, list):
            stack.extend((key, inner) for inner in reversed(value[:200]) if isinstance(inner, dict))
        elif value is not None and key:
            yield key, value


def _source(path: str, text: str, *words: str) -> Source:
    """The line of a file on which one of the words stands as a key."""
    for word in words:
        at = next((found for quote in ('"', "'", "") if (found := text.find(f"{quote}{word}{quote}")) >= 0), -1)
        if at >= 0:
            start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            line = text[start : end if end >= 0 else None]
            return Source(path, text.count("\n", 0, at) + 1, line.strip()[:300])
    return Source(path)


def _segments(data: Any) -> list[tuple[str, list[dict[str, Any]]]]:
    """(label, segments) of an allocator snapshot that was saved as JSON."""
    groups = list(data.items())[:50] if isinstance(data, dict) else [("", data)]
    return [
        (str(label), rows)
        for label, rows in groups
        if isinstance(rows, list)
        and rows
        and all(isinstance(row, dict) and {"total_size", "allocated_size"} <= row.keys() for row in rows)
    ]


def _snapshot(path: str, label: str, segments: list[dict[str, Any]]) -> Snapshot:
    largest = split_free = reserved = allocated = 0
    for segment in segments:
        total, used = int(segment["total_size"]), int(segment["allocated_size"])
        blocks = segment.get("blocks") or segment.get("blocks_first") or []
        free = [int(b.get("size", 0)) for b in blocks if isinstance(b, dict) and b.get("state") == "inactive"]
        reserved, allocated = reserved + total, allocated + used
        largest = max([largest, *free])
        split_free += total - used if used else 0
    return Snapshot(
        source=Source(path),
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        label=label,
        segments=len(segments),
        largest_free_block_bytes=largest,
        free_in_split_segments_bytes=split_free,
    )
