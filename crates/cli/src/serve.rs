//! `messina serve`: loads the configuration from a file and options, then runs a node until a
//! signal.

use crate::log_writer::Stream;
use crate::{Failure, logging};
use clap::{Arg, ArgMatches, Command, value_parser};
use server::config::{self, KEYS, Key};
use std::path::PathBuf;

/// The command. Every configuration key is an option.
pub fn command() -> Command {
    let config = Arg::new("config")
        .long("config")
        .visible_alias("options-file")
        .value_name("FILE")
        .help("The configuration, with scylla.yaml's key names")
        .value_parser(value_parser!(PathBuf));
    Command::new("serve").about("Runs a node").arg(config).args(KEYS.iter().map(option))
}

fn dashed(name: &str) -> &'static str {
    // Leaked once per option and process.
    Box::leak(name.replace('_', "-").into_boxed_str())
}

fn option(key: &'static Key) -> Arg {
    let default = match (key.default)().as_str() {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let arg = Arg::new(key.name)
        .long(dashed(key.name))
        .visible_aliases(key.aliases.iter().map(|alias| dashed(alias)))
        .help(format!("{}{default}", key.help()))
        .help_heading(key.section)
        .value_name("VALUE");
    if key.is_switch() { arg.num_args(0..=1).default_missing_value("true").require_equals(true) } else { arg }
}

/// Runs the node.
pub fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let overrides: Vec<(String, String)> = KEYS
        .iter()
        .filter_map(|key| Some((key.name.to_owned(), arguments.get_one::<String>(key.name)?.clone())))
        .collect();
    let file = arguments.get_one::<PathBuf>("config");
    let loaded = config::load(file.map(PathBuf::as_path), &overrides).map_err(|error| Failure {
        exit_status: if error.is_in_command_line() { 2 } else { 1 },
        why: error.to_string(),
    })?;
    let log = logging::start(&loaded.config.log_level, loaded.config.log_format)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Err(error) = rt::host::raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit of open files to its hard limit: the node may run out of descriptors; raise the limit (ulimit -n, LimitNOFILE)");
    }
    let file = file.cloned();
    let reload = move || {
        let loaded = config::reload(file.as_deref(), &overrides).map_err(|error| error.to_string())?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        Ok(loaded.config)
    };
    server::node::run(&loaded.config, log, reload, |lines| {
        for line in lines {
            logging::print(Stream::Out, format_args!("{line}\n"));
        }
    })
    .map_err(|error| Failure { why: error.why, exit_status: error.exit_status })
}
