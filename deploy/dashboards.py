"""Writes Grafana's dashboards (deploy/grafana/dashboards/*.json) from the tables below.

    python deploy/dashboards.py            write them
    python deploy/dashboards.py --check    exit code 1 if what is written differs

`$model`, `$instance` and `$tokenizer` are the dashboards' variables. A rate is taken over `$__rate_interval`, which
Grafana makes four scrapes long at least. deploy/compose_test.py runs every query against a real Prometheus.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, stat, timeseries
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

FOLDER = Path(__file__).resolve().parent / "grafana" / "dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS = 24  # of Grafana's grid

MODEL = 'model_name=~"$model",instance=~"$instance"'
TOKENIZER = 'tokenizer=~"$tokenizer",instance=~"$instance"'
HTTP = 'job="tandem-http",instance=~"$instance"'
SERVICE = 'job=~"tandem-.+",instance=~"$instance"'


@dataclass(frozen=True, slots=True)
class Series:
    """One query and the legend of what it gives."""

    query: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: a number (`stat`) or curves over time, `stacked` where they are parts of a whole."""

    title: str
    unit: str  # one of Grafana's
    help: str
    series: tuple[Series, ...]
    stat: bool = False
    stacked: bool = False
    ceiling: float | None = None


def rate(metric: str, labels: str, by: str = "") -> str:
    """What a counter gains in a second."""
    return f"sum{f' by ({by}) ' if by else ''}(rate({metric}{{{labels}}}[$__rate_interval]))"


def ratio(part: str, whole: str, labels: str, by: str = "") -> str:
    """The gain of one counter for each one of another; no data while neither gains."""
    return f"{rate(part, labels, by)} / {rate(whole, labels, by)}"


def mean(histogram: str, labels: str, by: str = "") -> str:
    """Of what a histogram observed lately."""
    return ratio(f"{histogram}_sum", f"{histogram}_count", labels, by)


def quantiles(histogram: str, labels: str, *shares: float, by: str = "") -> tuple[Series, ...]:
    """Of what a histogram observed lately, one curve a share."""
    grouping = f"{by}, le" if by else "le"
    observed = rate(f"{histogram}_bucket", labels, grouping)
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(Series(f"histogram_quantile({share}, {observed})", f"{legend}p{share * 100:g}") for share in shares)


def one(query: str, legend: str = "") -> tuple[Series, ...]:
    return (Series(query, legend),)


