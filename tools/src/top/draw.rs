//! Draws the screen.

use std::env;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, Wrap};

use super::screen::{Mode, Screen};
use crate::watch::format;
use crate::watch::table::{Column, Fitted, Row, Table, Tone};
use crate::watch::views::{self, View};

/// Heights from which the throughput and the last line with the keys are drawn.
const HEIGHT_WITH_THROUGHPUT: u16 = 12;
const HEIGHT_WITH_FRAME: u16 = 5;
/// Width of the numbers beside the bars of the throughput.
const THROUGHPUT_WIDTH: u16 = 34;
/// Width of the names in the details.
const NAME_WIDTH: usize = 26;

const HELP: &str = "\
Up Down PgUp PgDn Home End   select a row
Enter                        the queue pairs of a process, the details of a queue pair
Esc                          back: without the filter, all processes
1 2 3 4, Tab, Left Right     processes, queue pairs, connections, drops
s, S                         sort by the next column, the one before
r                            reverse the order
/                            show rows that contain a text; Esc gives up, Enter keeps it
p                            pause, and go on
Ctrl-L, Ctrl-Z               draw again, suspend
q, Ctrl-C                    quit

OUT and IN are bits a second, from the transport header to the CRC. Requests that are
executed directly in the memory of another process have no packets: SENDS/S counts them.
RETR/S: packets sent again. Window and time in flight are those of the path to the peer.
docs/top.md describes each column.";

/// The abilities of the terminal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abilities {
    has_color: bool,
    has_bars: bool,
}

