"""`tandem status`: shows the services and their state."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.table import Table

from tandem.client.cli import options as o
from tandem.client.cli.connection_flags import ConnectionFlags, with_connection_flags
from tandem.client.cli.services import interruptible
from tandem.client.cli.terminal import complain, output, reporting_errors
from tandem.client.deadline import Deadline
from tandem.client.discovery import LOOKUP_SECONDS, Target, expand
from tandem.client.environment import WORKER_VARIABLE
from tandem.client.errors import StatusError
from tandem.client.rpc import CallContext, unary
from tandem.client.settings import ConnectionSettings, open_channel
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc
from tandem.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc

Report = dict[str, Any]


@with_connection_flags
def status(
    connection: ConnectionFlags,
    tokenizer_address: o.TokenizerAddress = "",
    worker_address: o.WorkerAddresses = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Have each worker check its page table.")] = False,
    timeout: o.Timeout = 10.0,
) -> None:
    """Show the tokenizers, and what each worker is, serves and does now."""
    with reporting_errors():
        if tokenizer_address and not worker_address and WORKER_VARIABLE not in os.environ:
            workers = []
        else:
            workers = o.worker_addresses(worker_address)
        credentials = connection()
        context = CallContext(deadline=Deadline.after(timeout or None), closed=lambda: False, credentials=credentials)
        reports = interruptible(_ask_all(tokenizer_address, workers, check, context))
        if as_json:
            output().print_json(json.dumps(reports), highlight=False, indent=None if not output().is_terminal else 2)
        else:
            for report in reports:
                _show(report)
        if any("error" in report or report.get("load", {}).get("integrity_error") for report in reports):
            raise typer.Exit(1)


async def _ask_all(tokenizer: str, workers: list[str], check: bool, context: CallContext) -> list[Report]:
    targets = await expand(workers, context.deadline.cap(LOOKUP_SECONDS))
    asked = [_ask_tokenizer(tokenizer, context)] if tokenizer else []
    asked += [_ask_worker(target, check, context) for target in targets]
    return list(await asyncio.gather(*asked))


async def _ask_tokenizer(address: str, context: CallContext) -> Report:
    report: Report = {"address": address, "service": "tokenizer"}
    async with open_channel(address, ConnectionSettings(), context.credentials) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        try:
            listing = await unary(
                stub.ListTokenizers, tokenizer_pb2.ListTokenizersRequest(), context, service="tokenizer"
            )
        except StatusError as error:
            return {**report, "error": str(error)}
    return {**report, "tokenizers": [_plain(tokenizer) for tokenizer in listing.tokenizers]}


async def _ask_worker(target: Target, check: bool, context: CallContext) -> Report:
    report: Report = {"address": target.address, "service": "worker"}
    async with open_channel(target.address, ConnectionSettings(), context.credentials, target.authority) as channel:
        stub = admin_pb2_grpc.WorkerAdminServiceStub(channel)
        try:
            server, model, load = await asyncio.gather(
                unary(stub.GetServer, admin_pb2.GetServerRequest(), context, service="worker"),
                unary(stub.GetModel, admin_pb2.GetModelRequest(), context, service="worker"),
                unary(stub.GetLoad, admin_pb2.GetLoadRequest(check_integrity=check), context, service="worker"),
            )
        except StatusError as error:
            return {**report, "error": str(error)}
    state = admin_pb2.ServerState.Name(server.state).removeprefix("SERVER_STATE_").lower()
    return {**report, "server": {**_plain(server), "state": state}, "model": _plain(model), "load": _plain(load)}


def _plain(message: Message) -> Report:
    """Returns all fields with their names in the proto; 64-bit numbers are numbers."""
    fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return {name: int(value) if isinstance(value, str) and value.isdigit() else value for name, value in fields.items()}


def _show(report: Report) -> None:
    if "error" in report:
        complain(f"{report['address']}: {report['error']}")
        return
    table = Table(title=f"{report['service']} {report['address']}", title_justify="left", show_header=False, box=None)
    table.add_column(style="dim")
    table.add_column()
    for tokenizer in report.get("tokenizers", []):
        kind = str(tokenizer["vocabulary_type"]).removeprefix("VOCABULARY_TYPE_").lower()
        words = f"{kind}, {tokenizer['vocabulary_size']} tokens, from {tokenizer['source']}"
        answers = f", answers: {tokenizer['answer_format']}" if tokenizer.get("answer_format") else ""
        table.add_row(tokenizer["name"], f"{words}, fingerprint {tokenizer['fingerprint'][:16]}{answers}")
    if "load" in report:
        server, model, load = report["server"], report["model"], report["load"]
        table.add_row("state", server["state"])
        table.add_row("model", f"{model['name']}: {model['architecture']}, {_short(model['parameters'])} parameters")
        weights = f"{model['dtype']}, {model['quantization']} weights" if model["quantization"] else model["dtype"]
        if model["adapters"]:
            table.add_row("adapters", ", ".join(model["adapters"]))
        table.add_row("context", f"{model['context_length']} tokens, {weights}")
        shared = f", {ranks} ranks" if (ranks := server["tensor_parallel_ranks"]) > 1 else ""
        table.add_row("device", f"{server['device']} {server['device_name']}".strip() + shared)
        table.add_row("requests", f"{load['running_requests']} running, {load['waiting_requests']} waiting")
        table.add_row(
            "pages",
            f"{load['pages_referenced']} in use, {load['pages_cached']} cached, {load['pages_free']} free, "
            f"of {load['pages_total']}",
        )
        if load["states_total"]:
            table.add_row(
                "states",
                f"{load['states_running']} in use, {load['states_cached']} cached, of {load['states_total']}",
            )
        if "integrity_ok" in load:
            table.add_row("page table", "right" if load["integrity_ok"] else f"wrong: {load['integrity_error']}")
        table.add_row(
            "tokens", f"{load['prompt_tokens']} in ({load['cached_prompt_tokens']} cached), {load['output_tokens']} out"
        )
    output().print(table)


def _short(number: int) -> str:
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.1f} {letter}"
    return str(number)
