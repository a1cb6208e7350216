"""What `config.json` calls the sizes of layers with a gated delta rule."""

from __future__ import annotations

KEYS = {
    "delta_net.key_heads": "linear_num_key_heads",
    "delta_net.value_heads": "linear_num_value_heads",
    "delta_net.key_dim": "linear_key_head_dim",
    "delta_net.value_dim": "linear_value_head_dim",
    "delta_net.kernel": "linear_conv_kernel_dim",
}
