"""The draft modules compute what their papers say: against plain arithmetic, and step by step against all at once."""

import torch
from torch import Tensor
from transformers import DynamicCache

from specexport.draft_models import DraftTarget, Eagle1Draft, Eagle3Draft, MedusaHeads
from specexport.draft_models.random_drafts import random_eagle

W = 7


def _positions() -> Tensor:
    return torch.arange(W)[None]


def _ids() -> Tensor:
    return torch.randint(0, 259, (1, W))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _rotate(x: Tensor, positions: Tensor, theta: float = 10000.0) -> Tensor:
    """[heads, W, D] by the half-split convention, pair by pair in complex numbers."""
    half = x.shape[-1] // 2
    angles = positions[:, None].float() * theta ** (-torch.arange(half).float() / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def _attend(weights: dict[str, Tensor], prefix: str, x: Tensor, positions: Tensor, head_dim: int) -> Tensor:
    """Causal attention over one window [W, ...], written out."""
    width = len(x)
    query, key, value = (
        (x @ weights[f"{prefix}.{name}_proj.weight"].T).reshape(width, -1, head_dim).transpose(0, 1)
        for name in "qkv"
    )
    query, key = _rotate(query, positions), _rotate(key, positions)
    groups = len(query) // len(key)
    key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    scores = query @ key.transpose(1, 2) / head_dim**0.5
    scores = scores.masked_fill(~torch.ones(width, width, dtype=torch.bool).tril(), float("-inf"))
    mixed: Tensor = (scores.softmax(-1) @ value).transpose(0, 1).reshape(width, -1)
    return mixed @ weights[f"{prefix}.o_proj.weight"].T


def _mlp(weights: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    gate, up, down = (weights[f"{prefix}.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def test_eagle3_is_its_formula(eagle3: Eagle3Draft) -> None:
    features, ids, eps = torch.randn(1, W, 96), _ids(), eagle3.config.layer.rms_norm_eps
    with torch.no_grad():
        for module in eagle3.modules():
            if "Norm" in type(module).__name__:
                module.get_parameter("weight").normal_(mean=1.0, std=0.3)
    w = {key: value.detach() for key, value in eagle3.state_dict().items()}
    hidden = features[0] @ w["fc.weight"].T
    joined = torch.cat(
        (
            _norm(w["embed_tokens.weight"][ids[0]], w["midlayer.input_layernorm.weight"], eps),
            _norm(hidden, w["midlayer.hidden_norm.weight"], eps),
        ),
        dim=-1,
    )
    hidden = hidden + _attend(w, "midlayer.self_attn", joined, torch.arange(W), 16)
    hidden = hidden + _mlp(
        w, "midlayer.mlp", _norm(hidden, w["midlayer.post_attention_layernorm.weight"], eps)
    )
    expected = _norm(hidden, w["norm.weight"], eps) @ w["lm_head.weight"].T
    with torch.no_grad():
        logits, fed_back = eagle3(features, ids, _positions())
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(fed_back[0], hidden, atol=1e-4, rtol=1e-4)


def test_eagle_is_its_formula(eagle: Eagle1Draft) -> None:
    features, ids, eps = torch.randn(1, W, 32), _ids(), eagle.config.layer.rms_norm_eps
    w = {key: value.detach() for key, value in eagle.state_dict().items()}
    hidden = (
        torch.cat((w["embed_tokens.weight"][ids[0]], features[0]), dim=-1) @ w["fc.weight"].T + w["fc.bias"]
    )
    hidden = hidden + _attend(w, "layers.0.self_attn", hidden, torch.arange(W), 16)
    normed = _norm(hidden, w["layers.0.post_attention_layernorm.weight"], eps)
    hidden = hidden + _mlp(w, "layers.0.mlp", normed)
    with torch.no_grad():
        logits, fed_back = eagle(features, ids, _positions())
    torch.testing.assert_close(fed_back[0], hidden, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[0], hidden @ w["lm_head.weight"].T, atol=1e-4, rtol=1e-4)


def test_medusa_is_its_formula(heads: MedusaHeads) -> None:
    hidden = torch.randn(W, 32)
    w = {key: value.detach() for key, value in heads.state_dict().items()}
    for head in range(3):
        x = hidden
        for block in range(2):
            name = f"medusa_head.{head}.{block}.linear"
            x = x + torch.nn.functional.silu(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])
        with torch.no_grad():
            found = heads.logits(hidden)[:, head]
        torch.testing.assert_close(found, x @ w["lm_head.weight"].T, atol=1e-4, rtol=1e-4)


def test_a_cache_step_by_step_gives_what_one_window_gives(eagle3: Eagle3Draft, eagle: Eagle1Draft) -> None:
    for draft, size in ((eagle3, 96), (eagle, 32)):
        features, ids, positions = torch.randn(1, W, size), _ids(), _positions()
        with torch.no_grad():
            expected, _ = draft(features, ids, positions)
            cache = DynamicCache()
            steps = [
                draft(features[:, t : t + 1], ids[:, t : t + 1], positions[:, t : t + 1], None, cache)[0]
                for t in range(W)
            ]
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-5, rtol=1e-5)


def unrolled_mask(width: int, step: int) -> Tensor:
    """[1, 1, width, (step + 1) * width] bool: row t sees keys of step 0 up to t, then its own row."""
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    return torch.cat([causal, *[torch.eye(width, dtype=torch.bool)] * step], dim=1)[None, None]


def test_an_unrolled_step_is_the_step_a_chain_takes(eagle3: Eagle3Draft) -> None:
    """Row t of unrolled step s must equal: prefill up to t on the target's features, then s steps of drafting."""
    steps, features = 3, torch.randn(1, W, 96)
    ids = torch.randint(0, 259, (1, W + steps))
    with torch.no_grad():
        cache, hidden, unrolled = DynamicCache(), eagle3.project(features), []
        for step in range(steps):
            embeds = eagle3.embed(ids[:, step : step + W])
            hidden = eagle3.layer(hidden, embeds, _positions() + step, unrolled_mask(W, step), cache)
            unrolled.append(hidden)
            hidden = eagle3.fed_back(hidden)
        for row in range(W):
            chain = DynamicCache()
            window = eagle3.project(features[:, : row + 1])
            found = eagle3.layer(
                window, eagle3.embed(ids[:, : row + 1]), _positions()[:, : row + 1], None, chain
            )
            for step in range(steps):
                torch.testing.assert_close(found[:, -1], unrolled[step][:, row], atol=1e-5, rtol=1e-5)
                following = ids[:, row + step + 1 : row + step + 2]
                position = torch.tensor([[row + step + 1]])
                found = eagle3.layer(found[:, -1:], eagle3.embed(following), position, None, chain)


def test_the_vocabulary_is_an_offset(eagle3: Eagle3Draft) -> None:
    ids = torch.arange(100) * 259 // 100
    assert torch.equal(eagle3.target_ids, ids)
    assert torch.equal(torch.arange(100) + eagle3.d2t, ids)
    assert torch.equal(eagle3.t2d.nonzero().flatten(), ids)


def test_half_precision_keeps_the_vocabulary(target: DraftTarget, eagle3: Eagle3Draft) -> None:
    eagle3.half()
    assert eagle3.d2t.dtype == torch.int64 and eagle3.t2d.dtype == torch.bool


def test_equal_seeds_make_equal_drafts(target: DraftTarget) -> None:
    first, second, other = (random_eagle("eagle3", target, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.fc.weight, second.fc.weight)
    assert not torch.equal(first.fc.weight, other.fc.weight)
