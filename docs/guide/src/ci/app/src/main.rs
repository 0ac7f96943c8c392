//! `counter serve ADDRESS:PORT` and `counter add HOST:PORT AMOUNT`.

use std::process::ExitCode;

use counter::{Failure, add, serve_one};
use rdma_verbs::verbs::cm::Listener;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["serve", address] => serve(address),
        ["add", server, amount] => client(server, amount),
        _ => Err("usage: counter serve ADDRESS:PORT | counter add HOST:PORT AMOUNT".into()),
    };
    done.map_or_else(
        |error| {
            eprintln!("counter: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn serve(address: &str) -> Result<(), Failure> {
    let listener = Listener::bind(address)?;
    println!("listening on {}", listener.local_addr());
    loop {
        match serve_one(&listener) {
            Ok(value) => println!("a client left {value}"),
            Err(error) => eprintln!("a client failed: {error}"),
        }
    }
}

fn client(server: &str, amount: &str) -> Result<(), Failure> {
    let amount = amount.parse()?;
    let before = add(server, amount, 100)?;
    println!("100 times {amount}: the counter is {}", before + amount);
    Ok(())
}
