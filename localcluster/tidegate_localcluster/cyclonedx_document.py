"""Renders the CycloneDX document of an image."""

# Decorators of the library hide its signatures from pyright; mypy sees and checks them.
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from tidegate_localcluster.software import Ecosystem, SoftwarePackage

PRODUCT = "tidegate"
PRODUCT_LICENCE = "Apache-2.0"
DISTRIBUTION = "debian-12"


@dataclass(frozen=True, slots=True)
class ImageSubject:
    """The image that a document describes; `is_product`: it contains Tidegate's own code."""

    name: str
    version: str
    labels: Mapping[str, str]
    is_product: bool


def render_document(subject: ImageSubject, software: Sequence[SoftwarePackage], now: datetime) -> str:
    """Return CycloneDX 1.6 as JSON; the same image, software and time give the same document."""
    components = [_make_component(package) for package in software]
    if subject.is_product:
        licence = LicenseFactory().make_from_string(PRODUCT_LICENCE)
        components.append(
            Component(
                name=PRODUCT,
                version=subject.version,
                type=ComponentType.APPLICATION,
                bom_ref=PRODUCT,
                licenses=[licence],
            )
        )
    image = Component(
        name=f"{PRODUCT}/{subject.name}",
        version=subject.version,
        type=ComponentType.CONTAINER,
        bom_ref=f"image:{subject.name}",
        properties=[Property(name=label, value=value) for label, value in subject.labels.items()],
    )
    bom = Bom(
        components=components,
        metadata=BomMetaData(component=image, timestamp=now),
        serial_number=uuid5(NAMESPACE_URL, f"{subject.name} {now.isoformat()}"),
    )
    bom.register_dependency(image, components)
    return f"{JsonV1Dot6(bom).output_as_string(indent=2)}\n"


def _make_component(software: SoftwarePackage) -> Component:
    url = _make_package_url(software)
    return Component(
        name=software.name,
        version=software.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(url),
        purl=url,
        licenses=[LicenseFactory().make_from_string(software.licence)] if software.licence else [],
        external_references=_list_distributions(software),
        properties=[Property(name="tidegate:go.sum", value=software.go_sum)] if software.go_sum else [],
    )


def _list_distributions(software: SoftwarePackage) -> Sequence[ExternalReference]:
    """Return the files that the lock accepts, with their hashes."""
    # Not hashes of the component, which are those of one file: a lock accepts one file for each platform.
    if not software.sha256:
        return []
    return [
        ExternalReference(
            type=ExternalReferenceType.DISTRIBUTION,
            url=XsUri(f"https://pypi.org/simple/{software.name}/"),
            comment="files that the lock accepts",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256) for sha256 in software.sha256],
        )
    ]


def _make_package_url(software: SoftwarePackage) -> PackageURL:
    namespace, _, name = software.name.rpartition("/")
    qualifiers: dict[str, str] = {}
    if software.ecosystem is Ecosystem.DEBIAN:
        namespace = "debian"
        qualifiers = {"arch": software.architecture, "distro": DISTRIBUTION}
    return PackageURL(
        type=software.ecosystem,
        namespace=namespace or None,
        name=name,
        version=software.version,
        qualifiers=qualifiers or None,
    )
