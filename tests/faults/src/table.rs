//! The table of faults: their names, their campaigns and their changes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::Deserialize;

/// All files of the table.
#[derive(Default, Debug)]
pub(crate) struct Table {
    pub(crate) faults: Vec<Fault>,
    /// Changes of the copy with every fault, and with none.
    pub(crate) always: Vec<Always>,
}

/// A mistake that can be switched on.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: String,
    pub(crate) campaign: Campaign,
    /// A sentence that describes the mistake.
    pub(crate) what: String,
    pub(crate) changes: Vec<Change>,
}

/// The campaign that must find a fault.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Campaign {
    Protocol,
    Recovery,
    Congestion,
    Connections,
    Messages,
    Verbs,
    Links,
}

impl Campaign {
    pub(crate) const ALL: [Self; 7] =
        [Self::Protocol, Self::Recovery, Self::Congestion, Self::Connections, Self::Messages, Self::Verbs, Self::Links];
}

/// A text in the body of a function, and its replacement.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    pub(crate) file: String,
    /// `Type::method`, or the name of a free function.
    pub(crate) function: String,
    pub(crate) text: String,
    pub(crate) with: String,
}

/// A text anywhere in a file, and its replacement.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Always {
    pub(crate) file: String,
    pub(crate) text: String,
    pub(crate) with: String,
}

/// A file of the table as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    fault: Vec<Entry>,
    #[serde(default)]
    always: Vec<Always>,
}

/// A fault as written: with one change in its own keys, or with several in their own tables.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    campaign: Campaign,
    what: String,
    file: Option<String>,
    function: Option<String>,
    text: Option<String>,
    with: Option<String>,
    #[serde(default)]
    change: Vec<Change>,
}

impl Table {
    /// Reads all files of a directory whose names end with `.toml`, in the order of their names.
    pub(crate) fn read(directory: &Path) -> Result<Self, Vec<String>> {
        let failed = |error: std::io::Error| vec![format!("{}: {error}", directory.display())];
        let mut files = Vec::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
        files.sort();
        let (mut table, mut problems) = (Self::default(), Vec::new());
        for file in files {
            let text = fs::read_to_string(&file).map_err(|error| error.to_string());
            match text.and_then(|text| table.add(&text)) {
                Ok(()) => {}
                Err(problem) => problems.push(format!("{}: {problem}", file.display())),
            }
        }
        problems.extend(table.duplicates());
        if problems.is_empty() { Ok(table) } else { Err(problems) }
    }

    /// Adds the entries of a file.
    pub(crate) fn add(&mut self, text: &str) -> Result<(), String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        for entry in file.fault {
            self.faults.push(entry.into_fault()?);
        }
        let always = file.always.into_iter();
        self.always.extend(always.map(|Always { file, text, with }| Always {
            file,
            text: trimmed(text),
            with: trimmed(with),
        }));
        Ok(())
    }

    fn duplicates(&self) -> Vec<String> {
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        self.faults.iter().for_each(|fault| *times.entry(&fault.name).or_default() += 1);
        let twice = times.into_iter().filter(|(_, times)| *times > 1);
        twice.map(|(name, times)| format!("{times} faults have the name {name}")).collect()
    }
}

impl Entry {
    fn into_fault(self) -> Result<Fault, String> {
        let Self { name, campaign, what, file, function, text, with, change: mut changes } = self;
        let starts_well = name.starts_with(|first: char| first.is_ascii_uppercase());
        if !starts_well || !name.chars().all(|character| character.is_ascii_alphanumeric()) {
            return Err(format!("{name:?} is no name for a fault: it must be one like GoBackTooShort"));
        }
        match (file, function, text, with) {
            (Some(file), Some(function), Some(text), Some(with)) if changes.is_empty() => {
                changes.push(Change { file, function, text, with });
            }
            (None, None, None, None) if !changes.is_empty() => {}
            _ => {
                return Err(format!(
                    "{name} needs either file, function, text and with, or tables [[fault.change]] with these keys"
                ));
            }
        }
        for change in &mut changes {
            change.text = trimmed(std::mem::take(&mut change.text));
            change.with = trimmed(std::mem::take(&mut change.with));
            if change.text.trim().is_empty() || change.text == change.with {
                return Err(format!("{name}: a change needs a text, and another one to stand in its place"));
            }
        }
        Ok(Fault { name, campaign, what, changes })
    }
}

/// Returns the text without the line end before the closing quotes.
fn trimmed(text: String) -> String {
    text.strip_suffix('\n').map(str::to_owned).unwrap_or(text)
}

impl fmt::Display for Campaign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Protocol => "protocol",
            Self::Recovery => "recovery",
            Self::Congestion => "congestion",
            Self::Connections => "connections",
            Self::Messages => "messages",
            Self::Verbs => "verbs",
            Self::Links => "links",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "[[fault]]\nname = \"A\"\ncampaign = \"verbs\"\nwhat = \"A mistake.\"\n";

    fn read(text: &str) -> Result<Table, String> {
        let mut table = Table::default();
        table.add(text).map(|()| table)
    }

    #[test]
    fn one_line_end_of_a_text_is_dropped() {
        let keys = "file = \"a.rs\"\nfunction = \"f\"\ntext = '''\n  a\n\n'''\nwith = \"b\"\n";
        let table = read(&format!("{HEAD}{keys}")).expect("a table");
        assert_eq!(table.faults[0].campaign, Campaign::Verbs);
        assert_eq!((&*table.faults[0].changes[0].text, &*table.faults[0].changes[0].with), ("  a\n", "b"));
    }

    #[test]
    fn a_fault_may_have_several_changes() {
        let change = "[[fault.change]]\nfile = \"a.rs\"\nfunction = \"f\"\ntext = \"a\"\nwith = \"\"\n";
        let table = read(&format!("{HEAD}{change}{change}")).expect("a table");
        assert_eq!(table.faults[0].changes.len(), 2);
    }

    #[test]
    fn half_an_entry_is_refused() {
        let keys = "file = \"a.rs\"\ntext = \"a\"\nwith = \"b\"\n";
        assert!(read(&format!("{HEAD}{keys}")).expect_err("no function").contains("A needs either"));
        assert!(read(HEAD).expect_err("no change").contains("A needs either"));
        assert!(read(&format!("{HEAD}place = \"a.rs\"\n")).expect_err("no such key").contains("place"));
        assert!(read(&HEAD.replace("verbs", "other")).expect_err("no such campaign").contains("other"));
        let same = "file = \"a.rs\"\nfunction = \"f\"\ntext = \"a\"\nwith = \"a\"\n";
        assert!(read(&format!("{HEAD}{same}")).expect_err("no change").contains("in its place"));
        let name = HEAD.replace("\"A\"", "\"a b\"");
        assert!(read(&format!("{name}{same}")).expect_err("no name").contains("no name for a fault"));
    }

    #[test]
    fn names_are_unique() {
        let entry = format!("{HEAD}file = \"a.rs\"\nfunction = \"f\"\ntext = \"a\"\nwith = \"b\"\n");
        let table = read(&format!("{entry}{entry}")).expect("a table");
        assert_eq!(table.duplicates(), ["2 faults have the name A"]);
    }
}
