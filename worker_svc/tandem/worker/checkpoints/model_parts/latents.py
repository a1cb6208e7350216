"""The sizes of multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434): of each token, one vector
is kept that all heads' keys and values are made of.

    latent   c = norm(x Wlatent), and r = rotate(x Wlatent'), which is a part of every head's key
    head h   key = (c Wk_h, r), value = c Wv_h, query = (q, q') of which q' is rotated

It is computed without making keys and values: `q . (c Wk_h) = (q Wk_h^T) . c`, and what the softmax weighs are latents,
whose sum is multiplied by Wv_h afterwards. So a token's key is (c, r), the same for all heads, and its value c: one kv
head, whose values are the first numbers of its keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.worker.checkpoints.model_parts.limits import LIMITS, ConfigError, require_size

NORM_EPS = 1e-6  # of the norms of latents, whatever a model says of its others


@dataclass(frozen=True, slots=True)
class Latents:
    """How many numbers there are of each kind."""

    rank: int  # of c, which keys and values are made of
    rotated: int  # of r
    unrotated: int  # of a head's query that are not rotated
    value: int  # of a head's value
    query_rank: int = 0  # of another latent, which queries are made of; 0: they are made of the stream

    def __post_init__(self) -> None:
        for name in ("rank", "rotated", "unrotated", "value"):
            require_size(f"latents.{name}", getattr(self, name), LIMITS["head_dim"])
        if self.query_rank:
            require_size("latents.query_rank", self.query_rank, LIMITS["hidden_size"])
        if self.rotated % 2:
            raise ConfigError("latents.rotated", f"{self.rotated} is odd, but RoPE rotates pairs")

    @property
    def size(self) -> int:
        """Returns the numbers that are kept of a token."""
        return self.rank + self.rotated

    @property
    def query(self) -> int:
        """Returns the numbers of a head's query before it looks at latents."""
        return self.unrotated + self.rotated

    def tensor_shapes(self, hidden: int, heads: int, *, bias: bool) -> dict[str, tuple[int, ...]]:
        """Returns canonical names within a layer and shapes `[out, in]`. Of a head's rows of `key_up` and `value_up`
        each makes one number, of what is multiplied with latents, and of the head's value."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.query_rank:
            shapes["attention.query_latent"] = (self.query_rank, hidden)
            shapes |= {"attention.query_latent_bias": (self.query_rank,)} if bias else {}
            shapes["attention.query_norm"] = (self.query_rank,)
            shapes["attention.query_up"] = (heads * self.query, self.query_rank)
        else:
            shapes["attention.q"] = (heads * self.query, hidden)
        shapes["attention.latent"] = (self.size, hidden)
        shapes |= {"attention.latent_bias": (self.size,)} if bias else {}
        shapes["attention.latent_norm"] = (self.rank,)
        shapes["attention.key_up"] = (heads * self.rank, self.unrotated)
        shapes["attention.value_up"] = (heads * self.value, self.rank)
        shapes["attention.output"] = (hidden, heads * self.value)
        return shapes
