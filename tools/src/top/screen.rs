//! The state of the screen, and what keys do to it. It draws nothing and reads no clock.

use std::collections::VecDeque;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::watch::rates::Rates;
use crate::watch::table::{Key, Table};
use crate::watch::views::View;
use crate::watch::{Update, Watched};

/// Samples of the throughput that are kept.
const HISTORY: usize = 512;
/// Characters of a filter.
const FILTER_LIMIT: usize = 64;

/// The part of the screen that has the keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Table,
    /// The filter is being typed; Esc restores the old one.
    Filter {
        old: String,
    },
    Help,
    Details {
        key: Key,
        scroll: usize,
    },
}

/// Consequence of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reaction {
    Continue,
    Quit,
    Suspend,
    /// Draw everything again, whatever another program wrote to the terminal.
    Redraw,
}

/// A sorted column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order {
    pub(super) column: usize,
    pub(super) is_reversed: bool,
}

pub(super) struct Screen {
    pub(super) view: View,
    pub(super) mode: Mode,
    pub(super) filter: String,
    /// Only queue pairs and devices of this process.
    pub(super) only: Option<u32>,
    pub(super) is_paused: bool,
    pub(super) every: Duration,
    pub(super) processes: Vec<Watched>,
    /// Why the processes could not be listed.
    pub(super) problem: Option<String>,
    /// Bits per second out and in, the latest last.
    pub(super) history: VecDeque<[u64; 2]>,
    pub(super) total: Rates,
    pub(super) table: Table,
    pub(super) selected: usize,
    selected_key: Option<Key>,
    /// First row that is shown, and the number of rows that fit.
    pub(super) first: usize,
    page: usize,
    orders: [Option<Order>; View::ALL.len()],
}

impl Screen {
    pub(super) fn new(view: View, every: Duration) -> Self {
        Self {
            view,
            mode: Mode::Table,
            filter: String::new(),
            only: None,
            is_paused: false,
            every,
            processes: Vec::new(),
            problem: Some("Looking for processes...".to_owned()),
            history: VecDeque::new(),
            total: Rates::default(),
            table: view.table(&[]),
            selected: 0,
            selected_key: None,
            first: 0,
            page: 1,
            orders: View::ALL.map(busiest_first),
        }
    }

    /// Takes newer values, unless the screen is paused.
    pub(super) fn update(&mut self, update: Update) {
        if self.is_paused {
            return;
        }
        (self.processes, self.problem) = (update.processes, update.problem);
        self.total = total(&self.processes);
        let bits = [self.total.bits_out, self.total.bits_in].map(|rate| rate.unwrap_or(0.0) as u64);
        self.history.push_back(bits);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        self.rebuild();
    }

    pub(super) fn order(&self) -> Option<Order> {
        self.orders[self.view as usize]
    }

