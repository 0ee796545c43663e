"""docx_text.py FILE DIRECTORY [NAME]: writes the text of a .docx to DIRECTORY/NAME.txt. Exit code 65: not a document.

With `safe_open` FILE is /proc/self/fd/N, which no link can replace, so the name of the file is the last argument.
Any program can be used instead: `command: ["pdftotext", "{filepath}", "-"]`.
"""

import os
import sys
import zipfile
from xml.etree import ElementTree

NOT_A_DOCUMENT = 65  # EX_DATAERR of sysexits.h
MAX_BYTES = 64 << 20  # bytes; a small archive can contain a very large file
WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


def text_of(path: str) -> str:
    with zipfile.ZipFile(path) as archive:
        document = archive.getinfo("word/document.xml")
        if document.file_size > MAX_BYTES:
            raise ValueError(f"its text has {document.file_size} bytes")
        root = ElementTree.fromstring(archive.read(document))
    paragraphs = ("".join(run.text or "" for run in part.iter(f"{WORD}t")) for part in root.iter(f"{WORD}p"))
    return "\n".join(paragraphs) + "\n"


def main() -> int:
    path, directory, *names = sys.argv[1:]
    name = os.path.basename(names[0] if names else path)
    try:
        text = text_of(path)
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError, ValueError) as error:
        print(f"not a document: {error}", file=sys.stderr)
        return NOT_A_DOCUMENT
    os.makedirs(directory, exist_ok=True)
    target = os.path.join(directory, f"{name}.txt")
    with open(f"{target}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{target}.tmp", target)
    print(f"{len(text.split())} words")
    return 0


if __name__ == "__main__":
    sys.exit(main())
