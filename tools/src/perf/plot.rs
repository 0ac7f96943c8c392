//! Plots: latency and bandwidth against size, and the distribution of latency.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::outcome::Outcome;

const PANEL_WIDTH: u32 = 640;
const HEIGHT: u32 = 480;
/// Distinguishable with most kinds of color blindness, and in gray.
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 86, 86),
];
/// Maximum number of labels on an axis of sizes.
const MOST_TICKS: f64 = 12.0;
const FONT: &str = "sans-serif";

/// A curve.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The curves to draw, a panel for each kind that is present.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    /// Bytes and the median in microseconds.
    pub(crate) latency: Vec<Series>,
    pub(crate) is_whole_round_trip: bool,
    /// Bytes and 10^9 bytes per second.
    pub(crate) bandwidth: Vec<Series>,
    /// Microseconds and the share of messages that took no longer, as the number of its nines.
    pub(crate) distribution: Vec<Series>,
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The scale of an axis and the format of its labels.
#[derive(Clone, Copy)]
enum Scale {
    /// Logarithmic: sizes, labeled at powers of two.
    Bytes,
    /// Logarithmic: times and speeds.
    Number,
    /// Numbers of nines, labeled as percentages.
    Nines,
}

impl Scale {
    /// Returns the position of a value; `None` if it has none.
    fn position(self, value: f64) -> Option<f64> {
        let position = match self {
            Self::Bytes => value.log2(),
            Self::Number => value.log10(),
            Self::Nines => value,
        };
        position.is_finite().then_some(position)
    }

    /// Returns the labeled positions within these bounds.
    fn ticks(self, bounds: &Range<f64>) -> Vec<f64> {
        let whole = |step: usize| (bounds.start.ceil() as i32..=bounds.end as i32).step_by(step).map(f64::from);
        let length = bounds.end - bounds.start;
        match self {
            Self::Bytes => whole((length / MOST_TICKS).ceil() as usize).collect(),
            Self::Nines => [2f64.log10()].into_iter().chain(whole(1)).collect(),
            Self::Number => {
                let steps: &[f64] = match length {
                    0.0..1.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
                    1.0..2.5 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let decades = bounds.start.floor() as i32..=bounds.end as i32;
                decades.flat_map(|decade| steps.iter().map(move |step| f64::from(decade) + step.log10())).collect()
            }
        }
    }

    /// Returns the label of a position.
    fn label(self, position: f64) -> String {
        match self {
            Self::Bytes => bytes(position.exp2()),
            Self::Number => number(10f64.powf(position)),
            Self::Nines => share(position),
        }
    }
}

/// An axis whose values are positions.
struct Axis {
    scale: Scale,
    bounds: Range<f64>,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (position - self.bounds.start) / (self.bounds.end - self.bounds.start);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        let ticks = self.scale.ticks(&self.bounds);
        ticks.into_iter().filter(|position| self.bounds.contains(position)).collect()
    }

    fn range(&self) -> Range<f64> {
        self.bounds.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, position: &f64) -> String {
        self.scale.label(*position)
    }
}

/// The properties of a panel.
struct Panel<'a> {
    title: &'a str,
    x_title: &'a str,
    x_scale: Scale,
    y_title: &'a str,
    y_scale: Scale,
    legend: SeriesLabelPosition,
    series: &'a [Series],
}

