"""Write the reference pages that are made from the code: `python -m docsite` writes docs/reference/."""

from docsite.pages import FOLDER, pages

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