SERVING: dict[str, tuple[Panel, ...]] = {
    "At a glance": (
        Panel("Workers", "none", "Workers whose engine is ready.", one(f"sum(tandem_engine_up{{{MODEL}}})"), stat=True),
        Panel(
            "Alerts",
            "none",
            "Tandem's alerts that fire now.",
            one('count(ALERTS{alertname=~"Tandem.+",alertstate="firing"}) or vector(0)'),
            stat=True,
        ),
        Panel(
            "Running",
            "none",
            "Requests that the engines compute.",
            one(f"sum(tandem_num_requests_running{{{MODEL}}})"),
            stat=True,
        ),
        Panel(
            "Waiting",
            "none",
            "Requests that no engine has begun.",
            one(f"sum(tandem_num_requests_waiting{{{MODEL}}})"),
            stat=True,
        ),
        Panel(
            "Output",
            "none",
            "Tokens generated in a second.",
            one(rate("tandem_generation_tokens_total", MODEL)),
            stat=True,
        ),
        Panel(
            "First token, p95",
            "s",
            "Nineteen of twenty requests had their first token sooner.",
            quantiles("tandem_time_to_first_token_seconds", MODEL, 0.95),
            stat=True,
        ),
    ),
    "What callers feel": (
        Panel(
            "Time to first token",
            "s",
            "From the request's arrival at the worker, its queue included.",
            quantiles("tandem_time_to_first_token_seconds", MODEL, 0.5, 0.95, 0.99),
        ),
        Panel(
            "Time between tokens",
            "s",
            "A request's mean; one observation a request, at its end.",
            quantiles("tandem_inter_token_latency_seconds", MODEL, 0.5, 0.95, 0.99),
        ),
        Panel(
            "Time of a request",
            "s",
            "From its arrival to its last message.",
            quantiles("tandem_e2e_request_latency_seconds", MODEL, 0.5, 0.95, 0.99),
        ),
        Panel(
            "Where a request's time goes",
            "s",
            "Means. A long queue asks for workers; a long prefill for shorter prompts, or prefixes that are cached.",
            (
                Series(mean("tandem_request_queue_time_seconds", MODEL), "queue"),
                Series(mean("tandem_request_prefill_time_seconds", MODEL), "prefill"),
                Series(mean("tandem_request_decode_time_seconds", MODEL), "decode"),
            ),
            stacked=True,
        ),
    ),
    "Load": (
        Panel(
            "Requests",
            "none",
            "Those that run and those that wait, by worker.",
            (
                Series(f"tandem_num_requests_running{{{MODEL}}}", "{{instance}} running"),
                Series(f"tandem_num_requests_waiting{{{MODEL}}}", "{{instance}} waiting"),
            ),
        ),
        Panel(
            "Prompt tokens of waiting requests",
            "none",
            "The queue has a limit of tokens too.",
            one(f"tandem_num_tokens_waiting{{{MODEL}}}", "{{instance}}"),
        ),
        Panel(
            "Callers",
            "none",
            "Callers with requests that run or wait, by worker; requests a second that made way for another caller's.",
            (
                Series(f"tandem_active_callers{{{MODEL}}}", "{{instance}} callers"),
                Series(rate("tandem_places_ceded_total", MODEL), "requests preempted for fairness"),
            ),
        ),
        Panel(
            "Requests that ended",
            "reqps",
            "By reason; eos, stop and length are how an answer should end.",
            one(rate("tandem_request_success_total", MODEL, "finished_reason"), "{{finished_reason}}"),
            stacked=True,
        ),
        Panel(
            "Refused requests, and wasted tokens",
            "none",
            "Requests a second that found the queue full, of them those over a share, end engines or "
            "met a drain; tokens a second computed for readers that had gone.",
            (
                Series(rate("tandem_requests_refused_total", MODEL), "requests refused"),
                Series(rate("tandem_requests_refused_by_share_total", MODEL), "refused by share"),
                Series(rate("tandem_wasted_tokens_total", MODEL), "tokens wasted"),
                Series(rate("tandem_requests_quarantined_total", MODEL), "requests with which engines die"),
                Series(rate("tandem_requests_sent_away_total", MODEL), "requests sent away by drains"),
            ),
        ),
    ),
    "Tokens": (
        Panel(
            "Output tokens a second",
            "none",
            "By worker.",
            one(rate("tandem_generation_tokens_total", MODEL, "instance"), "{{instance}}"),
            stacked=True,
        ),
        Panel(
            "Prompt tokens a second",
            "none",
            "Those found in the prefix cache cost nothing.",
            (
                Series(
                    f"{rate('tandem_prompt_tokens_total', MODEL)} - {rate('tandem_prefix_cache_hits_total', MODEL)}",
                    "computed",
                ),
                Series(rate("tandem_prefix_cache_hits_total", MODEL), "cached"),
            ),
            stacked=True,
        ),
        Panel(
            "Prompt length",
            "none",
            "Tokens of a request's prompt.",
            quantiles("tandem_request_prompt_tokens", MODEL, 0.5, 0.95),
        ),
        Panel(
            "Output length",
            "none",
            "Tokens of a request's answer.",
            quantiles("tandem_request_generation_tokens", MODEL, 0.5, 0.95),
        ),
    ),
    "KV cache": (
        Panel(
            "Pages",
            "percentunit",
            "Those that requests use, and those that only keep prefixes for later ones.",
            (
                Series(f"tandem_kv_cache_usage_perc{{{MODEL}}}", "{{instance}} in use"),
                Series(f"tandem_kv_cache_cached_perc{{{MODEL}}}", "{{instance}} cached"),
            ),
            ceiling=1,
        ),
        Panel(
            "Prefix cache, share of tokens found",
            "percentunit",
            "Of all prompt tokens that were looked up.",
            one(ratio("tandem_prefix_cache_hits_total", "tandem_prefix_cache_queries_total", MODEL), "found"),
            ceiling=1,
        ),
        Panel(
            "Pages a second",
            "none",
            "Evicted for others, shared instead of stored twice, moved together when idle.",
            (
                Series(rate("tandem_kv_cache_evicted_pages_total", MODEL), "evicted"),
                Series(rate("tandem_kv_cache_merged_pages_total", MODEL), "merged"),
                Series(rate("tandem_kv_cache_moved_pages_total", MODEL), "moved"),
            ),
        ),
        Panel(
            "Preemptions a second",
            "none",
            "Requests that gave their pages back and are computed again: the cache is too small for the load.",
            one(rate("tandem_num_preemptions_total", MODEL, "instance"), "{{instance}}"),
        ),
    ),
    "Engine": (
        Panel(
            "Where a step's time goes",
            "s",
            "Means.",
            one(mean("tandem_step_phase_seconds", MODEL, "phase"), "{{phase}}"),
            stacked=True,
        ),
        Panel(
            "Tokens in a step",
            "none",
            "Of prompts and answers together.",
            quantiles("tandem_iteration_tokens", MODEL, 0.5, 0.95),
        ),
        Panel(
            "Steps a second",
            "none",
            "Forward passes, and those launched before the one before was read.",
            (
                Series(rate("tandem_engine_steps_total", MODEL, "instance"), "{{instance}}"),
                Series(rate("tandem_engine_overlapped_steps_total", MODEL, "instance"), "{{instance}} overlapped"),
            ),
        ),
        Panel(
            "Guesses that became output",
            "percentunit",
            "Of the tokens that speculation had computed.",
            one(
                ratio(
                    "tandem_spec_decode_num_accepted_tokens_total",
                    "tandem_spec_decode_num_draft_tokens_total",
                    MODEL,
                ),
                "accepted",
            ),
            ceiling=1,
        ),
        Panel(
            "Steps without their guesses",
            "percentunit",
            "Of all forward passes: drafts were there, but would have cost more time than they save.",
            one(ratio("tandem_spec_decode_num_declined_steps_total", "tandem_engine_steps_total", MODEL), "declined"),
            ceiling=1,
        ),
        Panel(
            "Compiling a guide",
            "s",
            "From a grammar's arrival to the end of its compilation.",
            quantiles("tandem_guide_compile_seconds", MODEL, 0.5, 0.95),
        ),
        Panel(
            "Guide compilations by outcome",
            "none",
            "A second. Crashed and over_budget: somebody sends what hurts a compiler; the log names the requests.",
            one(rate("tandem_guide_compilations_total", MODEL, "outcome"), "{{outcome}}"),
        ),
        Panel(
            "Memory of guides",
            "bytes",
            "Processes of guides, in use or kept. Near guide_total_memory_mb new guides are refused.",
            one(f"tandem_guide_memory_bytes{{{MODEL}}}", "{{instance}}"),
        ),
        Panel(
            "Processes of guides",
            "none",
            "Guides that have a process now, in use or kept.",
            one(f"tandem_guide_processes{{{MODEL}}}", "{{instance}}"),
        ),
        Panel(
            "Guides that take too long",
            "none",
            "A second. Rows that missed a step because their mask was late, requests that ended because of that, "
            "processes that ended while they were needed.",
            (
                Series(rate("tandem_guide_left_out_rows_total", MODEL), "rows left out"),
                Series(rate("tandem_guide_masks_over_budget_total", MODEL), "over their budget"),
                Series(rate("tandem_guide_process_deaths_total", MODEL), "processes lost"),
            ),
        ),
        Panel(
            "Engines started again",
            "none",
            "In an hour. Each death ended the streams that ran. Engines that hang are killed.",
            (
                Series(f"increase(tandem_engine_restarts_total{{{MODEL}}}[1h])", "{{instance}}"),
                Series(f"increase(tandem_engine_stalls_total{{{MODEL}}}[1h])", "{{instance}}, hung"),
                Series(f"increase(tandem_engine_failed_starts_total{{{MODEL}}}[1h])", "{{instance}}, failed starts"),
            ),
        ),
        Panel(
            "Time since the last step",
            "s",
            "While there is work. An engine that is silent for engine_stall_seconds is killed.",
            one(f"tandem_engine_step_age_seconds{{{MODEL}}}", "{{instance}}"),
        ),
    ),
}

