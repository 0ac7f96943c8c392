//! Draws the screen of a terminal as SVG.

use std::fmt::Write;

use vt100::{Cell, Color, Screen};

/// Size of a character, and of the frame around all of them.
const CELL: (f64, f64) = (8.4, 18.0);
const FRAME: f64 = 14.0;
const FONT: &str = "'DejaVu Sans Mono',Menlo,Consolas,'Liberation Mono',monospace";
const PAPER: &str = "#16181d";
const INK: &str = "#d8dade";
const FAINT_INK: &str = "#8b9098";

/// Returns the picture. It needs no other file.
pub(super) fn svg(screen: &Screen) -> String {
    let (rows, columns) = (screen.size().0.get(), screen.size().1.get());
    let (width, height) = (f64::from(columns) * CELL.0 + 2.0 * FRAME, f64::from(rows) * CELL.1 + 2.0 * FRAME);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\" aria-label=\"rdma-verbs top in a terminal\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{PAPER}\"/>\n\
         <g font-family=\"{FONT}\" font-size=\"14\">\n"
    );
    for row in 0..rows {
        draw_row(&mut svg, screen, row, columns);
    }
    svg + "</g>\n</svg>\n"
}

/// How a character looks.
#[derive(Clone, Copy, PartialEq)]
struct Look {
    ink: &'static str,
    paper: Option<&'static str>,
    is_bold: bool,
    is_underlined: bool,
}

impl Look {
    fn new(cell: &Cell) -> Self {
        let ink = match color(cell.fgcolor()) {
            None if cell.dim() => FAINT_INK,
            None => INK,
            Some(color) => color,
        };
        let is_reversed = cell.inverse();
        Self {
            ink: if is_reversed { PAPER } else { ink },
            paper: if is_reversed { Some(ink) } else { color(cell.bgcolor()) },
            is_bold: cell.bold(),
            is_underlined: cell.underline(),
        }
    }
}

/// Returns the color of a terminal's palette, or `None` for its usual one.
fn color(color: Color) -> Option<&'static str> {
    match color {
        Color::Idx(1 | 9) => Some("#ff6b68"),
        Color::Idx(2 | 10) => Some("#8cc265"),
        Color::Idx(3 | 11) => Some("#e5b567"),
        Color::Idx(6 | 14) => Some("#5fc9d4"),
        _ => None,
    }
}

fn draw_row(svg: &mut String, screen: &Screen, row: u16, columns: u16) {
    let mut column = 0;
    while column < columns {
        let Some(look) = screen.cell(row, column).map(Look::new) else { return };
        let start = column;
        let mut text = String::new();
        while let Some(cell) = screen.cell(row, column).filter(|cell| Look::new(cell) == look) {
            text.push_str(if cell.has_contents() { cell.contents() } else { " " });
            column += 1;
        }
        draw_text(svg, &text, look, (f64::from(start), f64::from(row)));
    }
}

fn draw_text(svg: &mut String, text: &str, look: Look, (column, row): (f64, f64)) {
    let (left, top) = (FRAME + column * CELL.0, FRAME + row * CELL.1);
    let width = text.chars().count() as f64 * CELL.0;
    // Writing to a string does not fail.
    if let Some(paper) = look.paper {
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"{paper}\"/>",
            CELL.1
        );
    }
    for (index, character) in text.chars().enumerate() {
        // Bars are drawn: fonts differ in them.
        if let eighths @ 1..=8 = bar(character) {
            let height = CELL.1 * f64::from(eighths) / 8.0;
            let (x, y) = (left + index as f64 * CELL.0, top + CELL.1 - height);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{height:.1}\" fill=\"{}\"/>",
                CELL.0, look.ink
            );
        }
    }
    let letters: String = text.chars().map(|character| if bar(character) > 0 { ' ' } else { character }).collect();
    let trimmed = letters.trim_end();
    if trimmed.trim().is_empty() {
        return;
    }
    let leading = trimmed.chars().count() - trimmed.trim_start().chars().count();
    let trimmed = trimmed.trim_start();
    let (x, length) = (left + leading as f64 * CELL.0, trimmed.chars().count() as f64 * CELL.0);
    let bold = if look.is_bold { " font-weight=\"bold\"" } else { "" };
    let line = if look.is_underlined { " text-decoration=\"underline\"" } else { "" };
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{length:.1}\" fill=\"{}\"{bold}{line}>{}</text>",
        top + 13.5,
        look.ink,
        // Viewers join ordinary spaces.
        escaped(trimmed).replace(' ', "\u{a0}")
    );
}

/// Returns the height of a bar in eighths, or 0 for other characters.
fn bar(character: char) -> u32 {
    match character {
        '\u{2581}'..='\u{2588}' => character as u32 - 0x2580,
        _ => 0,
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
