"""Settings: flags before environment before file before defaults, and every mistake is named where it was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from tandem.common.settings import ServiceSettings, Strings, load_settings


class Settings(ServiceSettings):
    """Every kind of field that a service may add."""

    model_config = SettingsConfigDict(cli_prog_name="tandem-test", env_prefix="TANDEM_TEST_")

    model: str = Field(description="which model")
    threads: int = Field(default=0, ge=0, le=64, description="0: all")
    ratio: float = Field(default=0.5, gt=0, le=1)
    names: Strings = Field(default=(), description="100 % of them")
    limit: Annotated[int | None, Field(ge=1)] = None


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TANDEM_TEST_PORT", "PORT", "HOST"):
        monkeypatch.delenv(name, raising=False)


def load(*argv: str) -> Settings:
    return load_settings(Settings, argv)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """The lines on standard error of settings that are refused with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        load(*argv)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()


def test_flags_come_before_environment_before_file_before_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text('model = "file"\nport = 1\nmetrics-port = 2\nhost = "::1"\n')
    monkeypatch.setenv("TANDEM_TEST_MODEL", "environment")
    monkeypatch.setenv("TANDEM_TEST_PORT", "3")
    settings = load("--config", str(file), "--model", "flag")
    assert (settings.model, settings.port, settings.metrics_port, settings.host) == ("flag", 3, 2, "::1")
    assert settings.log_level == "info"


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text('model = "file"\nnames = ["a"]\n')
    monkeypatch.setenv("TANDEM_TEST_CONFIG", str(file))
    settings = load()
    assert (settings.model, settings.names) == ("file", ("a",))


def test_booleans_have_a_flag_for_yes_and_one_for_no(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("--model", "m", "--no-metrics-enabled").metrics_enabled is False
    monkeypatch.setenv("TANDEM_TEST_REFLECTION", "true")
    assert load("--model", "m").reflection is True
    assert load("--model", "m", "--no-reflection").reflection is False


def test_lists_are_repeated_flags_or_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("--model", "m", "--names", "a", "--names", "b,c=d").names == ("a", "b,c=d")
    assert load("--model", "m", "--names", '["a", 1]').names == ('["a", 1]',)
    monkeypatch.setenv("TANDEM_TEST_NAMES", "a, b")
    assert load("--model", "m").names == ("a", "b")
    assert load("--model", "m", "--names", "c").names == ("c",)
    monkeypatch.setenv("TANDEM_TEST_NAMES", '["a,b", "c"]')
    assert load("--model", "m").names == ("a,b", "c")


@pytest.mark.parametrize("word", ["null", "none", "None", "true", "7", "{}", "[a]", ""])
def test_no_word_means_anything_but_itself(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("--model", word).model == word
    monkeypatch.setenv("TANDEM_TEST_MODEL", word)
    assert load().model == word


def test_each_wrong_value_gets_one_line_with_flag_variable_and_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "t.toml"
    file.write_text("ratio = 2\n")
    monkeypatch.setenv("TANDEM_TEST_THREADS", "many")
    lines = refused(capsys, "--port", "70000", "--config", str(file))
    assert lines == [
        "tandem-test: --port (TANDEM_TEST_PORT): Input should be less than or equal to 65535,"
        " not '70000' from the command line",
        "tandem-test: --model (TANDEM_TEST_MODEL): required",
        "tandem-test: --threads (TANDEM_TEST_THREADS): Input should be a valid integer, unable to parse string as an"
        " integer, not 'many' from TANDEM_TEST_THREADS",
        f"tandem-test: --ratio (TANDEM_TEST_RATIO): Input should be less than or equal to 1, not 2 from {file}",
    ]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--modle", "x"], "unrecognized arguments: --modle x"),
        (["--mod", "x"], "unrecognized arguments"),
        (["--model"], "--model: expected one argument"),
        (["--model", "m", "--config", "/nonexistent.toml"], "/nonexistent.toml: No such file or directory"),
        (["--model", "m", "--ratio", "nan"], "--ratio (TANDEM_TEST_RATIO): Input should be"),
        (["--model", "m", "--drain-grace-seconds", "inf"], "--drain-grace-seconds"),
        (["--model", "m", "--tls-key", "/k"], "tls_certificate and tls_key go together"),
        (["--model", "m", "--tls-client-ca", "/k"], "tls_client_ca needs tls_certificate and tls_key"),
    ],
)
def test_a_wrong_command_line_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    lines = refused(capsys, *argv)
    assert len(lines) == 1
    assert words in lines[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"prot = 1\n", "unknown setting 'prot'"),
        (b'config = "x"\n', "unknown setting 'config'"),
        (b"port = \n", "not TOML"),
        (b"\xff\xfe", "not TOML"),
        (b"port = 1\n[port]\n", "not TOML"),
        (b'log-level = "info"\nlog_level = "debug"\n', "given twice"),
        (b'port = "many"\n', "--port (TANDEM_TEST_PORT)"),
    ],
)
def test_a_wrong_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "t.toml"
    file.write_bytes(content)
    lines = refused(capsys, "--model", "m", "--config", str(file))
    assert len(lines) == 1
    assert words in lines[0] and str(file) in lines[0]


def test_a_variable_that_looks_like_json_and_is_not_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_TEST_NAMES", '["a')
    assert "(TANDEM_TEST_NAMES): looks like JSON and is not" in refused(capsys, "--model", "m")[0]


def test_what_kubernetes_puts_into_the_environment_is_no_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_TEST_PORT", "tcp://10.0.0.7:50051")
    monkeypatch.setenv("TANDEM_TEST_PORT_50051_TCP_ADDR", "10.0.0.7")
    monkeypatch.setenv("TANDEM_TEST_SERVICE_HOST", "10.0.0.7")
    monkeypatch.setenv("TANDEM_TEST_SERVICE_PORT_GRPC", "50051")
    assert load("--model", "m").port == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "enableServiceLinks" in lines[0]


def test_a_misspelt_variable_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TEST_MODLE", "x")
    load("--model", "m")
    assert "TANDEM_TEST_MODLE is no setting of this service" in capsys.readouterr().err


def test_where_clients_find_the_service_is_no_misspelt_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_TEST_ADDRESS", "localhost:50051")
    load("--model", "m")
    assert capsys.readouterr().err == ""


def test_what_is_reported_of_variables_is_json_where_the_log_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_TEST_MODLE", "x")
    monkeypatch.setenv("TANDEM_TEST_LOG_FORMAT", "json")
    load("--model", "m")
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["level"], line["service"]) == ("warning", "tandem-test")
    assert line["message"] == "TANDEM_TEST_MODLE is no setting of this service: ignored"
    assert any("TANDEM_TEST_MODLE" in each for each in refused(capsys, "--model", "m", "--port", "-1"))


def test_other_peoples_variables_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "80")
    monkeypatch.setenv("HOST", "example.org")
    assert load("--model", "m").port == 0
    assert ServiceSettings().host == "127.0.0.1"


def test_help_lists_every_setting_with_its_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in text
        assert f"[env: TANDEM_TEST_{name.upper()}]" in text

    assert (
        "seconds for running requests to finish before a stop (default: 30.0) [env: TANDEM_TEST_DRAIN_GRACE_SECONDS]"
        in text
    )
    assert "which model (required) [env: TANDEM_TEST_MODEL]" in text
    assert "100 % of them [env: TANDEM_TEST_NAMES]" in text


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load("--version")
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("tandem-test ")
