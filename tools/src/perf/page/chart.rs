//! Charts as inline SVG, whose colors are those of the page's style sheet.

use std::ops::Range;

use super::format;
use super::markup::Markup;

const WIDTH: f64 = 540.0;
const HEIGHT: f64 = 296.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 46.0;
/// Distance of two labels of the horizontal axis.
const LABEL_DISTANCE: f64 = 44.0;
/// Maximum number of labels of the vertical axis.
const MOST_LABELS: usize = 9;
/// Number of colors of the style sheet for results, and for references.
const COLORS: usize = 6;
const REFERENCE_COLORS: usize = 3;

/// The scale of an axis and the format of its labels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Logarithmic: sizes, labeled at powers of two.
    Bytes,
    /// Logarithmic: times and speeds.
    Number,
    /// Logarithmic: fractions, labeled as percentages.
    Share,
    /// Linear from 0: fractions, labeled as percentages.
    Percent,
}

impl Scale {
    /// Returns the position of a value; `None` if it has none.
    fn position(self, value: f64) -> Option<f64> {
        let position = match self {
            Self::Bytes => value.log2(),
            Self::Number | Self::Share => value.log10(),
            Self::Percent => value,
        };
        position.is_finite().then_some(position)
    }

    fn bounds(self, values: impl Iterator<Item = f64>) -> Range<f64> {
        let positions = values.filter_map(|value| self.position(value));
        let (least, most) = positions.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), position| {
            (least.min(position), most.max(position))
        });
        match self {
            _ if least > most => 0.0..1.0,
            Self::Percent => 0.0..(most * 1.08).max(1e-6),
            Self::Share => least.floor().min(-1.0)..0.0,
            Self::Bytes => least - 0.3..most + 0.3,
            Self::Number => {
                let margin = ((most - least) * 0.07).max(0.06);
                least - margin..most + margin
            }
        }
    }

    /// Returns the labeled positions within these bounds.
    fn ticks(self, bounds: &Range<f64>) -> Vec<f64> {
        let length = bounds.end - bounds.start;
        let whole = || (bounds.start.ceil() as i32..=bounds.end.floor() as i32).map(f64::from);
        let ticks: Vec<f64> = match self {
            Self::Bytes | Self::Share => whole().collect(),
            Self::Percent => {
                let step = nice(length / 4.0);
                (0..=(length / step) as i32).map(|number| f64::from(number) * step).collect()
            }
            Self::Number => {
                let steps: &[f64] = match length {
                    0.0..0.4 => &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0],
                    0.4..1.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
                    1.0..2.8 => &[1.0, 2.0, 5.0],
                    _ => &[1.0],
                };
                let decades = bounds.start.floor() as i32..=bounds.end as i32;
                decades.flat_map(|decade| steps.iter().map(move |step| f64::from(decade) + step.log10())).collect()
            }
        };
        ticks.into_iter().filter(|position| (bounds.start..=bounds.end).contains(position)).collect()
    }

    fn label(self, position: f64) -> String {
        match self {
            Self::Bytes => format::short_bytes(position.exp2()),
            Self::Number => format::number(10f64.powf(position)),
            Self::Share => format::percent(10f64.powf(position)),
            Self::Percent => format::percent(position),
        }
    }
}

/// Returns the next larger one of 1, 2, 5, 10, 20 ... or of their fractions.
fn nice(step: f64) -> f64 {
    let decade = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|digit| digit * decade).find(|nice| *nice >= step).unwrap_or(10.0 * decade)
}

/// The color of a curve.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Paint {
    /// Of results, by the number of the file or of the measurement.
    Own(usize),
    /// Of a reference, dashed.
    Reference(usize),
}

impl Paint {
    pub(super) fn class(self) -> String {
        match self {
            Self::Own(number) => format!("c{}", number % COLORS),
            Self::Reference(number) => format!("r{}", number % REFERENCE_COLORS),
        }
    }
}

pub(super) struct Curve {
    pub(super) name: String,
    pub(super) paint: Paint,
    pub(super) points: Vec<(f64, f64)>,
    /// The tooltip of each point. Without, points are not marked.
    pub(super) tips: Vec<String>,
    /// Bounds around each point.
    pub(super) band: Vec<(f64, f64)>,
}

