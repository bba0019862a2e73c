//! `messina inspect`: looks into sstables without a node.

use crate::Failure;
use clap::{Arg, ArgMatches, Command, value_parser};
use std::path::PathBuf;

/// The command.
pub fn command() -> Command {
    let file = || {
        Arg::new("file")
            .required(true)
            .value_name("FILE-Data.db")
            .value_parser(value_parser!(PathBuf))
            .help("The sstable")
    };
    Command::new("inspect")
        .about("Looks into sstables")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("dump").about("Prints an sstable as JSON").arg(file()))
        .subcommand(Command::new("verify").about("Checks every byte of an sstable").arg(file()))
}

/// Runs one of the commands.
pub fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let name = arguments.subcommand_name().unwrap_or_default();
    Err(Failure(format!("inspect {name} is not supported yet")))
}
