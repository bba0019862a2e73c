//! The configuration of a node: `messina.yaml` with scylla.yaml's key names, and the same keys as
//! command line options.
//!
//! [`keys`] is the table of all keys. It generates the fields, the defaults, the command line, and
//! `docs/configuration.md` ([`reference`]). [`setting`], [`encryption`], [`tls_options`],
//! [`internode`], [`guardrail`] and [`seeds`] parse values. [`file`] reads the file, and `nesting`
//! bounds the depth of its values. [`legacy`] lists keys of other products that are accepted and
//! have no effect. [`source`] records where a setting was set. [`live`] has the settings that can
//! be changed while the node runs. [`fixed`] has the settings that are only shown.
//!
//! A later source wins: default, file, command line. Invariant: a wrong value is an error that
//! names the key and the value; an unknown key is a warning. Exceptions are unknown keys that look
//! like one of the section Security, and unknown options in a map ([`map`]). These are errors,
//! because without them a node would be less safe than configured.

pub mod encryption;
pub mod file;
mod fixed;
pub mod guardrail;
pub mod handoff;
pub mod hosts;
pub mod internode;
pub mod keys;
pub mod legacy;
pub mod live;
pub(crate) mod map;
mod nesting;
pub mod reference;
pub mod seeds;
pub mod setting;
pub mod source;
pub mod tls_options;

pub use file::{Loaded, load, reload};
pub use keys::{Config, KEYS, Key};
pub use setting::{BadValue, CommitlogSync, CpuSet, LogFormat, Raw};
pub use source::Source;

use std::fmt;
use std::path::PathBuf;

/// Why a configuration cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// The file is not YAML with keys at the top level.
    NotYaml {
        /// The file.
        path: PathBuf,
        /// The error, with its position.
        why: String,
    },
    /// A value is invalid.
    Wrong {
        /// Where the value is: the file, or the command line.
        place: String,
        /// The key.
        key: String,
        /// Why it is invalid.
        why: BadValue,
    },
    /// Values contradict each other.
    Conflict(String),
}

/// The `place` of a value that was given on the command line.
const COMMAND_LINE: &str = "command line";

impl ConfigError {
    /// Whether a value on the command line is invalid.
    pub fn is_in_command_line(&self) -> bool {
        matches!(self, ConfigError::Wrong { place, .. } if place == COMMAND_LINE)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Unreadable { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            ConfigError::NotYaml { path, why } => write!(f, "{}: {why}", path.display()),
            ConfigError::Wrong { place, key, why } => write!(f, "{place}: {key}: {why}"),
            ConfigError::Conflict(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ConfigError {}