/// A bar of a histogram: its bounds and its height.
pub(super) struct Bar {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) height: f64,
    pub(super) tip: String,
}

pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x: (&'static str, Scale),
    pub(super) y: (&'static str, Scale),
    pub(super) curves: Vec<Curve>,
    pub(super) bars: Vec<Bar>,
    /// Vertical lines, with their labels.
    pub(super) marks: Vec<(f64, String)>,
}

/// A chart whose bounds are known.
struct Plane<'a> {
    chart: &'a Chart,
    x: Range<f64>,
    y: Range<f64>,
}

impl Chart {
    /// Returns whether there is anything to see.
    pub(super) fn has_contents(&self) -> bool {
        !self.bars.is_empty() || self.curves.iter().any(|curve| curve.points.len() > 1)
    }

    pub(super) fn draw(&self, page: &mut Markup) {
        let bars = || self.bars.iter().flat_map(|bar| [(bar.from, bar.height), (bar.to, 0.0)]);
        let bands = |curve: &Curve| {
            let xs: Vec<f64> = curve.points.iter().map(|point| point.0).collect();
            xs.into_iter().zip(curve.band.clone()).flat_map(|(x, (low, high))| [(x, low), (x, high)])
        };
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter().copied().chain(bands(curve)));
        let all: Vec<(f64, f64)> = points().chain(bars()).collect();
        let plane = Plane {
            chart: self,
            x: self.x.1.bounds(all.iter().map(|point| point.0)),
            y: self.y.1.bounds(all.iter().map(|point| point.1)),
        };
        page.element("figure", &[("class", "chart")], |page| {
            page.leaf("figcaption", &[], &self.title);
            self.legend(page);
            let box_of = format!("0 0 {WIDTH} {HEIGHT}");
            let attributes = [("viewBox", box_of.as_str()), ("role", "img"), ("aria-label", self.title.as_str())];
            page.element("svg", &attributes, |page| plane.draw(page));
        });
    }

    fn legend(&self, page: &mut Markup) {
        if self.curves.len() < 2 {
            return;
        }
        page.element("ul", &[("class", "legend")], |page| {
            for curve in &self.curves {
                page.open("li", &[]);
                page.leaf("span", &[("class", &format!("key {}", curve.paint.class()))], "");
                page.text(&curve.name);
                page.close("li");
            }
        });
    }
}

