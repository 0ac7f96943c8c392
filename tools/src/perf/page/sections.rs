//! The sections of the page.

use serde_json::json;

use super::cards;
use super::figures::{Change, Source, Trend};
use super::format;
use super::input::{DATA_ID, Named, Verdict as RowVerdict};
use super::markup::Markup;
use super::verdict::{Mood, Tile, Verdict};

/// Number of changes in the head of the page.
const MOST_CHANGES: usize = 6;
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Returns the whole page.
pub(super) fn page(title: &str, verdict: &Verdict, sources: &[Source], named: &[Named]) -> String {
    let titles = cards::titles(sources);
    let mut page = Markup::default();
    page.constant("<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n");
    page.constant("<meta charset=\"utf-8\" />\n");
    page.constant("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n");
    page.constant("<meta name=\"color-scheme\" content=\"light dark\" />\n");
    page.leaf("title", &[], title);
    page.element("style", &[], |page| page.constant(STYLE));
    page.constant("</head>\n<body>\n");
    page.element("main", &[], |page| {
        header(page, title, sources);
        verdict_section(page, verdict, &titles);
        for (number, title) in titles.iter().enumerate() {
            cards::card(page, number, title, sources);
        }
        sources.iter().filter(|source| !source.rows.is_empty()).for_each(|source| rows(page, source));
        machines(page, sources);
        repeat(page, sources);
        reading(page);
    });
    page.element("div", &[("id", "tip"), ("hidden", "hidden")], |_| {});
    let data: Vec<_> = named.iter().map(|named| json!({ "name": named.name, "document": named.value })).collect();
    page.open("script", &[("type", "application/json"), ("id", DATA_ID)]);
    page.json(&data.into());
    page.close("script");
    page.element("script", &[], |page| page.constant(SCRIPT));
    page.constant("</body>\n</html>\n");
    page.finish()
}

fn header(page: &mut Markup, title: &str, sources: &[Source]) {
    page.element("header", &[], |page| {
        page.leaf("h1", &[], title);
        for (number, source) in sources.iter().enumerate() {
            let machine = &source.machine;
            let mut parts = Vec::new();
            parts.extend(source.measured_at.map(format::time));
            parts.extend([&machine.processor].into_iter().filter(|text| !text.is_empty()).cloned());
            parts.extend((machine.cores > 0).then(|| format!("{} cores", machine.cores)));
            parts.extend((!machine.kernel.is_empty()).then(|| format!("Linux {}", machine.kernel)));
            parts.extend((!machine.version.is_empty()).then(|| format!("rdma-verbs {}", machine.version)));
            page.element("p", &[("class", "subtitle")], |page| {
                if sources.len() > 1 {
                    page.leaf("span", &[("class", &format!("key c{number}"))], "");
                    page.leaf("strong", &[], &source.name);
                    page.text(" ");
                }
                page.text(&parts.join(" · "));
            });
        }
    });
}

fn verdict_section(page: &mut Markup, verdict: &Verdict, titles: &[String]) {
    page.element("section", &[("class", "verdict"), ("id", "verdict")], |page| {
        page.leaf("p", &[("class", &format!("headline {}", verdict.mood.class()))], &verdict.headline);
        verdict.sentences.iter().for_each(|sentence| page.leaf("p", &[("class", "sentence")], sentence));
        page.element("div", &[("class", "tiles")], |page| {
            verdict.tiles.iter().for_each(|of_case| tile(page, of_case, titles));
        });
        largest_changes(page, verdict);
        if !verdict.warnings.is_empty() {
            page.element("ul", &[("class", "warnings")], |page| {
                verdict.warnings.iter().for_each(|warning| page.leaf("li", &[], warning));
            });
        }
    });
}

fn tile(page: &mut Markup, tile: &Tile, titles: &[String]) {
    let number = titles.iter().position(|title| *title == tile.case).unwrap_or(0);
    page.element("a", &[("class", "tile"), ("href", &format!("#case-{number}"))], |page| {
        page.leaf("span", &[("class", "label")], &tile.label);
        page.element("span", &[("class", "number"), ("data-value", &tile.number.to_string())], |page| {
            page.text(&format::number(tile.number));
            page.leaf("small", &[], &format!(" {}", tile.unit));
        });
        page.leaf("span", &[("class", "detail")], &tile.detail);
        if let Some((mood, text)) = &tile.chip {
            page.leaf("span", &[("class", &format!("chip {}", mood.class()))], text);
        }
    });
}

