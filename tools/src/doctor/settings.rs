//! The environment: variables with values that would be ignored, and misspelled names.

use std::net::IpAddr;
use std::path::Path;

use super::check::Finding;

const PREFIX: &str = "RDMA_VERBS_";

/// A variable: its name after the prefix, what is allowed, and how it is recognized.
type Variable = (&'static str, &'static str, fn(&str) -> bool);

const VARIABLES: [Variable; 14] = [
    ("ADDRESSES", "addresses, separated by commas", are_addresses),
    ("CAPTURE", "a folder, or a file in an existing one", is_capture),
    ("CAPTURE_BYTES", "a number of bytes", is_number),
    ("CONGESTION", "cubic or constant", |value| ["cubic", "constant"].contains(&value)),
    ("DISCOVERY", "on or off", |value| ["on", "off"].contains(&value)),
    ("FAULTS", "signal or kernel", |value| ["signal", "kernel"].contains(&value)),
    ("LOG", "off, error, warn, info, debug or trace", |value| {
        ["off", "error", "warn", "info", "debug", "trace"].contains(&value)
    }),
    ("MAX_PATH_BYTES_PER_SECOND", "a number of bytes", is_number),
    ("MTU", "256, 512, 1024, 2048 or 4096", |value| ["256", "512", "1024", "2048", "4096"].contains(&value)),
    ("PEERS", "addresses, separated by commas", are_addresses),
    ("SHARDS", "1 to 16", |value| value.parse().is_ok_and(|shards: u32| (1..=16).contains(&shards))),
    ("SHARED_MEMORY", "auto, off or require", |value| ["auto", "off", "require"].contains(&value)),
    ("VENDOR_ID", "a number, decimal or with 0x", is_any_number),
    ("VENDOR_PART_ID", "a number, decimal or with 0x", is_any_number),
];

fn are_addresses(value: &str) -> bool {
    value.split(',').all(|address| address.trim().parse::<IpAddr>().is_ok())
}

fn is_number(value: &str) -> bool {
    value.parse::<u64>().is_ok()
}

fn is_any_number(value: &str) -> bool {
    value.strip_prefix("0x").map_or_else(|| value.parse().ok(), |digits| u32::from_str_radix(digits, 16).ok()).is_some()
}

fn is_capture(value: &str) -> bool {
    let path = Path::new(value);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    path.is_dir() || parent.is_dir()
}

pub(super) fn settings() -> Finding {
    let all = std::env::vars_os().map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()));
    let mut ours: Vec<[String; 2]> = all.filter(|[name, _]| name.starts_with(PREFIX)).collect();
    ours.sort();
    judge(&ours)
}

fn judge(variables: &[[String; 2]]) -> Finding {
    let mistakes: Vec<(String, &str)> = variables
        .iter()
        .filter_map(|[name, value]| mistake(&name[PREFIX.len()..], value.trim()).map(|text| (text, name.as_str())))
        .collect();
    if variables.is_empty() {
        return Finding::ok("no variable RDMA_VERBS_* is set");
    }
    let Some((_, first)) = mistakes.first() else {
        let set: Vec<String> = variables.iter().map(|[name, value]| format!("{name}={value}")).collect();
        return Finding::ok(set.join(", "));
    };
    let why = format!("{} of {} variables are ignored", mistakes.len(), variables.len());
    let finding = Finding::problem(why, format!("unset {first}"));
    let finding = mistakes[1..].iter().fold(finding, |finding, (_, name)| finding.command(format!("unset {name}")));
    mistakes.into_iter().fold(finding, |finding, (text, _)| finding.detail(text))
}

/// Returns what is wrong with a variable. An empty one counts as not set.
fn mistake(name: &str, value: &str) -> Option<String> {
    let known = VARIABLES.iter().find(|(known, _, _)| *known == name);
    match known {
        None => {
            let names: Vec<&str> = VARIABLES.iter().map(|(known, _, _)| *known).collect();
            Some(format!("{PREFIX}{name} is not known; after {PREFIX}, there are: {}", names.join(", ")))
        }
        Some((_, allowed, is_right)) if !value.is_empty() && !is_right(value) => {
            Some(format!("{PREFIX}{name} is \"{value}\"; allowed: {allowed}"))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Outcome;
    use super::*;

    #[test]
    fn values_are_checked() {
        let right = [("SHARED_MEMORY", "auto"), ("VENDOR_ID", "0x02c9"), ("SHARDS", "16"), ("MTU", "")];
        let wrong = [("SHARED_MEMORY", "yes"), ("VENDOR_ID", "x"), ("SHARDS", "17"), ("MTU", "1500"), ("LOGS", "info")];
        for (name, value) in right.into_iter().chain([("PEERS", "10.0.0.1, ::1"), ("CAPTURE", "/tmp/new.pcapng")]) {
            assert_eq!(mistake(name, value), None);
        }
        for (name, value) in wrong.into_iter().chain([("PEERS", "server"), ("CAPTURE", "/no/such/file")]) {
            assert!(mistake(name, value).is_some_and(|text| text.contains(name)), "{name}={value}");
        }
    }

    #[test]
    fn each_mistake_has_its_command() {
        let set = |name: &str, value: &str| [format!("{PREFIX}{name}"), value.to_owned()];
        let finding = judge(&[set("DISCOVERY", "on"), set("LOG", "loud"), set("MTUU", "256")]);
        assert_eq!(finding.outcome, Outcome::Problem);
        assert_eq!(finding.commands, ["unset RDMA_VERBS_LOG", "unset RDMA_VERBS_MTUU"]);
        assert_eq!(judge(&[set("DISCOVERY", "on")]).outcome, Outcome::Ok);
    }
}
