"""docs/batches.md: its program runs with the real worker and prints what its comments say; its tests pass."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fileq.client.batch_handle import BatchKeywords
from tests.integration.client.test_documented import in_app
from tests.support.program import Program, run

GUIDE = (Path(__file__).parents[3] / "docs" / "batches.md").read_text()
BLOCKS = dict(re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL))


def test_the_guide_runs_as_it_says(tmp_path: Path) -> None:
    assert len(BLOCKS) == GUIDE.count("```") // 2 - 2 == 4  # the others are a diagram and a part of a configuration
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "data").mkdir()
    options = ("-q", "-c", "/dev/null", "-pno:cacheprovider", "-pno:valkey")
    assert "2 passed" in in_app(tmp_path, "-m", "pytest", *options, "test_nightly.py")
    with Program("worker", cwd=tmp_path):
        promised = re.findall(r"print\(.*\)  # (.*)", BLOCKS["nightly.py"])
        assert in_app(tmp_path, "nightly.py").splitlines() == promised
        assert len(promised) == 4
        [line] = re.findall("`fileq (enqueue .* --then load)`", GUIDE)
        for name in ("a.csv", "b.csv"):
            (tmp_path / "data" / name).touch()
        words = [f"data/{word}" if word.endswith(".csv") else word for word in line.split()]
        id = json.loads(run(*words, "--wait", "--json", cwd=tmp_path).stdout)["batch_id"]
        result = f"import fileq; print(fileq.Client().job({id + '.then'!r}).wait(60))"
        assert in_app(tmp_path, "-c", result) == "loaded into nightly\n"


def test_every_option_is_in_the_guide() -> None:
    rows = " ".join(re.findall(r"^\| (`.*?) \|", GUIDE, re.MULTILINE))
    assert [name for name in BatchKeywords.__annotations__ if f"`{name}`" not in rows] == []
