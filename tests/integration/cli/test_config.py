"""`fileq config`: its JSON output, and `set`, which changes one value of the file and nothing else."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from fileq.cli import main
from tests.support.program import command, environment, run
from tests.support.terminal import Terminal

FILE = "# ours\nworker:\n  count: 3  # three\nproducer: {scan_dir: in}  # one line\n"
KEPT = "fileq: running fileq processes still use the old value"
RESTART = f"{KEPT}; restart them\n"
RELOAD = f"{KEPT}; send workers SIGHUP, or restart them\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(here: Path) -> Path:
    (here / "config.yaml").write_text(FILE)
    return here / "config.yaml"


def test_set_changes_one_value_and_keeps_every_comment(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "set", "worker.count", "8"]) == 0
    assert file.read_text() == FILE.replace("count: 3", "count: 8")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("worker.count  8  (config.yaml:3)\n", RELOAD)
    assert os.listdir(file.parent) == ["config.yaml"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_set_keeps_the_mode_of_the_file(mode: int, file: Path) -> None:
    file.chmod(mode)
    assert main(["config", "set", "worker.count", "8"]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_set_follows_a_link_and_leaves_it_a_link(file: Path) -> None:
    real = file.rename(file.with_name("real.yaml"))
    file.symlink_to("real.yaml")
    assert main(["config", "set", "worker.count", "8"]) == 0
    assert file.is_symlink()
    assert "count: 8" in real.read_text()


def test_set_from_an_empty_stdin_changes_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["config", "set", "redis.password", "-"]) == 2
    assert capsys.readouterr().err == "fileq: redis.password is to be read from stdin (-), but stdin is empty\n"
    assert file.read_text() == FILE


def test_set_without_a_file_creates_one_and_reports_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "set", "worker.count", "8"]) == 0
    assert (here / "config.yaml").read_text() == "worker:\n  count: 8\n"
    assert "fileq: created config.yaml\n" in capsys.readouterr().err


def test_set_writes_the_file_that_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.yaml", "b.yaml"):
        (here / name).touch()
    monkeypatch.setenv("FILEQ_CONFIG", "a.yaml")
    assert main(["config", "set", "worker.count", "4"]) == 0
    assert main(["config", "set", "worker.count", "5", "--config", "b.yaml"]) == 0
    assert [(here / name).read_text() for name in ("a.yaml", "b.yaml")] == [f"worker:\n  count: {n}\n" for n in (4, 5)]
    assert not (here / "config.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker.cuont", "8"], "unknown key 'worker.cuont'; did you mean 'worker.count'?"),
        (["worker.count", "many"], "worker.count is 'many'; it must be a whole number"),
        (["worker.priorities", "a,a"], "config.yaml:4: worker.priorities is ['a', 'a']; it must be a list without dup"),
        (["worker.queues.middle", "q"], "worker.queues.middle belongs to no priority"),
        (["worker.count"], "VALUE is missing"),
        (["worker.count", "8", "--config", "none.yaml"], "--config names 'none.yaml', which does not exist"),
        (["redis", "x"], "redis is a section; set one of its keys: redis.addr, "),
    ],
)
def test_an_invalid_setting_is_never_written(
    arguments: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "set", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert file.read_text() == FILE


def test_one_of_two_mistakes_can_be_fixed_and_the_other_is_reported(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("worker: {count: 0, timeout: soon}\n")
    assert main(["config", "set", "worker.count", "2"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "worker.count set in config.yaml\n"
    assert "still invalid: config.yaml:1: worker.timeout is 'soon'" in shown.err
    assert file.read_text() == "worker: {count: 2, timeout: soon}\n"


def test_a_file_that_is_not_yaml_is_named_and_left_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("worker: [\n")
    assert main(["config", "set", "worker.count", "2"]) == 2
    assert "config.yaml:2: not valid YAML" in capsys.readouterr().err
    assert file.read_text() == "worker: [\n"


def test_set_reports_what_overrides_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKER_COUNT", "5")
    assert main(["config", "set", "worker.count", "8"]) == 0
    expected = "fileq: worker.count stays 5 here: WORKER_COUNT in the environment overrides the file\n"
    assert capsys.readouterr().err == expected
    assert main(["config", "set", "worker.count", "9", "--set", "worker.count=7"]) == 0
    assert capsys.readouterr().err == "fileq: worker.count stays 7 here: --set overrides the file\n"
    assert main(["config", "set", "worker.count", "9", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "path": "config.yaml",
        "is_new_file": False,
        "settings": [{"key": "worker.count", "value": 9, "layer": "file", "origin": "config.yaml:3"}],
        "overriding": [{"key": "worker.count", "value": 5, "layer": "env", "origin": "WORKER_COUNT"}],
        "problems": [],
        "needs_reload": False,
        "needs_restart": False,
    }


def test_a_secret_is_written_and_never_printed(here: Path) -> None:
    for arguments, given in ((["hunter2"], None), (["-"], "hunter2\n")):
        ended = subprocess.run(
            command("config", "set", "redis.password", *arguments),
            cwd=here,
            env=environment(),
            input=given,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert "hunter2" not in ended.stdout + ended.stderr
        assert (here / "config.yaml").read_text() == "redis:\n  password: hunter2\n"
        assert stat.S_IMODE((here / "config.yaml").stat().st_mode) == 0o600
        (here / "config.yaml").write_text("")


@pytest.mark.parametrize(("key", "value"), [("redis.password", "hunter2"), ("redis.url", "redis://u:pw@h:1/0")])
def test_set_warns_about_a_secret_that_every_user_can_read(
    key: str, value: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.chmod(0o644)
    assert main(["config", "set", key, value]) == 0
    assert "chmod o-r config.yaml" in capsys.readouterr().err
    file.chmod(0o640)
    assert main(["config", "set", key, value.replace("2", "3")]) == 0
    assert capsys.readouterr().err == RESTART


def test_set_takes_a_url_without_a_password_for_no_secret(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.chmod(0o644)
    assert main(["config", "set", "redis.url", "redis://h:1/0"]) == 0
    assert capsys.readouterr().err == RESTART
    file.unlink()
    assert main(["config", "set", "redis.url", "redis://u:pw@h:1/0"]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_concurrent_changes_do_not_overwrite_each_other(here: Path) -> None:
    keys = ["worker.count", "worker.max_retries", "worker.max_recoveries", "producer.max_pending"]
    started = [
        subprocess.Popen(command("config", "set", key, "7"), cwd=here, env=environment(), stdout=subprocess.DEVNULL)
        for key in keys
    ]
    assert [process.wait(30) for process in started] == [0] * len(keys)
    printed = json.loads(run("config", "list", "--json", cwd=here).stdout)
    assert {row["key"]: row["value"] for row in printed["settings"] if row["layer"] == "file"} == dict.fromkeys(keys, 7)


def test_list_and_get_for_programs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("redis: {password: hunter2}\nworker: {timeout: 90s, priorities: [a, b]}\n")
    assert main(["config", "list", "--json"]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    printed = json.loads(text)
    assert printed["path"] == "config.yaml"
    rows = {row["key"]: row for row in printed["settings"]}
    assert rows["worker.timeout"] == {
        "key": "worker.timeout",
        "value": "1m30s",
        "layer": "file",
        "origin": "config.yaml:2",
    }
    assert rows["worker.priorities"]["value"] == ["a", "b"]
    assert rows["producer.rate_limit_per_sec"]["value"] is None
    assert main(["config", "get", "redis.tls", "--json"]) == 0
    tls = json.loads(capsys.readouterr().out)["settings"]
    assert [row["key"].rpartition(".")[2] for row in tls] == ["enabled", "ca_file", "cert_file", "key_file"]
    assert tls[0]["value"] is False


def test_init_may_write_a_file_whose_name_is_not_utf8(here: Path) -> None:
    ended = run("config", "init", os.fsdecode(b"\xff.yaml"), cwd=here)
    assert (ended.returncode, ended.stdout) == (0, "wrote \\udcff.yaml\n")


def test_check_for_programs(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FILEQ_SERVICE_HOST", "x")
    assert main(["config", "check", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["is_ok"], printed["problems"], printed["ignored"]) == (True, [], ["FILEQ_SERVICE_HOST"])
    file.write_text("worker: {count: 0, cuont: 3}\n")
    assert main(["config", "check", "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert (printed["is_ok"], len(printed["problems"]), printed["path"]) == (False, 2, "config.yaml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("worker.count", "3"),
        ("producer.scan_dir", "in"),
        ("worker.timeout", "5m"),
        ("producer.include_globs", '["**/*"]'),
    ],
)
def test_get_prints_the_value_only(key: str, value: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "get", key]) == 0
    assert capsys.readouterr().out == f"{value}\n"


def test_get_with_origin_prints_key_value_and_origin(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "get", "worker.count", "--origin"]) == 0
    assert capsys.readouterr().out == "worker.count  3  (config.yaml:3)\n"
    assert main(["config", "get", "redis.tls"]) == 0
    assert "redis.tls.enabled    false\n" in capsys.readouterr().out


def test_a_setting_of_one_schedule_is_read_and_changed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('schedules:\n  a.b: {cron: "@daily", type: report}\n')
    assert main(["config", "set", "schedules.a.b.cron", "@hourly", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["problems"], printed["settings"][0]["value"]) == ([], "@hourly")
    assert main(["config", "set", "schedules.a.b.timezone", "Europe/Berlin"]) == 0
    assert capsys.readouterr().err == RELOAD
    for key, value in ("cron", "@hourly"), ("type", "report"), ("missed", "last"):
        assert main(["config", "get", f"schedules.a.b.{key}"]) == 0
        assert capsys.readouterr().out == f"{value}\n"
    assert main(["config", "get", "schedules.a.b.cron", "--origin"]) == 0
    assert capsys.readouterr().out == 'schedules.a.b.cron  "@hourly"  (config.yaml:2)\n'
    assert main(["config", "get", "schedules.other.cron"]) == 2
    assert "unknown key 'schedules.other.cron'" in capsys.readouterr().err


def test_a_key_of_a_section_that_a_list_replaces_has_no_value(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("worker: {backoff: [1s, 2s]}\n")
    assert main(["config", "get", "worker.backoff.base"]) == 2
    why = "worker.backoff.base has no value: worker.backoff is the list [1s, 2s]"
    assert capsys.readouterr() == ("", f"fileq: {why}\n")


def test_a_maximum_that_a_variable_raises_names_that_variable(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOB_DEFAULT_RETRY_DELAY", "20")
    assert main(["config", "get", "worker.backoff.max", "--origin"]) == 0
    assert capsys.readouterr().out == "worker.backoff.max  20s  (JOB_DEFAULT_RETRY_DELAY)\n"


def test_get_never_prints_a_secret(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("redis: {password: hunter2}\n")
    assert main(["config", "get", "redis.password"]) == 0
    assert capsys.readouterr().out == "***\n"


def test_set_says_whether_a_reload_or_a_restart_is_needed(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def needs(key: str, value: str) -> tuple[bool, bool, str]:
        assert main(["config", "set", key, value, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert main(["config", "set", key, value]) == 0
        return printed["needs_reload"], printed["needs_restart"], capsys.readouterr().err

    assert needs("worker.count", "8") == (True, False, RELOAD)
    assert needs("worker.backoff.base", "2s") == (True, False, RELOAD)
    assert needs("worker.heartbeat_ttl", "40s") == (False, True, RESTART)
    assert needs("producer.scan_dir", "elsewhere") == (False, True, RESTART)
    monkeypatch.setenv("WORKER_COUNT", "5")
    assert needs("worker.count", "9")[:2] == (False, False)


@pytest.mark.parametrize(
    ("flag", "level"), [("-v", "debug"), ("--verbose", "debug"), ("-q", "warn"), ("--quiet", "warn")]
)
def test_verbose_and_quiet_set_the_log_level(
    flag: str, level: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([flag, "config", "get", "observability.log_level"]) == 0
    assert capsys.readouterr().out == f"{level}\n"
    assert main(["config", "get", "observability.log_level", flag, "--set", "observability.log_level=error"]) == 0
    assert capsys.readouterr().out == "error\n"
    assert main(["config", "list", "-q", "-v"]) == 2


CHECKSUM = "fileq.handlers:checksum"


@pytest.mark.parametrize(
    ("handlers", "warnings"),
    [
        ("", []),
        ("handlers: [{match: '**/*.pdf', use: %s}, {match: '**/*', use: %s}]", []),
        ("handlers: [{match: '*.pdf', use: %s}, {match: '**/*', use: %s}]", ["of the top level; for every directory"]),
        (
            "handlers: [{match: 'in/*.pdf', use: %s}, {match: '**/*', use: %s}]",
            ["directly in 'in'; for every directory"],
        ),
        (
            "handlers: [{match: '**.pdf', use: %s}, {match: 'a**/b**', use: %s}, {match: '**/*', use: %s}]",
            ["of the top level; for every directory write '**/*.pdf'", "for every directory write 'a**/**/b*'"],
        ),
        (
            "handlers: [{match: in/, use: %s}, {match: '{a/**,b}/*', use: %s}, {match: '**/*', use: %s}]",
            ["(in/) matches no file"],
        ),
        ("handlers: [{match: 'in/**', use: %s}]", ["no route matches every file"]),
        ("handlers: [{match: '**/*.pdf', use: %s}]", ["no route matches every file"]),
        ("handlers: [{match: '**/*.pdf', use: %s}]\nproducer: {include_globs: ['**/*.pdf']}", []),
        (
            "handlers: [{match: '**/*.{pdf,PDF}', use: %s}, {match: '**/*.csv', use: %s}]\n"
            "producer: {include_globs: ['**/*.{pdf,csv,PDF}']}",
            [],
        ),
        (
            "handlers: [{match: '**/*.{pdf,PDF}', use: %s}]\nproducer: {include_globs: ['**/*.{pdf,csv}']}",
            ["no route matches every file"],
        ),
        ("handlers: [{match: '**/*.pdf', use: %s}, {match: '{**,x}/*', use: %s}]", []),
        ("handlers: [{type: report, use: %s}]", []),
        ("handlers: []", ["handlers is empty: no job has a handler"]),
        (
            "schedules: {in: {cron: '@daily', scan: ./data/in}, out: {cron: '@daily', scan: /elsewhere}}",
            ["schedules.out: scan: /elsewhere is below none of the roots ("],
        ),
        ("schedules: {in: {cron: '@daily', scan: /mnt/in}}\nworker: {allowed_roots: [./data, /mnt]}", []),
    ],
)
def test_check_warns_of_what_does_less_than_it_seems_to(
    handlers: str, warnings: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(handlers.replace("%s", f"'{CHECKSUM}'"))
    assert main(["config", "check", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["warnings"]) == len(warnings), printed
    assert all(said in found for said, found in zip(warnings, printed["warnings"], strict=True)), printed
    assert main(["config", "check"]) == 0
    out = capsys.readouterr().out
    assert out.count("\nwarning: ") == len(warnings)
    assert "handlers were not checked; import them with --handlers" in out


def test_check_breaks_its_lines_between_words(file: Path) -> None:
    terminal = Terminal(command("config", "check"), file.parent, 40, is_stdout=True)
    with closing(terminal):
        _, shown = terminal.finish()
    assert max(map(len, shown.splitlines())) <= 40
    assert "handlers were not checked; import them\r\n  with --handlers\r\n" in shown


def test_check_warns_of_included_globs_as_of_those_of_routes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("producer: {include_globs: ['*.pdf', in/, '**/*.{pdf,PDF', '**/*']}")
    assert main(["config", "check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [
        "producer.include_globs (*.pdf) matches only files of the top level; for every directory write '**/*.pdf'",
        "producer.include_globs (in/) matches no file: it ends with a slash; for all files below it write 'in/**'",
        "producer.include_globs (**/*.{pdf,PDF) has a brace that lists no alternatives, and so matches only names with "
        r"this brace; write alternatives as {pdf,txt}, and a brace in a name as \{ or \}",
    ]


@pytest.mark.parametrize("glob", ["/srv/inbox/**", "./**", "../other/*", "~/inbox/**"])
@pytest.mark.parametrize("setting", ["producer: {include_globs: [%s]}", "handlers: [{match: %s, command: [cat]}]"])
def test_a_glob_that_is_not_relative_is_refused(
    setting: str, glob: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(setting % f"'{glob}'")
    assert main(["config", "check"]) == 2
    assert f"is '{glob}'; it must be a glob such as **/*.pdf, relative to the" in capsys.readouterr().err


def test_check_warns_of_globs_that_miss_files_by_their_case(
    file: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    globs = "['**/*.pdf', '**/*.{txt,csv}']"
    file.write_text(f"producer: {{scan_dir: in, include_globs: {globs}, exclude_globs: ['old/**', '**/x*']}}")
    (here / "in/old").mkdir(parents=True)
    for name in ("A.PDF", "B.Pdf", "c.pdf", "D.TXT", "e.doc", "old/F.PDF", "xG.PDF"):
        (here / "in" / name).touch()
    assert main(["config", "check", "--json"]) == 0
    warnings = [one for one in json.loads(capsys.readouterr().out)["warnings"] if "include_globs:" in one]
    assert sorted(warnings) == [
        f"producer.include_globs: '**/*.pdf' misses '{here}/in/A.PDF' and 1 more because of case; "
        "to include them, add '**/*.PDF' here and to a route",
        f"producer.include_globs: '**/*.{{txt,csv}}' misses '{here}/in/D.TXT' because of case; "
        "to include them, add a glob for them here and to a route",
    ]


def test_check_imports_handlers_on_request(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("handlers: [{match: '**/*.pdf', use: 'absent:read'}]\nimports: [mine]\n")
    assert main(["config", "check"]) == 0
    capsys.readouterr()
    assert main(["config", "check", "--handlers"]) == 2
    assert "absent" in capsys.readouterr().err
    (file.parent / "mine_only.py").write_text(
        "import fileq\nprint('imported')\n@fileq.handler('*.csv')\ndef read(job, context):\n    pass\n"
    )
    file.write_text("imports: [mine_only]\nhandlers: []\n")
    ended = run("config", "check", "--handlers", "--json", cwd=file.parent)
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout)
    assert any("mine_only" in route for route in printed["handlers"])
    assert any("(*.csv) matches only files of the top level" in warning for warning in printed["warnings"])
    assert any("no route matches every file" in warning for warning in printed["warnings"])


def test_a_syntax_error_is_reported_once_with_the_routes_that_use_the_module(file: Path) -> None:
    (file.parent / "wrong.py").write_text("def read(job, context)\n")
    file.write_text("handlers: [{match: '**/*.pdf', use: 'wrong:read'}, {type: mail, use: 'wrong:send'}]\n")
    for words in (("config", "check", "--handlers"), ("worker", "--once")):
        ended = run(*words, cwd=file.parent)
        assert ended.returncode == 2
        assert ended.stderr.count("SyntaxError") == 1, ended.stderr
        assert "handlers[0] (**/*.pdf) and handlers[1] (type mail) name the module wrong" in ended.stderr


def test_a_worker_warns_of_the_same_routes_at_its_start(file: Path) -> None:
    file.write_text(f"handlers: [{{match: '*.pdf', use: '{CHECKSUM}'}}]\n")
    ended = run("worker", "--once", cwd=file.parent)
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    warned = [str(line) for line in lines if line["event"] == "handlers.warned"]
    assert len(warned) == 2
    assert "matches only files of the top level" in warned[0]
    assert "no route matches every file" in warned[1]