/// Lists the changes beyond noise, the largest first, those for the worse before the others.
fn largest_changes(page: &mut Markup, verdict: &Verdict) {
    for (name, changes) in &verdict.changes {
        let mut beyond: Vec<&Change> = changes.iter().filter(|change| change.trend != Trend::Same).collect();
        beyond.sort_by(|one, two| {
            let rank = |change: &Change| (change.trend == Trend::Better, -change.change.abs());
            rank(one).partial_cmp(&rank(two)).unwrap_or(std::cmp::Ordering::Equal)
        });
        if beyond.is_empty() {
            continue;
        }
        page.leaf("h3", &[], &format!("Changes beyond noise: {name}"));
        page.element("ul", &[("class", "changes")], |page| {
            for change in beyond.iter().take(MOST_CHANGES) {
                let mood = trend_mood(change.trend);
                let Change { case, bytes, figure, before, after, noise, .. } = change;
                page.open("li", &[]);
                page.leaf("span", &[("class", &format!("chip {}", mood.class()))], &format::change(change.change));
                let [before, after] = [before, after].map(|value| format::number(value.median));
                page.text(&format!(
                    " {case}, {}, {}: {before} → {after} {}; noise {}",
                    format::bytes(*bytes),
                    figure.name(),
                    figure.unit(),
                    format::noise(*noise)
                ));
                page.close("li");
            }
            if beyond.len() > MOST_CHANGES {
                page.leaf("li", &[], &format!("and {} more below", beyond.len() - MOST_CHANGES));
            }
        });
    }
}

pub(super) fn trend_mood(trend: Trend) -> Mood {
    match trend {
        Trend::Better => Mood::Good,
        Trend::Same => Mood::Neutral,
        Trend::Worse => Mood::Bad,
    }
}

/// Shows the rows of `perf table`.
fn rows(page: &mut Markup, source: &Source) {
    page.element("section", &[("class", "card")], |page| {
        page.leaf("h2", &[], &format!("Table: {}", source.name));
        page.element("div", &[("class", "scroll")], |page| {
            page.element("table", &[], |page| {
                head(
                    page,
                    &["row", "figure", "rdma-verbs", "other", "", "ratio", "single ratios", "target", "compared with"],
                );
                page.element("tbody", &[], |page| {
                    for (name, verdicts) in &source.rows {
                        verdicts.iter().for_each(|verdict| row(page, name, verdict));
                    }
                });
            });
        });
    });
}

fn row(page: &mut Markup, name: &str, verdict: &RowVerdict) {
    let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), format::number);
    page.element("tr", &[], |page| {
        page.leaf("th", &[("scope", "row")], name);
        page.leaf("td", &[("class", "text")], &verdict.figure);
        cards::cell(page, verdict.ours);
        cards::cell(page, verdict.other);
        page.leaf("td", &[("class", "text")], &verdict.unit);
        page.element("td", &[], |page| {
            let mood = match verdict.is_met {
                Some(true) => Mood::Good,
                Some(false) => Mood::Attention,
                None => Mood::Neutral,
            };
            let text = verdict.ratio.map_or_else(|| "–".to_owned(), format::ratio);
            page.leaf("span", &[("class", &format!("chip {}", mood.class()))], &text);
        });
        page.leaf("td", &[], &format!("{} to {}", number(verdict.least_ratio), number(verdict.most_ratio)));
        let target = verdict.target.iter().next().map_or_else(String::new, |(kind, limit)| {
            let sign = match kind.as_str() {
                "at_most" => "≤",
                "at_least" => "≥",
                other => other,
            };
            format!("{sign} {}", format::number(*limit))
        });
        page.leaf("td", &[], &target);
        page.leaf("td", &[("class", "text")], &verdict.compared_with);
    });
}

/// Adds the head of a table; the columns with these names have text.
pub(super) fn head(page: &mut Markup, names: &[&str]) {
    let class = |name: &str| if ["figure", "compared with", ""].contains(&name) { "text" } else { "number-column" };
    page.element("thead", &[], |page| {
        page.element("tr", &[], |page| {
            names.iter().for_each(|name| page.leaf("th", &[("scope", "col"), ("class", class(name))], name));
        });
    });
}