impl Abilities {
    /// Asks the environment: `NO_COLOR`, `TERM` and the locale.
    pub(super) fn of_environment() -> Self {
        let value = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(value).unwrap_or_default().to_lowercase();
        Self {
            has_color: value("NO_COLOR").is_none() && value("TERM").is_none_or(|term| term != "dumb"),
            has_bars: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }

    fn colored(self, color: Color) -> Style {
        if self.has_color { Style::new().fg(color) } else { Style::new() }
    }

    fn of_tone(self, tone: Tone) -> Style {
        match tone {
            // Only the cells that matter stand out.
            Tone::Normal | Tone::Warning => Style::new(),
            Tone::Faint => Style::new().add_modifier(Modifier::DIM),
            Tone::Error => self.colored(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}

/// Takes lines from the top and the bottom of an area.
struct Rest(Rect);

impl Rest {
    fn first(&mut self, height: u16) -> Rect {
        let height = height.min(self.0.height);
        let taken = Rect { height, ..self.0 };
        self.0 = Rect { y: self.0.y + height, height: self.0.height - height, ..self.0 };
        taken
    }

    fn last(&mut self) -> Rect {
        let height = self.0.height.min(1);
        self.0.height -= height;
        Rect { y: self.0.y + self.0.height, height, ..self.0 }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut Screen, abilities: Abilities) {
    let mut rest = Rest(frame.area());
    if rest.0.height >= HEIGHT_WITH_FRAME {
        frame.render_widget(title(screen), rest.first(1));
        if frame.area().height >= HEIGHT_WITH_THROUGHPUT {
            draw_throughput(frame, screen, abilities, rest.first(2));
        }
        frame.render_widget(tabs(screen, abilities), rest.first(1));
        frame.render_widget(keys(screen), rest.last());
    }
    screen.set_page(usize::from(rest.0.height.saturating_sub(1)));
    match &screen.mode {
        Mode::Help => frame.render_widget(Paragraph::new(HELP), rest.0),
        Mode::Details { .. } => draw_details(frame, screen, rest.0),
        Mode::Table | Mode::Filter { .. } => draw_table(frame, screen, abilities, rest.0),
    }
}

/// The first line: numbers of what is watched, and the interval.
fn title(screen: &Screen) -> Line<'static> {
    let snapshots = || screen.processes.iter().filter_map(|watched| watched.snapshot());
    let devices: usize = snapshots().map(|snapshot| snapshot.devices.len()).sum();
    let all_devices = || snapshots().flat_map(|snapshot| &snapshot.devices);
    let queue_pairs: u64 = all_devices().map(|device| u64::from(device.objects.queue_pairs)).sum();
    let failed: u64 = all_devices().map(views::failures).sum();
    let mut text = format!(
        "  {} processes, {devices} devices, {queue_pairs} queue pairs ({failed} in error), every {} s",
        screen.processes.len(),
        screen.every.as_secs_f32()
    );
    if screen.is_paused {
        text += "  PAUSED";
    }
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Line::from(vec![Span::styled("rdma-verbs top", bold), Span::raw(text)])
}

/// The throughput of all processes: now, and as bars over the last intervals.
fn draw_throughput(frame: &mut Frame<'_>, screen: &Screen, abilities: Abilities, area: Rect) {
    let most = screen.history.iter().flatten().copied().max().unwrap_or(0).max(1);
    let total = &screen.total;
    let rows = [("out", total.bits_out, total.sends), ("in ", total.bits_in, total.receives)];
    for (number, (name, bits, messages)) in rows.into_iter().enumerate() {
        let mut row = Rest(area);
        row.first(number as u16);
        let mut row = row.first(1);
        let text = format!("{name} {:>9}/s  {:>6} messages/s", format::bits(bits), format::rate(messages));
        frame.render_widget(Line::raw(text), row);
        let left = THROUGHPUT_WIDTH.min(row.width);
        (row.x, row.width) = (row.x + left, row.width - left);
        if abilities.has_bars {
            let kept = screen.history.len().saturating_sub(usize::from(row.width));
            let bars: Vec<u64> = screen.history.iter().skip(kept).map(|bits| bits[number]).collect();
            let color = abilities.colored(if number == 0 { Color::Green } else { Color::Cyan });
            frame.render_widget(Sparkline::default().data(bars).max(most).style(color), row);
        }
    }
}

fn tabs(screen: &Screen, abilities: Abilities) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, view) in View::ALL.into_iter().enumerate() {
        let style = if view == screen.view {
            abilities.colored(Color::Cyan).add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
        } else {
            Style::new()
        };
        spans.push(Span::styled(format!("{} {}", number + 1, view.title()), style));
        spans.push(Span::raw("   "));
    }
    if let Some(process) = screen.only.filter(|_| screen.view != View::Processes) {
        spans.push(Span::raw(format!("process {process} only  ")));
    }
    if !screen.filter.is_empty() && !matches!(screen.mode, Mode::Filter { .. }) {
        spans.push(Span::raw(format!("with \"{}\"", screen.filter)));
    }
    Line::from(spans)
}

/// The last line: the keys that matter now, or what is typed.
fn keys(screen: &Screen) -> Line<'static> {
    let text = match &screen.mode {
        Mode::Filter { .. } => return Line::raw(format!("Show rows with: {}_", screen.filter)),
        Mode::Help => "Any key: back".to_owned(),
        Mode::Details { .. } => "Up Down: scroll   p: pause   any other key: back".to_owned(),
        Mode::Table => {
            "q quit   Enter details   Tab view   s sort   r reverse   / filter   p pause   h help".to_owned()
        }
    };
    Line::styled(text, Style::new().add_modifier(Modifier::DIM))
}

fn draw_table(frame: &mut Frame<'_>, screen: &Screen, abilities: Abilities, area: Rect) {
    let table = &screen.table;
    if table.rows.is_empty() {
        let text = match &screen.problem {
            Some(problem) => problem.clone(),
            None if !screen.filter.is_empty() => format!("No row contains \"{}\".", screen.filter),
            None => screen.view.empty().to_owned(),
        };
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
    }
    let fitted = table.fit(usize::from(area.width));
    let mut lines = vec![head(screen, &fitted)];
    let shown = table.rows.iter().enumerate().skip(screen.first).take(usize::from(area.height.saturating_sub(1)));
    let width = usize::from(area.width);
    lines.extend(
        shown.map(|(number, row)| body(table.columns, row, &fitted, (number == screen.selected, width), abilities)),
    );
    frame.render_widget(Paragraph::new(lines), area);
}

/// The titles; that of the sorted column stands out.
fn head(screen: &Screen, fitted: &[Fitted]) -> Line<'static> {
    let text = screen.table.head(fitted);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let sorted = screen.order().and_then(|order| Table::position(fitted, order.column));
    let Some((start, end)) = sorted else { return Line::styled(text, bold) };
    let part = |start: usize, end: usize| text.chars().skip(start).take(end - start).collect::<String>();
    let title = part(start, end);
    let blank = title.chars().count() - title.trim_start().chars().count();
    Line::from(vec![
        Span::styled(part(0, start + blank), bold),
        Span::styled(title.trim().to_owned(), bold.add_modifier(Modifier::REVERSED)),
        Span::styled(part(start + blank + title.trim().chars().count(), text.chars().count().max(end)), bold),
    ])
}

