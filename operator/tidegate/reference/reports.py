"""docs/reference/reports.schema.json: the JSON schema of each command's report, with shared definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from tidegate.api.meta import ApiModel
from tidegate.reports.access_explanation import AccessExplanation
from tidegate.reports.analysis import AnalysisReport
from tidegate.reports.bench import BenchReport
from tidegate.reports.bundle import BundleReport
from tidegate.reports.calibration import CalibrationReport
from tidegate.reports.conversion import ConversionReport
from tidegate.reports.decision import HistoryReport
from tidegate.reports.device_plugin import DevicePluginReport
from tidegate.reports.explanation import InferenceReport, PoolReport
from tidegate.reports.feature_drift import DriftReport
from tidegate.reports.feature_lineage import FeatureExplanation
from tidegate.reports.feature_list import FeatureListReport
from tidegate.reports.fleet import FleetReport
from tidegate.reports.listing import ChangeReport, ListReport
from tidegate.reports.offline_features import OfflineFeaturesReport
from tidegate.reports.optimization import OptimizationReport
from tidegate.reports.overrides import SteeringReport
from tidegate.reports.plan import PlanReport
from tidegate.reports.recording import RecordingReport
from tidegate.reports.release import ReleaseListReport, ReleaseReport
from tidegate.reports.report import VersionReport
from tidegate.reports.simulation import SimulationReport
from tidegate.reports.status_access import AccessStatusReport
from tidegate.reports.status_feature import FeatureStatusReport
from tidegate.reports.status_inference import InferenceStatusReport
from tidegate.reports.status_pool import PoolStatusReport
from tidegate.reports.top import TopInferences, TopPools
from tidegate.reports.xds import SnapshotDiffReport, SnapshotReport, XdsStatusReport

REPORTS: Final[Mapping[str, tuple[type[ApiModel], ...]]] = {
    "analyze": (AnalysisReport,),
    "bench": (BenchReport,),
    "calibrate": (CalibrationReport,),
    "convert kserve": (ConversionReport,),
    "doctor": (AnalysisReport,),
    "features compute": (OfflineFeaturesReport,),
    "features explain": (FeatureExplanation,),
    "features list": (FeatureListReport,),
    "features stats": (DriftReport,),
    "get": (ListReport, ChangeReport),
    "history": (HistoryReport,),
    "hold": (SteeringReport,),
    "optimize": (OptimizationReport,),
    "override": (SteeringReport,),
    "plan": (PlanReport,),
    "pools device-plugin-config": (DevicePluginReport,),
    "record": (RecordingReport,),
    "release": (ReleaseReport, ReleaseListReport),
    "report": (BundleReport,),
    "resume": (SteeringReport,),
    "simulate": (SimulationReport,),
    "status": (FleetReport, InferenceStatusReport, AccessStatusReport, FeatureStatusReport, PoolStatusReport),
    "top inferences": (TopInferences,),
    "top pools": (TopPools,),
    "version": (VersionReport,),
    "why": (InferenceReport, PoolReport, AccessExplanation),
    "xds diff": (SnapshotDiffReport,),
    "xds dump": (SnapshotReport,),
    "xds status": (XdsStatusReport,),
}
"""Reports by command; the subcommands of `release` have the same report."""


class _ReportsSchema(GenerateJsonSchema):
    """pydantic's generator without titles of fields, which only repeat their names."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Return False for every field."""
        del schema
        return False


def build_reports_schema() -> dict[str, Any]:
    """Return the JSON schema of an object with one property per command: the command's report."""
    models = dict.fromkeys(report for reports in REPORTS.values() for report in reports)
    references, shared = models_json_schema(
        [(model, "serialization") for model in models], schema_generator=_ReportsSchema
    )
    schemas_by_command = {
        command: [references[report, "serialization"] for report in reports]
        for command, reports in REPORTS.items()
    }
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "Reports of the commands of tidegate with -o json",
        "type": "object",
        "properties": {
            command: schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
            for command, schemas in schemas_by_command.items()
        },
        **shared,
    }