TOKENIZER_SERVICE: dict[str, tuple[Panel, ...]] = {
    "Work": (
        Panel(
            "Tokens encoded a second",
            "none",
            "Text to ids.",
            one(rate("tandem_tokenizer_encoded_tokens_total", TOKENIZER, "tokenizer"), "{{tokenizer}}"),
        ),
        Panel(
            "Text a second",
            "Bps",
            "Bytes that became ids, and that ids became.",
            (
                Series(rate("tandem_tokenizer_encoded_bytes_total", TOKENIZER, "tokenizer"), "{{tokenizer}} encoded"),
                Series(rate("tandem_tokenizer_decoded_bytes_total", TOKENIZER, "tokenizer"), "{{tokenizer}} decoded"),
            ),
        ),
        Panel(
            "Tokens of an input",
            "none",
            "How long the texts are.",
            quantiles("tandem_tokenizer_input_tokens", TOKENIZER, 0.5, 0.95),
        ),
        Panel(
            "Tokens decoded a second",
            "none",
            "Ids to text, streams included.",
            one(rate("tandem_tokenizer_decoded_tokens_total", TOKENIZER, "tokenizer"), "{{tokenizer}}"),
        ),
    ),
    "Streams": (
        Panel(
            "Open streams",
            "none",
            "Answers that are being turned into text.",
            one('tandem_tokenizer_open_streams{instance=~"$instance"}', "{{instance}}"),
        ),
        Panel(
            "Streams a second",
            "none",
            "Opened, and ended by a stop string.",
            (
                Series(rate("tandem_tokenizer_streams_total", TOKENIZER), "opened"),
                Series(rate("tandem_tokenizer_stop_matches_total", TOKENIZER), "stopped by a string"),
            ),
        ),
        Panel(
            "Requests in a message",
            "none",
            "Many streams' requests in one message cost a fraction of one message each: the SDK sends them so.",
            one(
                ratio(
                    "tandem_tokenizer_stream_requests_total",
                    "tandem_tokenizer_stream_messages_total",
                    'instance=~"$instance"',
                    "instance",
                ),
                "{{instance}}",
            ),
        ),
        Panel(
            "Requests of streams that were refused",
            "reqps",
            "By code; each ended its own stream and no other.",
            one(
                rate("tandem_tokenizer_stream_errors_total", 'instance=~"$instance"', "grpc_code") + " or vector(0)",
                "{{grpc_code}}",
            ),
        ),
    ),
    "Encode cache": (
        Panel(
            "Texts found",
            "percentunit",
            "Of those that were looked up.",
            one(
                rate("tandem_tokenizer_cache_lookups_total", TOKENIZER + ',result="hit"', "tokenizer")
                + " / "
                + rate("tandem_tokenizer_cache_lookups_total", TOKENIZER, "tokenizer"),
                "{{tokenizer}}",
            ),
            ceiling=1,
        ),
        Panel(
            "Memory",
            "bytes",
            "What the cache takes.",
            one(f"tandem_tokenizer_cache_bytes{{{TOKENIZER}}}", "{{instance}} {{tokenizer}}"),
        ),
    ),
    "Threads": (
        Panel(
            "Jobs",
            "none",
            "Long texts and batches run in threads, so that streams do not wait for them.",
            (
                Series('tandem_tokenizer_pool_running{instance=~"$instance"}', "{{instance}} running"),
                Series('tandem_tokenizer_pool_queued{instance=~"$instance"}', "{{instance}} queued"),
            ),
        ),
        Panel(
            "Wait for a thread",
            "s",
            "Beyond tenths of a second the service has too few cores.",
            quantiles("tandem_tokenizer_pool_wait_seconds", 'instance=~"$instance"', 0.5, 0.99),
        ),
        Panel(
            "Jobs refused a second",
            "none",
            "Too many waited.",
            (
                Series(
                    rate("tandem_tokenizer_pool_refused_total", 'instance=~"$instance"', "instance"), "{{instance}}"
                ),
                Series(
                    rate("tandem_tokenizer_chat_refused_total", 'instance=~"$instance"', "instance"),
                    "{{instance}}, conversations",
                ),
            ),
        ),
    ),
}

