from __future__ import annotations

import json
from typing import Any

import pytest

from builders.desired import a_desired_state
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.config_text import ModelConfig, parse_config_text, to_config_text
from tidegate_dataplane.agent.model_config import CONFIG_DIGEST, config_digest, render_config, with_versions
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.settings import OnnxBackend
from tidegate_dataplane.contract import (
    BatchingMode,
    DesiredState,
    EngineMode,
    EngineOrder,
    FailureReason,
    ModelFormat,
    TensorSpec,
)

X = TensorSpec(name="x", dtype="FP32", shape=(-1, 3))
IDS = TensorSpec(name="ids", dtype="INT64", shape=(-1,))
TEXT = TensorSpec(name="t", dtype="BYTES", shape=(-1, -1))
Y = TensorSpec(name="y", dtype="FP32", shape=(-1, 1))


def some_facts(**changes: Any) -> ArtefactFacts:
    fields: dict[str, Any] = {
        "uri": "file:///models/ctr",
        "version": 1,
        "format": ModelFormat.ONNX,
        "digest": "0" * 64,
        "files": (),
        "inputs": (X,),
        "outputs": (Y,),
        "batched": True,
    }
    return ArtefactFacts.model_validate({**fields, **changes})


def rendered(
    order: DesiredState,
    facts: ArtefactFacts,
    *,
    backend: OnnxBackend = OnnxBackend.HOSTED,
    threads: int | None = None,
) -> ModelConfig:
    config = render_config(order, facts, backend=backend, intra_op_threads=threads)
    assert not isinstance(config, VersionRefusal), config
    # Triton's own schema takes it.
    to_config_text(with_versions(config, [1]))
    return config


def refusal(order: DesiredState, facts: ArtefactFacts) -> str:
    config = render_config(order, facts, backend=OnnxBackend.AUTO, intra_op_threads=None)
    assert isinstance(config, VersionRefusal)
    assert config.reason is FailureReason.ARTEFACT_INVALID
    return config.message


def test_a_batched_model_declares_its_rows_without_the_batch_dimension() -> None:
    config = rendered(a_desired_state(max_batch_size=64), some_facts())

    assert config["max_batch_size"] == 64
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}]
    assert "dynamic_batching" not in config


def test_an_engine_is_a_parameter_of_our_runner_alone() -> None:
    order = a_desired_state(engine=EngineOrder(engine=EngineMode.AUTO, rows=(1, 16)))

    config = rendered(order, some_facts())

    parameter = json.loads(config["parameters"]["tidegate_engine"]["string_value"])
    assert parameter == {"engine": "Auto", "precision": "FP32", "rows": [1, 16], "lengths": []}
    native = rendered(order, some_facts(), backend=OnnxBackend.NATIVE)
    assert "tidegate_engine" not in native.get("parameters", {})
    assert "tidegate_engine" not in rendered(a_desired_state(), some_facts()).get("parameters", {})


def test_a_model_of_fixed_shape_declares_all_of_it() -> None:
    fixed = TensorSpec(name="x", dtype="FP32", shape=(4, 3))

    config = rendered(a_desired_state(), some_facts(inputs=(fixed,), batched=False))

    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [4, 3]


def test_a_tensor_of_one_dimension_is_reshaped_within_a_batch() -> None:
    config = rendered(a_desired_state(), some_facts(inputs=(IDS,)))

    assert config["input"] == [
        {"name": "ids", "data_type": "TYPE_INT64", "dims": [1], "reshape": {"shape": []}}
    ]


def test_strings_have_tritons_name_for_them() -> None:
    assert rendered(a_desired_state(), some_facts(inputs=(TEXT,)))["input"][0]["data_type"] == "TYPE_STRING"


def test_the_name_is_the_served_one() -> None:
    assert rendered(a_desired_state(model="ctr-next"), some_facts())["name"] == "ctr-next"


@pytest.mark.parametrize("backend", [OnnxBackend.HOSTED, OnnxBackend.NATIVE])
def test_several_instances_are_those_of_the_order_and_not_of_the_artefact(backend: OnnxBackend) -> None:
    facts = some_facts(config_text="instance_group { count: 2 kind: KIND_CPU }")
    for instances, count in ((4, 4), (1, 2)):
        config = rendered(a_desired_state(instances=instances), facts, backend=backend)
        assert config["instance_group"] == [{"count": count, "kind": "KIND_CPU"}]
    native = rendered(a_desired_state(instances=4), some_facts(), backend=OnnxBackend.NATIVE)
    assert native["instance_group"] == [{"count": 4}]


def test_instances_share_the_threads() -> None:
    config = rendered(a_desired_state(instances=4), some_facts(), threads=10)
    assert config["parameters"] == {"intra_op_thread_count": {"string_value": "2"}}


