"""The notebooks of the repository as pages, and as cards in which they show a picture of their own."""

import base64
import json

from pathlib import Path

from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).resolve().parents[1]
ORIGINALS = HERE.parent / "examples"
#: Where copies are: Sphinx reads no folder but that of the pages.
COPIES = HERE / "examples"

CARD = """\
:::{{grid-item-card}} {title}
:link: /examples/{name}
:link-type: doc
:img-top: /examples/thumbnails/{name}.png
:img-alt: {alt}
:class-img-top: thumbnail

{text}

```{{card-footer}}
{badges}
```
:::
"""


def write(path, content):
    """Write a file only if it changes, since Sphinx builds anew what is newer than its page."""
    content = content if isinstance(content, bytes) else content.encode()
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


def title(notebook):
    """The first heading."""
    return "".join(notebook["cells"][0]["source"]).splitlines()[0].removeprefix("# ")


def tags(notebook):
    """What a notebook is about, from its metadata."""
    found = notebook["metadata"].get("pymc_dp", {}).get("tags")
    if not found:
        raise ValueError(f"the notebook {title(notebook)!r} has no tags: metadata, pymc_dp, tags")
    return found


def thumbnail(notebook):
    """The picture of a notebook: of the cell with the tag ``thumbnail``, or its first one."""
    pictures = [
        (
            "thumbnail" in cell["metadata"].get("tags", []),
            "".join(output["data"]["image/png"]),
        )
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    if not pictures:
        raise ValueError(f"the notebook {title(notebook)!r} has no picture for its card")
    return base64.b64decode(max(pictures, key=lambda picture: picture[0])[1])


def copy_notebooks():
    """Copy notebooks and their pictures into the folder of the pages.

    Links from examples to pages are those of the repository, ``../docs/page.md``.
    """
    (COPIES / "thumbnails").mkdir(parents=True, exist_ok=True)
    originals = {path.stem: path.read_text() for path in ORIGINALS.glob("*.ipynb")}
    for copy in [*COPIES.glob("*.ipynb"), *COPIES.glob("thumbnails/*.png")]:
        if copy.stem not in originals:
            copy.unlink()
    for name, text in originals.items():
        write(COPIES / f"{name}.ipynb", text.replace("](../docs/", "](../"))
        write(COPIES / "thumbnails" / f"{name}.png", thumbnail(json.loads(text)))


class Notebooks(SphinxDirective):
    """Cards of notebooks. Each line has a notebook's name and a sentence: ``hmc: What it shows.``"""

    has_content = True

    def run(self):
        """Called by docutils."""
        cards = []
        for line in self.content:
            name, _, text = line.partition(": ")
            path = ORIGINALS / f"{name}.ipynb"
            self.env.note_dependency(str(path))
            notebook = json.loads(path.read_text())
            heading = title(notebook)
            badges = " ".join(f"{{bdg-secondary-line}}`{tag}`" for tag in tags(notebook))
            alt = f"Figure of the notebook {heading}"
            cards.append(CARD.format(title=heading, name=name, alt=alt, text=text, badges=badges))
        grid = "::::{grid} 1 2 3 3\n:gutter: 3\n\n" + "\n".join(cards) + "::::"
        return self.parse_text_to_nodes(grid)


def setup(app):
    """Called by Sphinx."""
    copy_notebooks()
    app.add_directive("notebooks", Notebooks)
    return {"parallel_read_safe": True}
