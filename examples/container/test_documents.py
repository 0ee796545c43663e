from pathlib import Path

import pytest
from documents import check

import fileq
from fileq.testing import run


def test_documents_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("a: 1\n---\nb: 2\n")
    assert run(check, file) == {"documents": 2}


def test_a_file_that_is_not_yaml_is_not_retried(tmp_path: Path) -> None:
    file = tmp_path / "none.yaml"
    file.write_text("a: [1, 2\n")
    with pytest.raises(fileq.Permanent, match="not YAML"):
        run(check, file)