def test_instances_beside_several_groups_of_the_artefact_are_refused() -> None:
    groups = "instance_group { count: 2 kind: KIND_CPU }\ninstance_group { count: 1 kind: KIND_GPU }"
    message = refusal(a_desired_state(instances=4), some_facts(config_text=groups))
    assert message.startswith(
        "spec.instances is 4, and config.pbtxt beside the versions has 2 instance groups"
    )


ITEM = TensorSpec(name="item", dtype="INT64", shape=(-1, 4))


@pytest.mark.parametrize("backend", [OnnxBackend.AUTO, OnnxBackend.HOSTED])
def test_shared_inputs_leave_the_rows_to_our_runner_in_the_form_that_clients_know(
    backend: OnnxBackend,
) -> None:
    order = a_desired_state(shared_inputs=("ids",), max_batch_size=64)

    config = rendered(order, some_facts(inputs=(IDS, ITEM)), backend=backend)

    assert (config["backend"], config["max_batch_size"]) == ("python", 0)
    assert config["input"] == [
        {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1, 1], "reshape": {"shape": [-1]}},
        {"name": "item", "data_type": "TYPE_INT64", "dims": [-1, 4]},
    ]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 1]}]
    assert config["parameters"] == {
        "tidegate_shared_inputs": {"string_value": '["ids"]'},
        "tidegate_max_rows": {"string_value": "64"},
    }


@pytest.mark.parametrize(
    ("names", "facts", "backend", "problem"),
    [
        (["age"], {}, OnnxBackend.HOSTED, "the model has no input age; it has ids, item"),
        (["ids", "item"], {}, OnnxBackend.HOSTED, "it names all inputs"),
        (
            ["ids"],
            {"batched": False},
            OnnxBackend.HOSTED,
            "the first dimension of every input and output must be free",
        ),
        (["ids"], {}, OnnxBackend.NATIVE, "only Tidegate's runner repeats rows"),
    ],
)
def test_shared_inputs_that_cannot_be_served_are_refused_with_the_way_out(
    names: list[str], facts: dict[str, Any], backend: OnnxBackend, problem: str
) -> None:
    order = a_desired_state(shared_inputs=tuple(names))

    config = render_config(
        order, some_facts(inputs=(IDS, ITEM), **facts), backend=backend, intra_op_threads=None
    )

    assert isinstance(config, VersionRefusal)
    assert config.message.startswith(f"spec.model.sharedInputs: {problem}")


@pytest.mark.parametrize("backend", [OnnxBackend.AUTO, OnnxBackend.NATIVE])
def test_tritons_own_backend_is_asked_for_first(backend: OnnxBackend) -> None:
    config = rendered(a_desired_state(), some_facts(), backend=backend)

    assert (config["backend"], config["platform"]) == ("onnxruntime", "onnxruntime_onnx")
    assert "instance_group" not in config


def test_the_hosted_runner_is_a_python_model_on_cpu() -> None:
    config = rendered(a_desired_state(), some_facts(), threads=3)

    assert config["backend"] == "python"
    assert config["instance_group"] == [{"kind": "KIND_CPU", "count": 1}]
    assert config["parameters"] == {"intra_op_thread_count": {"string_value": "3"}}


def test_fixed_batching_sets_the_delay() -> None:
    order = a_desired_state(batching=BatchingMode.FIXED, max_queue_delay_us=2000)

    assert rendered(order, some_facts())["dynamic_batching"] == {"max_queue_delay_microseconds": 2000}


def test_fixed_batching_without_a_batch_dimension_is_refused_with_the_shapes() -> None:
    fixed = TensorSpec(name="x", dtype="FP32", shape=(4, 3))

    message = refusal(
        a_desired_state(batching=BatchingMode.FIXED), some_facts(inputs=(fixed,), batched=False)
    )

    assert "x [4, 3]" in message
    assert "batching.mode to Disabled" in message


ADAPTIVE = a_desired_state(batching=BatchingMode.ADAPTIVE)


def test_adaptive_batching_gives_our_runner_all_that_has_arrived_of_any_shape() -> None:
    history = TensorSpec(name="history", dtype="INT64", shape=(-1, -1))

    config = rendered(ADAPTIVE, some_facts(inputs=(history, IDS)))

    assert config["dynamic_batching"] == {}
    assert config["parameters"]["tidegate_checked_joins"] == {"string_value": "true"}
    assert [tensor.get("allow_ragged_batch") for tensor in config["input"]] == [True, None]


def test_a_users_parameters_are_kept_but_for_those_with_our_names() -> None:
    text = """parameters { key: "tidegate_checked_joins" value { string_value: "true" } }
        parameters { key: "beta" value { string_value: "2" } }"""

    config = rendered(a_desired_state(), some_facts(config_text=text))

    assert config["parameters"]["beta"] == {"string_value": "2"}
    assert "tidegate_checked_joins" not in config["parameters"]


