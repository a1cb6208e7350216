"""Serves the contract of vLLM's gRPC engine (`vllm.grpc.engine.VllmEngine`, of the package smg-grpc-proto) beside our
own, for gateways that tokenize by themselves. It only translates: requests become ours, and our answers theirs."""