HTTP_DOOR: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel(
            "Requests",
            "reqps",
            "By status; 499 are those whose caller left, 429 and 503 were told when to come back.",
            one(rate("tandem_http_requests_total", HTTP, "status"), "{{status}}"),
            stacked=True,
        ),
        Panel(
            "Running",
            "none",
            "Requests that run now, by route.",
            one(f"sum by (route) (tandem_http_in_flight{{{HTTP}}})", "{{route}}"),
            stacked=True,
        ),
        Panel(
            "Time of a request",
            "s",
            "From its headers to the end of its answer.",
            quantiles("tandem_http_request_seconds", HTTP, 0.5, 0.95, 0.99),
        ),
        Panel(
            "Time to first token",
            "s",
            "From the call at the door until output was there.",
            quantiles("tandem_client_time_to_first_token_seconds", HTTP, 0.5, 0.95, 0.99),
        ),
    ),
    "Tokens and workers": (
        Panel(
            "Tokens a second",
            "none",
            "Of requests that came to their end; cached ones are among those of the prompts.",
            one(rate("tandem_http_tokens_total", HTTP, "kind"), "{{kind}}"),
        ),
        Panel(
            "Workers",
            "none",
            "Those that the doors know, by health.",
            one(f"sum by (health) (tandem_client_workers{{{HTTP}}})", "{{health}}"),
        ),
        Panel(
            "Answers",
            "reqps",
            "How the generations behind requests ended, and how often another server took one over.",
            (
                Series(rate("tandem_client_requests_total", HTTP, "outcome"), "{{outcome}}"),
                Series(rate("tandem_client_failovers_total", HTTP) + " or vector(0)", "taken over"),
            ),
        ),
        Panel(
            "Parts of the first token",
            "s",
            "Means: encoding, queue and prefill, first text.",
            one(mean("tandem_client_hop_seconds", HTTP, "hop"), "{{hop}}"),
            stacked=True,
        ),
    ),
}