impl Plane<'_> {
    fn x(&self, value: f64) -> Option<f64> {
        self.chart.x.1.position(value).map(|position| self.across(position))
    }

    fn y(&self, value: f64) -> Option<f64> {
        self.chart.y.1.position(value).map(|position| self.up(position))
    }

    fn across(&self, position: f64) -> f64 {
        LEFT + (position - self.x.start) / (self.x.end - self.x.start) * (WIDTH - LEFT - RIGHT)
    }

    fn up(&self, position: f64) -> f64 {
        HEIGHT - BOTTOM - (position - self.y.start) / (self.y.end - self.y.start) * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, page: &mut Markup) {
        self.grid(page);
        self.bars(page);
        for curve in &self.chart.curves {
            self.curve(page, curve);
        }
        self.marks(page);
    }

    fn grid(&self, page: &mut Markup) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let ticks = self.chart.y.1.ticks(&self.y);
        let step = ticks.len().div_ceil(MOST_LABELS).max(1);
        for position in ticks.into_iter().step_by(step) {
            let y = self.up(position);
            line(page, "grid", (LEFT, y), (right, y));
            label(page, "tick end", (LEFT - 8.0, y + 4.0), &self.chart.y.1.label(position));
        }
        let mut last = f64::NEG_INFINITY;
        for position in self.chart.x.1.ticks(&self.x) {
            let x = self.across(position);
            line(page, "grid", (x, TOP), (x, bottom));
            if x - last >= LABEL_DISTANCE && x < right - 8.0 {
                label(page, "tick middle", (x, bottom + 17.0), &self.chart.x.1.label(position));
                last = x;
            }
        }
        line(page, "axis", (LEFT, bottom), (right, bottom));
        label(page, "title middle", ((LEFT + right) / 2.0, HEIGHT - 8.0), self.chart.x.0);
        label(page, "title", (4.0, 12.0), self.chart.y.0);
    }

    fn bars(&self, page: &mut Markup) {
        for bar in &self.chart.bars {
            let (Some(from), Some(to), Some(top)) = (self.x(bar.from), self.x(bar.to), self.y(bar.height)) else {
                continue;
            };
            let (from, to) = (from.max(LEFT), to.max(LEFT));
            let height = (HEIGHT - BOTTOM - top).max(0.0);
            let [x, y, width, height] = [from, top, (to - from - 0.8).max(0.6), height].map(coordinate);
            let attributes = [
                ("class", "bar c0"),
                ("x", &x),
                ("y", &y),
                ("width", &width),
                ("height", &height),
                ("data-tip", &bar.tip),
            ];
            page.element("rect", &attributes, |page| page.leaf("title", &[], &bar.tip));
        }
    }

    fn curve(&self, page: &mut Markup, curve: &Curve) {
        let class = curve.paint.class();
        let placed = |x: f64, y: f64| Some((self.x(x)?, self.y(y)?));
        let middle: Vec<Option<(f64, f64)>> = curve.points.iter().map(|(x, y)| placed(*x, *y)).collect();
        if curve.band.len() > 1 {
            let end = |high: bool| {
                let bounds = curve.points.iter().zip(&curve.band);
                bounds.filter_map(move |((x, _), band)| placed(*x, if high { band.1 } else { band.0 }))
            };
            let upper: Vec<(f64, f64)> = end(true).collect();
            let lower: Vec<(f64, f64)> = end(false).collect();
            let path = format!("{}Z", path(upper.into_iter().chain(lower.into_iter().rev())));
            page.empty("path", &[("class", &format!("band {class}")), ("d", &path)]);
        }
        let path = path(middle.iter().copied().flatten());
        page.empty("path", &[("class", &format!("line {class}")), ("d", &path)]);
        for ((x, y), tip) in middle.iter().zip(&curve.tips).filter_map(|(place, tip)| Some(((*place)?, tip))) {
            let [x, y] = [x, y].map(coordinate);
            let dot = format!("dot {class}");
            page.element("g", &[("data-tip", tip)], |page| {
                page.leaf("title", &[], tip);
                page.empty("circle", &[("class", "hit"), ("cx", &x), ("cy", &y), ("r", "11")]);
                page.empty("circle", &[("class", &dot), ("cx", &x), ("cy", &y), ("r", "3.2")]);
            });
        }
    }

    /// Draws the marks, each label one line below the one before, so that close ones are readable.
    fn marks(&self, page: &mut Markup) {
        for (number, (value, text)) in self.chart.marks.iter().enumerate() {
            let Some(x) = self.x(*value).filter(|x| (LEFT..=WIDTH - RIGHT).contains(x)) else { continue };
            line(page, "mark", (x, TOP), (x, HEIGHT - BOTTOM));
            let is_right = x > WIDTH * 0.72;
            let y = TOP + 11.0 + 15.0 * number as f64;
            let (class, x) = if is_right { ("marked end", x - 5.0) } else { ("marked", x + 5.0) };
            label(page, class, (x, y), text);
        }
    }
}

fn coordinate(value: f64) -> String {
    format!("{value:.1}")
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let step = |(number, (x, y)): (usize, (f64, f64))| format!("{}{x:.1} {y:.1}", if number == 0 { 'M' } else { 'L' });
    points.enumerate().map(step).collect()
}

fn line(page: &mut Markup, class: &str, from: (f64, f64), to: (f64, f64)) {
    let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(coordinate);
    page.empty("line", &[("class", class), ("x1", &x1), ("y1", &y1), ("x2", &x2), ("y2", &y2)]);
}

fn label(page: &mut Markup, class: &str, (x, y): (f64, f64), text: &str) {
    let [x, y] = [x, y].map(coordinate);
    page.leaf("text", &[("class", class), ("x", &x), ("y", &y)], text);
}
