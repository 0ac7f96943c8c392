//! Parts that several commands share: output, lines of servers, JSON, text of others, dates, exit statuses, Ctrl-C.

pub(crate) mod calendar;
mod exit;
mod interrupt;
mod json;
mod output;
mod server_log;
mod text;

pub(crate) use exit::exit_code;
pub(crate) use interrupt::{is_interrupted, take_status_request, watch_for_interrupt};
pub(crate) use json::{print_json, to_json, to_json_line};
pub(crate) use output::{note, print, write_note};
pub(crate) use server_log::server_line;
pub(crate) use text::{printable, printable_bytes, quoted};
