"""gRPC's own balancer in front of two real workers, of which one has an eighth of the places."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc.aio
import pytest

orca_pb2 = pytest.importorskip("xds.service.orca.v3.orca_pb2", reason="needs xds-protos, of the extra gateway")
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport  # noqa: E402

from tandem.inference.v1 import inference_pb2_grpc  # noqa: E402
from tests.integration.worker_process import greedy, threaded_worker  # noqa: E402

CONFIG = {
    "loadBalancingConfig": [{"weighted_round_robin": {"blackoutPeriod": "0s", "weightUpdatePeriod": "0.1s"}}],
}


@pytest.mark.slow
async def test_weighted_round_robin_asks_the_worker_with_fewer_places_less(random_llama: Path, tmp_path: Path):
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
    flags = ("--model", str(random_llama), "--load-reports")
    async with (
        threaded_worker(tmp_path / "small", *flags, "--max-running-requests=1") as small,
        threaded_worker(tmp_path / "large", *flags, "--max-running-requests=8") as large,
    ):
        target = f"ipv4:{small.address},{large.address}"
        options = [("grpc.service_config", json.dumps(CONFIG))]
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)

            async def caller() -> None:
                for _ in range(25):
                    async for _ in stub.Generate(greedy([1, 9, 9], 4)):
                        pass

            await asyncio.gather(*(caller() for _ in range(6)))
        served = [(await worker.settled()).output_tokens // 4 for worker in (small, large)]
        assert sum(served) == 150
        assert served[1] > 2 * served[0], "the trailers told it; gRPC keeps them to itself"

        ask = large.channel.unary_stream(
            "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
            orca_pb2.OrcaLoadReportRequest.SerializeToString,
            OrcaLoadReport.FromString,
        )
        call = ask(orca_pb2.OrcaLoadReportRequest())
        first, second = await call.read(), await call.read()
        call.cancel()
        assert first.application_utilization == second.application_utilization == 0, "nothing runs any more"
        assert second.rps_fractional < first.rps_fractional and first.eps == 0