fn body(
    columns: &[Column],
    row: &Row,
    fitted: &[Fitted],
    (is_selected, width): (bool, usize),
    abilities: Abilities,
) -> Line<'static> {
    let style = abilities.of_tone(row.tone);
    let text = Table::line(row, fitted);
    if is_selected {
        return Line::styled(format!("{text:<width$}"), style.add_modifier(Modifier::REVERSED));
    }
    if row.tone == Tone::Warning {
        let warning = abilities.colored(Color::Yellow).add_modifier(Modifier::BOLD);
        let spans = Table::parts(row, fitted)
            .into_iter()
            .zip(fitted)
            .map(|(part, one)| Span::styled(part, if columns[one.column].is_warning { warning } else { style }));
        return Line::from_iter(spans);
    }
    Line::styled(text, style)
}

fn draw_details(frame: &mut Frame<'_>, screen: &mut Screen, area: Rect) {
    let Mode::Details { key, scroll } = &mut screen.mode else { return };
    let Some(details) = views::details(&screen.processes, key) else {
        return frame.render_widget(Paragraph::new("The queue pair is gone."), area);
    };
    *scroll = (*scroll).min(details.len().saturating_sub(usize::from(area.height)));
    let lines: Vec<Line<'_>> = details
        .iter()
        .skip(*scroll)
        .map(|(name, value)| {
            let bold = Style::new().add_modifier(Modifier::BOLD);
            Line::from(vec![Span::styled(format!("{name:<NAME_WIDTH$} "), bold), Span::raw(value.as_str())])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crossterm::event::{KeyCode, KeyEvent};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::watch::tests::busy;
    use crate::watch::{Update, Watched};

    const PLAIN: Abilities = Abilities { has_color: false, has_bars: true };

    fn screen() -> Screen {
        let mut screen = Screen::new(View::Processes, Duration::from_secs(1));
        let mut watched = Watched::new(4711, "fio");
        for snapshot in busy() {
            watched.update(snapshot);
            screen.update(Update { processes: vec![watched.clone()], problem: None });
        }
        screen
    }

    fn press(screen: &mut Screen, codes: &[KeyCode]) {
        for code in codes {
            screen.press(KeyEvent::from(*code));
        }
    }

    fn lines(screen: &mut Screen, width: u16, height: u16, abilities: Abilities) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let buffer = terminal.draw(|frame| draw(frame, screen, abilities)).expect("a drawing").buffer.clone();
        let rows = buffer.content().chunks(usize::from(width));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_usual_terminal_shows_everything() {
        let lines = lines(&mut screen(), 80, 24, PLAIN);
        assert!(
            lines[0].starts_with("rdma-verbs top  1 processes, 1 devices, 2 queue pairs (1 in error)"),
            "{lines:#?}"
        );
        assert!(lines[1].starts_with("out   10.0 Gb/s    250k messages/s") && lines[1].ends_with('█'), "{lines:#?}");
        assert!(lines[3].starts_with("1 Processes   2 Queue pairs"), "{lines:#?}");
        assert!(lines[4].contains("PROCESS") && lines[4].contains("OUT"), "{lines:#?}");
        assert!(lines[5].contains("4711  fio") && lines[5].contains("10.0 Gb"), "{lines:#?}");
        assert!(lines[23].starts_with("q quit"), "{lines:#?}");
    }

    #[test]
    fn every_size_is_drawn_in_every_view_and_mode() {
        for code in ['1', '2', '3', '4'] {
            for then in [KeyCode::Null, KeyCode::Enter, KeyCode::Char('h'), KeyCode::Char('/'), KeyCode::End] {
                for (width, height) in [(1, 1), (3, 2), (10, 5), (39, 11), (40, 12), (80, 24), (300, 60)] {
                    let mut screen = screen();
                    press(&mut screen, &[KeyCode::Char(code), then]);
                    assert_eq!(lines(&mut screen, width, height, PLAIN).len(), usize::from(height));
                }
            }
        }
    }

    #[test]
    fn small_terminals_show_the_rows_first() {
        let lines = lines(&mut screen(), 40, 3, PLAIN);
        assert!(lines[0].contains("PID") && lines[1].contains("4711"), "{lines:#?}");
    }

    #[test]
    fn without_color_no_cell_has_one() {
        let drawn = |abilities| {
            let mut terminal = Terminal::new(TestBackend::new(100, 24)).expect("a terminal");
            let mut screen = screen();
            terminal.draw(|frame| draw(frame, &mut screen, abilities)).expect("a drawing").buffer.clone()
        };
        let has_color = |abilities| drawn(abilities).content().iter().any(|cell| cell.fg != Color::Reset);
        assert!(has_color(Abilities { has_color: true, has_bars: true }));
        assert!(!has_color(PLAIN));
        let plain = drawn(Abilities { has_color: false, has_bars: false });
        assert!(plain.content().iter().all(|cell| cell.symbol().is_ascii()));
    }

    #[test]
    fn without_processes_it_says_what_to_start() {
        let mut screen = Screen::new(View::Processes, Duration::from_secs(1));
        assert!(lines(&mut screen, 80, 24, PLAIN)[4].starts_with("Looking for processes"));
        screen.update(Update::default());
        let lines = lines(&mut screen, 80, 24, PLAIN);
        assert!(lines[4].contains("No process of this user"), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("rdma-verbs perf self send bw")), "{lines:#?}");
    }

    #[test]
    fn the_sorted_column_stands_out() {
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).expect("a terminal");
        let mut screen = screen();
        let buffer = terminal.draw(|frame| draw(frame, &mut screen, PLAIN)).expect("a drawing").buffer.clone();
        let head = &buffer.content()[400..500];
        let reversed = head.iter().filter(|cell| cell.modifier.contains(Modifier::REVERSED));
        assert_eq!(reversed.map(|cell| cell.symbol()).collect::<String>(), "OUT");
    }

    #[test]
    fn details_scroll_to_their_end_and_no_further() {
        let mut screen = screen();
        press(&mut screen, &[KeyCode::Char('2'), KeyCode::Enter]);
        let first = lines(&mut screen, 80, 10, PLAIN);
        assert!(first[2].starts_with("process ") && first[2].ends_with("4711 fio"), "{first:#?}");
        press(&mut screen, &[KeyCode::Down; 100]);
        let last = lines(&mut screen, 80, 10, PLAIN);
        assert!(last[8].starts_with("drop_bad_icrc"), "{last:#?}");
        press(&mut screen, &[KeyCode::Up]);
        let before = lines(&mut screen, 80, 10, PLAIN);
        assert_eq!(before[8], last[7]);
    }
}
