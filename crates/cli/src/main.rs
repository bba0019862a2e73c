//! `messina`: the only binary. Commands parse their arguments and call the libraries.

#[macro_use]
mod output;

mod admin;
mod api;
mod cluster;
mod columns;
mod compactions;
mod failure;
mod hot;
mod inspect;
mod log_writer;
mod logging;
mod moves;
mod node_ops;
mod nodestatus;
mod resync;
mod serve;
mod streams;
mod tablestats;
mod tablets;
mod tasks;
mod unsupported;

use clap::Command;
use failure::Failure;
use std::process::ExitCode;

/// An allocator with a heap for each thread: shards never wait for each other when they allocate.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long the process keeps freed memory.
const KEEP_FREED_MEMORY: rt::time::Duration = rt::time::Duration::from_secs(1);
/// Freed objects larger than this are returned to the system at once. In bytes.
const LARGE_OBJECT: usize = 4 << 20;

fn command() -> Command {
    Command::new("messina")
        .about("A distributed CQL database: serve runs a node, admin administers a node, inspect shows sstables")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommand(admin::command())
        .subcommand(inspect::command())
        .subcommand(Command::new("version").about("Prints the version"))
}

fn main() -> ExitCode {
    rt::allocator::keep_freed_memory(KEEP_FREED_MEMORY);
    rt::allocator::return_objects_beyond(LARGE_OBJECT);
    let matches = command().get_matches();
    let outcome = match matches.subcommand() {
        Some(("serve", arguments)) => serve::run(arguments),
        Some(("admin", arguments)) => admin::run(arguments),
        Some(("inspect", arguments)) => inspect::run(arguments),
        _ => {
            say!("messina {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    };
    let status = match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { why, exit_status }) => {
            if !why.is_empty() {
                complain!("messina: {why}");
            }
            ExitCode::from(exit_status)
        }
    };
    logging::flush();
    status
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_commands_are_well_formed() {
        super::command().debug_assert();
    }
}