@pytest.mark.parametrize("backend", [OnnxBackend.HOSTED, OnnxBackend.NATIVE])
def test_adaptive_batching_of_what_nothing_can_compare_leaves_every_request_alone(
    backend: OnnxBackend,
) -> None:
    facts = some_facts(batched=backend is OnnxBackend.NATIVE)
    artefact = facts.model_copy(update={"config_text": "dynamic_batching { }"})

    config = rendered(ADAPTIVE, artefact, backend=backend)

    assert "dynamic_batching" not in config
    assert "tidegate_checked_joins" not in config.get("parameters", {})


def test_a_version_is_warmed_up_with_zeros_where_the_shapes_are_known() -> None:
    config = rendered(a_desired_state(), some_facts(), backend=OnnxBackend.NATIVE)

    assert config["model_warmup"][0]["inputs"] == {
        "x": {"data_type": "TYPE_FP32", "dims": [3], "zero_data": True}
    }
    unknown = rendered(a_desired_state(), some_facts(inputs=(TEXT,)), backend=OnnxBackend.NATIVE)
    assert unknown["model_warmup"] == []
    # Our own runner does it by itself, uncounted.
    assert "model_warmup" not in rendered(a_desired_state(), some_facts())


class TestWarmUp:
    def test_our_runner_is_told_how_many_requests_and_keeps_its_place_in_memory(self) -> None:
        cold, warm = (rendered(a_desired_state(warmup_requests=count), some_facts()) for count in (0, 50))

        assert warm["parameters"] == {"tidegate_warmup_requests": {"string_value": "50"}}
        assert "model_warmup" not in warm
        assert config_digest(warm) == config_digest(cold)

    def test_a_backend_of_tritons_own_runs_one_row_however_many_are_asked_for(self) -> None:
        cold, warm = (
            rendered(a_desired_state(warmup_requests=count), some_facts(), backend=OnnxBackend.NATIVE)
            for count in (0, 50)
        )

        assert warm == cold
        assert [sample["batch_size"] for sample in warm["model_warmup"]] == [1]


class TestTheArtefactsOwnConfiguration:
    def test_what_it_may_set_is_kept(self) -> None:
        text = 'instance_group { count: 2 kind: KIND_CPU } parameters { key: "intra_op_thread_count" value { string_value: "8" } }'

        config = rendered(a_desired_state(), some_facts(config_text=text), threads=1)

        assert config["instance_group"] == [{"count": 2, "kind": "KIND_CPU"}]
        assert config["parameters"] == {"intra_op_thread_count": {"string_value": "8"}}

    def test_what_the_signature_and_the_order_decide_is_theirs(self) -> None:
        text = (
            'name: "other" backend: "onnxruntime" max_batch_size: 7 input { name: "z" } dynamic_batching { }'
        )

        config = rendered(a_desired_state(max_batch_size=64), some_facts(config_text=text))

        assert (config["name"], config["backend"], config["max_batch_size"]) == ("ctr", "python", 64)
        assert [tensor["name"] for tensor in config["input"]] == ["x"]
        assert "dynamic_batching" not in config

    def test_its_preferred_sizes_are_kept_when_batching_is_on(self) -> None:
        text = "dynamic_batching { preferred_batch_size: [ 8, 16 ] max_queue_delay_microseconds: 1 }"
        order = a_desired_state(batching=BatchingMode.FIXED, max_queue_delay_us=500)

        batching = rendered(order, some_facts(config_text=text))["dynamic_batching"]

        assert batching == {"preferred_batch_size": [8, 16], "max_queue_delay_microseconds": 500}

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ('model_operations { op_library_filename: "evil.so" }', "model_operations"),
            ('runtime: "libevil.so"', "runtime"),
            ('ensemble_scheduling { step { model_name: "other" } }', "ensemble_scheduling"),
            (
                'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/x.tgz" } }',
                "EXECUTION_ENV_PATH",
            ),
            ('cc_model_filenames { key: "8.0" value: "../x" }', "cc_model_filenames"),
        ],
    )
    def test_what_brings_code_is_refused_by_name(self, text: str, name: str) -> None:
        assert name in refusal(a_desired_state(), some_facts(config_text=text))

    def test_what_cannot_be_read_is_refused_with_the_place(self) -> None:
        assert "1:" in refusal(a_desired_state(), some_facts(config_text="max_batch_sise: 3"))


