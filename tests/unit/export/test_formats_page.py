"""docs/formats.md says what the readers do, and its support table names only what a test shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from draftrt.export.config.keys import HARMLESS
from tests.unit.export import test_refusals
from tests.unit.export.formats_page import BODY, KINDS, filled, recorded
from tests.unit.export.published import ROWS as PUBLISHED
from tests.unit.export.support_rows import GOLDEN, REFUSED, target_of

REFUSED_KEYS = re.compile(
    r"experts|kv_lora|q_lora|qk_rope|hidden_size_per_layer|num_kv_shared|enable_moe|model_arch"
    r"|query_causal|log_snr|gated_q_proj|emb_dim|norm_before|use_aux_hidden_state|quant|compression"
    r"|speculators_version|n_mtp_layers|confidence_head_alpha|add_full_attention"
)


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "formats.md").read_text(encoding="utf-8")


def test_the_tables_of_the_page_are_the_codes_own(page: str) -> None:
    assert filled(page) == page, "run: python -m tests.unit.export.formats_page"


def test_every_key_that_a_reader_looks_at_is_on_the_page(page: str) -> None:
    seen = {path.removeprefix(BODY) for kind in KINDS for path in recorded(kind).seen}
    keys = {path.rpartition(".")[2] for path in seen if not REFUSED_KEYS.search(path)}
    missing = sorted(key for key in keys - HARMLESS if key not in page)
    assert not missing


def test_the_support_table_names_only_what_a_test_shows(root: Path) -> None:
    cases = {path.name for path in (root / "tests" / "golden").iterdir() if path.is_dir()}
    assert {case for named in GOLDEN.values() for case in named} <= cases
    shown = {row.name for row in test_refusals.ROWS} | {test_refusals.pickled_mask.__name__}
    assert {row for _, row in REFUSED.values()} <= shown
    assert all(target_of(name) for name in PUBLISHED)