fn machines(page: &mut Markup, sources: &[Source]) {
    let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
    let facts = |source: &Source| -> Vec<String> {
        let (machine, device) = (&source.machine, source.device.as_ref());
        let of_device = |text: Option<String>| text.unwrap_or_else(|| "unknown".to_owned());
        vec![
            source.measured_at.map_or_else(|| "unknown".to_owned(), format::time),
            or_unknown(&machine.processor),
            machine.cores.to_string(),
            or_unknown(&machine.kernel),
            or_unknown(&machine.load),
            or_unknown(&machine.receive_buffer_limit),
            of_device(device.map(|device| format!("{} ({})", device.name, device.gid))),
            of_device(device.map(|device| device.provider.clone())),
            of_device(device.and_then(|device| device.active_mtu).map(|mtu| mtu.to_string())),
            or_unknown(&source.shared_memory.join("; ")),
            or_unknown(&machine.version),
            match machine.optimised {
                Some(true) => "yes".to_owned(),
                Some(false) => "no: the figures mean nothing".to_owned(),
                None => "unknown".to_owned(),
            },
            source.repetitions().to_string(),
            source.noise().map_or_else(|| "unknown".to_owned(), format::noise),
        ]
    };
    let names = [
        "measured",
        "processor",
        "cores in use",
        "kernel",
        "load at the start",
        "net.core.rmem_max",
        "device",
        "provider",
        "path MTU of the port",
        "shared memory",
        "rdma-verbs",
        "optimised",
        "repetitions",
        "noise (median)",
    ];
    let columns: Vec<Vec<String>> = sources.iter().map(facts).collect();
    page.element("section", &[("class", "card"), ("id", "machine")], |page| {
        page.leaf("h2", &[], "Machine and device");
        page.element("div", &[("class", "scroll")], |page| {
            page.element("table", &[("class", "facts")], |page| {
                if sources.len() > 1 {
                    let titles: Vec<&str> =
                        std::iter::once("").chain(sources.iter().map(|source| source.name.as_str())).collect();
                    head(page, &titles);
                }
                page.element("tbody", &[], |page| {
                    for (number, name) in names.iter().enumerate() {
                        page.element("tr", &[], |page| {
                            page.leaf("th", &[("scope", "row")], name);
                            columns.iter().for_each(|column| page.leaf("td", &[("class", "text")], &column[number]));
                        });
                    }
                });
            });
        });
    });
}

fn repeat(page: &mut Markup, sources: &[Source]) {
    page.element("section", &[("class", "card"), ("id", "repeat")], |page| {
        page.leaf("h2", &[], "Repeat");
        for source in sources {
            if sources.len() > 1 {
                page.leaf("h3", &[], &source.name);
            }
            let of_cases = source.cases.iter().map(|case| case.invocation.clone().unwrap_or_else(|| case.command()));
            let of_rows = (!source.rows.is_empty()).then(|| "rdma-verbs perf table --json".to_owned());
            let commands: Vec<String> = match &source.invocation {
                Some(command) => vec![command.clone()],
                None => of_cases.chain(of_rows).collect(),
            };
            page.leaf("pre", &[], &commands.join("\n"));
        }
        page.leaf(
            "p",
            &[("class", "note")],
            "The results are in this page. To compare it with a later one, give both to the command, the older first:",
        );
        page.leaf("pre", &[], "rdma-verbs perf report BEFORE.html AFTER.html -o changes.html");
    });
}

fn reading(page: &mut Markup) {
    let terms = [
        ("half round trip", "The time of a message from program to program: half the time of a ping-pong."),
        ("round trip", "READ and atomics: from posting the request to its completion."),
        (
            "median, 99 %, 99.9 %",
            "Half of the messages took no longer than the median, 99 of 100 no longer than the time \
                below 99 %. With several repetitions: the median of theirs.",
        ),
        (
            "ratio",
            "Beside the fastest raw program of the same shape in the same run: plain sockets, without RDMA. 1.2× \
            of a latency is 20\u{a0}% more time, 0.9× of a bandwidth is 10\u{a0}% less.",
        ),
        (
            "noise",
            "The largest distance of a repetition from the median, in percent of it. A change counts only if it \
            exceeds the noise of both results together, and 2 %.",
        ),
        (
            "messages slower than",
            "The share of messages that took longer: the curve at 0.1 % is the 99.9th percentile.",
        ),
        ("processor time", "Of both processes, for 10^9 bytes of payload."),
    ];
    page.element("section", &[("class", "card"), ("id", "terms")], |page| {
        page.leaf("h2", &[], "Terms");
        page.element("dl", &[], |page| {
            for (term, meaning) in terms {
                page.leaf("dt", &[], term);
                page.leaf("dd", &[], meaning);
            }
        });
    });
}
