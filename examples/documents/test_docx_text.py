from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from docx_text import NOT_A_DOCUMENT, text_of

PROGRAM = Path(__file__).with_name("docx_text.py")
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def docx(path: Path, *paragraphs: str) -> Path:
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r><w:r><w:t>!</w:t></w:r></w:p>" for text in paragraphs)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>')
    return path


def run_program(path: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, path, directory]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_text_of_each_paragraph_is_a_line(tmp_path: Path) -> None:
    assert text_of(str(docx(tmp_path / "a.docx", "Dear reader", "ünï &amp; cödé"))) == "Dear reader!\nünï & cödé!\n"


def test_the_text_is_written_to_the_directory(tmp_path: Path) -> None:
    ended = run_program(docx(tmp_path / "a.docx", "Dear reader"), tmp_path / "text")
    assert (ended.returncode, ended.stdout) == (0, "2 words\n")
    assert [path.name for path in (tmp_path / "text").iterdir()] == ["a.docx.txt"]


@pytest.mark.parametrize("content", [b"", b"PK\3\4 cut off"])
def test_a_damaged_document_has_an_exit_code_of_its_own(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(content)
    ended = run_program(tmp_path / "a.docx", tmp_path / "text")
    assert ended.returncode == NOT_A_DOCUMENT
    assert "not a document: File is not a zip file" in ended.stderr
    assert not (tmp_path / "text").exists()