    /// Makes the table of the latest values. A selection that the user moved stays with its row as long as that exists;
    /// otherwise it stays where it is, at first with the busiest row.
    fn rebuild(&mut self) {
        let is_shown = |watched: &&Watched| self.only.is_none_or(|only| only == watched.process);
        let shown: Vec<Watched> = self.processes.iter().filter(is_shown).cloned().collect();
        self.table = self.view.table(if self.view == View::Processes { &self.processes } else { &shown });
        self.table.filter(&self.filter);
        if let Some(order) = self.order() {
            self.table.sort(order.column, order.is_reversed);
        }
        let kept = self.selected_key.as_ref().and_then(|key| self.table.rows.iter().position(|row| row.key == *key));
        if kept.is_none() {
            self.selected_key = None;
        }
        self.selected = kept.unwrap_or(self.selected).min(self.table.rows.len().saturating_sub(1));
        self.show_selected();
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.table.rows.len().saturating_sub(1));
        self.selected_key = self.table.rows.get(self.selected).map(|row| row.key.clone());
        self.show_selected();
    }

    /// Sets the number of rows that fit.
    pub(super) fn set_page(&mut self, rows: usize) {
        self.page = rows.max(1);
        self.show_selected();
    }

    fn show_selected(&mut self) {
        let last_first = self.table.rows.len().saturating_sub(self.page);
        self.first = self.first.min(self.selected).max((self.selected + 1).saturating_sub(self.page)).min(last_first);
    }

    fn show(&mut self, view: View) {
        self.view = view;
        (self.selected, self.selected_key, self.first) = (0, None, 0);
        self.rebuild();
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Reaction {
        if key.kind == KeyEventKind::Release {
            return Reaction::Continue;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Reaction::Quit,
                KeyCode::Char('z') => Reaction::Suspend,
                KeyCode::Char('l') => Reaction::Redraw,
                _ => Reaction::Continue,
            };
        }
        match &mut self.mode {
            Mode::Table => return self.press_in_table(key.code),
            Mode::Filter { .. } => self.press_in_filter(key.code),
            Mode::Help => {
                self.mode = Mode::Table;
                // A key that closes the help and ends the program at once would surprise.
            }
            Mode::Details { scroll, .. } => match key.code {
                KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
                KeyCode::Down | KeyCode::Char('j') => *scroll += 1,
                KeyCode::PageUp => *scroll = scroll.saturating_sub(self.page),
                KeyCode::PageDown => *scroll += self.page,
                KeyCode::Char('p' | ' ') => self.is_paused ^= true,
                _ => self.mode = Mode::Table,
            },
        }
        Reaction::Continue
    }

    fn press_in_table(&mut self, code: KeyCode) -> Reaction {
        match code {
            KeyCode::Char('q') => return Reaction::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1),
            KeyCode::PageUp => self.select(self.selected.saturating_sub(self.page)),
            KeyCode::PageDown => self.select(self.selected.saturating_add(self.page)),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char(digit @ '1'..='4') => self.show(View::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab | KeyCode::Right => self.show(self.neighbour(1)),
            KeyCode::BackTab | KeyCode::Left => self.show(self.neighbour(View::ALL.len() - 1)),
            KeyCode::Char('s') => self.sort_by_neighbour(1),
            KeyCode::Char('S') => self.sort_by_neighbour(self.table.columns.len() - 1),
            KeyCode::Char('r') => self.reverse(),
            KeyCode::Char('/') => self.mode = Mode::Filter { old: self.filter.clone() },
            KeyCode::Char('p' | ' ') => self.is_paused ^= true,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Enter => self.open(),
            KeyCode::Esc => self.close(),
            _ => {}
        }
        Reaction::Continue
    }

    fn press_in_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                if let Mode::Filter { old } = std::mem::replace(&mut self.mode, Mode::Table) {
                    self.filter = old;
                }
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) if self.filter.chars().count() < FILTER_LIMIT => self.filter.push(character),
            _ => {}
        }
        self.rebuild();
    }

    fn neighbour(&self, steps: usize) -> View {
        View::ALL[(self.view as usize + steps) % View::ALL.len()]
    }

    fn sort_by_neighbour(&mut self, steps: usize) {
        let column = self.order().map_or(0, |order| (order.column + steps) % self.table.columns.len());
        self.orders[self.view as usize] = Some(Order { column, is_reversed: false });
        self.rebuild();
    }

    fn reverse(&mut self) {
        let order = self.order().unwrap_or(Order { column: 0, is_reversed: false });
        self.orders[self.view as usize] = Some(Order { is_reversed: !order.is_reversed, ..order });
        self.rebuild();
    }

    /// Shows the queue pairs of a process, or the details of a queue pair.
    fn open(&mut self) {
        match self.table.rows.get(self.selected).map(|row| row.key.clone()) {
            Some(Key::Process(process)) => {
                self.only = Some(process);
                self.filter.clear();
                self.show(View::QueuePairs);
            }
            Some(key @ Key::QueuePair { .. }) => self.mode = Mode::Details { key, scroll: 0 },
            Some(Key::Line(_)) | None => {}
        }
    }

    /// Takes back the filter, or else the restriction to a process.
    fn close(&mut self) {
        if !self.filter.is_empty() {
            self.filter.clear();
            return self.rebuild();
        }
        if self.only.take().is_some() {
            self.show(View::Processes);
        }
    }
}

/// Returns the order in which a view begins: the busiest rows are the first.
fn busiest_first(view: View) -> Option<Order> {
    view.busiest().map(|column| Order { column, is_reversed: false })
}