/// Writes the plot.
pub(crate) fn draw(file: &Path, picture: &Picture) -> Outcome {
    let round = if picture.is_whole_round_trip { "Round trip" } else { "Half round trip" };
    let microseconds = format!("{round} [µs]");
    let (by_size, distributed) = (format!("{round}, median"), format!("{round}, distribution"));
    let against_size = |title, y_title, legend, series| {
        let (x_title, x_scale, y_scale) = ("message [bytes]", Scale::Bytes, Scale::Number);
        Panel { title, x_title, x_scale, y_title, y_scale, legend, series }
    };
    let panels = [
        against_size(&by_size, &microseconds, SeriesLabelPosition::UpperLeft, &picture.latency),
        against_size("Bandwidth", "GB/s", SeriesLabelPosition::LowerRight, &picture.bandwidth),
        Panel {
            title: &distributed,
            x_title: &microseconds,
            x_scale: Scale::Number,
            y_title: "messages",
            y_scale: Scale::Nines,
            legend: SeriesLabelPosition::LowerRight,
            series: &picture.distribution,
        },
    ];
    // A single size makes no curve.
    let is_curve = |series: &Series| series.points.len() > 1;
    let panels: Vec<&Panel<'_>> = panels.iter().filter(|panel| panel.series.iter().any(is_curve)).collect();
    if panels.is_empty() {
        return Err("there is no curve to draw".into());
    }
    let fail = |error: &dyn std::fmt::Display| format!("cannot write {}: {error}", file.display());
    let canvas = SVGBackend::new(file, (PANEL_WIDTH * panels.len() as u32, HEIGHT)).into_drawing_area();
    draw_panels(&canvas, &panels).map_err(|error| fail(&error).into())
}

fn draw_panels(canvas: &Canvas<'_>, panels: &[&Panel<'_>]) -> Drawn {
    canvas.fill(&WHITE)?;
    for (area, panel) in canvas.split_evenly((1, panels.len())).iter().zip(panels) {
        draw_panel(area, panel)?;
    }
    canvas.present()?;
    Ok(())
}

fn draw_panel(area: &Canvas<'_>, panel: &Panel<'_>) -> Drawn {
    let positioned: Vec<(&str, Vec<(f64, f64)>)> =
        panel.series.iter().map(|series| positioned(series, panel)).collect();
    let all = || positioned.iter().flat_map(|(_, points)| points);
    let (x, y) = (bounds(all().map(|point| point.0)), bounds(all().map(|point| point.1)));
    let mut builder = ChartBuilder::on(area);
    builder.caption(panel.title, (FONT, 20)).margin(14).x_label_area_size(44).y_label_area_size(66);
    let axis = |scale, bounds| Axis { scale, bounds };
    let mut chart = builder.build_cartesian_2d(axis(panel.x_scale, x), axis(panel.y_scale, y))?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(panel.x_title).y_desc(panel.y_title).light_line_style(WHITE);
    mesh.label_style((FONT, 13)).axis_desc_style((FONT, 15)).draw()?;
    for ((name, points), color) in positioned.into_iter().zip(COLORS.into_iter().cycle()) {
        let line = LineSeries::new(points, color.stroke_width(2));
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2));
        chart.draw_series(line)?.label(name).legend(legend);
    }
    let mut legend = chart.configure_series_labels();
    legend.position(panel.legend.clone()).background_style(WHITE.mix(0.85)).border_style(BLACK.mix(0.3));
    legend.label_font((FONT, 13)).draw()?;
    Ok(())
}

/// Returns the points of a series as positions in a panel.
fn positioned<'a>(series: &'a Series, panel: &Panel<'_>) -> (&'a str, Vec<(f64, f64)>) {
    let position = |(x, y): &(f64, f64)| Some((panel.x_scale.position(*x)?, panel.y_scale.position(*y)?));
    (&series.name, series.points.iter().filter_map(position).collect())
}

/// Returns the bounds of the positions, with a margin.
fn bounds(positions: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = positions
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), position| (least.min(position), most.max(position)));
    if least > most {
        return 0.0..1.0;
    }
    let margin = ((most - least) * 0.05).max(0.05);
    least - margin..most + margin
}

/// Formats a size in the usual units.
fn bytes(value: f64) -> String {
    match value {
        1_048_576.0.. => format!("{:.0}M", value / 1_048_576.0),
        1024.0.. => format!("{:.0}K", value / 1024.0),
        _ => format!("{value:.0}"),
    }
}

/// Formats a number with at least two digits.
fn number(value: f64) -> String {
    let digits = (1.0 - value.max(1e-9).log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a share, given by the number of its nines.
fn share(nines: f64) -> String {
    let nines = nines.max(0.0);
    let percent = 100.0 * (1.0 - 0.1f64.powf(nines));
    let digits = (nines - 2.0).ceil().max(0.0) as usize;
    format!("{percent:.digits$} %")
}