BOTH_SERVICES: dict[str, tuple[Panel, ...]] = {
    "RPCs": (
        Panel(
            "RPCs a second",
            "reqps",
            "Those that ended, by method.",
            one(rate("tandem_grpc_server_handled_total", SERVICE, "grpc_method"), "{{grpc_method}}"),
            stacked=True,
        ),
        Panel(
            "RPCs that failed",
            "reqps",
            "By code. INVALID_ARGUMENT is the caller's, RESOURCE_EXHAUSTED a full queue, UNAVAILABLE a start, a drain "
            "or a dead engine, INTERNAL a fault: the log has its error id.",
            one(
                rate("tandem_grpc_server_handled_total", SERVICE + ',grpc_code!="OK"', "grpc_method, grpc_code")
                + " or vector(0)",
                "{{grpc_method}} {{grpc_code}}",
            ),
        ),
        Panel(
            "Duration, p95",
            "s",
            "From an RPC's arrival to its status; streams live as long as their answers.",
            quantiles("tandem_grpc_server_handling_seconds", SERVICE, 0.95, by="grpc_method"),
        ),
        Panel(
            "RPCs that run",
            "none",
            "By method.",
            one(f"sum by (grpc_method) (tandem_grpc_server_in_flight{{{SERVICE}}})", "{{grpc_method}}"),
        ),
        Panel(
            "Calls refused because too many were open",
            "none",
            "A second. Above max_concurrent_calls; the refused are told when to come back.",
            one(rate("tandem_grpc_server_too_many_calls_total", SERVICE, "instance"), "{{instance}}"),
        ),
    ),
    "Processes": (
        Panel(
            "Ready",
            "none",
            "1 while the service takes requests.",
            one(f"tandem_ready{{{SERVICE}}}", "{{job}} {{instance}}"),
            ceiling=1,
        ),
        Panel(
            "Event loop lag, p99",
            "s",
            "Beyond 50 ms something blocks it, or the machine is too busy.",
            quantiles("tandem_event_loop_lag_seconds", SERVICE, 0.99, by="instance"),
        ),
        Panel(
            "Cores",
            "none",
            "Seconds of the processor in a second; a worker's engine is a process of its own.",
            one(rate("process_cpu_seconds_total", SERVICE, "job, instance"), "{{job}} {{instance}}"),
        ),
        Panel(
            "Memory",
            "bytes",
            "Resident, without the engine's process.",
            one(f"process_resident_memory_bytes{{{SERVICE}}}", "{{job}} {{instance}}"),
        ),
        Panel(
            "Open files",
            "none",
            "Connections are among them.",
            one(f"process_open_fds{{{SERVICE}}}", "{{job}} {{instance}}"),
        ),
        Panel(
            "Since the start",
            "s",
            "A curve that falls to zero is a restart.",
            one(f"time() - process_start_time_seconds{{{SERVICE}}}", "{{job}} {{instance}}"),
        ),
    ),
}


