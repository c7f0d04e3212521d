"""Evaluate PromQL on a few scrapes: the part of the language that the alert rules use.

`promql_parser` parses with Prometheus' own grammar. An increase is the difference between the last and the
first value of the range, without extrapolation and resets.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import promql_parser as promql

from metrics.scraping import Values

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
_COMPARE = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "==": operator.eq}
_COMPUTE: dict[str, Callable[[float, float], float]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul},
    "/": lambda one, other: one / other if other else float("nan"),
}
_FOLD: dict[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max, "min": min, "count": len}
_MATCH: dict[str, Callable[[str, str], bool]] = {
    "MatchOp.Equal": operator.eq,
    "MatchOp.NotEqual": operator.ne,
    "MatchOp.Re": lambda pattern, text: re.fullmatch(pattern, text) is not None,
    "MatchOp.NotRe": lambda pattern, text: re.fullmatch(pattern, text) is None,
}


class Scrape(NamedTuple):
    """What a server returned, and when."""

    at: float
    values: Values


def selectors(expression: Any) -> Iterator[tuple[str, set[str]]]:
    """Return each metric of an expression, with the labels that it selects or groups by."""
    grouped: set[str] = set()
    found: list[tuple[str, set[str]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append((node.name, {each.name for each in node.matchers.matchers}))
        modifier = getattr(node, "modifier", None)
        matching = getattr(modifier, "matching", modifier)
        grouped.update(getattr(matching, "labels", None) or ())
        for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
            if (child := getattr(node, name, None)) is not None:
                visit(child)
        for child in getattr(node, "args", ()):
            visit(child)

    visit(expression)
    for metric, labels in found:
        yield metric, labels | (grouped if len(found) == 1 else set())


class Evaluation:
    """Evaluates expressions at the time of the last scrape. An empty vector does not fire."""

    def __init__(self, scrapes: Sequence[Scrape]) -> None:
        self._scrapes = scrapes
        self._now = scrapes[-1].at

    def of(self, expression: str) -> Vector | float:
        """Return the value of an expression."""
        return self._value(promql.parse(expression))

    def _value(self, node: Any) -> Any:
        found: Any = getattr(self, f"_{type(node).__name__}")(node)
        return found

    def _NumberLiteral(self, node: Any) -> float:
        return float(node.val)

    def _ParenExpr(self, node: Any) -> Any:
        return self._value(node.expr)

    def _VectorSelector(self, node: Any) -> Vector:
        return self._select(node, self._scrapes[-1].values)

    def _select(self, node: Any, values: Values) -> Vector:
        matchers = [(_MATCH[str(each.op)], each.name, each.value) for each in node.matchers.matchers]
        return {
            labels: value
            for (name, labels), value in values.items()
            if name == node.name
            and all(match(wanted, dict(labels).get(label, "")) for match, label, wanted in matchers)
        }

    def _Call(self, node: Any) -> Any:
        function: Any = getattr(self, f"_call_{node.func.name}")
        return function(*node.args)

    def _call_time(self) -> float:
        return float(self._now)

    def _call_absent(self, node: Any) -> Vector:
        return {} if self._value(node) else {frozenset(): 1.0}

    def _call_vector(self, node: Any) -> Vector:
        return {frozenset(): self._value(node)}

    def _call_increase(self, node: Any) -> Vector:
        seconds = node.range.total_seconds()
        inside = [each for each in self._scrapes if self._now - each.at <= seconds]
        first, last = (self._select(node.vector_selector, each.values) for each in (inside[0], inside[-1]))
        return {labels: value - first[labels] for labels, value in last.items() if labels in first}

    def _call_rate(self, node: Any) -> Vector:
        seconds = node.range.total_seconds()
        return {labels: value / seconds for labels, value in self._call_increase(node).items()}

    def _call_histogram_quantile(self, quantile: Any, node: Any) -> Vector:
        wanted, histograms = self._value(quantile), dict[Labels, list[tuple[float, float]]]()
        for labels, value in self._value(node).items():
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            histograms.setdefault(rest, []).append((float(dict(labels)["le"]), value))
        return {labels: _quantile(wanted, sorted(buckets)) for labels, buckets in histograms.items()}

    def _AggregateExpr(self, node: Any) -> Vector:
        groups: dict[Labels, list[float]] = {}
        by = set(node.modifier.labels) if node.modifier else set()
        assert node.modifier is None or str(node.modifier.type) == "AggModifierType.By"
        for labels, value in self._value(node.expr).items():
            groups.setdefault(frozenset(pair for pair in labels if pair[0] in by), []).append(value)
        return {labels: float(_FOLD[str(node.op)](values)) for labels, values in groups.items()}

    def _BinaryExpr(self, node: Any) -> Any:
        one, other, op = self._value(node.lhs), self._value(node.rhs), str(node.op)
        if isinstance(one, float) and isinstance(other, float):
            return _COMPUTE[op](one, other)
        if isinstance(one, float):
            return {labels: _COMPUTE[op](one, value) for labels, value in other.items()}
        if isinstance(other, float):
            other = dict.fromkeys(one, other)
        elif node.modifier is not None and node.modifier.matching is not None:
            on = set(node.modifier.matching.labels)
            keys = {
                frozenset(pair for pair in labels if pair[0] in on): value for labels, value in other.items()
            }
            other = {
                labels: keys[key]
                for labels in one
                if (key := frozenset(pair for pair in labels if pair[0] in on)) in keys
            }
        return _combine(op, one, other)


def _combine(op: str, one: Mapping[Labels, float], other: Mapping[Labels, float]) -> Vector:
    if op == "and":
        return {labels: value for labels, value in one.items() if labels in other}
    if op == "unless":
        return {labels: value for labels, value in one.items() if labels not in other}
    both = {labels: value for labels, value in one.items() if labels in other}
    if op in _COMPARE:
        return {labels: value for labels, value in both.items() if _COMPARE[op](value, other[labels])}
    return {labels: _COMPUTE[op](value, other[labels]) for labels, value in both.items()}


def _quantile(wanted: float, buckets: Sequence[tuple[float, float]]) -> float:
    """Return the upper bound of the bucket of a quantile; Prometheus interpolates inside the bucket."""
    total = buckets[-1][1]
    if not total:
        return float("nan")
    return next(bound for bound, value in buckets if value >= wanted * total)
