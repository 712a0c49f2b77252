from __future__ import annotations

from pathlib import Path

from tests.journeys import JOURNEYS, walk


def test_a_journey_is_read_along_the_calls_in_the_order_of_the_text(tmp_path: Path) -> None:
    files = {
        "one.py": "from draftrt.export.two import B, helper\n"
        "def start():\n    B().work(last())\n    helper()\ndef last():\n    return 1\n",
        "two.py": "from draftrt.export import three\n"
        "class B:\n    def __init__(self):\n        self.own()\n"
        "    def own(self):\n        three.deep()\n    def work(self, n):\n        pass\n"
        "def helper():\n    pass\n",
        "three.py": "def deep():\n    pass\n",
    }
    (tmp_path / "export").mkdir()
    for name, text in files.items():
        (tmp_path / "export" / name).write_text(text)
    found = walk(tmp_path, ("export/one.py", "start"))
    names = [function for _, function in found.steps]
    assert names == ["start", "B.__init__", "B.own", "deep", "last", "B.work", "helper"]
    entered = ["one", "two", "three", "one", "two"]
    assert found.files() == [f"export/{name}.py" for name in entered]


def test_every_journey_begins_somewhere_and_leads_on(root: Path) -> None:
    for entry in JOURNEYS.values():
        assert len(set(walk(root, entry).files())) > 3
