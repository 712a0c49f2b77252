"""Which SMs and precisions are refused, and with which words."""

from __future__ import annotations

import pytest

from draftrt.engines.capabilities import (
    FACTS,
    Backend,
    Feature,
    feature_findings,
    precision_findings,
    request_findings,
    sm_findings,
)
from draftrt.quantization import Part, Scheme
from draftrt.spec import Precision

RTX, CLASSIC = Backend.TENSORRT_RTX, Backend.TENSORRT


def test_every_sm_of_a_backend_is_accepted() -> None:
    for backend, facts in FACTS.items():
        assert sm_findings(backend, facts.sms) == []


def test_an_sm_of_the_other_backend_is_refused_with_the_list_and_the_way_out() -> None:
    [finding] = sm_findings(RTX, (86, 90))
    assert finding.message == "tensorrt-rtx: got SM90, expected one of 75, 80, 86, 89, 120, 121"
    assert "SM90 needs --backend tensorrt" in finding.hint


def test_every_unknown_sm_is_a_finding_of_its_own() -> None:
    findings = sm_findings(RTX, (42, 86, 110))
    assert ["SM42" in findings[0].message, "SM110" in findings[1].message] == [True, True]
    assert "--backend tensorrt" not in findings[0].hint


@pytest.mark.parametrize(
    ("backend", "sms", "precision", "refused"),
    [
        (RTX, (75, 86), Precision.BF16, "SM75"),
        (RTX, (75,), Precision.FP32, "SM75"),
        (RTX, (75, 80, 121), Precision.FP16, None),
        (RTX, (80, 86, 89, 120, 121), Precision.BF16, None),
        (CLASSIC, (75,), Precision.BF16, "SM75"),
        (CLASSIC, (75,), Precision.FP32, None),
        (CLASSIC, (90,), Precision.BF16, None),
    ],
)
def test_a_precision_is_refused_where_an_sm_lacks_it(
    backend: Backend, sms: tuple[int, ...], precision: Precision, refused: str | None
) -> None:
    findings = precision_findings(backend, sms, precision)
    assert [f"got {refused}," in finding.message for finding in findings] == [True] * bool(refused)


def test_a_bf16_refusal_names_the_precision_that_would_do() -> None:
    [finding] = precision_findings(RTX, (75, 86), Precision.BF16)
    assert finding.message == (
        "a bf16 graph needs bfloat16: got SM75, tensorrt-rtx runs it from SM80 on"
    )
    assert finding.hint == "drop SM75 from --sm, or export the graph with --precision fp16"


def test_a_device_whose_sm_does_not_do_is_named_in_the_place_of_the_option() -> None:
    [finding] = sm_findings(RTX, (87,), "orin-nano-8gb")
    assert "got SM87 of orin-nano-8gb, expected one of 75, 80" in finding.message
    assert finding.hint == (
        "choose another --device than orin-nano-8gb; orin-nano-8gb needs --backend tensorrt, on a "
        "machine with such a GPU"
    )
    [finding] = request_findings(RTX, (75,), Precision.FP32, {}, "t4")
    assert finding.hint == (
        "choose another --device than t4, or use --backend tensorrt, on a machine with such a GPU"
    )
    [finding] = request_findings(CLASSIC, (75,), Precision.BF16, {}, "t4")
    assert finding.hint == (
        "choose another --device than t4, or export the graph with --precision fp16"
    )


def test_features_are_refused_each_for_the_sms_that_lack_it() -> None:
    where = {Feature.FP8: "layer 'a'", Feature.FP4: "layer 'b'"}
    messages = [finding.message for finding in feature_findings(RTX, (86, 89, 120), where)]
    assert messages == [
        "layer 'a' needs float8: got SM86, tensorrt-rtx runs it from SM89 on",
        "layer 'b' needs float4: got SM86, SM89, tensorrt-rtx runs it from SM120 on",
    ]


@pytest.mark.parametrize(
    ("backend", "sms", "refused"),
    [(RTX, (80, 86, 89, 120), "SM80, SM86"), (RTX, (89, 120), ""), (CLASSIC, (87, 90), "SM87")],
)
def test_fp8_weights_are_refused_below_sm89(
    backend: Backend, sms: tuple[int, ...], refused: str
) -> None:
    quantization = {Part.LINEAR: Scheme.INT4, Part.HEAD: Scheme.FP8}
    findings = request_findings(backend, sms, Precision.FP16, quantization)
    assert [one.message for one in findings] == [
        f"head in fp8 needs float8: got {refused}, {backend.value} runs it from SM89 on"
    ] * bool(refused)
    assert all(f"drop {refused} from --sm" in one.hint for one in findings)
    assert all("--quantize int8" in one.hint for one in findings)


def test_int4_and_int8_weights_need_nothing_of_an_sm() -> None:
    quantization = {Part.LINEAR: Scheme.INT4, Part.HEAD: Scheme.INT8}
    assert request_findings(RTX, (80, 86, 89, 120, 121), Precision.FP16, quantization) == []
