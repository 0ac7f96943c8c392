//! Faults by their names, as the environment gives them.

use rdma_verbs::fault::Fault;

/// The fault of this name.
///
/// # Panics
/// If it is none of these; says which there are.
pub(crate) fn named(variable: &str, name: &str, all: &[Fault]) -> Fault {
    let found = all.iter().find(|fault| format!("{fault:?}") == name);
    *found.unwrap_or_else(|| panic!("{variable} is {name:?}, which is none of these faults: {all:?}"))
}

/// The fault that `FAULT` names, or all.
pub(crate) fn chosen(all: &[Fault]) -> Vec<Fault> {
    match std::env::var("FAULT") {
        Ok(name) => vec![named("FAULT", &name, all)],
        Err(_) => all.to_vec(),
    }
}
