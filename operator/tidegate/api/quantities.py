"""Kubernetes quantities (500m, 2Gi, 1e3): exact values, and the canonical form that the API server stores."""

from __future__ import annotations

import re
from decimal import ROUND_UP, Context, Decimal
from typing import Final

QUANTITY_PATTERN: Final = r"^[0-9]{1,15}(\.[0-9]{1,9})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][0-9]{1,2})?$"

_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE](?P<exponent>[+-]?[0-9]{1,9}))?"
)
_BINARY_FACTORS: Final = {
    name: Decimal(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}
_DECIMAL_POWERS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_NANO: Final = Decimal("1e-9")
_MAX_POWER: Final = 30
"""Values are capped at this power of ten: Kubernetes stores quantities of any size, such as 1e90 cores."""
_MAX_VALUE: Final = Decimal(10) ** _MAX_POWER
# Precise enough that no quantity of 64 characters below the cap loses a digit.
_EXACT_CONTEXT: Final = Context(prec=100)
_MAX_LENGTH: Final = 64


def parse_quantity(text: str) -> Decimal:
    """Parse a quantity; return its value in base units (cores, bytes), at most 1e30.

    Rounds up to a billionth, as Kubernetes does.
    Raises ValueError, with examples, for text that Kubernetes would not accept.
    """
    match = _match_quantity(text)
    return _round_up(_decode_value(match))


def canonicalize_quantity(text: str) -> str:
    """Return a quantity as the API server stores it: 1000m becomes 1, 2048Mi becomes 2Gi, 1.5Gi becomes 1536Mi.

    Builders write this form, so that a live object compares equal to a desired one.
    The rules are those of apimachinery's resource.Quantity: the suffix family stays, the fraction does not.
    Raises ValueError like parse_quantity.
    """
    match = _match_quantity(text)
    value = _round_up(_decode_value(match))
    if value == 0:
        return "0"
    if match["suffix"] in _BINARY_FACTORS and abs(value) >= 1024:
        return _format_binary(value)
    if match["exponent"] is not None:
        return _format_exponent(value)
    return _format_decimal(value)


def _match_quantity(text: str) -> re.Match[str]:
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        message = f"'{text[:40]}' is not a quantity: use a number and a suffix, as in 500m, 2 or 4Gi"
        raise ValueError(message)
    return match


def _decode_value(match: re.Match[str]) -> Decimal:
    number = Decimal(match["number"])
    suffix = match["suffix"] or ""
    if suffix in _BINARY_FACTORS:
        return _clamp_value(_EXACT_CONTEXT.multiply(number, _BINARY_FACTORS[suffix]))
    power = int(match["exponent"]) if match["exponent"] is not None else _DECIMAL_POWERS[suffix]
    # Compare before scaling: no decimal context holds 1e999999999.
    if not number:
        return number
    if number.adjusted() + power >= _MAX_POWER:
        return _MAX_VALUE.copy_sign(number)
    return _EXACT_CONTEXT.scaleb(number, Decimal(max(power, -_MAX_LENGTH)))


def _clamp_value(value: Decimal) -> Decimal:
    return min(max(value, -_MAX_VALUE), _MAX_VALUE)


def _round_up(value: Decimal) -> Decimal:
    rounded = value.quantize(_NANO, rounding=ROUND_UP, context=_EXACT_CONTEXT)
    return Decimal(0) if rounded == 0 else rounded.normalize(_EXACT_CONTEXT)


def _format_binary(value: Decimal) -> str:
    if value != value.to_integral_value():
        return _format_decimal(value)
    best_suffix, best_factor = "", Decimal(1)
    for suffix, factor in _BINARY_FACTORS.items():
        if _EXACT_CONTEXT.remainder(value, factor) == 0:
            best_suffix, best_factor = suffix, factor
    return f"{int(_EXACT_CONTEXT.divide(value, best_factor))}{best_suffix}"


def _format_decimal(value: Decimal) -> str:
    power = _find_largest_power(value)
    suffix = next(name for name, candidate in _DECIMAL_POWERS.items() if candidate == power)
    return f"{int(_EXACT_CONTEXT.scaleb(value, Decimal(-power)))}{suffix}"


def _format_exponent(value: Decimal) -> str:
    power = _find_largest_power(value)
    mantissa = int(_EXACT_CONTEXT.scaleb(value, Decimal(-power)))
    return f"{mantissa}e{power}" if power else str(mantissa)


def _find_largest_power(value: Decimal) -> int:
    """Return the exponent of the largest power of a thousand, at most E, that divides `value`."""
    return max(
        power
        for power in _DECIMAL_POWERS.values()
        if _is_whole(_EXACT_CONTEXT.scaleb(value, Decimal(-power)))
    )


def _is_whole(value: Decimal) -> bool:
    return value == value.to_integral_value()
