//! The additions to the copy: the module of the switches, and the campaigns as tests.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use toml::Value;

use crate::edit::Files;
use crate::table::{Campaign, Table};

/// The campaigns, which only compile in the copy.
const TESTS: &str = r#"
[[test]]
name = "faults_simulator"
path = "tests/faults/campaigns/simulator.rs"

[[test]]
name = "faults_recovery"
path = "tests/faults/campaigns/recovery.rs"

[[test]]
name = "faults_congestion"
path = "tests/faults/campaigns/congestion.rs"

[[test]]
name = "faults_connections"
path = "tests/faults/campaigns/connections.rs"

[[test]]
name = "faults_links"
path = "tests/faults/campaigns/links.rs"

[[test]]
name = "faults_conformance"
path = "tests/faults/campaigns/conformance.rs"
harness = false
"#;

/// Dependencies of the campaigns; compiling all test dependencies takes longer than compiling the library.
const DEPENDENCIES: &[&str] =
    &["clap", "libtest-mimic", "nix", "proptest", "rdma-verbs", "serde", "support", "tokio", "tracing-subscriber"];

const SWITCHES: &str = "\
/// The environment variable with the name of a process's fault, for programs that a campaign starts.
pub const VARIABLE: &str = \"RDMA_VERBS_FAULT\";

thread_local! {
    static HERE: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// The fault that is on for all threads, or none.
static EVERYWHERE: std::sync::LazyLock<Option<Fault>> = std::sync::LazyLock::new(|| {
    let name = std::env::var(VARIABLE).ok()?;
    Fault::ALL.iter().copied().find(|fault| format!(\"{fault:?}\") == name)
});

/// The fault that is on for this thread.
#[inline]
pub fn on() -> Option<Fault> {
    HERE.get().or_else(|| *EVERYWHERE)
}

/// Switches a fault on, for this thread; and the one before off.
pub fn enable(fault: Option<Fault>) {
    HERE.set(fault);
}
";

/// Adds the files that are changed independently of the table's changes to functions.
pub(crate) fn add(root: &Path, table: &Table, files: &mut Files) -> Result<(), Vec<String>> {
    let mut before = |file: &str| {
        let text = files.remove(file).map_or_else(|| fs::read_to_string(root.join(file)), Ok);
        text.map_err(|error| vec![format!("{file}: {error}")])
    };
    // Copies of bodies cause additional warnings, and a build of the source itself reports those of the source.
    let library = format!("#![allow(warnings)]\n{}\npub mod fault;\n", before("src/lib.rs")?);
    let manifest = manifest(&before("Cargo.toml")?).map_err(|error| vec![format!("Cargo.toml: {error}")])?;
    files.insert("src/lib.rs".to_owned(), library);
    files.insert("Cargo.toml".to_owned(), manifest);
    files.insert("src/fault.rs".to_owned(), switches(table));
    Ok(())
}

/// Returns the manifest with the campaigns as tests, and without the dependencies of other tests.
fn manifest(before: &str) -> Result<String, toml::de::Error> {
    let mut manifest: toml::Table = toml::from_str(before)?;
    keep_dependencies(&mut manifest);
    let targets = manifest.get_mut("target").and_then(Value::as_table_mut);
    targets
        .into_iter()
        .flat_map(|targets| targets.iter_mut())
        .filter_map(|(_, target)| target.as_table_mut())
        .for_each(keep_dependencies);
    Ok(format!("{manifest}{TESTS}"))
}

fn keep_dependencies(table: &mut toml::Table) {
    if let Some(Value::Table(dependencies)) = table.get_mut("dev-dependencies") {
        dependencies.retain(|name, _| DEPENDENCIES.contains(&name));
    }
}

/// Returns the module `fault`.
fn switches(table: &Table) -> String {
    let mut text = String::from("//! Faults that can be switched on, one at a time.\n\n");
    text.push_str("/// A mistake.\n#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]\npub enum Fault {\n");
    for fault in &table.faults {
        fault.what.lines().for_each(|line| writeln!(text, "    /// {line}").expect("strings can grow"));
        writeln!(text, "    {},", fault.name).expect("strings can grow");
    }
    text.push_str("}\n\nimpl Fault {\n    /// All of them.\n    pub const ALL: &'static [Fault] = &[\n");
    table.faults.iter().for_each(|fault| writeln!(text, "        Fault::{},", fault.name).expect("strings can grow"));
    text.push_str("    ];\n");
    let lists = [
        ("PROTOCOL", Campaign::Protocol, "Those of the protocol, which the simulator must find."),
        ("RECOVERY", Campaign::Recovery, "Those of recovery, which streams over lossy links must find."),
        ("CONGESTION", Campaign::Congestion, "Those of congestion control, which its cases must find."),
        ("CONNECTIONS", Campaign::Connections, "Those that the world of connection managers must find."),
        ("MESSAGES", Campaign::Messages, "Those that the connection manager's unit tests must find."),
        ("VERBS", Campaign::Verbs, "Those of the verbs, which the conformance suite must find."),
        ("LINKS", Campaign::Links, "Those of memory shared by processes, which its system tests must find."),
    ];
    for (list, campaign, what) in lists {
        writeln!(text, "    /// {what}\n    pub const {list}: &'static [Fault] = &[").expect("strings can grow");
        for fault in table.faults.iter().filter(|fault| fault.campaign == campaign) {
            writeln!(text, "        Fault::{},", fault.name).expect("strings can grow");
        }
        text.push_str("    ];\n");
    }
    text.push_str("}\n\n");
    text.push_str(SWITCHES);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::functions;

    #[test]
    fn the_manifest_keeps_the_dependencies_of_the_campaigns() {
        let before = "[package]\nname = \"a\"\n[dev-dependencies]\nlibtest-mimic = \"1\"\nrand = \"1\"\n\
                      [target.'cfg(unix)'.dev-dependencies]\nmio = \"1\"\n[[test]]\nname = \"other\"\n";
        let text = manifest(before).expect("TOML");
        let after: toml::Table = toml::from_str(&text).expect("TOML");
        assert_eq!(
            after["dev-dependencies"].as_table().expect("a table").keys().collect::<Vec<_>>(),
            ["libtest-mimic"]
        );
        assert_eq!(after["test"].as_array().map(Vec::len), Some(7), "{text}");
        assert!(!text.contains("mio =") && text.contains("name = \"a\""), "{text}");
    }

    #[test]
    fn the_switches_name_each_fault_in_its_campaign() {
        let mut table = Table::default();
        for (name, campaign) in [("First", "protocol"), ("Second", "verbs")] {
            let keys = "what = \"A\\nB.\"\nfile = \"a.rs\"\nfunction = \"f\"\ntext = \"a\"\nwith = \"b\"\n";
            table.add(&format!("[[fault]]\nname = \"{name}\"\ncampaign = \"{campaign}\"\n{keys}")).expect("an entry");
        }
        let text = switches(&table);
        assert_eq!(functions(&text).expect("Rust").len(), 2);
        assert!(text.contains("    /// A\n    /// B.\n    First,\n"), "{text}");
        assert!(text.contains("PROTOCOL: &'static [Fault] = &[\n        Fault::First,\n    ];"), "{text}");
        assert!(text.contains("VERBS: &'static [Fault] = &[\n        Fault::Second,\n    ];"), "{text}");
    }
}
