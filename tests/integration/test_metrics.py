"""What Prometheus sees of a worker."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tandem.worker.front.vllm_names import VLLM_NAMES
from tests.integration.worker_process import greedy, running_worker


async def samples(address: str) -> dict[str, float]:
    """Every sample without its labels but `finished_reason` and `phase`, summed."""

    def fetch() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            return response.read().decode()

    values: dict[str, float] = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(fetch)):
        for sample in family.samples:
            if "le" in sample.labels:
                continue
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


async def test_metrics_tell_what_was_served(random_llama: Path, tmp_path: Path):
    async with running_worker(tmp_path, "--model", str(random_llama), "--engine=thread") as worker:
        address = json.loads((tmp_path / "tandem.worker.json").read_text())["metrics"]
        before = await samples(address)
        assert before["tandem_engine_up"] == 1
        assert before["tandem_generation_tokens_total"] == 0
        for _ in range(2):
            await worker.generate(greedy([1] + [9] * 99, 20))
        after = await samples(address)
    assert after["tandem_prompt_tokens_total"] == 200
    assert after["tandem_generation_tokens_total"] == 40
    assert after["tandem_prefix_cache_queries_total"] == 200
    assert after["tandem_prefix_cache_hits_total"] == 99
    assert after["tandem_request_success_total"] == 2
    assert after["tandem_time_to_first_token_seconds_count"] == 2
    assert after["tandem_inter_token_latency_seconds_count"] == 2 * 19
    assert after["tandem_request_time_per_output_token_seconds_count"] == 2
    assert after["tandem_request_max_num_generation_tokens_sum"] == 40
    assert after["tandem_e2e_request_latency_seconds_count"] == 2
    assert after["tandem_num_requests_running"] == 0
    assert after["tandem_kv_cache_usage_perc"] == 0
    assert after["tandem_kv_cache_cached_perc"] > 0
    assert after["tandem_step_phase_seconds_count"] == 3 * after["tandem_iteration_tokens_count"]


async def test_the_engine_is_seen_and_vllms_names_show_the_same_numbers(random_llama: Path, tmp_path: Path):
    async with running_worker(tmp_path, "--model", str(random_llama), "--vllm-metric-names") as worker:
        address = json.loads((tmp_path / "tandem.worker.json").read_text())["metrics"]
        await worker.generate(greedy([1] + [9] * 99, 20))
        after = await samples(address)
    assert after["tandem_engine_process_resident_memory_bytes"] > after["tandem_model_weights_bytes"] > 0
    assert after["tandem_engine_process_cpu_seconds_total"] > 0
    assert after["tandem_kv_cache_bytes"] > 0
    assert after["vllm:cache_config_info"] == 1
    theirs = {name: value for name, value in after.items() if name.startswith("vllm:")}
    assert theirs == {f"vllm:{name[5:]}": after[f"tandem_{name[5:]}"] for name in theirs}
    assert theirs["vllm:generation_tokens_total"] == 20
    assert theirs["vllm:inter_token_latency_seconds_count"] == 19
    assert {re.sub("_(total|sum|count)$", "", name)[5:] for name in theirs} == set(VLLM_NAMES)
