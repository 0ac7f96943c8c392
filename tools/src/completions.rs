//! Prints the completions of a shell, generated from the command line's definition.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::common::exit_code;

/// The command that has hidden ones.
const PERF: &str = "perf";

#[derive(Args)]
#[command(after_help = "Exit status: 0 if they are printed, 2 for wrong usage.\n\
                        Examples:\n  source <(rdma-verbs completions bash)     this bash only\n  \
                        rdma-verbs completions bash > ~/.local/share/bash-completion/completions/rdma-verbs\n  \
                        rdma-verbs completions zsh > ~/.zfunc/_rdma-verbs    with ~/.zfunc in fpath\n  \
                        rdma-verbs completions fish > ~/.config/fish/completions/rdma-verbs.fish")]
pub(crate) struct Options {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints them.
pub(crate) fn run(options: &Options, program: Command) -> ExitCode {
    let mut program = without_hidden(program);
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut program, &name, &mut script);
    if options.shell == Shell::Bash {
        script = with_one_spelling(&name, &script);
    }
    exit_code("completions", io::stdout().lock().write_all(&script).map(|()| ExitCode::SUCCESS))
}

/// Returns the definition without hidden commands: clap_complete 4.6 completes them in bash. Only `perf` has any.
fn without_hidden(program: Command) -> Command {
    program.mut_subcommand(PERF, |perf| {
        // A command cannot lose one. This copy has what completions need.
        let visible = perf.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
        Command::new(PERF)
            .about(perf.get_about().cloned().unwrap_or_default())
            .args(perf.get_arguments().cloned())
            .subcommands(visible)
    })
}

/// Spells a name with a hyphen the same everywhere. The script that clap_complete 4.6 generates for bash has two
/// spellings (<https://github.com/clap-rs/clap/issues/6421>), and so completes no flag of a command.
fn with_one_spelling(name: &str, script: &[u8]) -> Vec<u8> {
    let spelled = |hyphen: &str| name.replace('-', hyphen);
    String::from_utf8_lossy(script).replace(&spelled("__subcmd__"), &spelled("__")).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hidden_command_is_completed() {
        fn hidden(command: &Command) -> Vec<&str> {
            let below = command.get_subcommands();
            below.flat_map(|one| one.is_hide_set().then(|| one.get_name()).into_iter().chain(hidden(one))).collect()
        }
        assert_eq!(hidden(&crate::program()), ["partner", "near"]);
        let shown = without_hidden(crate::program());
        assert_eq!(hidden(&shown), [""; 0]);
        let perf = shown.find_subcommand(PERF).expect("it has the command");
        assert!(perf.get_about().is_some() && perf.find_subcommand("table").is_some());
    }
}