class TestPython:
    TEXT = 'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [1] } output { name: "y" data_type: TYPE_FP32 dims: [1] }'

    def test_its_configuration_is_kept_under_our_name(self) -> None:
        order = a_desired_state(format=ModelFormat.PYTHON, max_batch_size=32)

        config = rendered(order, some_facts(format=ModelFormat.PYTHON, config_text=self.TEXT))

        assert (config["name"], config["backend"], config["max_batch_size"]) == ("ctr", "python", 32)
        assert [tensor["name"] for tensor in config["input"]] == ["x"]

    def test_without_one_it_is_refused(self) -> None:
        order = a_desired_state(format=ModelFormat.PYTHON)

        assert "config.pbtxt" in refusal(order, some_facts(format=ModelFormat.PYTHON))

    def test_one_that_takes_no_batches_stays_so(self) -> None:
        text = self.TEXT.replace("max_batch_size: 4", "")
        order = a_desired_state(format=ModelFormat.PYTHON)

        assert rendered(order, some_facts(format=ModelFormat.PYTHON, config_text=text))["max_batch_size"] == 0


@pytest.mark.parametrize(
    ("model_format", "backend", "platform", "file"),
    [
        (ModelFormat.TENSORRT, "tensorrt", "tensorrt_plan", "model.plan"),
        (ModelFormat.TORCH_EXPORT, "pytorch", "torch_aoti", "model.pt2"),
    ],
)
class TestCompiled:
    TEXT = TestPython.TEXT

    def test_tritons_own_backend_is_asked_for(
        self, model_format: ModelFormat, backend: str, platform: str, file: str
    ) -> None:
        config = rendered(
            a_desired_state(format=model_format), some_facts(format=model_format, config_text=self.TEXT)
        )

        assert (config["backend"], config["platform"], config["default_model_filename"]) == (
            backend,
            platform,
            file,
        )
        assert [tensor["name"] for tensor in (*config["input"], *config["output"])] == ["x", "y"]

    @pytest.mark.parametrize(("asked", "taken"), [(2, 2), (128, 4)])
    def test_batches_are_no_larger_than_what_it_was_compiled_for(
        self, model_format: ModelFormat, backend: str, platform: str, file: str, asked: int, taken: int
    ) -> None:
        order = a_desired_state(format=model_format, max_batch_size=asked)

        config = rendered(order, some_facts(format=model_format, config_text=self.TEXT))

        assert config["max_batch_size"] == taken

    @pytest.mark.parametrize("text", [None, 'input { name: "x" data_type: TYPE_FP32 dims: [1] }'])
    def test_without_inputs_and_outputs_it_is_refused(
        self, model_format: ModelFormat, backend: str, platform: str, file: str, text: str | None
    ) -> None:
        order = a_desired_state(format=model_format)

        said = refusal(order, some_facts(format=model_format, config_text=text))

        assert f"{model_format} needs file:///models/ctr/config.pbtxt with its inputs and outputs" in said

    @pytest.mark.parametrize(
        ("addition", "name"),
        [
            ("ensemble_scheduling { }", "ensemble_scheduling"),
            ('parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/x" } }', "EXECUTION_ENV_PATH"),
        ],
    )
    def test_what_brings_code_is_refused_by_name(
        self, model_format: ModelFormat, backend: str, platform: str, file: str, addition: str, name: str
    ) -> None:
        facts = some_facts(format=model_format, config_text=f"{self.TEXT} {addition}")

        assert name in refusal(a_desired_state(format=model_format), facts)

    def test_another_backend_in_it_changes_nothing(
        self, model_format: ModelFormat, backend: str, platform: str, file: str
    ) -> None:
        facts = some_facts(format=model_format, config_text=f'{self.TEXT} backend: "python"')

        assert rendered(a_desired_state(format=model_format), facts)["backend"] == backend


class TestDigest:
    def test_versions_of_one_signature_share_it(self) -> None:
        first, second = (rendered(a_desired_state(version=version), some_facts()) for version in (1, 2))

        assert config_digest(first) == config_digest(second)

    def test_another_setting_has_another(self) -> None:
        first, second = (rendered(a_desired_state(max_batch_size=size), some_facts()) for size in (8, 16))

        assert config_digest(first) != config_digest(second)

    def test_it_travels_with_the_configuration(self) -> None:
        config = rendered(a_desired_state(), some_facts())

        ordered = with_versions(config, [3, 1])

        assert ordered["parameters"][CONFIG_DIGEST] == {"string_value": config_digest(config)}
        assert ordered["version_policy"] == {"specific": {"versions": [1, 3]}}
        assert CONFIG_DIGEST not in config.get("parameters", {})


def test_the_text_form_says_the_same() -> None:
    config = with_versions(rendered(a_desired_state(), some_facts()), [1])

    again = parse_config_text(to_config_text(config))

    assert json.dumps(again["input"][0]["name"]) == '"x"'
    assert again["version_policy"] == {"specific": {"versions": ["1"]}}
