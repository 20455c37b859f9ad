"""The table of planted defects keeps up with the code: each can still be planted, and `make test` runs what must see it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from planted_defects import DEFECTS, ROOT

PRODUCT = ("operator/", "controllers/", "dataplane/")
RUN_BY_MAKE_TEST = ("tests/unit/", "tests/golden/", "tests/component/", "tests/integration/", "tests/e2e/")


def test_defects_have_names_and_change_one_place_of_the_product_each() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)
    for defect in DEFECTS:
        assert defect.file.startswith(PRODUCT)
        content = (ROOT / defect.file).read_text()
        assert content.count(defect.text) == 1, (
            f"{defect.name}: {defect.file} has changed: find the place again"
        )
        planted = content.replace(defect.text, defect.by)
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(content))


def test_what_must_see_a_defect_is_run_by_make_test() -> None:
    assert [defect.name for defect in DEFECTS if not defect.seen_by] == []
    for test in {test for defect in DEFECTS for test in defect.seen_by}:
        assert test.startswith(RUN_BY_MAKE_TEST)
        path, *names = test.split("::")
        marks = list(_marks(ast.parse((ROOT / path).read_text()).body, names))
        assert not [mark for mark in marks if "mark.slow" in mark], f"{test} is not run each time"


def _marks(body: list[ast.stmt], names: list[str]) -> Iterator[str]:
    """The marks of a test and of what it is in."""
    yield from (
        ast.unparse(statement.value)
        for statement in body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"
    )
    if names:
        defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        found = [each for each in body if isinstance(each, defined) and each.name == names[0]]
        assert found, f"there is no test {names[0]} any more"
        yield from map(ast.unparse, found[0].decorator_list)
        yield from _marks(found[0].body, names[1:])
