"""The queries of docs/metrics.md about use over time are those that promtool tests."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
TESTED = {
    test["expr"]
    for group in yaml.safe_load((ROOT / "manifests/helm/gpuagent/monitoring/recipes_test.yaml").read_text())["tests"]
    for test in group["promql_expr_test"]
}


def test_every_recipe_of_the_page_is_tested_word_for_word() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("## Use over time")
    section, _, _ = rest.partition("\nMore questions:")
    recipes = re.findall(r"```promql\n(.*?)\n```", section, re.DOTALL)
    assert len(recipes) == 3
    assert set(recipes) == TESTED
    assert all(recipe.count("increase(") == 1 for recipe in recipes)
