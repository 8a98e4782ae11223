"""Write the reference pages that are made from the code: `python -m docsite` writes docs/reference/."""

from docsite.pages import FOLDER, PAGES

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
