//! The flags, which are those of rdma-core's program.

use std::ffi::OsString;

use clap::Parser;

/// Exit code for wrong arguments.
const WRONG: u8 = 2;
/// Smallest size: the longest beginning of a text, and a zero.
const SMALLEST: i64 = 23;
const LARGEST: i64 = (64 << 10) - 1;

/// Ping-pong over a connection by address and port: with -s the server, with -c the client.
#[derive(Parser)]
#[command(name = "rping", disable_version_flag = true, args_override_self = true)]
#[command(after_help = "RDMA_VERBS_CAPTURE=FOLDER captures all packets for Wireshark: see docs/capture.md.")]
struct Flags {
    /// Run the server.
    #[arg(short = 's', overrides_with = "is_client")]
    is_server: bool,
    /// Run the client.
    #[arg(short = 'c', overrides_with = "is_server")]
    is_client: bool,
    /// Server: the address to listen on, by default all IPv4 addresses; ::0 means all addresses. Client: the server.
    #[arg(short)]
    address: Option<String>,
    /// Port of the server.
    #[arg(short, default_value_t = 7174)]
    port: u16,
    /// Number of pings, 0 for no limit.
    #[arg(short = 'C', default_value_t = 0, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=i64::from(i32::MAX)))]
    count: u32,
    /// Size of a ping in bytes, 23 to 65535. The server's must not be smaller than the client's.
    #[arg(short = 'S', default_value_t = 64, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(SMALLEST..=LARGEST))]
    size: u32,
    /// Print the data of each ping.
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Client: compare the data that comes back.
    #[arg(short = 'V', action = clap::ArgAction::Count)]
    validates: u8,
    /// Print what the program does.
    #[arg(short, action = clap::ArgAction::Count)]
    debug: u8,
    /// Server: take any number of clients, several at once, until Ctrl-C.
    #[arg(short = 'P')]
    is_persistent: bool,
    /// Client: the local address.
    #[arg(short = 'I')]
    source: Option<String>,
    /// Accepted and ignored: this program always creates its queue pairs itself.
    #[arg(short = 'q')]
    creates_qp: bool,
}

/// The end that this program is.
pub(super) enum Role {
    Server { address: String },
    Client { server: String },
}

/// The valid flags.
pub(super) struct Arguments {
    pub(super) role: Role,
    pub(super) port: u16,
    /// Number of pings; 0 for no limit.
    pub(super) count: u32,
    /// Size of a ping in bytes.
    pub(super) size: usize,
    pub(super) is_verbose: bool,
    pub(super) validates: bool,
    pub(super) is_persistent: bool,
    /// The client's address.
    pub(super) source: Option<String>,
    is_debug: bool,
}

impl Arguments {
    /// Reads the flags. Otherwise prints the help or one line that says what is wrong, and returns the exit code.
    pub(super) fn parse(given: impl IntoIterator<Item = OsString>) -> Result<Self, u8> {
        let flags = Flags::try_parse_from(given).map_err(|error| match error.use_stderr() {
            true => {
                let text = error.to_string();
                refuse(text.lines().next().unwrap_or_default().trim_start_matches("error: "))
            }
            false => {
                print!("{error}");
                0
            }
        })?;
        let role = match (flags.is_server, flags.is_client, flags.address) {
            (true, _, address) => Role::Server { address: address.unwrap_or_else(|| "0.0.0.0".into()) },
            (_, true, Some(server)) => Role::Client { server },
            (_, true, None) => return Err(refuse("-c needs the server's address: -a ADDRESS")),
            _ => return Err(refuse("either -s, for the server, or -c, for the client, is needed; -h explains them")),
        };
        Ok(Self {
            role,
            port: flags.port,
            count: flags.count,
            size: flags.size as usize,
            is_verbose: flags.verbose > 0,
            validates: flags.validates > 0,
            is_persistent: flags.is_persistent,
            source: flags.source,
            is_debug: flags.debug > 0,
        })
    }

    /// Prints a line if the flag -d is set.
    pub(super) fn log(&self, line: std::fmt::Arguments<'_>) {
        if self.is_debug {
            println!("{line}");
        }
    }
}

fn refuse(reason: &str) -> u8 {
    eprintln!("rping: {reason}");
    WRONG
}
