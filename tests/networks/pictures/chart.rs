//! Line charts as SVG.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// Margins of the plot within the picture.
const LEFT: f64 = 66.0;
const RIGHT: f64 = WIDTH - 22.0;
const TOP: f64 = 72.0;
const BOTTOM: f64 = HEIGHT - 54.0;
/// A background of its own, readable on light and dark pages.
const BACKGROUND: &str = "#f7f7f5";
const TEXT: &str = "#33332f";
const GRID: &str = "#d9d9d4";
/// Distinguishable with most kinds of color blindness, and in gray (Okabe and Ito).
pub(crate) const COLORS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#b0568f"];
/// Average width of a letter of the legend.
const LETTER: f64 = 6.6;

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scale {
    Linear,
    Logarithmic,
}

/// An axis with its unit and its labeled values.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) scale: Scale,
    pub(crate) range: (f64, f64),
    pub(crate) ticks: Vec<f64>,
}

impl Axis {
    /// Returns an axis from 0 on, with a tick at each multiple of `step`.
    pub(crate) fn linear(name: &str, end: f64, step: f64) -> Self {
        let ticks = (0..=(end / step).round() as u32).map(|tick| f64::from(tick) * step).collect();
        Self { name: name.to_owned(), scale: Scale::Linear, range: (0.0, end), ticks }
    }

    /// Returns the position of a value, from 0 to 1.
    fn position(&self, value: f64) -> f64 {
        let (begin, end) = self.range;
        let position = match self.scale {
            Scale::Linear => (value - begin) / (end - begin),
            Scale::Logarithmic => (value / begin).ln() / (end / begin).ln(),
        };
        position.clamp(0.0, 1.0)
    }
}

/// A curve.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) color: &'static str,
    pub(crate) is_dashed: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A line chart.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
}

impl Chart {
    /// Returns the whole SVG file.
    pub(crate) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"{TEXT}\">\n<title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n\
             <text x=\"{LEFT}\" y=\"26\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n",
            title = escaped(&self.title),
        );
        self.draw_axes(&mut svg);
        self.draw_legend(&mut svg);
        self.series.iter().for_each(|series| self.draw(&mut svg, series));
        svg + "</svg>\n"
    }

    fn draw_axes(&self, svg: &mut String) {
        for tick in &self.y.ticks {
            let (y, label) = (self.y(*tick), label(*tick));
            line(svg, (LEFT, y), (RIGHT, y), GRID);
            text(svg, (LEFT - 8.0, y + 4.0), "end", &label);
        }
        for tick in &self.x.ticks {
            let (x, label) = (self.x(*tick), label(*tick));
            line(svg, (x, BOTTOM), (x, BOTTOM + 5.0), TEXT);
            text(svg, (x, BOTTOM + 20.0), "middle", &label);
        }
        line(svg, (LEFT, BOTTOM), (RIGHT, BOTTOM), TEXT);
        text(svg, ((LEFT + RIGHT) / 2.0, HEIGHT - 12.0), "middle", &self.x.name);
        let (x, y) = (18.0, (TOP + BOTTOM) / 2.0);
        let name = escaped(&self.y.name);
        push(
            svg,
            format_args!("<text transform=\"translate({x} {y:.0}) rotate(-90)\" text-anchor=\"middle\">{name}</text>"),
        );
    }

    fn draw_legend(&self, svg: &mut String) {
        let mut x = LEFT;
        for series in &self.series {
            let Series { color, .. } = series;
            let dash = dash(series);
            push(
                svg,
                format_args!("<path d=\"M{x:.0} 48h22\" stroke=\"{color}\" stroke-width=\"2.5\" fill=\"none\"{dash}/>"),
            );
            text(svg, (x + 28.0, 52.0), "start", &series.name);
            x += 50.0 + LETTER * series.name.chars().count() as f64;
        }
    }

    fn draw(&self, svg: &mut String, series: &Series) {
        let mut path = String::new();
        for (at, (x, y)) in series.points.iter().enumerate() {
            let step = if at == 0 { 'M' } else { 'L' };
            write!(path, "{step}{:.1} {:.1}", self.x(*x), self.y(*y)).expect("a string takes it");
        }
        let (color, dash) = (series.color, dash(series));
        push(
            svg,
            format_args!(
                "<path d=\"{path}\" stroke=\"{color}\" stroke-width=\"1.8\" stroke-linejoin=\"round\" \
                 fill=\"none\"{dash}/>"
            ),
        );
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.position(value) * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - self.y.position(value) * (BOTTOM - TOP)
    }
}

fn dash(series: &Series) -> &'static str {
    if series.is_dashed { " stroke-dasharray=\"6 4\"" } else { "" }
}

fn label(value: f64) -> String {
    // Drops the rounding errors of multiplications.
    format!("{}", (value * 1e6).round() / 1e6)
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), color: &str) {
    push(svg, format_args!("<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"{color}\"/>", from.0, from.1, to.0, to.1));
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    let content = escaped(content);
    push(svg, format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"));
}

fn push(svg: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(svg, "{element}").expect("a string takes it");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