def drawn(panel: Panel) -> stat.Panel | timeseries.Panel:
    """The panel, as Grafana's builders have it."""
    builder: stat.Panel | timeseries.Panel
    if panel.stat:
        builder = stat.Panel().reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).no_value("-")
    else:
        builder = (
            timeseries.Panel()
            .min(0)
            .fill_opacity(30 if panel.stacked else 0)
            .show_points(VisibilityMode.NEVER)
            .legend(
                VizLegendOptions()
                .display_mode(LegendDisplayMode.LIST)
                .placement(LegendPlacement.BOTTOM)
                .show_legend(True)
            )
            .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        )
        if panel.stacked:
            builder.stacking(StackingConfig().mode(StackingMode.NORMAL))
        if panel.ceiling is not None:
            builder.max(panel.ceiling)
    builder.title(panel.title).description(panel.help).unit(panel.unit).datasource(SOURCE)
    for place, series in enumerate(panel.series):
        query = Dataquery().expr(series.query).ref_id(chr(ord("A") + place)).datasource(SOURCE)
        builder.with_target(query.legend_format(series.legend or "__auto"))
    return builder


def beside(panels: int) -> int:
    """How many of a row's panels stand beside each other: rows of up to four that leave no gap."""
    return next(count for count in (4, 3, 2, 1) if panels % count == 0)


def variable(name: str, query: str) -> dashboard.QueryVariable:
    """Some or all values of a label, as they are when the dashboard is opened or its time changes."""
    return (
        dashboard.QueryVariable(name)
        .datasource(SOURCE)
        .query(query)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def build(title: str, uid: str, rows: dict[str, tuple[Panel, ...]], *variables: tuple[str, str]) -> str:
    """A dashboard as JSON."""
    builder = (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["tandem"])
        .editable()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-30m", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    )
    for name, query in variables:
        builder.with_variable(variable(name, query))
    numbers = itertools.count(1)
    for name, panels in rows.items():
        builder.with_row(dashboard.Row(name).id(next(numbers)))
        for panel in panels:
            width, height = (4, 4) if panel.stat else (COLUMNS // beside(len(panels)), 8)
            builder.with_panel(drawn(panel).id(next(numbers)).span(width).height(height))
    return JSONEncoder(sort_keys=True, indent=1).encode(builder.build()) + "\n"


def dashboards() -> dict[str, str]:
    """Every dashboard's JSON, by the name of its file."""
    model = ("model", "label_values(tandem_engine_up, model_name)")
    tokenizer = ("tokenizer", "label_values(tandem_tokenizer_encoded_tokens_total, tokenizer)")

    def instance(job: str) -> tuple[str, str]:
        return "instance", f'label_values(tandem_ready{{job=~"{job}"}}, instance)'

    return {
        "serving.json": build("Tandem: serving", "tandem-serving", SERVING, model, instance("tandem-worker")),
        "tokenizer.json": build(
            "Tandem: tokenizer", "tandem-tokenizer", TOKENIZER_SERVICE, tokenizer, instance("tandem-tokenizer")
        ),
        "http.json": build("Tandem: HTTP door", "tandem-http", HTTP_DOOR, instance("tandem-http")),
        "services.json": build("Tandem: services", "tandem-services", BOTH_SERVICES, instance("tandem-.+")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    options = parser.parse_args()
    built = dashboards()
    if options.check:
        stale = [
            name for name, text in built.items() if not (FOLDER / name).is_file() or (FOLDER / name).read_text() != text
        ]
        stale += [file.name for file in FOLDER.glob("*.json") if file.name not in built]
        if stale:
            print(f"stale dashboards: {', '.join(stale)}; run python deploy/dashboards.py", file=sys.stderr)
        return bool(stale)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in built.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
