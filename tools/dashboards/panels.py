"""What the dashboards are made of: a page, its variables, rows, figures and graphs, all in one style."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

COUNT = "short"
PER_SECOND = "cps"
RATIO = "percentunit"
SECONDS = "s"
BYTES = "bytes"
BYTES_PER_SECOND = "Bps"

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "fanfold"
"""What the pages find one another by."""

GRAPH_HEIGHT = 8
FIGURE_HEIGHT = 4

Query = tuple[str, str]
"""An expression, and what its series are called: `{{label}}` is a label's value."""


Panels = Iterable[Stat | TimeSeries]

_Kind = TypeVar("_Kind", Stat, TimeSeries)


def dashboard(
    name: str, title: str, description: str, services: Mapping[str, str], rows: Mapping[str, Panels]
) -> Dashboard:
    """A page that links to the others.

    `services` has a metric of each service whose instances can be chosen; `rows` has the panels below each heading.
    """
    built = (
        Dashboard(f"Fanfold / {title}")
        .uid(f"fanfold-{name}")
        .description(description)
        .tags([TAG])
        .editable()
        .time("now-3h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            DashboardLink("Fanfold")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(False)
            .keep_time(True)
            .include_vars(True)
        )
        .annotation(
            AnnotationQuery()
            .name("Alerts")
            .datasource(SOURCE)
            .enable(True)
            .icon_color("red")
            .expr('ALERTS{alertname=~"Fanfold.+", alertstate="firing"}')
        )
        .with_variable(
            DatasourceVariable("datasource")
            .label("Data source")
            .description("The Prometheus that scrapes the mesh.")
            .type("prometheus")
        )
    )
    for service, metric in services.items():
        built.with_variable(_instances(service, metric))
    for heading, panels in rows.items():
        built.with_row(Row(heading))
        for panel in panels:
            built.with_panel(panel)
    return built


def _instances(service: str, metric: str) -> QueryVariable:
    return (
        QueryVariable(service)
        .label(service.capitalize())
        .description(f"Which instances to show: {service}.")
        .datasource(SOURCE)
        .query({"query": f"label_values({metric}, instance)", "refId": "instances"})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def figure(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str = COUNT,
    warn: float | None = None,
    alarm: float | None = None,
    span: int = 4,
) -> Stat:
    """One number of now, which turns orange from `warn` and red from `alarm` on."""
    steps = [Threshold(value=None, color="green")]
    steps += [Threshold(value=at, color=color) for at, color in ((warn, "orange"), (alarm, "red")) if at is not None]
    return _described(
        Stat()
        .with_target(_target("A", (expression, title)).instant())
        .thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.NONE)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .height(FIGURE_HEIGHT),
        title,
        description,
        unit,
        span,
    )


def graph(
    title: str, description: str, *queries: Query, unit: str = COUNT, stacked: bool = False, span: int = 12
) -> TimeSeries:
    """Lines over time, or with `stacked` areas upon one another."""
    built = (
        TimeSeries()
        .min(0)
        .fill_opacity(40 if stacked else 8)
        .line_width(1)
        .show_points(VisibilityMode.NEVER)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .height(GRAPH_HEIGHT)
    )
    if stacked:
        built.stacking(StackingConfig().mode(StackingMode.NORMAL).group("A"))
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        built.with_target(_target(letter, query).range())
    return _described(built, title, description, unit, span)


def rate(counter: str, by: str = "", labels: str = "") -> str:
    """How fast a counter grows, a second, summed by labels; `labels` are further matchers."""
    summed = f"sum by ({by})" if by else "sum"
    return f"{summed} (rate({counter}{{{labels}}}[$__rate_interval]))"


def quantiles(histogram: str, labels: str = "", shares: Sequence[float] = (0.5, 0.99)) -> list[Query]:
    """What so large a share of the observations of a histogram stay below."""
    buckets = rate(f"{histogram}_bucket", "le", labels)
    return [(f"histogram_quantile({share:g}, {buckets})", f"p{share * 100:g}") for share in shares]


def _target(letter: str, query: Query) -> Dataquery:
    expression, legend = query
    return Dataquery().ref_id(letter).datasource(SOURCE).expr(expression).legend_format(legend)


def _described(panel: _Kind, title: str, description: str, unit: str, span: int) -> _Kind:
    return panel.title(title).description(description).datasource(SOURCE).unit(unit).span(span)
