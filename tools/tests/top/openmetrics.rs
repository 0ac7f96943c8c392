//! A strict reader of the text format of OpenMetrics 1.0, as far as the program uses it.

use std::collections::{BTreeMap, HashSet};

/// Names and values of labels, in their order.
pub(super) type Labels = Vec<(String, String)>;
pub(super) type Sample = (Labels, f64);

/// A metric, as it is in the text.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) kind: String,
    unit: Option<String>,
    help: Option<String>,
    pub(super) samples: Vec<Sample>,
}

/// Reads a text, or returns the first line that violates the format, and why.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it does not end with # EOF")?;
    let (mut families, mut current): (BTreeMap<String, Family>, String) = (BTreeMap::new(), String::new());
    let mut seen = HashSet::new();
    for line in body.lines() {
        let wrong = |why: &str| format!("{why}: {line}");
        match line.strip_prefix("# ") {
            Some(comment) => {
                let [kind, name, value] = words(comment).ok_or_else(|| wrong("an incomplete comment"))?;
                if kind == "TYPE" {
                    if families
                        .insert(name.to_owned(), Family { kind: value.to_owned(), ..Family::default() })
                        .is_some()
                    {
                        return Err(wrong("a family that comes twice"));
                    }
                    name.clone_into(&mut current);
                }
                let family = families.get_mut(name).filter(|_| name == current).ok_or_else(|| wrong("out of order"))?;
                describe(family, kind, name, value).map_err(wrong)?;
            }
            None => {
                let family = families.get_mut(&current).ok_or_else(|| wrong("a sample before all families"))?;
                let sample = sample(family, &current, line).map_err(wrong)?;
                if !seen.insert(line.rsplit_once(' ').map(|(series, _)| series)) {
                    return Err(wrong("a series that comes twice"));
                }
                family.samples.push(sample);
            }
        }
    }
    match families.iter().find(|(_, family)| family.help.is_none()) {
        Some((name, _)) => Err(format!("{name} has no description")),
        None => Ok(families),
    }
}

fn words(comment: &str) -> Option<[&str; 3]> {
    let (kind, rest) = comment.split_once(' ')?;
    let (name, value) = rest.split_once(' ')?;
    (!value.is_empty() && is_name(name)).then_some([kind, name, value])
}

fn describe(family: &mut Family, kind: &str, name: &str, value: &str) -> Result<(), &'static str> {
    let is_first = family.samples.is_empty();
    match kind {
        "TYPE" if !["counter", "gauge"].contains(&value) => Err("an unexpected type"),
        "TYPE" if name.ends_with("_total") => Err("the family of a counter has the suffix of its samples"),
        "TYPE" => Ok(()),
        "UNIT" if !name.ends_with(&format!("_{value}")) => Err("a name without its unit"),
        "UNIT" if is_first && family.unit.replace(value.to_owned()).is_none() => Ok(()),
        "HELP" if is_first && family.help.replace(value.to_owned()).is_none() => Ok(()),
        _ => Err("a comment of an unknown kind, out of order, or twice"),
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') && name.chars().all(is_part)
}

fn sample(family: &Family, name: &str, line: &str) -> Result<Sample, &'static str> {
    let suffix = if family.kind == "counter" { "_total" } else { "" };
    let rest = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(suffix)).ok_or("another family's sample")?;
    let (labels, value) = labels(rest.strip_prefix('{').ok_or("no labels")?)?;
    let value: f64 = value.strip_prefix(' ').and_then(|value| value.parse().ok()).ok_or("no number")?;
    match family.kind.as_str() {
        "counter" if value < 0.0 || !value.is_finite() => Err("a counter that is negative or not finite"),
        _ => Ok((labels, value)),
    }
}

/// Reads labels up to the closing brace. Returns them and the rest of the line.
fn labels(text: &str) -> Result<(Labels, &str), &'static str> {
    let (mut labels, mut rest): (Labels, _) = (Vec::new(), text);
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name) || labels.iter().any(|(other, _)| other == name) {
            return Err("a label with a wrong name, or twice");
        }
        let (value, after) = quoted(after)?;
        labels.push((name.to_owned(), value));
        match after.split_at_checked(1) {
            Some((",", more)) => rest = more,
            Some(("}", end)) => return Ok((labels, end)),
            _ => return Err("neither a further label nor the end of them"),
        }
    }
}

fn quoted(text: &str) -> Result<(String, &str), &'static str> {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Ok((value, &text[index + 1..])),
            '\\' => match characters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                _ => return Err("an unknown escape"),
            },
            other => value.push(other),
        }
    }
    Err("a label's value without its end")
}
