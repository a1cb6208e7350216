"""What Prometheus sees of a worker."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from tandem.client import AsyncClient, GenerationResult, NotFoundError
from tandem.worker.front.vllm_names import VLLM_NAMES
from tests.integration.worker_process import greedy, running_worker, service_process, threaded_worker


async def scrape(address: str, accept: str = "text/plain") -> str:
    """What a scraper gets."""

    def fetch() -> str:
        request = urllib.request.Request(f"http://{address}/metrics", headers={"accept": accept})
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read().decode()

    return await asyncio.to_thread(fetch)


async def families(address: str) -> list[Metric]:
    """What a scrape sees."""
    return list(text_string_to_metric_families(await scrape(address)))


async def ended(address: str, method: str) -> dict[str, float]:
    """How many calls of a method ended, by code."""
    return {
        sample.labels["grpc_code"]: sample.value
        for family in await families(address)
        for sample in family.samples
        if sample.name == "tandem_grpc_server_handled_total" and sample.labels["grpc_method"] == method
    }


async def samples(address: str) -> dict[str, float]:
    """Every sample without its labels but `finished_reason` and `phase`, summed."""
    values: dict[str, float] = {}
    for family in await families(address):
        for sample in family.samples:
            if "le" in sample.labels:
                continue
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


async def test_metrics_tell_what_was_served(random_llama: Path, tmp_path: Path):
    async with threaded_worker(tmp_path, "--model", str(random_llama)) as worker:
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
    assert after["tandem_request_success_total"] == after["tandem_requests_by_name_total"] == 2
    assert after["tandem_time_to_first_token_seconds_count"] == 2
    assert after["tandem_inter_token_latency_seconds_count"] == 2 * 19
    assert after["tandem_request_time_per_output_token_seconds_count"] == 2
    assert after["tandem_request_max_num_generation_tokens_sum"] == 40
    assert after["tandem_e2e_request_latency_seconds_count"] == 2
    assert after["tandem_num_requests_running"] == 0
    assert after["tandem_kv_cache_usage_perc"] == 0
    assert after["tandem_kv_cache_cached_perc"] > 0
    assert after["tandem_step_phase_seconds_count"] == 3 * after["tandem_iteration_tokens_count"]


@pytest.mark.slow
async def test_after_a_load_counters_and_log_are_what_its_clients_counted_and_gauges_are_zero(
    repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    demo = str(repository / "models" / "demo")
    results: list[GenerationResult] = []
    longs: list[GenerationResult] = []
    registry = CollectorRegistry()
    async with (
        service_process(
            "tandem.tokenizer", tmp_path, "--tokenizer", demo, "--log-format=json", "--log-level=debug"
        ) as (tokenizer, _),
        running_worker(
            tmp_path, "--model", demo, "--engine=thread", "--log-format=json", "--kv-cache-tokens=512"
        ) as worker,
    ):
        front, texts = (
            json.loads((tmp_path / f"tandem.{name}.json").read_text())["metrics"] for name in ("worker", "tokenizer")
        )
        async with AsyncClient(tokenizer, worker.address, registry=registry) as client:

            async def long(number: int) -> None:  # more of them than the KV cache holds
                longs.append(await client.generate(f"{number} KING:", max_tokens=150, ignore_eos=True))

            async def caller(number: int) -> None:
                results.append(await client.generate(f"{number} ROMEO:", max_tokens=5 + number, n=2))

            async def leaver() -> None:
                async with client.stream("JULIET:", max_tokens=400, ignore_eos=True) as stream:
                    async for _ in stream:
                        break  # hangs up

            async def wrong() -> None:
                with pytest.raises(NotFoundError):
                    await client.generate("x", model="nobody")

            juliet = await client.count_tokens("JULIET:")
            await asyncio.gather(*map(long, range(5)), *map(caller, range(6)), leaver(), leaver(), wrong())
        await worker.settled()
        after, tokenized = await samples(front), await samples(texts)
        async with asyncio.timeout(60):  # the last calls are still being left
            while any(after[name] for name in IDLE) or any(tokenized[name] for name in IDLE_TEXTS):
                after, tokenized = await samples(front), await samples(texts)
        answers = [*results, *longs]
        assert await ended(front, "Generate") == {"OK": len(answers), "CANCELLED": 2, "NOT_FOUND": 1}
    asked = {
        (sample.labels["method"], sample.labels["outcome"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "tandem_client_requests_total"
    }
    assert asked == {("generate", "ok"): len(answers), ("stream", "cancelled"): 2, ("generate", "not_found"): 1}
    timed = registry.get_sample_value("tandem_client_time_to_first_token_seconds_count")
    assert len(answers) <= (timed or 0) <= len(answers) + 2, "of those who hung up too, once they had a token"
    finished = after["tandem_request_success_total"]
    assert finished == 2 * len(results) + len(longs), "each output once, and none whose caller hung up"
    assert after["tandem_e2e_request_latency_seconds_count"] == finished
    prompts = sum(each.usage.prompt_tokens for each in (*results, *answers)) + 2 * juliet  # each output has its prompt
    assert after["tandem_prompt_tokens_total"] == prompts
    made = sum(each.usage.completion_tokens for each in answers)
    assert made < after["tandem_generation_tokens_total"] < made + 2 * 400
    assert after["tandem_requests_refused_total"] == 0

    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    access = [line for line in lines if line["logger"] == "tandem.common.access"]
    generated = {line["request_id"]: line for line in access if line.get("prompt_tokens")}
    assert len(generated) == len(answers) + 2
    assert after["tandem_prefix_cache_hits_total"] >= sum(line.get("cached_tokens", 0) for line in generated.values())
    preempted = sum(each.usage.preemptions or 0 for each in answers)
    assert preempted > 0 and after["tandem_num_preemptions_total"] >= preempted, "some of who hung up"
    for result in answers:
        line = generated[result.request_id]
        assert line.get("cached_tokens", 0) == result.usage.cached_prompt_tokens
        assert (line["code"], line["model"], line["service"]) == ("OK", "demo", "tandem-worker")
        assert line["prompt_tokens"] == result.usage.prompt_tokens
        assert line["output_tokens"] == result.usage.completion_tokens
        assert "id" not in line and line["peer"].startswith("ipv4:127.0.0.1:")
        assert all(line[f"{phase}_seconds"] >= 0 for phase in ("queue", "prefill", "decode"))
    assert [line["code"] for line in access if line["message"] == "Generate"].count("NOT_FOUND") == 1
    assert tokenized["tandem_tokenizer_encoded_tokens_total"] == sum(
        line["tokens"] for line in access if line["message"] in ("Encode", "BatchEncode", "CountTokens")
    )
    [settings] = [line["settings"] for line in lines if line["service"] == "tandem-worker" and "settings" in line]
    assert settings["model"] == demo and settings["threads"] == 1 and "max_running_requests" not in settings


IDLE = (
    "tandem_num_requests_running",
    "tandem_num_requests_waiting",
    "tandem_num_tokens_waiting",
    "tandem_kv_cache_usage_perc",
    "tandem_active_callers",
    "tandem_grpc_server_in_flight",
)
IDLE_TEXTS = ("tandem_tokenizer_open_streams", "tandem_tokenizer_pool_running", "tandem_grpc_server_in_flight")


# What Prometheus asks for.
PROMETHEUS_ACCEPT = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*"
# Of the panels of vLLM's published dashboard (examples/observability/prometheus_grafana), by their titles.
PANELS = {
    "E2E Request Latency": "e2e_request_latency_seconds_bucket e2e_request_latency_seconds_sum "
    "e2e_request_latency_seconds_count",
    "Token Throughput": "prompt_tokens_total generation_tokens_total",
    "Inter Token Latency": "inter_token_latency_seconds_bucket inter_token_latency_seconds_sum "
    "inter_token_latency_seconds_count",
    "Scheduler State": "num_requests_running num_requests_waiting",
    "Time To First Token Latency": "time_to_first_token_seconds_bucket time_to_first_token_seconds_sum "
    "time_to_first_token_seconds_count",
    "Cache Utilization": "kv_cache_usage_perc",
    "Request Prompt Length": "request_prompt_tokens_bucket",
    "Request Generation Length": "request_generation_tokens_bucket",
    "Finish Reason": "request_success_total",
    "Queue Time": "request_queue_time_seconds_sum",
    "Requests Prefill and Decode Time": "request_prefill_time_seconds_sum request_decode_time_seconds_sum",
    "Max Generation Token in Sequence Group": "request_max_num_generation_tokens_sum",
}


async def test_the_engine_is_seen_and_vllms_names_show_the_same_numbers(random_llama: Path, tmp_path: Path):
    async with running_worker(tmp_path, "--model", str(random_llama), "--vllm-metric-names") as worker:
        address = json.loads((tmp_path / "tandem.worker.json").read_text())["metrics"]
        await worker.generate(greedy([1] + [9] * 99, 20))
        after = await samples(address)
        told = await scrape(address, PROMETHEUS_ACCEPT)
    assert told.endswith("# EOF\n")
    labelled = set(re.findall(r'^vllm:(\w+)\{[^}]*model_name="', told, re.M))
    assert {title for title, names in PANELS.items() if not set(names.split()) <= labelled} == set()
    assert set(re.findall(r'^vllm:request_success_total\{.*finished_reason="(\w+)"', told, re.M))
    assert after["tandem_engine_process_resident_memory_bytes"] > after["tandem_model_weights_bytes"] > 0
    assert after["tandem_engine_process_cpu_seconds_total"] > 0
    assert after["tandem_kv_cache_bytes"] > 0
    assert after["vllm:cache_config_info"] == 1
    theirs = {name: value for name, value in after.items() if name.startswith("vllm:")}
    assert theirs == {f"vllm:{name[5:]}": after[f"tandem_{name[5:]}"] for name in theirs}
    assert theirs["vllm:generation_tokens_total"] == 20
    assert theirs["vllm:inter_token_latency_seconds_count"] == 19
    assert {re.sub("_(total|sum|count)$", "", name)[5:] for name in theirs} == set(VLLM_NAMES)