fn total(processes: &[Watched]) -> Rates {
    let mut total = Rates::default();
    for (_, change) in processes.iter().filter(|watched| !watched.is_overdue()).filter_map(Watched::change) {
        total.add(&change.process());
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::tests::{busy, queue_pair, snapshot};

    fn press(screen: &mut Screen, code: KeyCode) -> Reaction {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn type_text(screen: &mut Screen, text: &str) {
        for character in text.chars() {
            press(screen, KeyCode::Char(character));
        }
    }

    fn watched(process: u32, name: &str, bytes: u64) -> Watched {
        let mut watched = Watched::new(process, name);
        for second in 0..2 {
            watched.update(snapshot(second * 1_000_000_000, vec![queue_pair(process, 0, second * bytes)]));
        }
        watched
    }

    fn screen() -> Screen {
        let mut screen = Screen::new(View::Processes, Duration::from_secs(1));
        let processes = vec![watched(1, "idle", 0), watched(2, "server", 500), watched(3, "client", 900)];
        screen.update(Update { processes, problem: None });
        screen
    }

    fn processes(screen: &Screen) -> Vec<String> {
        screen.table.rows.iter().map(|row| row.cells[1].shown()).collect()
    }

    #[test]
    fn the_busiest_process_is_the_first_and_the_order_changes() {
        let mut screen = screen();
        assert_eq!(processes(&screen), ["client", "server", "idle"]);
        press(&mut screen, KeyCode::Char('r'));
        assert_eq!(processes(&screen), ["idle", "server", "client"]);
        let out = screen.order().expect("an order").column;
        press(&mut screen, KeyCode::Char('s'));
        assert_eq!(screen.order(), Some(Order { column: out + 1, is_reversed: false }));
        for _ in 0..out + 1 {
            press(&mut screen, KeyCode::Char('S'));
        }
        assert_eq!(processes(&screen), ["client", "server", "idle"]);
        assert_eq!(screen.order().map(|order| order.column), Some(0));
        press(&mut screen, KeyCode::Char('S'));
        assert_eq!(screen.order().map(|order| order.column), Some(screen.table.columns.len() - 1));
    }

    #[test]
    fn the_selection_stays_with_its_process() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Down);
        assert_eq!(screen.selected, 1);
        let processes = vec![watched(2, "server", 5000), watched(3, "client", 900)];
        screen.update(Update { processes, problem: None });
        assert_eq!((screen.selected, screen.table.rows[0].cells[1].shown().as_str()), (0, "server"));
        // It was not moved: the busiest row is selected.
        press(&mut screen, KeyCode::Char('1'));
        screen.update(Update { processes: vec![watched(2, "server", 1), watched(3, "client", 900)], problem: None });
        assert_eq!((screen.selected, screen.table.rows[0].cells[1].shown().as_str()), (0, "client"));
        screen.update(Update { processes: Vec::new(), problem: None });
        assert_eq!(screen.selected, 0);
        press(&mut screen, KeyCode::Down);
        press(&mut screen, KeyCode::Enter);
        assert_eq!((screen.selected, screen.view), (0, View::Processes));
    }

    #[test]
    fn the_selected_row_is_among_those_shown() {
        let mut screen = screen();
        screen.set_page(2);
        press(&mut screen, KeyCode::End);
        assert_eq!((screen.selected, screen.first), (2, 1));
        press(&mut screen, KeyCode::Home);
        assert_eq!((screen.selected, screen.first), (0, 0));
        press(&mut screen, KeyCode::PageDown);
        assert_eq!((screen.selected, screen.first), (2, 1));
        screen.set_page(10);
        assert_eq!(screen.first, 0);
    }

    #[test]
    fn filters_apply_while_they_are_typed() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Char('/'));
        type_text(&mut screen, "q");
        assert!(processes(&screen).is_empty());
        press(&mut screen, KeyCode::Backspace);
        type_text(&mut screen, "Serv");
        assert_eq!(processes(&screen), ["server"]);
        press(&mut screen, KeyCode::Enter);
        assert_eq!((&screen.mode, screen.filter.as_str()), (&Mode::Table, "Serv"));
        press(&mut screen, KeyCode::Char('/'));
        type_text(&mut screen, "x");
        press(&mut screen, KeyCode::Esc);
        assert_eq!(screen.filter, "Serv");
        press(&mut screen, KeyCode::Esc);
        assert_eq!(processes(&screen).len(), 3);
    }

    #[test]
    fn enter_leads_to_the_queue_pairs_and_their_details() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Enter);
        assert_eq!((screen.view, screen.only, screen.table.rows.len()), (View::QueuePairs, Some(3), 1));
        press(&mut screen, KeyCode::Enter);
        assert!(
            matches!(screen.mode, Mode::Details { key: Key::QueuePair { number: 3, .. }, .. }),
            "{:?}",
            screen.mode
        );
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Reaction::Continue);
        assert_eq!(screen.mode, Mode::Table);
        press(&mut screen, KeyCode::Esc);
        assert_eq!((screen.view, screen.only), (View::Processes, None));
    }

    #[test]
    fn a_paused_screen_keeps_its_values() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Char('p'));
        screen.update(Update { processes: Vec::new(), problem: None });
        assert_eq!((screen.processes.len(), screen.history.len()), (3, 1));
        press(&mut screen, KeyCode::Char('p'));
        screen.update(Update { processes: Vec::new(), problem: None });
        assert_eq!((screen.processes.len(), screen.history.len()), (0, 2));
    }

    #[test]
    fn keys_leave_the_program_and_change_the_view() {
        let mut screen = screen();
        let control = |character| KeyEvent::new(KeyCode::Char(character), KeyModifiers::CONTROL);
        assert_eq!(screen.press(control('c')), Reaction::Quit);
        assert_eq!(screen.press(control('z')), Reaction::Suspend);
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Reaction::Quit);
        for (code, view) in [
            (KeyCode::Char('4'), View::Drops),
            (KeyCode::Tab, View::Processes),
            (KeyCode::BackTab, View::Drops),
            (KeyCode::Char('2'), View::QueuePairs),
        ] {
            press(&mut screen, code);
            assert_eq!(screen.view, view);
        }
        press(&mut screen, KeyCode::Char('h'));
        assert_eq!(screen.mode, Mode::Help);
        press(&mut screen, KeyCode::Char('q'));
        assert_eq!(screen.mode, Mode::Table);
    }

    #[test]
    fn stopped_processes_do_not_count_in_the_total() {
        let mut stopped = Watched::new(9, "stopped");
        for mut snapshot in busy() {
            snapshot.age = Duration::from_secs(60);
            stopped.update(snapshot);
        }
        let mut screen = Screen::new(View::Processes, Duration::from_secs(1));
        screen.update(Update { processes: vec![stopped, watched(2, "server", 500)], problem: None });
        assert_eq!(screen.total.bits_out, Some(4000.0));
    }
}
